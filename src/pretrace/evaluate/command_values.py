"""Tasks that are not there, and values of flags that cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from pretrace.evaluate.command import Command
from pretrace.evaluate.command_keys import fault
from pretrace.evaluate.command_tables import FAMILIES, OLD_TASKS, TASKS
from pretrace.findings import Finding


def task_faults(command: Command) -> Iterator[Finding]:
    """What is wrong with the names of tasks."""
    given = [name for words in command.flags.get("tasks", []) for word in words for name in word.split(",")]
    if not given and "config" not in command.flags:
        yield fault("no-tasks", "error", "no --tasks", "--tasks", "name one")
    for words in command.flags.get("tasks", []):
        if len(words) > 1 and any(word.endswith(",") for word in words):
            yield fault(
                "blank-in-tasks", "error", "a blank after a comma in --tasks: an empty task name, or words that earlier versions "
                "refuse", "--tasks", "no blanks between tasks",
            )  # fmt: skip
    yield from _unknown_tasks(command, given)
    for name in given:
        for old, new in OLD_TASKS.items():
            if name == old or (old.endswith("-") and name.startswith(old)):
                newer = new if name == old else new + name.removeprefix(old)
                yield fault("old-task", "error", f"{name} is a task of before 0.4", name, f"it is {newer} since")


def _unknown_tasks(command: Command, given: list[str]) -> Iterator[Finding]:
    """Names that are one slip away from a well-known task; what is further off may be a task of one's own."""
    for name in given:
        known = name in TASKS or name.startswith(FAMILIES) or any(name.startswith(old) for old in OLD_TASKS)
        if not name or known or any(letter in name for letter in "*?[/") or name.endswith((".yaml", ".yml")):
            continue
        near = get_close_matches(name, sorted(TASKS), 1, cutoff=0.8)
        own = command.one("include_path") is not None
        if near and not own:
            yield fault("unknown-task", "error", f"no task {name!r} is known here", name, f"did you mean {near[0]}?")
        else:
            yield fault(
                "task-not-checked", "info", f"{name} is in no table here: it is not checked", name, "lm_eval ls tasks"
            )


_DEVICE = re.compile(r"cpu|mps(:0)?|(cuda|npu|xpu|hpu)(:\d+)?|auto")


def flag_faults(command: Command) -> Iterator[Finding]:
    """Values of flags that cannot be."""
    for flag, test, meant in (
        ("limit", positive, "a number above 0"),
        ("num_fewshot", str.isdigit, "0 or more"),
        ("batch_size", _is_batch, "a whole number above 0, auto or auto:N"),
        ("max_batch_size", _is_batch, "a whole number above 0"),
    ):
        value = command.one(flag)
        if value is not None and not test(value):
            yield fault(
                "no-such-value", "error", f"--{flag} {value}: {meant} is read", f"--{flag} {value}", f"write {meant}"
            )
    seeds = command.one("seed")
    if seeds is not None and (
        len(seeds.split(",")) not in (1, 4) or not all(_is_seed(one) for one in seeds.split(","))
    ):
        yield fault("no-such-value", "error", f"--seed {seeds}: one whole number or four are read", f"--seed {seeds}",
                    "write one for all, or four: python, numpy, torch, few-shot")  # fmt: skip
    name = command.value("pretrained")
    if name is not None and re.search(r"[;=]", name):
        yield fault("joined-otherwise", "error", f"pretrained={name} is one name to the harness: only commas part keys", name,
                    "write a comma before each key")  # fmt: skip
    device = command.one("device") or command.value("device")
    if device is not None and not _DEVICE.fullmatch(device):
        yield fault(
            "no-such-device", "error", f"{device!r} is no device: hf takes the first GPU or the CPU without an error", device,
            "write cpu, cuda or cuda:N",
        )  # fmt: skip


def _is_seed(text: str) -> bool:
    return text.strip() == "None" or text.strip().isdigit()


def positive(text: str) -> bool:
    """Whether the text is a number above 0."""
    try:
        return float(text) > 0
    except ValueError:
        return False


def _is_batch(text: str) -> bool:
    return re.fullmatch(r"auto(:\d+(\.\d+)?)?|0*[1-9]\d*", text) is not None
