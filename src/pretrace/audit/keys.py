"""Findings from names: tensors that are missing, extra or unknown, tied embeddings, the step in the folder's name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from pretrace.audit.subject import Said, Subject, layers_shown, shown
from pretrace.compare.names import kind_of, layer_of
from pretrace.compare.plain import BLOCK
from pretrace.compare.steps import step_of
from pretrace.findings import Finding
from pretrace.model.spec import tensor_shapes


def keys(subject: Subject, said: Said) -> None:
    """Missing, extra and unknown tensors."""
    if not subject.table_name:
        said.skip("keys", "no name table knows these tensors")
        return
    if subject.damaged:
        said.skip("keys: completeness", "a file could not be read; what it holds is missing for that reason")
        return
    said.add(_missing_in_layer(subject))
    if subject.spec is None or subject.canonical is None:
        said.skip("keys: completeness", subject.spec_fault if subject.spec is None else subject.layout_fault)
    else:
        said.add(_missing(subject))
    if subject.unmatched and subject.foreign:
        said.skip(
            f"keys: {len(subject.unmatched)} tensors", f"{subject.table_name} does not know them; {subject.spec_fault}"
        )
    elif subject.unmatched:
        names = list(subject.unmatched)
        said.add(
            [
                Finding(
                    "keys-unknown",
                    "warning",
                    f"{_count(names)} not part of {subject.table_name}: {shown(names)}",
                    layers_shown(names),
                    {"names": names},
                    "check which program wrote them; readers ignore or refuse them",
                )
            ]
        )


def _count(names: list[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _missing_in_layer(subject: Subject) -> Iterator[Finding]:
    """A kind of tensor that other layers have and this one has not."""
    known = {name: of for name, of in subject.table.names.of.items() if layer_of(of)}
    layers = sorted({int(layer_of(of)) for of in known.values()})
    if len(layers) < 2:
        return
    have: dict[str, set[int]] = {}
    for of in known.values():
        have.setdefault(kind_of(of), set()).add(int(layer_of(of)))
    stored = {kind_of(of): name for name, of in known.items()}
    absent = []
    for kind, present in have.items():
        if len(present) >= 2 or len(layers) == 2:
            absent += [_renumber(stored[kind], layer) for layer in layers if layer not in present]
    if absent:
        yield Finding(
            "keys-missing",
            "error",
            f"{_count(absent)} missing that other layers have: {shown(absent)}",
            layers_shown(absent),
            {"names": absent},
            "restore the checkpoint: a loader would leave these at random values",
        )


def _renumber(name: str, layer: int) -> str:
    old = layer_of(name)
    return re.sub(rf"(^|\.){old}(\.|$)", rf"\g<1>{layer}\g<2>", name, count=1)


def _missing(subject: Subject) -> Iterator[Finding]:
    """Against the shapes that the configuration implies."""
    assert subject.spec is not None
    assert subject.canonical is not None
    expected = tensor_shapes(subject.spec)
    absent = [name for name in expected if name not in subject.canonical]
    layers = {layer_of(name) for name in subject.canonical} - {""}
    outside = [name for name in absent if not layer_of(name) or layer_of(name) not in layers]
    lost_layers = sorted({int(layer_of(name)) for name in outside if layer_of(name)})
    if lost_layers:
        yield Finding(
            "keys-missing-layers",
            "error",
            f"layers {shown(map(str, lost_layers), 8)} of {subject.spec.n_layers} are missing altogether",
            f"layers {shown(map(str, lost_layers), 8)}",
            {"layers": lost_layers},
            "restore the missing shard",
        )
    rest = [name for name in outside if not layer_of(name)]
    if rest:
        yield Finding(
            "keys-missing",
            "error",
            f"{shown(rest)} {'is' if len(rest) == 1 else 'are'} missing; the configuration asks for "
            f"{'it' if len(rest) == 1 else 'them'}" + (" (the head is not tied)" if "head.weight" in rest else ""),
            shown(rest),
            {"names": rest},
            "restore the checkpoint, or correct tie_word_embeddings in the configuration",
        )
    surplus = sorted({int(n) for n in layers if int(n) >= subject.spec.n_layers})
    if surplus:
        yield Finding(
            "keys-extra-layers",
            "error",
            f"layers {shown(map(str, surplus), 8)} are stored, the configuration has {subject.spec.n_layers}",
            f"layers {shown(map(str, surplus), 8)}",
            {"layers": surplus},
            "correct the number of layers in the configuration",
        )


def tied(subject: Subject) -> Iterator[Finding]:
    """Whether head and embedding are one where the configuration ties them, and two where it does not."""
    names = subject.table.names
    head, embed = names.find("head.weight"), names.find("embed.weight")
    if not head or not embed or subject.config is None:
        return
    told = (
        subject.spec.tied_head if subject.spec is not None else bool(subject.config.get("tie_word_embeddings", False))
    )
    a, b = subject.table.of("head.weight"), subject.table.of("embed.weight")
    if a is None or b is None:
        return
    if told and a.hash != b.hash:
        unequal = _unequal(subject, head, embed)
        yield Finding(
            "tied-differ",
            "error",
            f"the configuration ties the embeddings, but {head} and {embed} hold other values ({unequal})",
            f"{head} vs {embed}",
            {"unequal": unequal},
            "find out which one was trained; loaders differ in which they keep",
        )
    elif not told and a.hash == b.hash and not a.constant:
        yield Finding(
            "tied-equal",
            "warning",
            f"{head} equals {embed} bit for bit, though the configuration does not tie them",
            f"{head} vs {embed}",
            {},
            "set tie_word_embeddings, or restore the head",
        )


def _unequal(subject: Subject, a: str, b: str) -> str:
    left, right = subject.view.info(a), subject.view.info(b)
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"shapes {list(left.shape)} and {list(right.shape)}"
    count = 0
    for i in range(0, left.numel, BLOCK):
        stop = min(i + BLOCK, left.numel)
        x, y = subject.view.read(a, i, stop), subject.view.read(b, i, stop)
        word = f"<u{x.dtype.itemsize}"
        count += int(np.count_nonzero(x.view(word) != y.view(word)))
    return f"{count:,} of {left.numel:,} elements"


def step(subject: Subject) -> Iterator[Finding]:
    """The step in the files against the step in the folder's name."""
    inside = subject.survey.step
    named = step_of(subject.path)
    if inside is not None and named is not None and inside != named:
        yield Finding(
            "step-name",
            "error",
            f"the folder's name says step {named}, the files say {inside}",
            subject.path,
            {"named": named, "inside": inside},
            "find out which one is right: resuming would repeat or skip data",
        )
