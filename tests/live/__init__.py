"""Starts W real gloo processes on loopback: `launch(world, "live.ddp", configurations, folder)`.

The launcher imports torch once and forks, which is quicker than W interpreters on two cores. Every process calls
`MODULE.run(rank, world, configuration)` for each configuration; what rank 0 returns is saved. A barrier stands before the end
of each process: without it a process that leaves while its peer still talks dies of SIGABRT now and then.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT_S = 100


def launch(world, module, configurations, folder):
    """What rank 0 returned for each configuration."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parent
    env["PYTHONPATH"] = os.pathsep.join([str(here.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, __file__, str(world), str(folder), module],
        input=json.dumps(configurations), capture_output=True, text=True, timeout=TIMEOUT_S, env=env, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    import torch

    return torch.load(Path(folder) / "rank0.pt", weights_only=False)


def _child(rank, world, folder, module, configurations):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    program = importlib.import_module(module)
    results = [program.run(rank, world, configuration) for configuration in configurations]
    if rank == 0:
        torch.save(results, Path(folder) / "rank0.pt")
    dist.barrier()
    dist.destroy_process_group()


def main():
    world, folder, module = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    configurations = json.load(sys.stdin)
    import torch.distributed  # noqa: F401  (before the fork, once)

    importlib.import_module(module)
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _child(rank, world, folder, module, configurations)
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
