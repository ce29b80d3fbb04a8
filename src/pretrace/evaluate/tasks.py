"""Tasks by name, as lm-evaluation-harness defines them, with local rows in the place of their data sets.

A task with local rows is a file of a few lines made at run time: it includes the built-in definition and replaces the data
set, so that prompts, metrics and versions stay the harness's own (a mapping that names only a task does not inherit from the
built-in one in 0.4.13).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pretrace.errors import PretraceError, from_os_error
from pretrace.evaluate.culprit import first_bad
from pretrace.evaluate.data_files import DataFile, lines
from pretrace.files import write_text

_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def harness_version() -> str:
    """The installed version of lm-eval.

    Raises
    ------
    PretraceError
        If it is not installed.
    """
    try:
        return version("lm_eval")
    except PackageNotFoundError:
        raise PretraceError(
            "lm-evaluation-harness is not installed", "lm-eval", "pip install 'pretrace[eval]'"
        ) from None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A name that was asked for: one task, or a group of them with what the harness needs to add them up."""

    name: str
    bundle: dict[str, Any]  # lm_eval's TaskDict
    data: tuple[DataFile, ...]

    @property
    def tasks(self) -> dict[str, Any]:
        """lm_eval Task by name."""
        found: dict[str, Any] = self.bundle["tasks"]
        return found


@contextmanager
def loading(data: Sequence[DataFile], include: Path | None = None) -> Iterator[Loader]:
    """A loader of tasks; what it made is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pretrace-tasks-") as folder:
        yield Loader(data, include, Path(folder))


def quiet() -> None:
    """Keeps the harness's own bars and notes off the screen: progress is shown by the caller.

    To be called before anything imports tqdm, which reads its setting once.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    for name in ("lm_eval", "lm-eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)


class Loader:
    """Finds task definitions and gives them their rows."""

    def __init__(self, data: Sequence[DataFile], include: Path | None, folder: Path) -> None:
        self._data, self._include, self._folder = tuple(data), include, folder
        self._manager: Any = None

    def load(self, name: str) -> Loaded:
        """The task or group of that name.

        Raises
        ------
        PretraceError
            If there is no such task, its definition cannot be used, or its data set is not on this machine.
        """
        from lm_eval.tasks import TaskManager

        files = tuple(file for file in self._data if file.task == name)
        found = self._find(name)
        try:
            if found is not None:
                spec = str(self._with_rows(name, found, files)) if files else str(found)
                return Loaded(name, dict(TaskManager(include_defaults=False).load([spec])), files)
            if files:
                raise PretraceError(
                    f"{name} is no single task: rows cannot be put into it", "--data", "name its tasks one by one"
                )
            return Loaded(name, dict(self._full().load([name])), files)
        except PretraceError:
            raise
        except Exception as error:  # the loaders behind a task raise what they like
            if isinstance(error, KeyError) and "not a registered" in str(error):
                raise PretraceError(f"no task {name!r}", "--tasks", self._near(name)) from None
            raise self._failed(name, error, files, found) from error

    def _find(self, name: str) -> Path | None:
        """The definition of a single task. Reading 14,000 files for one line takes a second; the harness's index takes 18."""
        if name.endswith(".yaml") and Path(name).is_file():
            return Path(name)
        quote = rb"['\"]?"
        key = rb"^" + quote + rb"task" + quote + rb":\s*" + quote
        wanted = re.compile(key + re.escape(name.encode()) + quote + rb"\s*(#.*)?$", re.MULTILINE)
        for root in self._roots():
            # A definition usually lies in a folder named like it: those are looked into first.
            places = sorted(root.rglob("*.yaml"), key=lambda p: (not name.startswith(p.parent.name), p.as_posix()))
            for path in places:
                if wanted.search(path.read_bytes()):
                    return path
        return None

    def _roots(self) -> list[Path]:
        spec = find_spec("lm_eval.tasks")
        assert spec is not None
        assert spec.origin is not None
        own = [self._include] if self._include is not None else []
        return [*own, Path(spec.origin).parent]

    def _full(self) -> Any:
        from lm_eval.tasks import TaskManager

        if self._manager is None:
            self._manager = TaskManager(include_path=None if self._include is None else str(self._include))
        return self._manager

    def _with_rows(self, name: str, definition: Path, files: Sequence[DataFile]) -> Path:
        """A definition that includes `definition` and reads `files`."""
        import yaml
        from lm_eval.tasks._yaml_loader import load_yaml

        config = load_yaml(definition, resolve_func=False)
        scored = config.get("test_split") or config.get("validation_split") or "test"
        known = {config.get(key) for key in _SPLITS} - {None}
        for file in files:
            if file.split and file.split not in known:
                raise PretraceError(f"{name} has no split {file.split!r}", f"--data {name}:{file.split}={file.path}",
                                    f"it has {', '.join(sorted(map(str, known)))}")  # fmt: skip
        splits = {file.split or scored: str(file.path.resolve()) for file in files}
        used = {key: config.get(key) for key in _SPLITS}
        made = {
            "include": str(definition.resolve()), "task": config["task"], "dataset_path": files[0].loader, "dataset_name": None,
            "dataset_kwargs": {"data_files": splits, "cache_dir": str(self._folder / "cache")},
            **{key: split if split in splits else None for key, split in used.items() if split is not None},
        }  # fmt: skip
        path = self._folder / f"{name}.yaml"
        write_text(path, yaml.safe_dump(made))
        return path

    def _near(self, name: str) -> str:
        import difflib

        close = difflib.get_close_matches(name, self._full().all_tasks, 3)
        return f"did you mean {', '.join(close)}?" if close else "name a task, group or tag of lm-evaluation-harness"

    def _failed(self, name: str, error: Exception, files: Sequence[DataFile], found: Path | None) -> PretraceError:
        deepest: BaseException = error
        while (below := deepest.__cause__ or deepest.__context__) is not None:
            deepest = below
        if isinstance(deepest, OSError) and deepest.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return from_os_error(deepest, self._folder, doing=f"loading the rows of {name}")
        said = " ".join(str(error).split())[:300]
        offline = "Couldn't" in said or "ConnectionError" in type(error).__name__ or "offline" in said.lower()
        if offline or "DatasetNotFound" in type(error).__name__:
            return PretraceError(f"the rows of {name} are not on this machine: {said}", f"task {name}",
                                 f"give them with --data {name}=FILE, or load them once with a network")  # fmt: skip
        scored = next((file for file in files if file.split == "" and ".jsonl" in file.path.suffixes), None)
        row = self._bad_row(name, found, scored) if found is not None and scored is not None else None
        at = "" if row is None else f"row {row}: "
        return unusable(name, f"{at}{type(error).__name__}: {said}", files)

    def _bad_row(self, name: str, definition: Path, file: DataFile) -> int | None:
        """The row with which the task cannot be loaded: each try takes a fraction of a second."""
        from lm_eval.tasks import TaskManager

        def fails(rows: Sequence[str]) -> bool:
            part = self._folder / "part.jsonl"
            write_text(part, "\n".join(rows) + "\n")
            spec = self._with_rows(name, definition, [replace(file, path=part)])
            try:
                TaskManager(include_defaults=False).load([str(spec)])
            except Exception:
                return True
            return False

        return first_bad([line for _, line in lines(file.path)], fails)


def unusable(name: str, said: str, files: Sequence[DataFile]) -> PretraceError:
    """The error of a task whose definition and rows do not fit each other."""
    if files:
        where = ", ".join(str(file.path) for file in files)
        return PretraceError(
            f"the task {name} cannot use these rows: {said}", where, "give rows with the keys that it reads"
        )
    return PretraceError(
        f"the task {name} cannot be used: {said}", f"task {name}", "mend what is named, or choose another task"
    )
