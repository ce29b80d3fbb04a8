"""s3:// against moto's server on loopback."""

import numpy as np
import pytest
from safetensors.numpy import save

from assets import checkpoint_cases
from pretrace.checkpoint import open_state, read_all, survey
from pretrace.checkpoint.bucket_folder import BucketFolder
from pretrace.errors import PretraceError

pytestmark = pytest.mark.interop

DATA = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)


@pytest.fixture
def bucket(s3_server, tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRACE_CACHE", str(tmp_path / "cache"))
    s3_server.makedirs("models", exist_ok=True)
    return s3_server


def test_a_folder_of_objects_is_a_checkpoint(bucket):
    bucket.pipe_file("models/run/step10/model.safetensors", save({"a": DATA}))
    bucket.pipe_file("models/run/step10/config.json", b'{"model_type": "llama"}')
    with open_state("s3://models/run/step10") as view:
        assert view.metadata()["config"] == {"model_type": "llama"}
        assert view.files() == ("s3://models/run/step10/model.safetensors",)
        assert (view.read("a", 5, 50) == DATA[5:50]).all()
        assert (read_all(view, "a") == DATA).all()


def test_one_object_is_a_checkpoint_too_and_a_changed_one_is_read_anew(bucket):
    bucket.pipe_file("models/one.safetensors", save({"a": DATA}))
    with open_state("s3://models/one.safetensors") as view:
        assert (read_all(view, "a") == DATA).all()
    bucket.pipe_file("models/one.safetensors", save({"a": DATA + 1}))
    with open_state("s3://models/one.safetensors") as view:
        assert (read_all(view, "a") == DATA + 1).all()


def test_a_cut_object_is_found_from_its_header(bucket):
    bucket.pipe_file("models/cut/model.safetensors", save({"a": DATA})[:-100])
    assert [f.code for f in survey("s3://models/cut").findings] == ["header-out-of-file"]


def test_what_is_not_there_is_said(bucket, tmp_path):
    with pytest.raises(PretraceError, match=r"nothing is there|cannot be read"):
        BucketFolder("s3://models/nowhere", tmp_path)


def test_an_ocdbt_database_in_a_bucket_is_read_through_tensorstore(bucket):
    folder = checkpoint_cases() / "good_orbax"
    bucket.put(f"{folder}/", "models/orbax/", recursive=True)
    with open_state("s3://models/orbax") as view, open_state(folder) as here:
        assert view.names() == here.names()
        for name in here.names():
            assert (read_all(view, name) == read_all(here, name)).all()
