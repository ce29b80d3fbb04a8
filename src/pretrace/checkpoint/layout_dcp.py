"""torch's distributed checkpoint: `__<k>_0.distcp` with a small torch zip for every tensor, and `.metadata` last.

`.metadata` is the pickle of torch's `Metadata` record: for every key its dtype, size and chunks, and for every chunk file,
first byte and length. Weights stand under `model.` and transformers' names (a native model: ours), moments under
`optimizer.state.<name>.{exp_avg,exp_avg_sq,master,step}`, the step as an object. A tied head is a second key for the span of
the embedding. (torch 2.13, torch/distributed/checkpoint/metadata.py, filesystem.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.layout import Draft, Layout, groups_of, known_file
from pretrace.checkpoint.layout_hf import CONFIG, json_bytes, their_config, to_hf, without_state_and_tied_head
from pretrace.checkpoint.optimizer_names import KINDS, state_names, state_of
from pretrace.checkpoint.pickle_writer import Call, Named, Pairs, Record, pickled, size
from pretrace.checkpoint.torch_zip import ALIGNMENT, Storages, add_zip
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.checkpoint.write_options import WriteOptions

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_META, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_SLOTS = {"fp32": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
_HEADS = {"gpt2": "lm_head.weight", "gpt_neox": "embed_out.weight", "llama": "lm_head.weight", "native": "head.weight"}
Path = tuple[str, ...]  # the keys of the nested state dict that lead to a tensor


@dataclass(frozen=True, slots=True)
class _Span:
    file: str
    offset: int
    length: int


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The folder that torch.distributed.checkpoint loads, without a process group too."""
    weights, dropped = without_state_and_tied_head(view, spec)
    theirs = to_hf(weights, spec)
    kept = bool(state_names(view)) and options.optimizer
    states = {kind: to_hf(s, spec) for kind in KINDS if kept and (s := state_of(view, kind)).names()}
    paths: dict[Path, tuple[str, str]] = {("model", name): ("", name) for name in theirs.names()}
    paths |= {("optimizer", "state", n, _SLOTS[k]): (f"{k}:", n) for k, state in states.items() for n in state.names()}
    sources = United({"": theirs} | {f"{kind}:": state for kind, state in states.items()})
    tensors = {path: prefix + name for path, (prefix, name) in paths.items()}
    objects: dict[Path, Any] = {("step",): options.step}
    seen = view.metadata().get("optimizer_step", options.step)
    objects |= {("optimizer", "state", n, "step"): seen for n in theirs.names() if states}
    alias: dict[Path, Path] = {("model", _HEADS[spec.family]): ("model", theirs.names()[0])} if spec.tied_head else {}
    config = known_file(CONFIG, json_bytes(their_config(spec, theirs.info(theirs.names()[0]).dtype)))
    files = (*_files(sources, tensors, objects, alias, options.shard_bytes), config)
    placed = set(state_names(view)) if kept else set()
    return Layout(format, files, sources, tuple(name for name in dropped if name not in placed))


def _files(
    sources: StateView, tensors: dict[Path, str], objects: dict[Path, Any], alias: dict[Path, Path], most: int | None
) -> Iterator[Any]:
    by_name = {name: path for path, name in tensors.items()}
    spans: dict[Path, _Span] = {}
    groups = tuple(groups_of(((name, sources.info(name).size_bytes) for name in by_name), most))
    for k, names in enumerate(groups):
        draft = Draft(f"__{k}_0.distcp", sources)
        for path, value in objects.items() if k == 0 else ():
            spans[path] = _span(draft, f"__{k}_0.distcp", value, Storages.none(sources))
        for name in names:
            storages = Storages.none(sources)
            spans[by_name[name]] = _span(draft, f"__{k}_0.distcp", storages.tensor(name), storages)
        yield draft.done()
    for path, other in alias.items():
        spans[path] = spans[other]
    infos = {path: sources.info(name) for path, name in tensors.items()}
    infos |= {path: infos[other] for path, other in alias.items()}
    yield known_file(".metadata", pickled(_metadata(infos, tuple(objects), spans)))


def _span(draft: Draft, file: str, value: Any, storages: Storages) -> _Span:
    draft.align(ALIGNMENT)
    start = draft.at
    add_zip(draft, value, storages.listed)
    return _Span(file, start, draft.at - start)


def _metadata(infos: dict[Path, TensorInfo], objects: tuple[Path, ...], spans: dict[Path, _Span]) -> Record:
    described = {_key(path): _tensor(info) for path, info in infos.items()}
    described |= {_key(path): Record(_META, "BytesStorageMetadata") for path in objects}
    return Record(_META, "Metadata", {
        "state_dict_metadata": described,
        "planner_data": {_key(path): path for path in (*infos, *objects)},
        "storage_data": Pairs(tuple((_index(path, infos.get(path)), _stored(span)) for path, span in spans.items())),
        "storage_meta": Record(_META, "StorageMeta", {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []}),
        "version": "1.0.0",
    })  # fmt: skip


def _key(path: Path) -> str:
    return ".".join(path)


def _tensor(info: TensorInfo) -> Record:
    layout = Call("torch.serialization", "_get_layout", ("torch.strided",))
    memory = Call(_META, "_MEM_FORMAT_ENCODING", (0,))
    properties = Record(_META, "TensorProperties", (Named("torch", info.dtype), layout, False, memory, False))
    chunk = {"offsets": size((0,) * len(info.shape)), "sizes": size(info.shape)}
    chunks = [Record(_META, "ChunkStorageMetadata", chunk)]
    return Record(
        _META, "TensorStorageMetadata", {"properties": properties, "size": size(info.shape), "chunks": chunks}
    )


def _index(path: Path, info: TensorInfo | None) -> Record:
    if info is None:
        return Record(_META, "MetadataIndex", {"fqn": _key(path), "index": None})
    return Record(_META, "MetadataIndex", {"fqn": _key(path), "index": 0, "offset": size((0,) * len(info.shape))})


def _stored(span: _Span) -> Record:
    return Record(_FILES, "_StorageInfo", {"relative_path": span.file, "offset": span.offset, "length": span.length})
