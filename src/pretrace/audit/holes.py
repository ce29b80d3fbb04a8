"""Findings on zero regions: where the holes are, how they lie against equal parts, and what usually leaves such holes."""

from __future__ import annotations

from pretrace.audit.subject import VOCABULARY, Subject, layers_shown
from pretrace.audit.zeros import Region, on_pages, regions
from pretrace.compare.statistics import TensorStatistics
from pretrace.findings import Finding, Severity

Found = list[tuple[TensorStatistics, Region]]
SMALL_SHARE = 1 / 64  # below, a hole in one tensor only is a warning
LARGE_VECTOR = 65_536  # elements; shorter vectors (biases) may hold zeros for good reasons


def zero_regions(subject: Subject) -> tuple[list[Finding], dict[str, list[Region]]]:
    """Findings on all zero regions, and the regions by tensor (for the picture of the holes)."""
    every: Found = []
    for tensor in subject.floats:
        if len(tensor.shape) >= 2 or tensor.numel >= LARGE_VECTOR:
            info = subject.view.info(tensor.name)
            every.extend((tensor, region) for region in regions(subject.view, info, tensor.zeros_by_block))
    whole = [(t, r) for t, r in every if r.share == 1]
    parts = [(t, r) for t, r in every if r.share < 1]
    padding = [(t, r) for t, r in parts if _is_padding(t, r, parts)]
    rest = [item for item in parts if item not in padding]
    findings = [*_all_zero(subject, whole), *_padded(padding)]
    candidates = sum(len(t.shape) >= 2 for t in subject.floats)
    findings += [_hole(subject, group, candidates) for group in _alike(rest)]
    by_name: dict[str, list[Region]] = {}
    for tensor, region in every:
        by_name.setdefault(tensor.name, []).append(region)
    return findings, by_name


def _alike(found: Found) -> list[Found]:
    groups: dict[tuple[object, ...], Found] = {}
    for tensor, region in found:
        groups.setdefault(region.geometry, []).append((tensor, region))
    return sorted(groups.values(), key=len, reverse=True)


def _is_padding(tensor: TensorStatistics, region: Region, parts: Found) -> bool:
    """Trailing rows of the vocabulary, fewer than half, that no other tensor has empty in the same way."""
    if tensor.canonical not in VOCABULARY or region.axis != 0 or region.stop != region.size or region.share >= 0.5:
        return False
    return not any(r.geometry == region.geometry for t, r in parts if t.canonical not in VOCABULARY)


def _padded(found: Found) -> list[Finding]:
    if not found:
        return []
    region = found[0][1]
    names = ", ".join(t.name for t, _ in found)
    return [
        Finding(
            "zero-region-padding",
            "info",
            f"rows {region.start} to {region.stop - 1} of {names} are zero: vocabulary padding",
            names,
            {"rows": [region.start, region.stop], "tensors": len(found)},
            "nothing, if the tokenizer has no ids there",
        )
    ]


def _all_zero(subject: Subject, found: Found) -> list[Finding]:
    if not found:
        return []
    fresh = all(t.low == t.high == 1.0 for t in subject.floats if "norm" in t.canonical and t.name.endswith("weight"))
    projections = all(t.kind.startswith(("attn.out", "mlp.down")) for t, _ in found)
    names = [t.name for t, _ in found]
    if fresh and projections:
        return [
            Finding(
                "zero-region-init",
                "info",
                f"{len(found)} projections into the residual stream are zero, as some initialisations leave them",
                layers_shown(names),
                {"tensors": names},
                "nothing, if this is step 0",
            )
        ]
    return [
        Finding(
            "zero-region-all",
            "error",
            f"{len(found)} weight matrices hold nothing but zeros",
            layers_shown(names),
            {"tensors": names},
            "they were never written: restore the checkpoint, or write it again from the training state",
        )
    ]


def _hole(subject: Subject, group: Found, candidates: int) -> Finding:
    tensor, region = group[0]
    names = [t.name for t, _ in group]
    lost = sum(r.share * t.numel for t, r in group) / max(1, sum(t.numel for t in subject.floats))
    severity: Severity = "error" if len(group) > 2 or region.share >= SMALL_SHARE or region.axis == -1 else "warning"
    pages = on_pages(subject.view, region, subject.view.info(tensor.name))
    evidence = {
        "axis": region.axis,
        "start": region.start,
        "stop": region.stop,
        "size": region.size,
        "percent": [100 * region.start / region.size, 100 * region.stop / region.size],
        "parts": region.parts and list(region.parts),
        "tensors": names,
        "of_tensors": candidates,
        "share_of_parameters": lost,
        "page_bytes": pages,
    }
    what = f"{_place(group, pages)} {'are' if len(group) > 1 or region.axis >= 0 else 'is'} zero{_cause(region, pages)}"
    return Finding("zero-region", severity, what, layers_shown(names), evidence, _mend(region, pages))


def _place(group: Found, pages: int) -> str:
    tensor, region = group[0]
    of = f"of {len(group)} tensors" if len(group) > 1 else f"of {tensor.name}"
    if region.axis == -1:
        aligned = f", aligned to pages of {pages} bytes," if pages else ""
        return f"elements {region.start} to {region.stop - 1} {of}{aligned}"
    axis = {0: "rows", 1: "columns"}.get(region.axis, f"indices of axis {region.axis}")
    percent = f"{100 * region.start / region.size:.4g}% to {100 * region.stop / region.size:.4g}%"
    if region.parts is None:
        return f"{axis} {region.start} to {region.stop - 1} ({percent}) {of}"
    first, last, count = region.parts
    return f"{axis} {percent} (slices {first} to {last} of {count} equal ones) {of}"


def _cause(region: Region, pages: int) -> str:
    if region.axis == -1:
        return ": pages that never reached the disk" if pages else ""
    if region.parts is not None:
        first, last, count = region.parts
        if first > 0 and last == count - 1:
            return f", as when {first} of {count} hosts wrote"
        if first == 0:
            return f", as when the first {last + 1} of {count} parts never arrived"
    return ""


def _mend(region: Region, pages: int) -> str:
    if region.axis == -1:
        return "copy the file again from its source; compare its checksum"
    if region.parts is not None and region.parts[0] > 0 and region.parts[1] == region.parts[2] - 1:
        return "check that all hosts saw one file system; merge what each host wrote, or write the checkpoint again"
    return "restore the checkpoint, or write it again from the training state"
