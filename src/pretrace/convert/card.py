"""The model card: where the weights come from, what was proved, and what is different. Through huggingface_hub's card classes."""

from __future__ import annotations

from typing import Any

_TOP = """# {name}

Converted with pretrace {version} from `{source}` ({format}{step}). Nothing was trained or changed beyond what is listed here;
`conversion.json` holds the whole record.

## Proof
{proof}

## Deviations
{deviations}

## Source files
| file | bytes | xxh3-128 |
| --- | --- | --- |
{files}
"""


def card_of(record: dict[str, Any]) -> str:
    """The text of README.md for a conversion's record."""
    from huggingface_hub import ModelCard, ModelCardData

    source = record["source"]
    data = ModelCardData(library_name="transformers", tags=["pretrace", "converted"], pipeline_tag="text-generation")
    step = f", step {source['step']}" if source["step"] is not None else ""
    body = _TOP.format(
        name=f"{source['name']} as {record['request']['to']}", version=record["pretrace"], source=source["name"],
        format=source["format"], step=step, proof="\n".join(f"- {line}" for line in proof_lines(record["proof"])),
        deviations="\n".join(f"- {line}" for line in deviations(record)), files=_files(source["files"]),
    )  # fmt: skip
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def proof_lines(proof: dict[str, Any]) -> list[str]:
    """The proof in sentences."""
    kept = f"; {proof['residuals']:,} values that a scaled layout rounds are kept beside" if proof["residuals"] else ""
    lines = [f"Read back and mapped home: {proof['elements']:,} values, {proof['round_trip']}{kept}."]
    for one in proof["logits"]:
        how = "the same bits" if one["same"] else f"at most {one['max_ulp']:.3g} ulp off, KL {one['kl']:.2g}"
        lines.append(f"Logits of the {one['side']} by {one['by']}: {how}.")
    if (far := proof["rounded_layout"]) is not None:
        lines.append(f"The target's own framework does not see what is kept beside: its logits are at most "
                     f"{far['max_ulp']:.3g} ulp off, KL {far['kl']:.2g} nats.")  # fmt: skip
    if proof["probe_loss"] is not None:
        loss, source = proof["probe_loss"], proof["source_loss"]
        lines.append(f"Loss on real text ({proof['probe']}): {loss:.4f} nats a token; the source has {source:.4f}.")
    if proof["rounding_kl"] is not None:
        lines.append(f"Rounding moves the logits by KL {proof['rounding_kl']:.2g} nats.")
    lines += [f"Not checked: {one['check']} ({one['why']})." for one in proof["checks_not_run"]]
    return lines


def deviations(record: dict[str, Any]) -> list[str]:
    """What is not as in the source."""
    total = record["rounding"]["total"]
    lines = [f"Lost: {text}." for text in record["losses"]] + [
        f"{text[0].upper()}{text[1:]}." for text in record["notes"]
    ]
    if total is not None:
        share = f"{total['changed']:,} of {total['elements']:,} values changed"
        lines.append(f"Rounded: {share}, by at most {total['largest']:.2g} of their size.")
    lines += [f"{f['severity'].capitalize()}: {f['what']}." for f in record["proof"]["findings"]]
    return lines or ["None."]


def _files(files: dict[str, dict[str, Any]]) -> str:
    rows = [f"| {name} | {about.get('size_bytes', '')} | {about.get('xxh3', '')} |" for name, about in files.items()]
    return "\n".join(rows) or "| - | - | - |"
