"""GPT-NeoX's folder: `latest`, `global_step<N>/` with a file for every layer and tensor-parallel rank, and its settings.

`layer_<LL>-model_<TT>-model_states.pt` are flat dicts: 00 the embedding, i + 2 block i, L + 3 the final norm, L + 4 the head
(none if it is tied). `mp_rank_<TT>_model_states.pt` holds step, settings and, without pipeline, the weights under `module` as
`sequential.<LL>.<name>`. Over ranks, tensors are cut as `tensor_parallel` says; the biases of row-parallel linears are addends if
the residual is parallel (`gpt_j_residual`), else replicas. Adam's state goes into ZeRO-1 files, see `layout_zero`.
Read from gpt-neox ea7aefd8 and DeepSpeed 0.19 (runtime/engine.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.layout import RESAVE, Layout, PlannedFile, known_file, refuse
from pretrace.checkpoint.layout_hf import without_state_and_tied_head
from pretrace.checkpoint.layout_zero import DS_VERSION, part_name, rank_name, zero_files, zero_shapes
from pretrace.checkpoint.names import module_order, relabel
from pretrace.checkpoint.neox_settings import PRECISIONS, neox_settings
from pretrace.checkpoint.optimizer_names import KINDS, PREFIX, state_names, state_of
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.table import Table
from pretrace.checkpoint.tables_neox import NEOX
from pretrace.checkpoint.tensor_parallel import Rule, rule_of, split
from pretrace.checkpoint.torch_zip import Storages, torch_file
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.widened import Share, Shares, Widened
from pretrace.checkpoint.write_options import WriteOptions, adam_of

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_NAME = re.compile(r"sequential\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Ranks:
    """How whole tensors become those of ranks."""

    n: int
    sums: bool  # row-parallel biases are addends
    table: Table
    parts: dict[str, tuple[int, ...]]  # tensors that hold several pieces one after the other

    def rule(self, name: str) -> tuple[Rule, tuple[int, ...]]:
        """What ranks do with the tensor `name`."""
        return ("parts", self.parts[name]) if name in self.parts else (rule_of(name), ())


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The folder that GPT-NeoX loads with `load`, for the declared number of tensor-parallel ranks."""
    weights, dropped = without_state_and_tied_head(view, spec)
    table = _table(format, weights, spec, options)
    theirs = relabel(weights, table, spec)
    ranks = _ranks(format, theirs, spec, options, table)
    kept = bool(state_names(view)) and options.optimizer
    views = _parts(theirs, ranks, biases_sum=ranks.sums, prefix="")
    sources = United(views | (_state_parts(view, weights, spec, ranks) if kept else {}))
    names, seen = module_order(theirs.names(), table), _steps(view, options)
    kind = theirs.info(names[0]).dtype
    settings = neox_settings(
        spec, kind, tensor_parallel=ranks.n, pipeline=options.pipeline, linear1="linear1" in table.name
    )
    shapes = zero_shapes(names, sources, options.pipeline) if kept else None
    files = list(_weight_files(names, sources, ranks, options))
    files += _rank_files(names, sources, ranks, options, _common(options, settings, shapes, seen))
    if kept:
        files += zero_files(names, sources, kind, ranks.n, options, seen, adam_of(view, options, format))
    step = f"global_step{options.step}"
    about = (json.dumps(settings, indent=2) + "\n").encode()
    files += [known_file(f"{step}/configs/pretrace.yml", about), known_file("latest", step.encode())]
    left = tuple(name for name in dropped if not (kept and name.startswith(PREFIX)))
    notes = ("loss scale and lr schedule start from NeoX's own settings, at this iteration",) if kept else ()
    return Layout(format, tuple(files), sources, left, notes)


def _state_parts(view: StateView, weights: StateView, spec: ModelSpec, ranks: Ranks) -> dict[str, StateView]:
    """All ranks' parts of masters and moments. Without masters the weights are taken for them."""
    made: dict[str, StateView] = {}
    for kind in KINDS:
        state = state_of(view, kind) if kind != "fp32" or state_of(view, kind).names() else weights
        whole = Widened(relabel(state, ranks.table, spec))
        # A rank's own bias has the gradient of the sum, so its moments are those of the sum, and only masters are shared.
        made |= _parts(whole, ranks, biases_sum=ranks.sums and kind == "fp32", prefix=f"{kind}.")
    return made


def _table(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Table:
    if spec.family not in ("gpt2", "gpt_neox", "llama"):
        raise refuse(format, f"a {spec.family} model", "choose hf or dcp")
    linear1 = ", linear1" if options.neox_linear1 or spec.gated else ""
    grouped = ", grouped" if spec.n_kv_heads != spec.n_heads else ""
    if other := {view.info(name).dtype for name in view.names()} - set(PRECISIONS):
        mend = "declare one of its own: --dtype float32, bfloat16, float16" if other == {"float64"} else RESAVE
        raise refuse(
            format,
            f"weights of {', '.join(sorted(other))}",
            mend,
        )
    return next(t for t in NEOX if t.name == f"gpt-neox{linear1}{', gated' * spec.gated}{grouped}")


def _ranks(format: str, theirs: StateView, spec: ModelSpec, options: WriteOptions, table: Table) -> Ranks:
    n = options.tensor_parallel
    if spec.n_heads % n or spec.n_kv_heads % n:
        raise refuse(
            format, f"{spec.n_heads} heads ({spec.n_kv_heads} of keys) over {n} ranks", "choose another number of ranks"
        )
    parts: dict[str, tuple[int, ...]] = {
        name: (1, 1) for name in theirs.names() if spec.gated and name.endswith("linear1.weight")
    }
    if spec.n_kv_heads != spec.n_heads:
        heads = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
        parts |= {name: heads for name in theirs.names() if "query_key_value" in name}
    return Ranks(n, spec.residual == "parallel", table, parts)


def _parts(theirs: StateView, ranks: Ranks, *, biases_sum: bool, prefix: str) -> dict[str, StateView]:
    """All ranks' parts of a view: those that are cut or copied, and the addends."""
    cut: dict[str, Wired] = {}
    shares: dict[str, Share] = {}
    for name in theirs.names():
        rule, pieces = ranks.rule(name)
        named = [rank_name(rank, name) for rank in range(ranks.n)]
        if rule == "row_bias" and biases_sum and ranks.n > 1:
            shares |= {part: Share(name, rank, ranks.n) for rank, part in enumerate(named)}
        else:
            wired = split(theirs.info(name), rule, ranks.n, named, pieces)
            cut |= dict(zip(named, wired))
    made: dict[str, StateView] = {prefix: RewiredView(theirs, cut)}
    return made | ({f"addend.{prefix}": Shares(theirs, shares)} if shares else {})


def _weight_files(
    names: tuple[str, ...], sources: United, ranks: Ranks, options: WriteOptions
) -> Iterator[PlannedFile]:
    layers: dict[int, list[tuple[str, str]]] = {}
    for name in names if options.pipeline else ():
        match = _NAME.fullmatch(name)
        assert match is not None, name
        layers.setdefault(int(match[1]), []).append((match[2], name))
    for layer, members in sorted(layers.items()):
        for rank in range(ranks.n):
            storages = Storages.none(sources)
            value = {key: storages.tensor(part_name(sources, rank, name)) for key, name in members}
            path = f"global_step{options.step}/layer_{layer:02d}-model_{rank:02d}-model_states.pt"
            yield torch_file(path, value, storages)


def _rank_files(
    names: tuple[str, ...], sources: United, ranks: Ranks, options: WriteOptions, common: dict[str, Any]
) -> Iterator[PlannedFile]:
    for rank in range(ranks.n):
        storages = Storages.none(sources)
        module = None if options.pipeline else {n: storages.tensor(part_name(sources, rank, n)) for n in names}
        path = f"global_step{options.step}/mp_rank_{rank:02d}_model_states.pt"
        yield torch_file(path, {"module": module, **common}, storages)


def _common(options: WriteOptions, settings: dict[str, Any], shapes: Any, seen: int) -> dict[str, Any]:
    """What every rank's file says beside its weights; `seen`: updates that the optimizer has made."""
    return {
        "buffer_names": [], "optimizer": None, "param_shapes": shapes, "frozen_param_shapes": None,
        "frozen_param_fragments": None, "shared_params": {}, "lr_scheduler": None, "data_sampler": None, "random_ltd": None,
        "sparse_tensor_module_names": [], "skipped_steps": max(0, options.step - seen), "global_steps": options.step,
        "global_samples": 0, "dp_world_size": options.data_parallel, "mp_world_size": options.tensor_parallel, "ds_config": {},
        "ds_version": DS_VERSION, "iteration": options.step, "args": settings,
    }  # fmt: skip


def _steps(view: StateView, options: WriteOptions) -> int:
    seen = view.metadata().get("optimizer_step")
    return seen if type(seen) is int else options.step
