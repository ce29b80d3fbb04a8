"""The house: imports go down only, rooms of one floor do not import each other, and specs do not import torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pretrace

SRC = Path(pretrace.__file__).parent

# Ground first. A file may import from lower floors and from its own room.
FLOORS = (
    ("errors", "digest", "spec", "dtypes", "findings", "batch", "files", "topology", "executor", "hosts"),
    ("data", "model", "step", "runlog"),
    ("checkpoint",),
    ("recipe", "score"),
    ("compare",),
    ("train", "audit", "preflight"),
    ("convert", "evaluate", "explain", "provenance"),
    ("study", "retrace"),
    ("report",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = ("torch", "transformers", "jax", "datasets", "lm_eval", "deepspeed")


def files():
    return sorted(SRC.rglob("*.py"))


def room_of(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return None if parts == ("__init__",) else parts[0]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides the direction"
            yield node.module
            if node.module == "pretrace":
                yield from (f"pretrace.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_down_only(path):
    room = room_of(path)
    if room is None:
        return
    assert room in FLOOR_OF, f"{room} has no floor: add it to FLOORS"
    for name in imports(path):
        if not name.startswith("pretrace."):
            continue
        other = name.split(".")[1]
        if other == room or other not in FLOOR_OF:
            continue
        same_floor_on_ground = FLOOR_OF[other] == FLOOR_OF[room] == 0
        assert FLOOR_OF[other] < FLOOR_OF[room] or same_floor_on_ground, f"{path} imports {name}"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SRC)))
def test_no_file_imports_the_face_of_its_own_room(path):
    room = room_of(path)
    if room is not None and path.parent != SRC and path.name != "__init__.py":
        assert f"pretrace.{room}" not in list(imports(path)), f"{path} imports its own package's face"


def test_ground_floor_has_no_circle():
    ground = {room: SRC / f"{room}.py" for room in FLOORS[0]}
    below = {r: {n.split(".")[1] for n in imports(p) if n.startswith("pretrace.")} for r, p in ground.items()}
    order = []
    while below:
        free = sorted(r for r, needs in below.items() if not needs - set(order))
        assert free, f"a circle among {sorted(below)}"
        order += free
        below = {r: needs for r, needs in below.items() if r not in free}


@pytest.mark.parametrize("module", ["pretrace", "pretrace.cli.main"])
def test_starts_without_heavy_libraries(module):
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
