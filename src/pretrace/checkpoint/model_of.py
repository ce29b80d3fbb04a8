"""Which model a checkpoint holds: a complete `ModelSpec`, with the source of every value.

transformers' config.json says everything. Other formats say the sizes by their shapes and the rest in settings of their own,
or nowhere: then a value is what the framework's code does without a setting, and counts as `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrace.checkpoint.config import Dims, spec_of
from pretrace.checkpoint.framework_settings import Values, check_settings, said_by
from pretrace.checkpoint.names import best_table, canonical, is_state
from pretrace.checkpoint.optimizer_names import chosen, parsed
from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec, tensor_shapes
from pretrace.spec import build

_NO_DROPOUT = {"embed": 0.0, "attention": 0.0, "residual": 0.0}
_BLOCK = 1 << 20  # elements
_FAMILIES = ("gpt2", "gpt_neox", "llama")


@dataclass(frozen=True, slots=True)
class Model:
    """A specification, and where its values come from: key -> `read ...` or `assumed ...`."""

    spec: ModelSpec
    sources: Mapping[str, str]

    @property
    def assumed(self) -> tuple[str, ...]:
        """The values that no file says, as `key = value (why)`."""
        data = self.spec.model_dump()
        return tuple(
            f"{key} = {data[key]} ({why.removeprefix('assumed: ')})"
            for key, why in self.sources.items()
            if why.startswith("assumed")
        )


def model_of(view: StateView, given: Path | None = None) -> Model:
    """The model of a checkpoint, from `given` (a config.json, or a ModelSpec as YAML) or from what came with the tensors.

    Raises
    ------
    PretraceError
        If it is of a family that pretrace does not convert, or the head count is said nowhere.
    """
    if given is not None:
        return _given(given)
    config = view.metadata().get("config")
    config = config if isinstance(config, Mapping) else {}
    if config.get("model_type") == "pretrace" and isinstance(config.get("spec"), Mapping):
        spec = build(ModelSpec, dict(config["spec"]), where="config.json: spec")
        return Model(spec, dict.fromkeys(spec.model_dump(), "read config.json"))
    if config.get("model_type") in _FAMILIES:
        spec = spec_of(_without_dropout(config))
        said = "read header" if view.format in ("llm.c", "llama2.c") else "read config.json"
        return Model(spec, dict.fromkeys(spec.model_dump(), said))
    if "model_type" in config:
        raise PretraceError(
            f"model_type {config['model_type']!r} is not one that pretrace converts", "config.json",
            f"known are {', '.join(_FAMILIES)}; --model FILE names another configuration",
        )  # fmt: skip
    return _from_settings(view, config)


def whole_model(view: StateView, found: Model, where: str) -> StateView:
    """A canonical view of exactly the model's tensors (and the optimizer's state): a stored copy of a tied head is left out.

    Raises
    ------
    PretraceError
        If tensors are missing or left over, a shape is another, or a tied head is not the embedding.
    """
    view = _without_tied_head(view, found)
    _complete(view, found, where)
    return view


def _without_tied_head(view: StateView, found: Model) -> StateView:
    """Leaves out a stored head that the configuration ties to the embedding, once it is seen to be the same."""
    if not found.spec.tied_head or "head.weight" not in view.names():
        return view
    head, embed = view.info("head.weight"), view.info("embed.weight")
    same = head.shape == embed.shape and head.dtype == embed.dtype
    for start in range(0, head.numel if same else 0, _BLOCK):
        stop = min(start + _BLOCK, head.numel)
        if view.read("head.weight", start, stop).tobytes() != view.read("embed.weight", start, stop).tobytes():
            same = False
            break
    if not same:
        raise PretraceError(
            "the configuration ties the head to the embedding, and the checkpoint holds another head", "head.weight",
            "say which one counts: --model FILE with tie_word_embeddings false keeps both",
        )  # fmt: skip
    return chosen(view, (n for n in view.names() if not n.endswith("head.weight")))


def _complete(view: StateView, found: Model, where: str) -> None:
    shapes = tensor_shapes(found.spec)
    have = {n: view.info(n).shape for n in view.names() if not is_state(n)}
    for name, shape in shapes.items():
        if name not in have:
            there = sum(n not in have for n in shapes)
            raise PretraceError(
                f"{there} tensors of the model are missing ({name})", where, "convert a whole checkpoint"
            )
        if tuple(have[name]) != tuple(shape):
            raise PretraceError(
                f"{name} has shape {tuple(have[name])}, its configuration asks for {tuple(shape)}", where,
                "restore the configuration, or name the right one with --model FILE",
            )  # fmt: skip
    for name in view.names():
        state = parsed(name)
        if state is not None and state[1] in have and view.info(name).shape != have[state[1]]:
            raise PretraceError(
                f"{name} has shape {tuple(view.info(name).shape)}, its parameter has {tuple(have[state[1]])}", where,
                "the optimizer's state is of another save; leave it out (--state drop) or restore it",
            )  # fmt: skip
    if extra := sorted(have.keys() - shapes.keys()):
        raise PretraceError(
            f"{len(extra)} tensors have no place in this model ({', '.join(extra[:3])})", where,
            "restore the configuration, or name the right one with --model FILE",
        )  # fmt: skip


def _given(path: Path) -> Model:
    from pretrace.files import parse_yaml, read_text

    data = parse_yaml(read_text(path), path.name, str(path))
    if not isinstance(data, Mapping):
        raise PretraceError("the model file holds no settings", str(path), "name a config.json or a ModelSpec")
    if "model_type" in data and data["model_type"] != "pretrace":
        spec = spec_of(_without_dropout(data), str(path))
    else:
        spec = build(ModelSpec, dict(data.get("spec", data)), where=str(path))
    return Model(spec, dict.fromkeys(spec.model_dump(), f"read {path.name}"))


def _without_dropout(config: Mapping[str, Any]) -> dict[str, Any]:
    """Some families' dropout is more than the decoder has (attention dropout without eager); it moves no logit."""
    off = ("attention_dropout", "hidden_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop")
    return {**config, **dict.fromkeys(off, 0.0)}


def _from_settings(view: StateView, config: Mapping[str, Any]) -> Model:
    table = best_table(view)
    if table is None:
        shown = ", ".join(view.names()[:3])
        raise PretraceError(
            f"no table knows these names ({shown} ...)", view.format, "convert checkpoints of gpt2, gpt_neox or llama"
        )
    said = said_by(table.name, config)
    heads = said.get("n_heads", (_heads_in_shapes(view), "read shapes"))[0]
    if not heads:
        raise PretraceError(
            "nothing says how many heads the model has", view.format,
            "put a config.json beside the checkpoint, or name one with --model FILE",
        )  # fmt: skip
    kv_heads = said.get("n_kv_heads", (_heads_in_shapes(view, "key") or heads, "read shapes"))
    shapes = _shapes(view, Dims(0, int(heads), int(kv_heads[0] or heads), 0, 0), table)
    values = {**_by_shape(shapes), "n_heads": (heads, "read shapes"), "n_kv_heads": kv_heads, **said}
    values |= {"dropout": (_NO_DROPOUT, "assumed: moves no logit"), "init": _INIT, "norm_place": ("pre", "read table")}
    found = {key: value for key, (value, _) in values.items()}
    check_settings(table.name, config, found | {"head_dim": found["d_model"] // int(heads)})
    values["family"] = (_family(values), "read shapes")
    if values["family"][0] == "gpt2":
        values |= {"rotary_pct": (0.0, "read shapes"), "rotary_base": (0.0, "read shapes")}
    known = set(ModelSpec.model_fields)
    spec = build(ModelSpec, {key: value for key, (value, _) in values.items() if key in known}, where=view.format)
    free = ("dropout", "init")  # no converted number depends on them
    return Model(spec, {key: why for key, (_, why) in values.items() if key in known and key not in free})


_INIT = ({"kind": "normal", "std": 0.02}, "assumed: moves no logit")


def _shapes(view: StateView, dims: Dims, table: Any) -> dict[str, tuple[int, ...]]:
    ours = canonical(view, dims, table=table)
    return {name: ours.info(name).shape for name in ours.names()}


def _by_shape(shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """What the canonical tensors' shapes say."""
    if "embed.weight" not in shapes or "blocks.0.mlp.up.weight" not in shapes:
        raise PretraceError(
            "the embedding or the first layer is not there", "embed.weight", "convert a whole checkpoint"
        )
    made: dict[str, Any] = {
        "vocab_size": shapes["embed.weight"][0], "d_model": shapes["embed.weight"][1],
        "d_ff": shapes["blocks.0.mlp.up.weight"][0],
        "n_layers": 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("blocks.")),
        "position": "learned" if "pos_embed.weight" in shapes else "rotary",
        "norm": "layernorm" if "blocks.0.norm1.bias" in shapes else "rmsnorm",
        "gated": "blocks.0.mlp.gate.weight" in shapes, "bias": "blocks.0.attn.out.bias" in shapes,
        "tied_head": "head.weight" not in shapes,
    }  # fmt: skip
    if "pos_embed.weight" in shapes:
        made["max_seq_len"] = shapes["pos_embed.weight"][0]
    return {key: (value, "read shapes") for key, value in made.items()}


def _family(values: Values) -> str:
    if values["position"][0] == "learned":
        return "gpt2" if values["tied_head"][0] else "native"
    return "gpt_neox" if values["norm"][0] == "layernorm" else "llama"


def _heads_in_shapes(view: StateView, which: str = "query") -> int:
    """MaxText and Paxml keep heads as an axis: [.., H, d] ends the query (key) kernel or the fused one."""
    ends = (f"self_attention.{which}.kernel", "self_attention.qkv_proj.kernel", "self_attention.combined_qkv.w")
    found = next((view.info(name) for name in view.names() if name.endswith(ends) and "opt_state" not in name), None)
    return found.shape[-2] if found is not None else 0
