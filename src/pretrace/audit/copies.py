"""Content that stands under several steps: whole checkpoints, single files, single tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pretrace.audit.files import Shard
from pretrace.audit.steps import Step, called, listed
from pretrace.compare.fingerprint import Fingerprint
from pretrace.findings import Finding

EARLY = 4  # steps up to which equal checkpoints are explained by a first learning rate of zero


def same_files(steps: Sequence[Step]) -> list[Finding]:
    """Equal files under several steps: whole checkpoints, or single shards of them."""
    owners: dict[tuple[str, int], list[tuple[Step, Shard]]] = {}
    for step in steps:
        for shard in step.shards:
            owners.setdefault((shard.digest, shard.size), []).append((step, shard))
    shared = [group for group in owners.values() if len({s.step for s, _ in group}) > 1]
    whole = _whole(steps, shared)
    findings = [_same(group, steps) for group in whole]
    covered = {frozenset(s.step for s in group) for group in whole}
    for group in shared:
        members = frozenset(s.step for s, _ in group)
        if len(members) == len(steps):
            if members not in covered:
                findings.append(
                    Finding(
                        "trajectory-frozen",
                        "info",
                        f"{group[0][1].name} is the same file in all {len(steps)} steps",
                        group[0][1].name,
                        {"steps": sorted(members)},
                        "nothing, if these tensors are not trained",
                    )
                )
        elif not any(members <= of for of in covered):
            findings.append(_shard(group, steps))
    return findings


def _whole(steps: Sequence[Step], shared: list[list[tuple[Step, Shard]]]) -> list[list[Step]]:
    """Groups of steps whose files are all equal."""
    by_content: dict[tuple[tuple[str, int], ...], list[Step]] = {}
    for step in steps:
        if step.shards:
            by_content.setdefault(tuple(sorted((s.digest, s.size) for s in step.shards)), []).append(step)
    return [group for group in by_content.values() if len(group) > 1]


def _same(group: list[Step], steps: Sequence[Step]) -> Finding:
    numbers = [s.step for s in group]
    first = [s.step for s in steps[: len(group)]]
    if numbers == first and numbers[-1] <= EARLY:
        return Finding(
            "trajectory-first-steps",
            "info",
            f"steps {listed(numbers)} are identical: expected if the first learning rate is zero, or these updates were skipped",
            group[-1].path,
            {"steps": numbers},
            "nothing; the log shows lr 0 or skipped updates there",
        )
    wrong, right = _suspects(group, steps)
    names = ", ".join(called(s) for s in wrong[:6]) + (f" and {len(wrong) - 6} more" if len(wrong) > 6 else "")
    return Finding(
        "trajectory-same",
        "error",
        f"{names} hold{'s' if len(wrong) == 1 else ''} the same files as {called(right)}: {len(wrong)} of {len(steps)} steps "
        f"{'is' if len(wrong) == 1 else 'are'} not their own",
        ", ".join(called(s) for s in wrong),
        {"steps": [s.step for s in wrong], "same_as": right.step},
        "fetch these steps again from the run itself; they were published wrongly",
    )


def _shard(group: list[tuple[Step, Shard]], steps: Sequence[Step]) -> Finding:
    wrong, right = _suspects([s for s, _ in group], steps)
    names = {s.step: shard.name for s, shard in group}
    where = ", ".join(f"{called(s)}/{names[s.step]}" for s in wrong)
    return Finding(
        "trajectory-shard",
        "error",
        f"{where} is byte-identical to {called(right)}/{names[right.step]}; the other files are not",
        where,
        {"steps": [s.step for s in wrong], "same_as": right.step, "shard": names[wrong[0].step]},
        "fetch this shard again from the run itself",
    )


def _suspects(group: list[Step], steps: Sequence[Step]) -> tuple[list[Step], Step]:
    """The steps that are not their own, and the one they copy: the last of the series if it is among them, else the first."""
    right = group[-1] if group[-1].step == steps[-1].step else group[0]
    return [s for s in group if s is not right], right


def same_tensors(steps: Sequence[Step], prints: Mapping[int, Fingerprint]) -> list[Finding]:
    """Equal tensors under several steps that no equal file has shown (other shards, other formats)."""
    shown = {s.digest for step in steps for s in step.shards}
    owners: dict[tuple[str, str], list[int]] = {}
    for step, found in prints.items():
        for tensor in found.tensors:
            if tensor.low != tensor.high and len(tensor.shape) >= 2:
                owners.setdefault((tensor.name, tensor.hash), []).append(step)
    pairs: dict[tuple[int, ...], list[str]] = {}
    for (name, _), found_in in owners.items():
        if 1 < len(found_in) < len(prints):
            pairs.setdefault(tuple(found_in), []).append(name)
    by_file = _shared_by_file(steps)
    findings = []
    for members, names in pairs.items():
        if frozenset(members) in by_file or (members == tuple(sorted(prints))[: len(members)] and members[-1] <= EARLY):
            continue
        findings.append(
            Finding(
                "trajectory-tensor",
                "error",
                f"{len(names)} matrices are equal bit for bit in steps {listed(list(members))}: {', '.join(names[:3])}",
                f"step {members[-1]}",
                {"steps": list(members), "tensors": names[:50]},
                "fetch the later step again",
            )
        )
    return findings if shown else []


def _shared_by_file(steps: Sequence[Step]) -> set[frozenset[int]]:
    owners: dict[str, set[int]] = {}
    for step in steps:
        for shard in step.shards:
            owners.setdefault(shard.digest, set()).add(step.step)
    return {frozenset(of) for of in owners.values() if len(of) > 1}
