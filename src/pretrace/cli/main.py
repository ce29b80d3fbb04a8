"""`pretrace VERB ...`: finds the verb, prints errors as three lines, and turns outcomes into exit codes.

Every verb is a module of this folder with a function `register(app)`. A verb imports what it needs inside its function, so that
`pretrace --help` starts without torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from pretrace import __version__
from pretrace.errors import EXIT_FAULT, EXIT_OK, EXIT_STOPPED, EXIT_USAGE, PretraceError, from_os_error
from pretrace.files import at_home

VERBS: tuple[str, ...] = (
    "check_loss",
    "audit",
    "compare",
    "convert",
    "data",
    "demo",
    "evaluate",
    "explain",
    "probe",
    "retrace",
    "train",
)

app = typer.Typer(
    name="pretrace",
    help="Run a language-model pretraining run again, check it, and explain it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"pretrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    # Results must not depend on how many cores a machine happens to have: one thread a process unless asked.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


for _verb in VERBS:
    importlib.import_module(f"pretrace.cli.{_verb}").register(app)


def main(argv: list[str] | None = None) -> NoReturn:
    """Runs the command line and leaves with the exit code of the design (0 fine ... 4 a fault of ours, 75 stopped)."""
    with _ended_as_interrupted():
        _run(argv)
    sys.exit(0)


@contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """SIGTERM, a scheduler's way to say Ctrl-C, is answered like it; whoever has a handler of its own keeps it."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(argv: list[str] | None) -> None:
    try:
        # A shell leaves `--out=~/x` and a quoted `~/x` as they are.
        words = [at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
        _leave(app(args=words, prog_name="pretrace", standalone_mode=False))
    except PretraceError as error:
        _say(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as left:
        # `| head` has read enough; the command line's library makes a 1 of it, our finding.
        if _below(left, BrokenPipeError):
            sys.exit(EXIT_OK)
        if not _below(left, KeyboardInterrupt):
            raise
        typer.echo("pretrace: stopped; what was finished is kept, the same command goes on", err=True)
        sys.exit(EXIT_STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError:
        _say(PretraceError("this machine has not enough memory for that", "", "use fewer workers or smaller settings"))
        sys.exit(EXIT_USAGE)
    except OSError as error:
        # What no reader or writer has named: still the machine's word about a file, and no fault of ours to report.
        if error.filename is None:
            _fault(error)
        _say(from_os_error(error))
        sys.exit(EXIT_USAGE)
    except Exception as error:
        if hasattr(error, "format_message"):  # the command line's library, whose classes move from version to version
            _wrong_usage(error)
        _fault(error)


def _fault(error: Exception) -> NoReturn:
    import traceback

    traceback.print_exc()
    _say(PretraceError(f"a fault of pretrace itself: {type(error).__name__}: {error}", f"pretrace {__version__}",
                       "please report it with the lines above: see SECURITY.md and CONTRIBUTING.md for where"))  # fmt: skip
    sys.exit(EXIT_FAULT)


def _leave(code: object) -> NoReturn:
    """Leaves with the exit code of a verb; what was interrupted comes as 130."""
    if code == 130:
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else EXIT_OK)


def _wrong_usage(error: Any) -> NoReturn:
    """An argument that the command line does not take, in our three lines; the help where nothing was asked."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "pretrace"
        text = error.format_message().rstrip(".").replace("Input should be", "it should be")
        said = text[:1].lower() + text[1:]
        _say(PretraceError(said, where, f"see {where} --help"))
    sys.exit(EXIT_USAGE)


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _below(left: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether such an error is at the bottom of it: the command line's library turns it into an exit code of its own."""
    while left is not None and not isinstance(left, kind):
        left = left.__context__
    return left is not None


def _say(error: PretraceError) -> None:
    typer.echo(f"pretrace: {error}", err=True)
