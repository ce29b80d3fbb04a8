"""The command line as scripts see it: exit codes, one error of three lines, a quick start."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest


def pretrace(*arguments, cwd=None):
    command = [sys.executable, "-m", "pretrace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd, check=False)


def test_help_names_every_verb():
    from pretrace.cli.main import VERBS

    shown = pretrace("--help").stdout
    assert all(verb.replace("_", "-") in shown for verb in VERBS)


def test_help_starts_in_a_third_of_a_second_of_processor_time():
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pretrace("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, not the clock: the machine may be busy with other tests.
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.6


def test_an_error_is_three_lines_and_exit_code_2(tmp_path):
    done = pretrace("train", tmp_path / "absent.yaml", "--out", tmp_path / "run")
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("pretrace: reading the recipe: absent.yaml does not exist")
    assert [line.split()[0] for line in lines[1:]] == ["where", "mend"]


BAD_TEXTS = {"bytes": b"\x00\x01\xff", "cut": b"a: [", "month 13": b"a: 2026-13-01", "deep": b"a: " + b"[" * 1500}


@pytest.mark.parametrize("bad", BAD_TEXTS)
def test_a_file_that_is_no_yaml_is_one_error_of_three_lines_in_every_reader(tmp_path, bad):
    from pretrace.cli.data import _spec
    from pretrace.errors import PretraceError
    from pretrace.explain.step_inputs import plan_of, read_of
    from pretrace.recipe import load
    from pretrace.retrace.case import load as load_case

    (file := tmp_path / "given.yaml").write_bytes(BAD_TEXTS[bad])
    for read in (load, load_case, plan_of, _spec, lambda path: read_of(str(path))):
        with pytest.raises(PretraceError) as caught:
            read(file)
        lines = str(caught.value).splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["where", "mend"]
        assert "given.yaml" in lines[1]


def test_a_nonsense_override_of_a_resumed_run_is_one_error(tmp_path):
    import tiny_recipe
    from pretrace.recipe import to_yaml

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(to_yaml(tiny_recipe.recipe(tmp_path)))
    done = pretrace("train", "--resume", tmp_path / "run", "--set", "steps=[")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 3


@pytest.mark.parametrize("arguments", [["frobnicate"], ["train", "--nonsense"], ["compare"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert pretrace(*arguments).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "x", "--limit", "0"), "invalid value for '--limit'"),
        (("audit", "x", "--nonsense"), "no such option: --nonsense"),
        (("compare", "a"), "missing argument 'b'"),
        (("nonsense",), "no such command 'nonsense'"),
    ],
)
def test_an_argument_that_no_verb_takes_is_three_lines_too(arguments, said, capsys):
    from pretrace.cli.main import main

    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    lines = capsys.readouterr().err.strip().splitlines()
    assert left.value.code == 2
    assert lines[0].startswith(f"pretrace: {said}")
    assert [line.split()[0] for line in lines[1:]] == ["where", "mend"]


def test_a_closed_pipe_is_no_fault():
    start = time.monotonic()
    command = f"{sys.executable} -m pretrace --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert time.monotonic() - start < 30


def test_an_interrupt_is_one_line_and_exit_code_75(monkeypatch, capsys):
    from pretrace.cli import demo, main

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.console, "Counter", interrupted)
    with pytest.raises(SystemExit) as left:
        main.main(["demo"])
    assert left.value.code == 75
    assert capsys.readouterr().err.startswith("pretrace: stopped; what was finished is kept")


def test_a_pipe_that_is_closed_in_the_middle_is_no_finding(monkeypatch):
    from pretrace.cli import demo, main

    def closed(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(demo.console, "Counter", closed)
    monkeypatch.setattr(main.sys, "stdout", main.sys.stdout)  # the library puts a wrapper there
    monkeypatch.setattr(main.sys, "stderr", main.sys.stderr)
    with pytest.raises(SystemExit) as left:
        main.main(["demo"])
    assert left.value.code == 0


def test_a_scheduler_that_ends_it_is_answered_as_an_interrupt(monkeypatch, capsys):
    from pretrace.cli import demo, main

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(demo.console, "Counter", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as left:
            main.main(["demo"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 75
    assert "the same command goes on" in capsys.readouterr().err


def test_a_word_of_the_system_that_nobody_named_is_no_traceback(monkeypatch, capsys):
    from pretrace.cli import demo, main

    def refused(*_):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/below")

    monkeypatch.setattr(demo.console, "Counter", refused)
    with pytest.raises(SystemExit) as left:
        main.main(["demo"])
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert told.startswith("pretrace: below is not in a folder")
    assert "Traceback" not in told


def test_a_tilde_that_no_shell_has_seen_is_the_home_folder(tmp_path, monkeypatch):
    from pretrace.data.sources import TokenSource
    from pretrace.spec import build

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert pretrace("retrace", "init", "~/case.yaml").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["case.yaml"]
    source = build(TokenSource, {"path": "~/books", "format": "raw", "content": "a~/b"}, where="data.yaml")
    assert (source.path, source.content) == (f"{tmp_path}/books", "a~/b")


@pytest.mark.parametrize(
    ("verb", "first", "last"),
    [("evaluate", "What is scored", "Questions"), ("convert", "what is written", "several hosts")],
)
def test_many_options_are_shown_in_groups(verb, first, last):
    from typer.testing import CliRunner

    from pretrace.cli.main import app

    heads = [
        line
        for line in CliRunner().invoke(app, [verb, "--help"]).output.splitlines()
        if line.endswith(":") and line[0] != " "
    ]
    assert heads[0] == "Arguments:"
    assert first.lower() in heads[1].lower()
    assert last.lower() in heads[-2].lower()
    assert heads[-1] == "Options:"
