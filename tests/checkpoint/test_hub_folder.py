"""hf:// against a small hub on loopback: headers first, pinned, resumed, and with errors that say what to do."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from fake_hub import REPO, FakeHub, commit_of
from pretrace.checkpoint import open_state, read_all, series_of, survey
from pretrace.checkpoint.block_cache import BLOCK
from pretrace.checkpoint.http_client import Http
from pretrace.checkpoint.hub_folder import Hub, HubFolder, parse_hub
from pretrace.errors import PretraceError

N = 300_000  # float32: 1.2 MB, five blocks of the cache


def weights(seed):
    data = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
    return {"model.safetensors": save({"a": data, "b": data[:10]}), "config.json": b'{"model_type": "llama"}'}, data


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = FakeHub({"step1": weights(1)[0], "step2": weights(2)[0]})
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("PRETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.close()


def test_headers_come_first_and_nothing_large_is_fetched(hub):
    seen = survey(f"hf://{REPO}@step1")
    assert [seen.view.info(n).shape for n in ("a", "b")] == [(N,), (10,)]
    assert seen.config == {"model_type": "llama"}
    assert hub.served <= BLOCK + 100
    assert seen.size_present > 1_200_000


def test_blocks_equal_the_file_and_are_fetched_once(hub):
    with open_state(f"hf://{REPO}@step1") as view:
        data = weights(1)[1]
        assert (view.read("a", 1000, 2000) == data[1000:2000]).all()
        assert (read_all(view, "a") == data).all()
        served = hub.served
        assert served <= N * 4 + 10_000
        assert (read_all(view, "a") == data).all()
    with open_state(f"hf://{REPO}@step1") as view:
        assert (read_all(view, "a") == data).all()
    assert hub.served <= served


def test_a_revision_is_pinned_to_the_commit_it_had(hub):
    with open_state(f"hf://{REPO}@step1") as view:
        hub.branches["step1"] = commit_of("step2")
        assert (read_all(view, "a") == weights(1)[1]).all()
        assert commit_of("step1") in view.info("a").where
    with open_state(f"hf://{REPO}@step1") as view:
        assert (read_all(view, "a") == weights(2)[1]).all()


def test_digests_of_a_series_are_known_before_anything_is_read(hub):
    series = series_of(f"hf://{REPO}")
    assert series == {name: f"hf://{REPO}@{commit_of(name)}" for name in ("step1", "step2")}
    hub.branches |= {commit: commit for commit in hub.commits}
    digests = [next(iter(survey(address).sha256.values())) for address in series.values()]
    assert len(set(digests)) == 2
    assert len(digests[0]) == 64


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub, monkeypatch):
    monkeypatch.setattr("pretrace.checkpoint.block_cache.MAX_REQUEST", BLOCK)
    monkeypatch.setattr("pretrace.checkpoint.http_client._TRIES", 1)
    hub.die_after = 3 * BLOCK
    with open_state(f"hf://{REPO}@step1") as view, pytest.raises(PretraceError, match="no answer after"):
        read_all(view, "a")
    before = hub.served
    assert before >= 2 * BLOCK
    hub.die_after = None
    with open_state(f"hf://{REPO}@step1") as view:
        assert (read_all(view, "a") == weights(1)[1]).all()
    whole = len(weights(1)[0]["model.safetensors"]) + len(weights(1)[0]["config.json"])
    assert hub.served == whole


def test_a_busy_server_is_asked_again(hub):
    hub.fail_next = 2
    client = Http(wait_s=0.001)
    folder = HubFolder(Hub(hub.endpoint, http=client), REPO, "step1", Path("unused"))
    assert set(folder.sizes()) == {"model.safetensors", "config.json"}


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-for-the-hub")
    open_state(f"hf://{REPO}@step1").close()
    told = {path.split("/")[1]: auth for path, auth, _ in hub.requests}
    assert told["api"] == told["org"] == "Bearer secret-for-the-hub"
    assert told["cdn"] is None


def test_an_unknown_revision_and_offline_say_what_to_do(hub, monkeypatch):
    with pytest.raises(PretraceError, match="no such repository, revision or file"):
        open_state(f"hf://{REPO}@step3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PretraceError, match="HF_HUB_OFFLINE is set"):
        open_state(f"hf://{REPO}@step1")


def test_a_server_that_ignores_ranges_or_sends_too_little_is_refused(hub):
    hub.ranges = False
    with pytest.raises(PretraceError, match="ignores ranges"):
        open_state(f"hf://{REPO}@step1")
    hub.ranges, hub.lie = True, True
    with pytest.raises(PretraceError, match="the server sent"):
        open_state(f"hf://{REPO}@step2")


def test_names_that_leave_the_repository_are_refused(hub):
    hub.commits[commit_of("step1")] = {"../../x.safetensors": b"x" * 20}
    with pytest.raises(PretraceError, match="leaves its folder"):
        open_state(f"hf://{REPO}@step1")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("hf://a/b", ("a/b", "main", "")),
        ("hf://a/b@v1.0", ("a/b", "v1.0", "")),
        ("hf://a/b@refs%2Fpr%2F1/sub/folder", ("a/b", "refs/pr/1", "sub/folder")),
        ("hf://a/b/sub", ("a/b", "main", "sub")),
    ],
)
def test_addresses(address, parts):
    assert parse_hub(address) == parts


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(PretraceError, match="ftp://"):
        open_state("ftp://x/y")


def test_a_store_whose_library_is_missing_says_what_to_install(monkeypatch, tmp_path):
    def missing(*_, **__):
        raise ImportError("no gcsfs")

    monkeypatch.setattr("fsspec.filesystem", missing)
    with pytest.raises(PretraceError, match="gs:// needs gcsfs") as caught:
        open_state("gs://bucket/run")
    assert caught.value.mend == "pip install gcsfs"
