"""What convert wrote, loaded by the libraries of its formats: transformers, torch, torch DCP, Orbax, and back."""

import json

import numpy as np
import pytest
import torch

from assets import checkpoint_cases, unpacked
from convert_lab import request, settings
from pretrace.checkpoint import open_state, read_all
from pretrace.convert.run import convert

CASES = checkpoint_cases()
STORIES = unpacked("models") / "models" / "stories260k-hf"


def go(source, target, to, **changes):
    convert(str(source), target, request(to, **changes), settings(logits=False))
    return target


def test_torch_loads_nanogpts_file_and_a_plain_gpt_gives_the_logits(tmp_path):
    saved = torch.load(go(CASES / "good_gpt2_tied", tmp_path / "out", "nanogpt") / "ckpt.pt", weights_only=True)
    assert set(saved) >= {"model", "model_args", "iter_num", "config"}
    assert saved["model"]["lm_head.weight"].data_ptr() == saved["model"]["transformer.wte.weight"].data_ptr()
    with open_state(CASES / "good_gpt2_tied") as view:
        stored = read_all(view, "transformer.h.1.attn.c_proj.weight")
    theirs = saved["model"]["transformer.h.1.attn.c_proj.weight"]
    assert (theirs.view(torch.int16).numpy().view(np.uint16) == stored.T).all()


def test_torch_loads_every_file_of_a_neox_folder(tmp_path):
    folder = go(CASES / "good_neox", tmp_path / "out", "neox", tensor_parallel=2)
    files = sorted(folder.rglob("layer_*"))
    assert len(files) == 12  # embedding, three blocks, norm, head, on two ranks
    parts = [torch.load(file, weights_only=True) for file in files]
    assert sum(t.numel() for part in parts for n, t in part.items() if t.ndim == 2) == 188_416 - 0


@pytest.mark.interop
def test_dcp_loads_without_a_process_group(tmp_path):
    import torch.distributed.checkpoint as dcp

    folder = go(STORIES, tmp_path / "out", "dcp", shard_bytes=300_000)
    with open_state(STORIES) as view:
        wanted = {name: torch.from_numpy(read_all(view, name)) for name in view.names()}
    state = {"model": {name: torch.zeros_like(t) for name, t in wanted.items()}}
    dcp.load(state, checkpoint_id=str(folder))
    assert all(torch.equal(state["model"][name], t) for name, t in wanted.items())


@pytest.mark.interop
@pytest.mark.parametrize("ocdbt", [True, False])
def test_orbax_restores_what_was_written(ocdbt, tmp_path):
    import orbax.checkpoint as ocp

    folder = go(STORIES, tmp_path / "out", "orbax", ocdbt=ocdbt)
    tree = ocp.PyTreeCheckpointer().restore(folder.absolute())
    with open_state(STORIES) as view:
        assert (np.asarray(tree["embed"]["weight"]) == read_all(view, "model.embed_tokens.weight")).all()


@pytest.mark.interop
def test_maxtexts_items_restore_as_its_tree(tmp_path):
    import orbax.checkpoint as ocp

    folder = go(CASES / "good_llama", tmp_path / "out", "maxtext")
    tree = ocp.PyTreeCheckpointer().restore((folder / "0" / "items").absolute())
    layers = tree["params"]["params"]["decoder"]["layers"]
    with open_state(CASES / "good_llama") as view:
        up = read_all(view, "model.layers.1.mlp.up_proj.weight")
    theirs = np.asarray(layers["mlp"]["wi_1"]["kernel"])[:, 1]  # [D, L, F]
    assert (theirs.view(np.uint16) == up.T).all()


@pytest.mark.interop
def test_transformers_generates_the_published_words(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    go(unpacked("models") / "models" / "stories260k" / "stories260K.bin", tmp_path / "out", "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    theirs = AutoModelForCausalLM.from_pretrained(STORIES)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, theirs(ids).logits)
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["source"]["format"] == "llama2.c"
