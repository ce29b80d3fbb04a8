"""Findings against a reference: a checkpoint that should hold the same tensors, or the fingerprint of one."""

from __future__ import annotations

from pretrace.audit.subject import Said, Subject, layers_shown
from pretrace.checkpoint.view import StateView
from pretrace.compare.checkpoints import tensors
from pretrace.compare.fingerprint import Fingerprint
from pretrace.compare.naming import exchanged
from pretrace.compare.result import Comparison, TensorDifference
from pretrace.errors import PretraceError
from pretrace.findings import Finding

FEW = 1e-4  # share of a tensor's elements that damage changes; training changes nearly all


def against(subject: Subject, reference: StateView | Fingerprint, said: Said) -> None:
    """Adds what the reference shows: named moves, exchanged layers, single unequal elements, other content."""
    if isinstance(reference, Fingerprint):
        said.add(_by_fingerprint(subject, reference))
        said.skip("layouts against a reference", "a fingerprint tells equal from unequal, not which move lies between")
        return
    try:
        found = tensors(reference, subject.view, labels=("reference", subject.path, ""))
    except PretraceError as error:
        said.skip("layouts against a reference", error.what)
        return
    said.add(_moves(found))
    said.add(_few(found))
    said.add(_rest(found))


def _moves(found: Comparison) -> list[Finding]:
    groups: dict[str, list[TensorDifference]] = {}
    for tensor in found.different:
        if tensor.move and not tensor.move.startswith("equals "):
            groups.setdefault(tensor.move.split(" (")[0], []).append(tensor)
    findings = [
        Finding(
            "layout-move",
            "error",
            f"{len(group)} tensors equal the reference after {move}",
            layers_shown(t.name for t in group),
            {"move": move, "tensors": [t.name for t in group]},
            f"likely: {group[0].tool}; convert again",
        )
        for move, group in groups.items()
    ]
    whole = exchanged(found.different)
    findings += [
        Finding(
            "layout-layers",
            "error",
            note,
            note.split(",")[0],
            {},
            "likely: layers written under another one's number; write them again",
        )
        for note in whole
    ]
    if not whole:
        strays = [t for t in found.different if t.move.startswith("equals ")]
        findings += [
            Finding(
                "layout-name",
                "error",
                f"{t.name} {t.move.replace(' of A', ' of the reference')}",
                t.name,
                {},
                f"likely: {t.tool}",
            )
            for t in strays
        ]
    return findings


def _few(found: Comparison) -> list[Finding]:
    findings = []
    for tensor in found.different:
        d = tensor.difference
        if d is not None and not tensor.move and 0 < d.unequal <= max(1, FEW * d.numel):
            findings.append(
                Finding(
                    "reference-bits",
                    "error",
                    f"{tensor.name}: {tensor.note}",
                    tensor.name,
                    {"unequal": d.unequal},
                    "damage, not training: copy the file again",
                )
            )
    return findings


def _rest(found: Comparison) -> list[Finding]:
    findings = []
    others = [
        t
        for t in found.different
        if not t.move and t.difference is not None and t.difference.unequal > max(1, FEW * t.difference.numel)
    ]
    if others:
        findings.append(
            Finding(
                "reference-differs",
                "info",
                f"{len(others)} of {len(found.tensors)} tensors hold other values than the reference "
                f"(P.Cos 1-x = {found.total.one_minus_p_cos:.2g}), by no known move",
                layers_shown(t.name for t in others),
                {"one_minus_p_cos": found.total.one_minus_p_cos, "rel_l2": found.total.rel_l2},
                "expected, if it is another step or run",
            )
        )
    alone = [*found.only_in_a, *found.only_in_b]
    if alone:
        findings.append(
            Finding(
                "reference-keys",
                "warning",
                f"{len(found.only_in_a)} tensors of the reference are missing, {len(found.only_in_b)} are extra",
                layers_shown(alone),
                {"missing": found.only_in_a, "extra": found.only_in_b},
                "check that both are of one model",
            )
        )
    return findings


def _by_fingerprint(subject: Subject, reference: Fingerprint) -> list[Finding]:
    known = {t.name: t for t in reference.tensors}
    other, alone = [], []
    for tensor in subject.table.tensors:
        twin = known.pop(tensor.name, None)
        if twin is None:
            alone.append(tensor.name)
        elif (twin.hash, twin.dtype, twin.shape) != (tensor.hash, tensor.dtype, tensor.shape):
            other.append(tensor.name)
    findings = []
    if other:
        findings.append(
            Finding(
                "reference-differs",
                "error",
                f"{len(other)} of {len(subject.table.tensors)} tensors are not those of the fingerprint",
                layers_shown(other),
                {"tensors": other, "made_from": reference.path},
                "compare the two files, or fetch the checkpoint again",
            )
        )
    if alone or known:
        findings.append(
            Finding(
                "reference-keys",
                "warning",
                f"{len(known)} tensors of the fingerprint are missing, {len(alone)} are extra",
                layers_shown([*known, *alone]),
                {"missing": list(known), "extra": alone},
                "check that both are of one model",
            )
        )
    return findings
