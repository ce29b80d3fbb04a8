"""Kills a run at random instants, again and again, and lets it go on. A program: FOLDER RECIPE KILLS SEED.

One process loads everything once and forks a child for every life of the run. A child is killed (SIGKILL) in a phase chosen by
chance: inside an update, after a chance number of file operations of writing a checkpoint or of dropping an old state, or in
the middle of a line of the log. A run that comes to its end is followed by another in a new folder. Prints what happened.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from pretrace.recipe import load
from pretrace.runlog import write as log_writing
from pretrace.train import resume, run, save
from pretrace.train import run as running_module_function

running = sys.modules[running_module_function.__module__]
PHASES = ("step", "checkpoint", "rotation", "log")
FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate"}


def around(module, name, before, after=lambda: None):
    inner = getattr(module, name)

    def outer(*args, **kwargs):
        before()
        try:
            return inner(*args, **kwargs)
        finally:
            after()

    setattr(module, name, outer)


def arm(phase, rng, call):
    """Has the child call `call` at a chance instant of `phase`; `call` does not return."""
    if phase == "step":
        left = iter(range(rng.randrange(1, 6), 0, -1))
        around(running, "advance", lambda: call(wait=False) if next(left, 0) == 1 else None)
    elif phase == "log":
        half_a_line(rng, call)
    else:
        file_operation("write" if phase == "checkpoint" else "drop_old_states", rng, call)


def half_a_line(rng, call):
    inner, lines = os.write, iter(range(rng.randrange(1, 6), 0, -1))

    def write(fd, data):
        if next(lines, 0) == 1:
            inner(fd, data[: rng.randrange(len(data))])
            call()
        return inner(fd, data)

    log_writing.os = type("os", (), {**vars(os), "write": staticmethod(write)})


def file_operation(name, rng, call):
    inside, left = [], [rng.randrange(45 if name == "write" else 8)]
    around(save, name, lambda: inside.append(1), inside.pop)

    def hook(event, args):
        if inside and event in FILE_EVENTS:
            left[0] -= 1
            if left[0] < 0:
                call()

    sys.addaudithook(hook)


def life(folder, recipe, phase, rng, *, step_s):
    """One child; True if it was killed, False if the run came to its end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)

            def call(wait=True):
                os.write(write, b"x")
                while wait:
                    time.sleep(1)

            arm(phase, rng, call)
            resume(folder) if (folder / "recipe.yaml").exists() else run(recipe, folder)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    if os.read(read, 1):
        if phase == "step":
            time.sleep(rng.random() * step_s)
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a child failed in phase {phase}")
    return os.WIFSIGNALED(status)


def main(root, recipe_file, kills, seed):
    rng, recipe = random.Random(seed), load(recipe_file)
    started = time.perf_counter()
    run(recipe, root / "whole")
    step_s = (time.perf_counter() - started) / recipe.steps
    done, folders, lives = dict.fromkeys(PHASES, 0), [root / "run-0"], 0
    while sum(done.values()) < kills:
        phase = min(PHASES, key=lambda p: (done[p], rng.random()))
        lives += 1
        if life(folders[-1], recipe, phase, rng, step_s=step_s):
            done[phase] += 1
        else:
            folders.append(root / f"run-{len(folders)}")
    (resume if (folders[-1] / "recipe.yaml").exists() else lambda f: run(recipe, f))(folders[-1])
    print(json.dumps({"kills": done, "lives": lives, "folders": [str(f) for f in folders]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
