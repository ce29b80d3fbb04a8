"""Starts two gloo processes again and again and counts how they end: `python starts.py N FOLDER barrier|bare`.

Each pair trains one FSDP1 step and leaves as an interpreter leaves. "terminate called without an active exception" (SIGABRT)
is what a process dies of that leaves while its peer still talks; a barrier before the group is destroyed keeps it there.
"""

import os
import sys
import warnings


def child(rank, store, barrier):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel

    from tiny import gpt

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = FullyShardedDataParallel(gpt(d=16, layers=1), device_id=torch.device("cpu"))
    model(torch.zeros((1, 4), dtype=torch.int64)).sum().backward()
    if barrier:
        dist.barrier()
    dist.destroy_process_group()


def main():
    n, folder, barrier = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "barrier"
    import torch.distributed.fsdp  # noqa: F401  (once, before the forks)

    ends = {}
    for start in range(n):
        pids = []
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                return child(rank, f"{folder}/store-{start}", barrier)
            pids.append(pid)
        for pid in pids:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ends[status] = ends.get(status, 0) + 1
    print(ends)
    return None


if __name__ == "__main__":
    main()
