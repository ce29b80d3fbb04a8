"""The README's commands run as written, in order, in one folder."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def commands():
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            command, _, comment = line.partition("   # ")
            expected = re.match(r"exit (\d+)", comment)
            yield command, int(expected.group(1)) if expected else 0


@pytest.mark.timeout(280)
def test_the_commands_of_the_readme_do_what_it_says(tmp_path):
    assert len(list(commands())) >= 5
    for command, expected in commands():
        program, *arguments = shlex.split(command)
        assert program == "pretrace"
        done = subprocess.run(
            [sys.executable, "-m", "pretrace", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "demo" / "report.html").is_file()
    verdict = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert (verdict["outcome"], verdict["explained_by"]) == ("contradicted", "standard")
    assert (tmp_path / "case.yaml").is_file()


def test_every_verb_that_the_readme_names_exists():
    from pretrace.cli.main import VERBS

    named = set(re.findall(r"`pretrace ([a-z-]+)", README))
    assert named
    assert named <= {verb.replace("_", "-") for verb in VERBS}


def test_every_file_that_the_readme_names_exists():
    named = re.findall(r"`((?:tests|docs|src)/[\w./-]*|[A-Z]+\.(?:md|cff))`", README)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_citation_file_has_what_the_format_asks_for():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["cff-version"] == "1.2.0"
    assert all("name" in author or "family-names" in author for author in cited["authors"])


def test_the_cited_version_is_the_version():
    from pretrace import __version__

    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
