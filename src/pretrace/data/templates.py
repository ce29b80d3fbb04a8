"""A complete, commented file of every kind that `pretrace data` reads: what `pretrace data init` writes.

Every key stands there, also those that a person leaves alone: a choice that moves a number has no default, so a template
shows one usual value and, beside it, what else could stand there.
"""

from __future__ import annotations

from importlib import import_module

from pretrace.spec import Spec

_CORPUS = """\
paths: [corpus.jsonl.zst]   # files, folders (read in sorted order), s3://...; format hub: NAME or NAME@REVISION:CONFIGURATION
format: jsonl               # jsonl (also .gz, .zst) | parquet | arrow | tfrecord | text | hub
field: text                 # the key or column; "" for text files
holds: text                 # text | ids (tokenised already)
split: ""                   # of a data set that has splits
id_field: ""                # the documents' own names; "": FILE#ROW
text_unit: null             # text files: file | line (without its end) | paragraph (up to an empty line, its last line end kept)
"""

_TOKENISE = (
    "corpus:\n"
    + "".join(f"  {line}\n" for line in _CORPUS.splitlines())
    + """\
tokenizer: tokenizer.json   # or a folder (tokenizer.json, or vocab.json and merges.txt), or a SentencePiece .model
prepend: null               # a special token before every document
append: <|endoftext|>       # a special token after every document; null: none
empty: drop                 # documents without a token: drop (as NeoX and Megatron do) | keep
special_text: token         # a special token that is written out in a text: token | text (its letters)
dtype: null                 # uint16 | int32; null: uint16 below 65,500 ids
backend: fastokens          # tokenizers (slow, the reference) | fastokens (extra fast) | gigatoken (extra gigatoken)
judge_every: 200            # a fast backend: every k-th document is compared with the reference, and every unusual one
on_difference: stop         # stop | reference (take the reference's ids of unusual documents, and name them)
"""
)

_DEDUP = """\
threshold: 0.8     # Jaccard similarity of the word n-grams from which two documents are copies
ngram: 5           # words
permutations: 126  # MinHash values of a document
bands: 42          # of permutations / bands values; a pair is looked at if one band is equal
seed: 1
keep: first        # of copies: first | last | longest
"""

_PREPARE = """\
source: {path: books, format: bin_idx}  # a pair books.bin, books.idx
validation: {share: 0.001, seed: 42, shuffled: true}  # documents held out before anything else; null: none
pack:
  strategy: wrap    # wrap | stream | best_fit | budget
  length: 512       # tokens of a row at most
  shortest: 256     # shorter pieces are dropped; null with stream
  budget: null      # strategy budget: places of a batch at most
  end: none         # where end_id is put: none | document | piece
  end_id: null
  pad: batch        # none | length | batch (the longest row of each pad_rows documents)
  pad_id: 50256     # null with pad: none
  pad_rows: 1000    # null unless pad: batch
"""

_FILE = (
    "sources:\n- {path: books, format: bin_idx}  # books.bin, books.idx; a blend: one line a source, with weight: 0.3\n"
)
_FLAT = "sources:\n- {path: 'train_*.bin', format: raw, dtype: uint16}  # raw | npy | llmc | datatrove, shards in sorted order\n"
_LENGTH = "seq_len: 2048       # positions that the model sees\n"
_RULES = """\
documents:
  eod_id: null               # the id after every document; null: nothing marks it, then the other three are false
  mask_after_eod: false      # the label after an end is not counted (eod_mask_loss)
  separate_attention: false  # attention stays within a document
  restart_positions: false   # positions count from 0 in every document
"""
_RANKS = "  world_size: 1\n  grad_accum_steps: 1\n  micro_batch: 8\n"

_ORDERS = {
    "neox": (_FILE, """\
  family: neox
  version: v1.0              # v1.0 | head
  num_samples: 146432000     # updates * global batch; null: one pass (head)
  seed: 1234
  split: null                # "969,30,1" of data_path; null: whole files (train-data-paths)
  part: train                # train | valid | test
  surplus: true              # ask every file for 0.5% more, as train-data-paths does
  packing: packed            # packed | pack_until_overflow (head)
  allow_chopped: true        # of pack_until_overflow
"""),
    "megatron": (_FILE, """\
  family: megatron
  num_samples: 1000000       # updates * global batch; null: one pass
  seed: 1234
  split: "969,30,1"
  part: train                # train | valid | test
  extra_token: true          # windows of seq_len + 1 tokens
  keep_partial: false        # keep the last partial sequence (validation)
  pad_id: null               # the tokenizer's padding, if it has one
"""),
    "preshuffled": (_FILE, "  family: preshuffled        # entry i is sample i, of seq_len + 1 tokens\n"),
    "shuffled_entries": (_FILE, "  family: shuffled_entries\n  seed: 1234\n"),
    "stream": (_FILE, """\
  family: stream
  epochs: 1
  document_seed: 1           # null: documents keep the order of the file
  sample_seed: 2             # null: samples keep the order of the stream
  mix_epochs: false          # shuffle all epochs together, or each alone
"""),
    "rows": ("sources:\n- {path: rows/train, format: arrow}  # what `pretrace data prepare` or save_to_disk wrote\n", """\
  family: rows
  epochs: 1
  shuffle_seed: 42           # torch.randperm of seed + epoch, as Hugging Face's Trainer; null: in order
  pad_id: 50256              # fills short rows, never counted; null: none is short
  by_piece: false            # attention, positions and labels stay inside a piece of a packed row
  drop_last: 1               # an epoch is cut to a multiple of this
"""),
    "olmo": (_FLAT, """\
  family: olmo
  epochs: 1
  first_epoch: 0             # 0: OLMo | 1: OLMo-core
  seed: 6198
  drop_last: true
""" + _RANKS),
    "llmc": (_FLAT.replace("raw, dtype: uint16", "llmc"), """\
  family: llmc
  epochs: 1
  shuffle_seed: null         # 42 in llm.c; null: no shuffling
  world_size: 1
  micro_batch: 8
"""),
    "nanogpt": (_FLAT.replace("train_*", "train"), """\
  family: nanogpt
  steps: 600000
  seed: 1337
  draws_before: 0            # 32-bit draws that initialising the model takes from the same generator
  wide_bits: 28              # 28: torch 2.13 | 32: older
  eval_interval: 2000        # 0: never
  eval_iters: 200
""" + _RANKS),
}  # fmt: skip

TEMPLATES = {
    "corpus": _CORPUS,
    "tokenise": _TOKENISE,
    "dedup": _DEDUP,
    "prepare": _PREPARE,
    **{family: f"{sources}{_LENGTH}order:\n{order}{_RULES}" for family, (sources, order) in _ORDERS.items()},
}
_SPECS = {
    "corpus": ("corpus", "CorpusSpec"),
    "tokenise": ("unit_ids", "TokeniseSpec"),
    "dedup": ("dedup", "DedupSpec"),
    "prepare": ("prepare", "PrepareSpec"),
}


def spec_of(kind: str) -> type[Spec]:
    """The spec that a template of this kind builds; only its own module is loaded."""
    module, name = _SPECS.get(kind, ("order", "DataSpec"))
    found: type[Spec] = getattr(import_module(f"pretrace.data.{module}"), name)
    return found
