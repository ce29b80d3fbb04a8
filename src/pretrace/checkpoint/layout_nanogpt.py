"""nanoGPT's ckpt.pt: a file of torch.save with `model`, `model_args`, `iter_num`, `best_val_loss`, `config`, `optimizer`.

`model` is a flat state dict with GPT-2's names and weights [out, in]; embedding and head are one storage under two names. The
optimizer is the state dict of torch's AdamW with two groups: parameters of two or more axes, which decay, and the others,
numbered through in this order. (nanoGPT 3adf61e, train.py and model.py.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.layout import Layout, refuse
from pretrace.checkpoint.layout_hf import without_state_and_tied_head
from pretrace.checkpoint.names import module_order, relabel
from pretrace.checkpoint.optimizer_names import state_names, state_of
from pretrace.checkpoint.tables_small import NANOGPT
from pretrace.checkpoint.torch_zip import Storages, torch_file
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import Adam, WriteOptions, adam_of

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"
MOMENTS = ("exp_avg", "exp_avg_sq")


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The one file that nanoGPT's `init_from='resume'` reads."""
    refuse_other_gpt2(format, spec)
    weights, dropped = without_state_and_tied_head(view, spec)
    theirs = relabel(weights, NANOGPT, spec)
    kept = bool(state_names(view)) and options.optimizer
    moments = {kind: relabel(state_of(view, kind), NANOGPT, spec) for kind in MOMENTS if kept}
    sources = United({"": theirs} | {f"optimizer.{kind}.": state for kind, state in moments.items()})
    storages = Storages.none(sources)
    model = {name: storages.tensor(name) for name in module_order(theirs.names(), NANOGPT)}
    names = tuple(model)
    model[HEAD] = model[EMBEDDING]
    value = {
        "model": model,
        "model_args": _arguments(spec),
        "iter_num": options.step,
        "best_val_loss": 1e9,
        "config": {},
    }
    if kept:
        value["optimizer"] = _optimizer(names, storages, _steps(view, options), adam_of(view, options, format))
    notes = _notes(spec) + (
        () if kept else ("no optimizer state: sample.py reads the file, train.py cannot resume it",)
    )
    return Layout(
        format, (torch_file("ckpt.pt", value, storages, top="ckpt"),), sources, _dropped(view, dropped, kept), notes
    )


def refuse_other_gpt2(format: str, spec: ModelSpec) -> None:
    """Refuses what the one model of nanoGPT and llm.c is not: GPT-2 with a feed-forward of 4 x its width, eps 1e-5, GELU.

    Raises
    ------
    PretraceError
        That names what differs.
    """
    if spec.family != "gpt2":
        raise refuse(format, f"a {spec.family} model, it knows GPT-2 only", "choose hf, dcp or maxtext")
    if spec.d_ff != 4 * spec.d_model or spec.norm_eps != 1e-5 or not spec.activation.startswith("gelu"):
        told = f"d_ff {spec.d_ff}, norm_eps {spec.norm_eps}, {spec.activation}"
        raise refuse(format, f"{told}; it has 4 x {spec.d_model}, 1e-5 and a GELU", "choose hf")


def _notes(spec: ModelSpec) -> tuple[str, ...]:
    # model.py: nn.GELU(), whatever the model was trained with.
    if spec.activation != "gelu":
        return (f"nanoGPT computes the exact GELU, the model has {spec.activation}: logits differ a little",)
    return ()


def _arguments(spec: ModelSpec) -> dict[str, Any]:
    return {"n_layer": spec.n_layers, "n_head": spec.n_heads, "n_embd": spec.d_model, "block_size": spec.max_seq_len,
            "bias": spec.bias, "vocab_size": spec.vocab_size, "dropout": spec.dropout.residual}  # fmt: skip


def _optimizer(names: tuple[str, ...], storages: Storages, step: int, adam: Adam) -> dict[str, Any]:
    axes = {name: len(storages.sources.info(name).shape) for name in names}
    tall = [name for name in names if axes[name] >= 2]
    flat = [name for name in names if axes[name] < 2]
    state = {}
    for index, name in enumerate(tall + flat):
        made = {kind: storages.tensor(f"optimizer.{kind}.{name}") for kind in MOMENTS}
        state[index] = {"step": storages.scalar(step), **made}
    first, second = list(range(len(tall))), list(range(len(tall), len(tall) + len(flat)))
    return {"state": state, "param_groups": [_group(first, adam, adam.weight_decay), _group(second, adam, 0.0)]}


def _group(params: list[int], adam: Adam, weight_decay: float) -> dict[str, Any]:
    return {
        "weight_decay": weight_decay, "lr": adam.lr, "betas": adam.betas, "eps": adam.eps, "amsgrad": False, "foreach": None,
        "maximize": False, "capturable": False, "differentiable": False, "fused": None, "decoupled_weight_decay": True,
        "params": params,
    }  # fmt: skip


def _steps(view: StateView, options: WriteOptions) -> int:
    seen = view.metadata().get("optimizer_step")
    return seen if type(seen) is int else options.step


def _dropped(view: StateView, dropped: tuple[str, ...], kept: bool) -> tuple[str, ...]:
    placed = {name for name in state_names(view) if name.split(".")[1] in MOMENTS} if kept else set()
    return tuple(name for name in dropped if name not in placed)
