"""Looks at a collective from outside: which ranks' numbers are already together when two given ranks meet.

This file needs only Python 3.8 and torch 1.10, so that it can be copied to the cluster of an older run and started there by
the launcher of that run:

    torchrun --nproc-per-node 8 probe_collect.py --numel 1000000 --dtype bfloat16 --out raw.json
    pretrace probe --from raw.json --out order.json

The idea is FPRev's: rank i holds +M, rank j holds -M, every other rank one small unit u. A unit that is added to M is
swallowed by rounding; a unit that joins after M and -M have met survives. So (W - survivors) ranks lie under the addition where i
and j meet. M swallows u in the wire dtype but not in a wider one: if all W - 2 units survive for every pair, the sum is wider
than the wire.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Callable, Sequence  # noqa: UP035  # Python 3.8

# dtype on the wire -> (M, u): M + n u == M in that dtype for all n up to 256, and M + u > M in the next wider dtype.
MAGNITUDES = {
    "float32": (2.0**40, 1.0),
    "bfloat16": (2.0**20, 1.0),
    "float16": (2.0**14, 2.0**-8),
}


def all_reduce(buffer: Any) -> Any:
    """The sum over ranks of a whole buffer."""
    import torch.distributed as dist

    dist.all_reduce(buffer)
    return buffer


def reduce_scatter(buffer: Any) -> Any:
    """The same through reduce-scatter; the shards are gathered so that rank 0 sees all of them."""
    import torch
    import torch.distributed as dist

    # The second names are those of torch before 1.13.
    scatter = getattr(dist, "reduce_scatter_tensor", None) or getattr(dist, "_reduce_scatter_base")  # noqa: B009
    gather = getattr(dist, "all_gather_into_tensor", None) or getattr(dist, "_all_gather_base")  # noqa: B009
    world_size = dist.get_world_size()
    padded = -(-buffer.numel() // world_size) * world_size
    whole = torch.cat([buffer, buffer.new_zeros(padded - buffer.numel())])
    shard = whole.new_empty(padded // world_size)
    scatter(shard, whole)
    gather(whole, shard)
    return whole[: buffer.numel()]


COLLECTIVES = {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter}


def survivors(
    collective: Callable[[Any], Any], rank: int, pair: tuple[int, int], numel: int, dtype: str, device: str
) -> list[list[float]]:
    """How many units survive for this pair of ranks: runs of (count, number of elements) along the buffer."""
    import torch

    big, unit = MAGNITUDES[dtype]
    value = big if rank == pair[0] else -big if rank == pair[1] else unit
    buffer = torch.full((numel,), value, dtype=getattr(torch, dtype), device=device)
    counts = collective(buffer).float().div(unit)
    values, lengths = torch.unique_consecutive(counts, return_counts=True)
    return [[float(v), int(n)] for v, n in zip(values.tolist(), lengths.tolist())]


def collect(
    collective: Callable[[Any], Any],
    rank: int,
    world_size: int,
    numel: int,
    dtype: str,
    device: str = "cpu",
    repeats: int = 2,
) -> dict[str, Any]:
    """All pairs, `repeats` times each; plain values that fit into JSON. Every rank calls it and gets the same answer."""
    pairs: list[Any] = []
    stable = True
    for i in range(world_size):
        for j in range(i + 1, world_size):
            seen = [survivors(collective, rank, (i, j), numel, dtype, device) for _ in range(repeats)]
            stable = stable and all(one == seen[0] for one in seen)
            pairs.append([i, j, seen[0]])
    return {"world_size": world_size, "numel": numel, "dtype": dtype, "stable": stable, "pairs": pairs}


def about(backend: str, name: str) -> str:
    """What was probed, in one line."""
    import platform

    import torch

    nccl: Any = getattr(torch.cuda, "nccl", None) if backend == "nccl" else None
    version = ".".join(map(str, nccl.version())) if nccl else ""
    return " ".join(filter(None, [backend, version, name, "torch", torch.__version__, "on", platform.node()]))


def main() -> None:
    """Run by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, nargs="+", required=True, help="elements of the buffers to probe")
    parser.add_argument("--dtype", choices=sorted(MAGNITUDES), nargs="+", required=True)
    parser.add_argument("--collective", choices=sorted(COLLECTIVES), nargs="+", default=["all_reduce"])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--out", required=True)
    asked = parser.parse_args()
    run(asked.numel, asked.dtype, asked.collective, asked.backend, asked.out)


def run(numels: Sequence[int], dtypes: Sequence[str], collectives: Sequence[str], backend: str, out: str) -> None:
    """Joins the process group, probes every combination, and writes the raw file on rank 0."""
    import torch
    import torch.distributed as dist

    device = "cpu"
    if backend == "nccl":
        device = "cuda:" + os.environ.get("LOCAL_RANK", "0")
        torch.cuda.set_device(device)
    store = os.environ.get("PROBE_STORE")  # several processes of one machine meet in a file
    if store:
        ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, init_method="file://" + store, rank=ranks[0], world_size=ranks[1])
    else:
        dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buffers = []
    for name in collectives:
        for dtype in dtypes:
            for numel in numels:
                seen = collect(COLLECTIVES[name], rank, world_size, numel, dtype, device)
                buffers.append(dict(seen, collective=name, about=about(backend, name)))
    if rank == 0:
        temporary = f"{out}.tmp-{os.getpid()}"
        with open(temporary, "w") as file:
            json.dump({"version": 1, "buffers": buffers}, file)
        os.replace(temporary, out)
    # Leaving while a peer still talks aborts the process in torch's gloo ("terminate called without an active exception").
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
