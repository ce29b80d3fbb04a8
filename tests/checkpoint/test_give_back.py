"""Memory given back: the code of the compiler is not resident any more, and works when it is called again."""

import subprocess
import sys

PROGRAM = """
import re
import numpy as np
from pretrace.checkpoint import tiles
from pretrace.checkpoint.give_back import leave_code, one_arena, trim

def code_mib():
    total, mine = 0, False
    for line in open("/proc/self/smaps"):
        if re.match("[0-9a-f]+-", line):
            mine = " r-xp " in line and "llvmlite" in line
        elif mine and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total // 1024

one_arena()
tiles.leave_code = lambda name: None
assert tiles._kernel(2) is not None
before = code_mib()
leave_code("llvmlite")
after = code_mib()
for kind in (np.uint16, np.uint32):  # what was made works, and another one can be made
    source = np.arange(1 << 20).astype(kind)
    out = np.empty_like(source)
    tiles.copy_box(source, out, (1024, 1024), (1024, 1), (1, 1024))
    assert (out.reshape(1024, 1024) == source.reshape(1024, 1024).T).all()
leave_code("no such library")
trim()
print(before, after)
"""


def test_the_code_of_a_compiler_is_let_go_of_and_comes_back():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 10
    assert after <= 1
