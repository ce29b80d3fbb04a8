"""Plans and conversions in words: the verdict first, then the evidence, then what is next."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pretrace.audit.words import FORMATS, size
from pretrace.checkpoint.layout import Layout
from pretrace.convert.card import proof_lines
from pretrace.convert.merge import Merged
from pretrace.convert.plan import Plan, Row
from pretrace.convert.record import Conversion, plain, total_rounding
from pretrace.convert.repair import Repaired

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_NEXT = {
    "hf": "transformers loads the folder as it is.",
    "nanogpt": "nanoGPT reads ckpt.pt with init_from='resume'.",
    "llmc": "llm.c takes the model_*.bin with -e.",
    "neox": "GPT-NeoX takes the folder as `load`.",
    "dcp": "torch.distributed.checkpoint loads the folder, without a process group too.",
    "orbax": "Orbax restores the step folder.",
    "maxtext": "MaxText takes the items folder as load_parameters_path or load_full_state_path.",
}


def plan_lines(plan: Plan) -> Iterator[str]:
    """What `--plan` prints."""
    source, layout = plan.source, plan.layout
    here = f"{FORMATS.get(source.raw.format, source.raw.format)}, {_tensors(len(source.raw.names()))}"
    files = f" in {len(layout.files)} files" if isinstance(layout, Layout) else ""
    made = f"{_tensors(len(layout.names))}{files}, {size(layout.size_bytes)}"
    yield f"PLAN      {source.path} ({here}) -> {plan.request.to}: {made}; nothing was written"
    yield f"  model   {_model(plan)}"
    yield from (f"  assumed {text}" for text in source.model.assumed)
    yield from (f"  lost    {text}" for text in plan.losses)
    yield from (f"  note    {text}" for text in plan.notes if not text.startswith("assumed "))
    if source.ignored:
        yield f"  left    {', '.join(source.ignored[:4])}{_more(source.ignored, 4)}: no parameters of the model"
    yield f"  work    {_work(plan)}"
    yield ""
    yield from _table(plan.rows)


def result_lines(made: Conversion) -> Iterator[str]:
    """What a finished conversion prints."""
    plan, proof = made.plan, made.proof
    part = "" if proof.whole else " in part"
    warned = " with warnings" if proof.findings else ""
    yield (f"PROVED{part}{warned}  {plan.source.path} -> {made.target}: {_tensors(made.tensors)}, {size(made.bytes)} "
           f"in {made.seconds:.1f} s")  # fmt: skip
    yield from (f"  {line}" for line in proof_lines(plain(proof.summary())) if not line.startswith("Not checked"))
    codes = {finding.code for finding in proof.findings}
    audited = any(finding.what.startswith("audit:") for finding in proof.findings)
    same = (
        "Its own files give the same model."
        if "config" not in codes
        else "Its own files give another model: see the warning."
    )
    yield f"  Audit of the target: {'see the warnings' if audited else 'pass'}. {same}"
    yield from (f"  Lost: {text}." for text in plan.losses)
    yield from (f"  Note: {text}." for text in plan.notes)
    if (total := total_rounding(made.rounding)) is not None:
        yield (f"  Rounding: {total['changed']:,} of {total['elements']:,} values changed, by at most {total['largest']:.2g} of "
               f"their size; {total['vanished']:,} became zero.")  # fmt: skip
    for finding in proof.findings:
        mend = f" {finding.mend[:1].upper()}{finding.mend[1:]}." if finding.mend else ""
        yield f"  Warning ({finding.code}): {finding.what}.{mend}"
    yield from (f"  Not checked: {one.check} ({one.why})." for one in proof.not_run)
    yield f"Next: {_NEXT[plan.request.to]} The whole record: {made.target}/conversion.json"


def merged_lines(made: Merged) -> Iterator[str]:
    """What a finished merge prints."""
    yield f"WHOLE     {len(made.parts)} folders -> {made.target}: {_tensors(made.tensors)}, {size(made.bytes)}"
    for part in made.parts:
        entries = f", {part['entries']} entries of its database" if part["entries"] else ""
        yield f"  {part['folder']}: {part['files']} files{entries}"
    yield "  Every file and entry was read back and is what its folder held; nothing is missing; the audit passes."
    if not made.one_save:
        yield "  Not checked: that all folders are of one step of one run. Nothing in them says it; the loss on a text would."
    yield f"Next: pretrace convert {made.target} DST --to FORMAT, or use it as it is."


def repaired_lines(made: Repaired, source: str) -> Iterator[str]:
    """What a finished repair prints."""
    yield f"WHOLE     {made.target}: {len(made.written)} parts, {size(made.bytes)}, written from {source}"
    yield from (f"  {name}" for name in made.written[:12])
    if len(made.written) > 12:
        yield f"  ... and {len(made.written) - 12} more"
    yield f"  Read back: {made.elements:,} values, all of them the source's; the audit passes."


def _tensors(n: int) -> str:
    return f"{n:,} tensor{'s' if n != 1 else ''}"


def _model(plan: Plan) -> str:
    spec = plan.spec
    tied = "tied" if spec.tied_head else "its own"
    position = (
        "learned positions" if spec.position == "learned" else f"rotary on {spec.rotary_lanes} of {spec.head_dim} lanes"
    )
    return (f"{spec.family}: {spec.n_layers} layers, width {spec.d_model}, {spec.n_heads} heads ({spec.n_kv_heads} for keys), "
            f"{position}, {spec.activation}, vocabulary {spec.vocab_size:,}, head {tied}")  # fmt: skip


def _work(plan: Plan) -> str:
    counts = {
        kind: sum(len(u.tensors) for u in plan.work.units if u.kind == kind) for kind in ("copy", "held", "plain")
    }
    parts = [
        (counts["copy"], "copied from file to file"),
        (counts["held"], f"moved in memory (at most {size(plan.work.held_bytes)} held)"),
        (counts["plain"], "read block by block"),
    ]
    return ", ".join(f"{n:,} {words}" for n, words in parts if n) or "nothing to write"


def _table(rows: tuple[Row, ...]) -> Iterator[str]:
    """The mapping with layers written as one line: `h.{0..11}.attn`."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (_kind(row.name), row.dtype, str(row.shape), _kind(" + ".join(row.sources)), row.move)
        kinds.setdefault(key, []).append(row)
    cells: list[tuple[str, ...]] = [("target", "dtype", "shape", "from", "move")]
    for (name, dtype, _, source, move), listed in kinds.items():
        shape = "x".join(map(str, listed[0].shape)) or "scalar"
        cells.append((_ranged(name, [r.name for r in listed]), dtype, shape, _short(source), move or "as it is"))
    widths = [min(max(len(line[k]) for line in cells), 64) for k in range(5)]
    for line in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _kind(name: str) -> str:
    return _NUMBER.sub("#", name)


def _ranged(kind: str, names: list[str]) -> str:
    """`h.#.attn` as `h.{0..11}.attn`, each number by its own range."""
    columns = list(zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True))
    for column in columns:
        low, high = min(column), max(column)
        kind = kind.replace("#", f"{{{low}..{high}}}" if high > low else str(low), 1)
    return kind


def _short(source: str) -> str:
    parts = list(dict.fromkeys(source.split(" + ")))
    return " + ".join(parts) if len(parts) < 4 else f"{parts[0]} + {len(parts) - 1} more"


def _more(items: tuple[str, ...], n: int) -> str:
    return f" and {len(items) - n} more" if len(items) > n else ""
