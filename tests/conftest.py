"""Settings of every test: no hub is asked, one thread a process, property tests without a clock of their own."""

import os
from urllib.request import Request, urlopen

import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

from hypothesis import HealthCheck, settings

import live

# Two shared cores: a deadline would measure the neighbours. Derandomised: a red test is red for everyone.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _folder_of_all_workers(tmp_path_factory):
    live.shared_folder = tmp_path_factory.getbasetemp().parent


@pytest.fixture
def s3_server(monkeypatch):
    """An empty S3 server on loopback; the environment points every client of this test and its processes to it."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://{host}:{port}", "NO_PROXY": "*"}  # fmt: skip
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    # Servers of one process share their buckets, and fsspec its instances: those of an earlier test ask a server that is gone.
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3fs.S3FileSystem()
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()
