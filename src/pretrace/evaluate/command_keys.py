"""The keys inside --model_args: malformed, unread by the backend, or of values that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from pretrace.evaluate.command import DASHES, Command, Pair
from pretrace.evaluate.command_tables import (
    BACKENDS,
    DTYPE_MEANT,
    DTYPES,
    FROM_PRETRAINED,
    MEANT,
    VERSION,
    Backend,
)
from pretrace.findings import Finding, Severity


def fault(code: str, severity: Severity, what: str, where: str, mend: str) -> Finding:
    """A finding about one argument, under the version whose tables were used."""
    return Finding(code, severity, what, where, {"harness": VERSION}, mend)


def key_faults(command: Command) -> Iterator[Finding]:
    """What is wrong with the keys."""
    backend = BACKENDS.get(command.one("model") or "hf")
    for pair in command.model_args:
        yield from _malformed(pair)
        if backend is not None and pair.value is not None and not _has_dash(pair.key) and pair.key == pair.key.strip():
            yield from _unread(pair, backend, command.one("model") or "hf")
    if any(len(words) > 1 for words in command.flags.get("model_args", [])):
        yield fault(
            "blank-in-model-args", "warning", "--model_args has blanks: 0.4.13 takes several words, earlier versions took one "
            "and refused the rest", "--model_args", "join the pairs with commas and no blanks",
        )  # fmt: skip


def _has_dash(key: str) -> bool:
    return key.strip()[:1] == "-" or key.strip()[:1] in DASHES


def _malformed(pair: Pair) -> Iterator[Finding]:
    typed = pair.key + ("" if pair.value is None else f"={pair.value}")
    if _has_dash(pair.key):
        bare = pair.key.strip().lstrip("-" + DASHES)
        yield fault(
            "dash-in-key", "error", f"{typed!r} inside --model_args is a key named {pair.key.strip()!r}: {bare} is not set",
            typed, f"write {bare}={pair.value if pair.value is not None else '...'} after a comma, without dashes",
        )  # fmt: skip
    elif pair.value is None:
        yield fault("no-equals", "error", f"{typed!r} in --model_args has no '='", typed, "write key=value")
    elif pair.key != pair.key.strip():
        yield fault(
            "blank-in-key", "error", f"{typed!r}: the blank belongs to the key, which nothing reads", typed,
            "no blank after the comma",
        )  # fmt: skip
    elif pair.value == "":
        yield fault("empty-value", "error", f"{pair.key} has an empty value", typed, "write its value")


def _unread(pair: Pair, backend: Backend, model: str) -> Iterator[Finding]:
    key = pair.key
    if key in backend.keys or (key in FROM_PRETRAINED and backend.others == "passed on"):
        return
    meant = MEANT.get(key, "")
    meant = meant if meant in backend.keys else backend.length if meant == "max_length" else ""
    near = meant or next(iter(get_close_matches(key, sorted(backend.keys), 1)), "")
    elsewhere = [name for name, other in BACKENDS.items() if key in other.keys]
    of = f" (it is a key of {elsewhere[0]})" if elsewhere else ""
    fate = {
        "ignored": "ignored without a word",
        "refused": "refused",
        "passed on": "handed on to the library that loads the model, which refuses it or takes it for something else",
    }[backend.others]
    # A length that is not read moves the figure and shows nowhere.
    severity: Severity = "error" if backend.others != "ignored" or "len" in key else "warning"
    yield fault(
        "unread-key", severity, f"--model {model} does not read {key}{of}: {fate}", f"{key}={pair.value}",
        f"write {near}=..." if near else "take it out",
    )  # fmt: skip


def value_faults(command: Command) -> Iterator[Finding]:
    """What is wrong with the values."""
    dtype = command.value("dtype")
    if dtype is not None and dtype.strip("'\"") not in DTYPES and dtype.removeprefix("torch.") not in DTYPES:
        meant = DTYPE_MEANT.get(dtype, "float32, float16 or bfloat16")
        yield fault("no-such-dtype", "error", f"torch has no dtype {dtype!r}", f"dtype={dtype}", f"write {meant}")
    length = command.value("max_length")
    if length is not None and (not length.strip("'\"").isdigit() or int(length.strip("'\"")) == 0):
        what = f"max_length={length} is no number of tokens"
        yield fault("no-number", "error", what, f"max_length={length}", "write a whole number above 0")
    for key in ("batch_size", "max_batch_size", "device"):
        if command.value(key) is not None and command.one(key) is not None:
            yield fault(
                "set-twice", "error", f"{key} stands in --model_args and as --{key}: the harness stops with 'multiple values'",
                f"{key}={command.value(key)}", f"keep --{key}",
            )  # fmt: skip
