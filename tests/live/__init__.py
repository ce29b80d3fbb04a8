"""Real gloo processes on loopback: `run_all(world, jobs)` runs every job in `world` processes and returns what rank 0 says.

A job is (program, configuration): `live.PROGRAM.run(rank, world, configuration)` is called in every process. The launcher imports
torch once and forks, which is quicker than W interpreters on two cores; `results` starts one launch per W for all programs of the
default suite. A barrier stands before the end of each process: without it a process that leaves while its peer still talks
dies of SIGABRT now and then.
"""

import fcntl
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

TIMEOUT_S = 110
shared_folder = Path(tempfile.gettempdir())  # conftest.py: pytest's own, which it clears


PROGRAMS = ("ddp", "fsdp", "ours", "engines", "pipeline")


@lru_cache
def _defaults(world):
    import torch

    jobs = [(program, how) for program in PROGRAMS for how in _program(program).default(world)]
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return list(zip(jobs, run_all(world, jobs)))
    # pytest's workers share one launch: whoever asks first makes it, the others wait
    kept = shared_folder / f"live-{run}-{world}.pt"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_file():
            torch.save(run_all(world, jobs), kept)
    return list(zip(jobs, torch.load(kept, weights_only=False)))


def results(world, program):
    """(configuration, what rank 0 returned) of a program's default configurations at `world` processes."""
    return [(how, found) for (name, how), found in _defaults(world) if name == program]


def launch(world, module, configurations, folder=None):
    """What rank 0 returned for each configuration of one program, `live.PROGRAM`; `folder` is not needed."""
    return run_all(world, [(module.removeprefix("live."), how) for how in configurations])


def run_all(world, jobs):
    """What rank 0 returned for each job."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, str(world), folder],
            input=json.dumps(jobs), capture_output=True, text=True, timeout=TIMEOUT_S, env=env, start_new_session=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        import torch

        return torch.load(Path(folder) / "rank0.pt", weights_only=False)


def first_difference(real, virtual):
    """The first step after which a bit differs; None if none does."""
    import torch

    assert len(real) == len(virtual)
    return next((step for step, (a, b) in enumerate(zip(real, virtual)) if not torch.equal(a, b)), None)


def _program(name):
    return importlib.import_module(f"live.{name}")


def _child(rank, world, folder, jobs):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    found = [_program(program).run(rank, world, how) for program, how in jobs]
    if rank == 0:
        torch.save(found, Path(folder) / "rank0.pt")
    dist.barrier()
    dist.destroy_process_group()


def main():
    world, folder = int(sys.argv[1]), sys.argv[2]
    jobs = json.load(sys.stdin)
    import torch.distributed  # noqa: F401  (before the fork, once)

    for program in {program for program, _ in jobs}:
        _program(program)
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _child(rank, world, folder, jobs)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(pid)
    sys.exit(_wait(children))


def _wait(children):
    """0 if all came to a good end; else the others are stopped and the first bad status is told."""
    left, deadline = set(children), time.monotonic() + TIMEOUT_S - 5
    while left:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            left.discard(pid)
        if (pid and status) or time.monotonic() > deadline:
            for other in left:
                os.kill(other, 9)
            print(f"process {pid or left} ended with status {status}", file=sys.stderr)
            return 1
        if not pid:
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    main()
