"""The bytes that each id stands for: what a stream of ids says, without asking how a text would be cut into it."""

from __future__ import annotations

import json
import re
from typing import Any

from pretrace.data.tokenizer import Tokenizer
from pretrace.errors import PretraceError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every id; empty for an id that stands for nothing.

    Raises
    ------
    PretraceError
        If ids of this tokenizer stand for other bytes in other places (WordPiece).
    """
    if tokenizer.kind == "sentencepiece":
        return [_of_piece(tokenizer.impl.id_to_piece(i)) for i in range(tokenizer.vocab_size)]
    impl = tokenizer.impl
    added = {int(i): token.content for i, token in impl.get_added_tokens_decoder().items()}
    if type(impl.model).__name__ == "WordPiece":
        raise PretraceError("the ids of a WordPiece tokenizer do not say the bytes of a text", tokenizer.where,
                            "ask with --document")  # fmt: skip
    read = _of_byte_level if is_byte_level(tokenizer) else _of_piece
    found = [b""] * tokenizer.vocab_size
    for word, number in impl.get_vocab(with_added_tokens=True).items():
        found[number] = added[number].encode() if number in added else read(word)
    return found


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether the letters of its words stand for bytes, as in GPT-2."""
    if tokenizer.kind != "tokenizers":
        return False
    parts = (tokenizer.impl.decoder, tokenizer.impl.pre_tokenizer)
    return any("ByteLevel" in _kinds(json.loads(part.__getstate__())) for part in parts if part)


def _kinds(part: dict[str, Any]) -> set[str]:
    """The types of a decoder or pre-tokenizer and of its parts."""
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return {str(part.get("type"))}.union(*map(_kinds, inner))


def _alphabet() -> dict[int, int]:
    """GPT-2's letters for bytes: visible Latin-1 stands for itself, letters from U+0100 on for the 68 others."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    # What is Latin-1 but stands for no byte must not pass for one.
    return {b: 0x100 for b in others} | {0x100 + n: b for n, b in enumerate(others)}


_LETTERS = _alphabet()


def _of_byte_level(word: str) -> bytes:
    try:
        return word.translate(_LETTERS).encode("latin-1")
    except UnicodeEncodeError:  # a word that is not written in this alphabet
        return word.encode("utf-8", "surrogatepass")


def _of_piece(word: str) -> bytes:
    byte = _BYTE.fullmatch(word)
    return bytes([int(byte[1], 16)]) if byte else word.replace("\u2581", " ").encode("utf-8", "surrogatepass")
