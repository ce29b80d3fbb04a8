"""Findings against a reference: a checkpoint that should hold the same tensors, or the fingerprint of one."""

from __future__ import annotations

from collections.abc import Iterator

from pretrace.audit.subject import Said, Subject, layers_shown
from pretrace.checkpoint.view import StateView
from pretrace.compare.checkpoints import tensors
from pretrace.compare.fingerprint import Fingerprint
from pretrace.compare.naming import exchanged
from pretrace.compare.result import Comparison, TensorDifference
from pretrace.errors import PretraceError
from pretrace.findings import Finding

CHECK = "layouts against a reference"
FEW = 1e-4  # share of a tensor's elements that damage changes; training changes nearly all


def against(subject: Subject, reference: StateView | Fingerprint, said: Said) -> None:
    """Adds what the reference shows: named moves, exchanged layers, single unequal elements, other content."""
    if isinstance(reference, Fingerprint):
        said.add(_by_fingerprint(subject, reference))
        said.skip(CHECK, "a fingerprint tells equal from unequal, not which move lies between")
        return
    try:
        found = tensors(reference, subject.view, labels=("reference", subject.path, ""))
    except PretraceError as error:
        said.skip(CHECK, error.what)
        return
    for check in (_moves, _names, _few, _rest, _alone):
        said.add(check(found))


def _moves(found: Comparison) -> Iterator[Finding]:
    """Tensors that equal the reference after a known move, those of one move together."""
    groups: dict[str, list[TensorDifference]] = {}
    for tensor in found.different:
        if tensor.move and not tensor.move.startswith("equals "):
            groups.setdefault(tensor.move.split(" (")[0], []).append(tensor)
    for move, group in groups.items():
        names = [t.name for t in group]
        what = f"{len(names)} tensors equal the reference after {move}"
        mend = f"likely: {group[0].tool}; convert again"
        yield Finding("layout-move", "error", what, layers_shown(names), {"move": move, "tensors": names}, mend)


def _names(found: Comparison) -> Iterator[Finding]:
    """Layers, or else single tensors, that stand under another one's name."""
    whole = exchanged(found.different)
    for note in whole:
        mend = "likely: layers written under another one's number; write them again"
        yield Finding("layout-layers", "error", note, note.split(",")[0], {}, mend)
    if whole:
        return
    for tensor in found.different:
        if tensor.move.startswith("equals "):
            what = f"{tensor.name} {tensor.move.replace(' of A', ' of the reference')}"
            yield Finding("layout-name", "error", what, tensor.name, {}, f"likely: {tensor.tool}")


def _few(found: Comparison) -> Iterator[Finding]:
    """Tensors of which a few elements differ."""
    for tensor in found.different:
        if not tensor.move and 0 < _unequal(tensor) <= _few_of(tensor):
            evidence = {"unequal": _unequal(tensor)}
            mend = "damage, not training: copy the file again"
            yield Finding("reference-bits", "error", f"{tensor.name}: {tensor.note}", tensor.name, evidence, mend)


def _rest(found: Comparison) -> Iterator[Finding]:
    """Tensors that hold other values altogether."""
    others = [t.name for t in found.different if not t.move and _unequal(t) > _few_of(t)]
    if others:
        apart = found.total.one_minus_p_cos
        what = (
            f"{len(others)} of {len(found.tensors)} tensors hold other values than the reference "
            f"(P.Cos 1-x = {apart:.2g}), by no known move"
        )
        evidence = {"one_minus_p_cos": apart, "rel_l2": found.total.rel_l2}
        yield Finding("reference-differs", "info", what, layers_shown(others), evidence)


def _alone(found: Comparison) -> Iterator[Finding]:
    if found.only_in_a or found.only_in_b:
        yield _unpaired("the reference", found.only_in_a, found.only_in_b)


def _unpaired(of: str, missing: tuple[str, ...], extra: tuple[str, ...]) -> Finding:
    what = f"{len(missing)} tensors of {of} are missing, {len(extra)} are extra"
    evidence = {"missing": missing, "extra": extra}
    mend = "check that both are of one model"
    return Finding("reference-keys", "warning", what, layers_shown([*missing, *extra]), evidence, mend)


def _unequal(tensor: TensorDifference) -> int:
    return tensor.difference.unequal if tensor.difference is not None else 0


def _few_of(tensor: TensorDifference) -> float:
    return max(1.0, FEW * tensor.difference.numel) if tensor.difference is not None else 0.0


def _by_fingerprint(subject: Subject, reference: Fingerprint) -> Iterator[Finding]:
    theirs = {t.name: (t.hash, t.dtype, t.shape) for t in reference.tensors}
    ours = {t.name: (t.hash, t.dtype, t.shape) for t in subject.table.tensors}
    other = [name for name, content in ours.items() if name in theirs and theirs[name] != content]
    if other:
        what = f"{len(other)} of {len(ours)} tensors are not those of the fingerprint"
        mend = "compare the two files, or fetch the checkpoint again"
        evidence = {"tensors": other, "made_from": reference.path}
        yield Finding("reference-differs", "error", what, layers_shown(other), evidence, mend)
    missing, extra = tuple(theirs.keys() - ours.keys()), tuple(ours.keys() - theirs.keys())
    if missing or extra:
        yield _unpaired("the fingerprint", tuple(sorted(missing)), tuple(sorted(extra)))
