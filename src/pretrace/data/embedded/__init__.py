"""The book corpus that comes with pretrace: 413 chapters of eight novels, a third of the text in a second edition.

Small enough to train on in minutes, real enough to hold near-duplicates: four of the eight books stand in it twice, once in
the Standard Ebooks edition and once in an older plain-text edition. Sources and licences: `README.md` in this folder.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def books() -> Path:
    """The path of `books.jsonl.zst`: one chapter a line, with `id`, `text`, `book`, `edition` and `source`."""
    return _FOLDER / "books.jsonl.zst"
