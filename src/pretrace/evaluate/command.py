"""A published lm_eval command line read as the harness reads it: what it says, and what in it is malformed or ignored."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pretrace.errors import PretraceError
from pretrace.evaluate.command_tables import FLAGS, GONE, SHORT, Takes

# Dashes that a word processor makes of hyphens, and quotes that it makes of quotes.
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
_QUOTES = {ord("\u201c"): '"', ord("\u201d"): '"', ord("\u2018"): "'", ord("\u2019"): "'"}
_PROGRAMS = ("lm_eval", "lm-eval", "main.py")


@dataclass(frozen=True, slots=True)
class Pair:
    """One `key=value` of --model_args, as typed; `value` None where there is no `=`."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command line taken apart.

    `flags`: name -> its values in order, every occurrence; `unknown`: words that no flag takes; `gone`: flags of earlier
    versions; `text`: the words as they were split.
    """

    flags: dict[str, list[list[str]]]
    model_args: tuple[Pair, ...]
    unknown: tuple[str, ...]
    gone: tuple[str, ...]
    text: tuple[str, ...]

    def one(self, flag: str) -> str | None:
        """The value that counts of a flag: the last one's first."""
        given = self.flags.get(flag)
        return given[-1][0] if given and given[-1] else None

    def value(self, key: str) -> str | None:
        """The value that counts of a key in --model_args: the last one."""
        found = [pair.value for pair in self.model_args if pair.key.strip() == key]
        return found[-1] if found else None


def parse_command(given: str | Sequence[str]) -> Command:
    """Takes a command line apart; text is split as a shell does, a list is taken as the words.

    Raises
    ------
    PretraceError
        If the text has a quote without end, or no lm_eval in it.

    >>> parse_command("lm_eval --model hf --model_args pretrained=gpt2,--max_length=512").model_args[1]
    Pair(key='--max_length', value='512')
    """
    words = _words(given) if isinstance(given, str) else list(given)
    start = next((i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] in _PROGRAMS), None)
    if start is None and not any(word.startswith("-") for word in words):
        raise PretraceError("this is no lm_eval command", " ".join(words)[:80], "give it from lm_eval on")
    return _flags(words[start + 1 :] if start is not None else words, tuple(words))


def _words(text: str) -> list[str]:
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text).translate(_QUOTES)
    try:
        return shlex.split(joined, comments=False)
    except ValueError as error:
        raise PretraceError(f"the command has {str(error).lower()}", text[:80], "close the quote") from None


def _flags(words: list[str], text: tuple[str, ...]) -> Command:
    flags: dict[str, list[list[str]]] = {}
    unknown: list[str] = []
    gone: list[str] = []
    at = 1 if words and words[0] in ("run", "ls", "validate") else 0
    while at < len(words):
        meant = words[at]
        if _typographic(meant):  # the harness reads a plain word; what follows is still the flag's to a reader
            unknown.append(meant)
            meant = "--" + meant.lstrip("-" + DASHES)
        name, attached = _name(meant)
        takes: Takes | None = FLAGS.get(name) or (GONE[name][0] if name in GONE else None)
        if not name or takes is None:
            unknown += [words[at]] if words[at] not in unknown[-1:] else []
            at += 1 + (meant.startswith("-") and attached is None and _is_value(words[at + 1 : at + 2]))
            continue
        values = [attached] if attached is not None else list(_values(words[at + 1 :], takes))
        at += 1 + (len(values) if attached is None else 0)
        if name in GONE:
            gone.append(name)
        flags.setdefault(name, []).append(values)
    pairs = tuple(pair for given in flags.get("model_args", []) for word in given for pair in pairs_of(word))
    return Command(flags, pairs, tuple(unknown), tuple(gone), text)


def _name(word: str) -> tuple[str, str | None]:
    """The flag's full name and the value after `=`; argparse takes any prefix that is of one flag."""
    if not word.startswith("-") or _is_number(word):
        return "", None
    bare, equals, value = word.lstrip("-").partition("=")
    attached = value if equals else None
    if not word.startswith("--"):
        return SHORT.get(bare, ""), attached
    name = bare.replace("-", "_") if bare.replace("-", "_") in GONE else bare
    if name in FLAGS or name in GONE:
        return name, attached
    longer = [flag for flag in FLAGS if flag.startswith(name)]
    return (longer[0], attached) if len(longer) == 1 and name else ("", attached)


def _typographic(word: str) -> bool:
    """Whether one of the word's first characters is a dash that is no hyphen."""
    return any(letter in DASHES for letter in word[: len(word) - len(word.lstrip("-" + DASHES))])


def _is_value(rest: Sequence[str]) -> bool:
    """Whether the first word, if there is one, is a value and no flag."""
    return bool(rest) and (rest[0][:1] not in ("-", *DASHES) or _is_number(rest[0]))


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None


def _values(rest: Sequence[str], takes: Takes) -> Iterator[str]:
    limit = {"none": 0, "one": 1, "maybe": 1, "many": len(rest)}[takes]
    for word in rest[:limit]:
        if not _is_value([word]):
            return
        yield word


def _object(text: str) -> dict[str, object] | None:
    """The JSON object that a word is, if it is one: 0.4.13 takes it in the place of pairs."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def pairs_of(text: str) -> Iterator[Pair]:
    """`key=value` parts of one word, split at commas outside brackets and quotes as 0.4.13 does; or the keys of one JSON object.

    >>> [p.key for p in pairs_of("pretrained=gpt2,chat_template_args={'a': 1, 'b': 2},dtype=float32")]
    ['pretrained', 'chat_template_args', 'dtype']
    """
    if (found := _object(text)) is not None:
        yield from (Pair(key, value if isinstance(value, str) else json.dumps(value)) for key, value in found.items())
        return
    depth, quote, part = 0, "", ""
    for letter in text + ",":
        if letter == "," and not quote and depth == 0:
            if part:
                key, equals, value = part.partition("=")
                yield Pair(key, value if equals else None)
            part = ""
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in "[({") - (letter in "])}") if not quote else 0
        part += letter
    if part.strip(","):
        key, equals, value = part.rstrip(",").partition("=")
        yield Pair(key, value if equals else None)
