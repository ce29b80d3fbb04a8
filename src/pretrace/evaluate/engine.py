"""Checkpoints x tasks -> evaluations. What is finished is not computed again; what was stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pretrace.digest import digest_of, xxh3_of_file
from pretrace.errors import PretraceError, naming
from pretrace.evaluate.compute import Computed, Progress
from pretrace.evaluate.data_files import DataFile
from pretrace.evaluate.grouping import averaged
from pretrace.evaluate.keep import Kept
from pretrace.evaluate.resolve import Wanted, resolve
from pretrace.evaluate.result import (
    Evaluation,
    TaskResult,
    combined,
    denominators,
    finished,
    folder_of,
    intervals,
    notes,
    save,
    set_aside,
    task_key,
)
from pretrace.evaluate.rows import Samples, write_rows
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.subject import Subject
from pretrace.evaluate.task_run import Ran, run
from pretrace.evaluate.tasks import Loaded, Loader, harness_version, loading, quiet
from pretrace.evaluate.text import TextCoder, open_tokenizer

Begin = Callable[[Subject, str, Path], Progress]  # called before a task is run; what it returns hears of tokens


@dataclass(frozen=True)
class Asked:
    """What is to be evaluated on every checkpoint."""

    tasks: tuple[str, ...]
    data: tuple[DataFile, ...]
    include: Path | None  # a folder of task definitions beside the harness's own
    wanted: Wanted
    out: Path


def evaluate(subjects: Sequence[Subject], asked: Asked, *, declare: Callable[[Evaluation], None] | None = None,
             begin: Begin | None = None) -> list[Evaluation]:  # fmt: skip
    """Evaluates each checkpoint on each task; a finished task is written before the next begins.

    `declare` is called with the settings of a checkpoint before it is computed.

    Raises
    ------
    PretraceError
        If a task, its rows, a tokenizer or a model cannot be used.
    """
    _known(asked)
    harness = harness_version()
    quiet()
    with _Tasks(asked) as tasks:
        found = []
        coders: dict[str, TextCoder] = {}
        for subject in subjects:
            coder = coders.get(subject.tokenizer) or open_tokenizer(subject.tokenizer)
            coders[subject.tokenizer] = coder
            settings, said = resolve(asked.wanted, subject, coder)
            folder = folder_of(asked.out, subject, settings)
            evaluation = Evaluation(subject.path, subject.digest, subject.step, f"lm-eval {harness}", settings, said,
                                    subject.tokenizer, subject.assumed, str(folder))  # fmt: skip
            if declare is not None:
                declare(evaluation)
            one = _One(subject, settings, coder, folder, asked, harness)
            with _no_empty(folder):
                one.check(tasks)
                evaluation = replace(evaluation, tasks=tuple(one.task(name, tasks, begin) for name in asked.tasks))
            combined(evaluation)
            found.append(evaluation)
        return found


@contextmanager
def _no_empty(folder: Path) -> Iterator[None]:
    """Takes a folder away in which nothing was finished: it would pass for one with rows."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def _known(asked: Asked) -> None:
    if not asked.tasks:
        raise PretraceError("no task is named", "--tasks", "name some: --tasks lambada_openai,hellaswag,wikitext")
    for file in asked.data:
        if file.task not in asked.tasks:
            raise PretraceError(f"rows for {file.task}, which is not evaluated", f"--data {file.task}=...",
                                f"add it to --tasks (now {', '.join(asked.tasks)})")  # fmt: skip


class _Tasks:
    """The definitions of all tasks, each loaded when it is first needed and used for every checkpoint."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._loaded: dict[str, Loaded] = {}
        self._context: Any = None

    def __enter__(self) -> _Tasks:
        return self

    def __exit__(self, *error: object) -> None:
        if self._context is not None:
            self._context.__exit__(*error)

    @cached_property
    def _loader(self) -> Loader:
        self._context = loading(self._asked.data, self._asked.include)
        loader: Loader = self._context.__enter__()
        return loader

    def get(self, name: str) -> Loaded:
        if name not in self._loaded:
            self._loaded[name] = self._loader.load(name)
        return self._loaded[name]


@dataclass(frozen=True)
class _One:
    """One checkpoint."""

    subject: Subject
    settings: Settings
    coder: TextCoder
    folder: Path
    asked: Asked
    harness: str

    def check(self, tasks: _Tasks) -> None:
        """Loads every task that is to be run, and makes the folder: faults of theirs come before the first forward."""
        with naming(self.folder, "writing"):
            self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.asked.tasks:
            if self._finished(name) is None:
                tasks.get(name)

    def _key(self, name: str) -> str:
        return task_key(name, self.subject, self.settings, self.coder.digest, self.harness, self.asked.data)

    def _finished(self, name: str) -> TaskResult | None:
        # A definition of one's own and the rows it names may have changed, the hub's rows may have another revision: what is
        # not told by the key is run again, from answers that are kept.
        own = self.asked.include is not None or name.endswith(".yaml")
        told = not own and any(file.task == name for file in self.asked.data)
        return None if not told else finished(self.folder, name, self._key(name))

    def task(self, name: str, tasks: _Tasks, begin: Begin | None) -> TaskResult:
        """The result of a task, kept or made."""
        if (known := self._finished(name)) is not None:
            return known
        if begin is not None:
            self._computed.progress = begin(self.subject, name, self.folder)
        loaded = tasks.get(name)
        ran = run(loaded, self._model, self.settings)
        return self._written(name, self._key(name), ran, loaded)

    @cached_property
    def _computed(self) -> Computed:
        s = self.settings
        # The tokenizer is not in it: answers are kept by token ids.
        model = digest_of({"checkpoint": self.subject.digest, "dtype": s.dtype, "through": s.through, "device": s.device,
                           "answers": 1})  # fmt: skip
        return Computed(self.subject, s, Kept(self.asked.out / "answers" / model[:16]))

    @cached_property
    def _model(self) -> Any:
        from pretrace.evaluate.harness import model_class

        return model_class()(self.coder, self.settings, self._computed)

    def _written(self, name: str, key: str, ran: Ran, loaded: Loaded) -> TaskResult:
        with naming(self.folder, "writing"):
            set_aside(self.folder, name, key)
        files, sure = {}, {}
        for task, rows in ran.rows.items():
            files[task] = f"samples-{task}.jsonl.zst"
            about = {
                "task": task, "version": ran.versions.get(task), "harness": f"lm-eval {self.harness}", "n_rows": len(rows),
                "checkpoint": {"path": self.subject.path, "digest": self.subject.digest, "step": self.subject.step},
                "data": {"files": [[f.split, f.digest] for f in loaded.data], "n_documents": ran.n_documents[task]},
                "settings": self.settings.model_dump(mode="json"), "prefix": self.settings.prefix,
                "left_out": ran.left_out(task), "delimiter": ran.delimiters[task],
                "means": averaged(rows, ran.results.get(task, {})),
            }  # fmt: skip
            samples = Samples(about, rows)
            write_rows(self.folder / files[task], samples)
            sure[task] = intervals(samples, ran.results.get(task, {}))
        counts = {t: denominators(t, rows, ran.n_documents[t], ran.left_out(t)) for t, rows in ran.rows.items()}
        result = TaskResult(key, name, ran.results, counts, ran.versions, {t: notes(r) for t, r in ran.rows.items()}, sure,
                            files, {task: xxh3_of_file(self.folder / file) for task, file in files.items()})  # fmt: skip
        return save(self.folder, result)
