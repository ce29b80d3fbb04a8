"""A series of branches on a hub: copies are found from published digests and headers, before anything large is fetched."""

import numpy as np
import pytest
from safetensors.numpy import save

from fake_hub import REPO, FakeHub
from pretrace.audit import series
from pretrace.compare.steps import steps_in

N = 300_000  # float32: 1.2 MB a branch


@pytest.fixture
def hub(tmp_path, monkeypatch):
    def files(seed):
        data = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
        return {"model.safetensors": save({"w": data})}

    last = files(9)
    server = FakeHub(
        {"main": last, "step0": files(0), "step1000": last, "step2000": files(2), "step3000": last, "step4000": last}
    )
    server.branches |= {commit: commit for commit in server.commits}
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("PRETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.close()


def test_branches_that_serve_the_last_step_are_found_from_digests(hub):
    steps = steps_in(f"hf://{REPO}")
    assert list(steps) == [0, 1000, 2000, 3000, 4000]
    found = series(steps, f"hf://{REPO}", read=False)
    (finding,) = [f for f in found.findings if f.severity == "error"]
    assert finding.code == "trajectory-same"
    assert finding.evidence == {"steps": [1000, 3000], "same_as": 4000}
    assert finding.where == "step1000, step3000"
    assert hub.served < 5 * 4 * N / 2  # headers of five branches, not their 6 MB
