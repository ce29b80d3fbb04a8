"""`pretrace data ...`: make token files, rows and maps. The questions that can be asked of them stand in `data_ask.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pretrace.errors import PretraceError

_JSON = typer.Option(False, "--json", help="Print one JSON object.")


def register(app: typer.Typer) -> None:
    """Adds the verb and its commands."""
    from pretrace.cli.data_ask import register as register_questions

    room = typer.Typer(no_args_is_help=True, help="Text to tokens to the exact order, and what was read when.")
    for name, command in (
        ("tokenise", tokenise), ("train-tokenizer", train_tokenizer), ("dedup", dedup), ("prepare", prepare), ("index", index),
        ("repair", repair), ("init", init),
    ):  # fmt: skip
        room.command(name, help=(command.__doc__ or "").splitlines()[0])(command)
    register_questions(room)
    app.add_typer(room, name="data")


def _spec(path: Path) -> Any:
    """The plain data of a YAML file."""
    from pretrace.files import parse_yaml, read_text

    return parse_yaml(read_text(path), path.name, str(path))


def _built(kind: str, path: Path, plain: Any = None) -> Any:
    """The spec of a YAML file (or of a part of it); a fault names the command that writes a complete example."""
    from pretrace.data.templates import spec_of
    from pretrace.spec import build

    plain = _spec(path) if plain is None else plain
    try:
        return build(spec_of(kind), plain, where=str(path))
    except PretraceError as error:
        what = "the file is empty" if plain is None else error.what
        raise PretraceError(what, error.where, f"{error.mend}; a complete example: pretrace data init {kind}") from None


def init(
    kind: str = typer.Argument(
        ..., help="corpus, tokenise, dedup, prepare, or an order: neox, megatron, stream, rows ..."
    ),
    path: Path = typer.Argument(None, help="The file to write.  [default: KIND.yaml]", show_default=False),
) -> None:
    """Write a complete, commented file to fill in."""
    from pretrace.cli.console import say
    from pretrace.data.templates import TEMPLATES
    from pretrace.files import write_text

    if kind not in TEMPLATES:
        raise PretraceError(f"there is no kind {kind!r}", "data init", f"use one of: {', '.join(TEMPLATES)}")
    path = path or Path(f"{kind}.yaml")
    if path.exists():
        raise PretraceError(f"{path.name} exists already", str(path), "choose another name")
    write_text(path, TEMPLATES[kind])
    use = {"corpus": f"dedup {path}", "tokenise": f"tokenise {path} --out PREFIX", "dedup": f"dedup CORPUS.yaml --spec {path}",
           "prepare": f"prepare {path} --out FOLDER"}  # fmt: skip
    say(
        f"wrote {path}; fill it in, then: pretrace data {use.get(kind, f'show --data {path} --step 0 --global-batch N')}"
    )


def tokenise(
    spec: Path = typer.Argument(..., help="A TokeniseSpec (`pretrace data init tokenise`)."),
    out: str = typer.Option(..., help="Prefix of the .bin/.idx pair; may be an address (s3://...)."),
    workers: int = typer.Option(0, min=0, help="Processes; 0: this one. The bytes do not depend on it."),
    as_json: bool = _JSON,
) -> None:
    """Text to a .bin/.idx pair with a manifest; a second start goes on from finished parts."""
    from pretrace.cli.console import print_json, progress, say
    from pretrace.data.parts import size_of
    from pretrace.data.tokenise import tokenise as run

    wanted = _built("tokenise", spec)
    with progress("tokenising", size_of(wanted.corpus) / 1e6, "MB", f"{out}.bin") as shown:
        manifest = run(wanted, out, workers=workers, progress=lambda size: shown.advance(size / 1e6))
    if as_json:
        print_json(manifest)
        return
    name = out.removesuffix(".bin").removesuffix(".idx")
    say(f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens -> {name}.bin, {name}.idx, {name}.json")
    say(f"  {manifest['encoder']}, {manifest['documents_judged']:,} documents judged, "
        f"{manifest['documents_without_tokens']:,} without a token")  # fmt: skip
    if manifest["documents_replaced"]:
        say(f"  {len(manifest['documents_replaced']):,} documents have the reference's ids, because the fast ones differ: "
            + ", ".join(manifest["documents_replaced"][:3]))  # fmt: skip


def train_tokenizer(
    corpus: Path = typer.Argument(..., help="A CorpusSpec (`pretrace data init corpus`)."),
    out: Path = typer.Option(..., help="The tokenizer.json to write."),
    vocab_size: int = typer.Option(..., help="Ids in all: specials, 256 bytes, merges."),
    special: list[str] = typer.Option(..., help="Special tokens; they take the first ids, in order."),
    as_json: bool = _JSON,
) -> None:
    """Train byte-level BPE on a corpus, and say how it fits."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import tokenizer
    from pretrace.data.corpus import refuse_target, texts

    spec = _built("corpus", corpus)
    refuse_target(spec, out)
    trained = tokenizer.train((d.text for d in texts(spec)), vocab_size, specials=tuple(special))
    tokenizer.save(trained, out)
    found = tokenizer.coverage(trained, (d.text for d in texts(spec)))
    if as_json:
        print_json({**_fields(found), "bytes_per_token": found.bytes_per_token, "path": str(out)})
        return
    say(f"{trained.vocab_size:,} ids, {found.bytes_per_token:.3f} bytes a token, {found.used_ids:,} ids used -> {out}")


def dedup(
    corpus: Path = typer.Argument(..., help="A CorpusSpec of texts (`pretrace data init corpus`)."),
    out: Path = typer.Option(None, help="Write the kept documents here (.jsonl, .jsonl.gz or .jsonl.zst)."),
    spec: Path = typer.Option(
        None,
        "--spec",
        help="A DedupSpec (`pretrace data init dedup`); without it: word 5-grams, Jaccard 0.8, keep the first.",
    ),
    examples: int = typer.Option(5, min=0, help="Pairs to show, the least similar first."),
    as_json: bool = _JSON,
) -> None:
    """Find exact and near duplicates, and keep one copy of each."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.corpus import refuse_target, texts
    from pretrace.data.dedup import USUAL, deduplicate, write_kept

    source = _built("corpus", corpus)
    if out:
        refuse_target(source, out)
    wanted = _built("dedup", spec) if spec else USUAL
    report = deduplicate(texts(source), wanted)
    if out:
        write_kept(texts(source), report, out)
    summary = {
        "documents": len(report.names), "kept": len(report.kept), "pairs": len(report.pairs), "groups": len(report.groups),
        "exact_copies": report.n_exact, "candidates": report.n_candidates, "characters": report.chars,
        "characters_kept": report.chars_kept, "examples": report.examples(examples), "spec": wanted.hashed(),
    }  # fmt: skip
    if as_json:
        print_json(summary)
        return
    share = 100 * (1 - report.chars_kept / max(report.chars, 1))
    dropped = len(report.names) - len(report.kept)
    say(f"{dropped:,} of {len(report.names):,} documents are copies ({share:.1f}% of the characters), "
        f"{report.n_exact:,} of them byte for byte" + (f" -> {out}" if out else ""))  # fmt: skip
    for pair in report.examples(examples):
        say(f"  {pair['jaccard']:.4f}  {pair['a']}  {pair['b']}")


def prepare(
    spec: Path = typer.Argument(..., help="A PrepareSpec (`pretrace data init prepare`)."),
    out: Path = typer.Option(..., help="Folder of the Arrow data set."),
    as_json: bool = _JSON,
) -> None:
    """Wrap, pack and pad token files into rows, a validation share held out first."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.prepare import prepare as run

    stats = run(_built("prepare", spec), out)
    if as_json:
        print_json({name: {**_fields(one), "padding": one.padding} for name, one in stats.items()})
        return
    for name, one in stats.items():
        say(f"{name}: {one.rows:,} rows of {one.documents:,} documents -> {out}")
        say(f"  {one.tokens:,} tokens (counted by the mask), {one.places:,} places (list lengths, padding included), "
            f"{one.dropped_tokens:,} tokens dropped in {one.dropped_pieces:,} short pieces")  # fmt: skip


def index(
    prefix: Path = typer.Argument(..., help="Prefix of a .bin/.idx pair."),
    order: str = typer.Option(..., help="neox or megatron."),
    seq_len: int = typer.Option(..., min=1, help="Positions that the model sees."),
    num_samples: int = typer.Option(..., min=0, help="Samples asked for (steps x global batch)."),
    seed: int = typer.Option(..., help="Seed of the generator."),
    out: Path = typer.Option(..., help="Folder for doc_idx.npy, sample_idx.npy, shuffle_idx.npy."),
    split: str = typer.Option("", help='Shares of train, valid, test ("969,30,1"); empty: the whole file.'),
    part: str = typer.Option("train", help="train, valid or test: which part of the split."),
    version: str = typer.Option("v1.0", help="NeoX: v1.0 or head (they differ in the dtype of very long maps)."),
    extra_token: bool = typer.Option(True, help="Megatron: windows of seq_len + 1 tokens."),
    keep_partial: bool = typer.Option(False, help="Megatron: keep the last partial sequence (validation)."),
    as_json: bool = _JSON,
) -> None:
    """Build doc_idx, sample_idx and shuffle_idx as GPT-NeoX or Megatron-core would, bit for bit."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.maps import map_spec, write_maps

    spec = map_spec(order, num_samples=num_samples, seed=seed, split=split, part=part, version=version, extra_token=extra_token,
                    keep_partial=keep_partial)  # fmt: skip
    written = write_maps(prefix, spec, seq_len, out)
    if as_json:
        print_json(written)
        return
    say(f"{written['epochs']} pass(es), {written['samples']:,} samples of {seq_len:,} -> {out}")
    for name, one in written["files"].items():
        say(f"  {name}  {one['dtype']} {one['shape']}")


def repair(prefix: Path = typer.Argument(..., help="Prefix of a .bin/.idx pair."), as_json: bool = _JSON) -> None:
    """Rebuild the byte offsets of an index whose writer overflowed at 2 GiB (the lengths are intact)."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.check_maps import repair_offsets

    wrong = repair_offsets(prefix)
    if as_json:
        print_json({"offsets_rebuilt": wrong})
    else:
        say(f"{wrong:,} offsets rebuilt" if wrong else "every offset was right")


def _fields(value: Any) -> dict[str, Any]:
    import dataclasses

    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
