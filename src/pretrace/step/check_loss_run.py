"""Sends the mixes of `step.check_loss` through somebody's training step and measures which weight every sequence got.

The step is a function of one argument, the micro-batches that this process reads in one update:

    def step(micro_batches: list[MicroBatch]) -> nn.Module | Iterable[Tensor]

It builds its own model (the same each time, dropout off), does forward and backward over the micro-batches, reduces over ranks
if `torch.distributed` is initialised, and returns the model or its gradients as the optimizer would see them, before clipping.
Every number of ranks runs in fresh processes (gloo on loopback), all its topologies one after another.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrace.batch import IGNORE_INDEX
from pretrace.errors import PretraceError
from pretrace.step.check_loss import LENGTHS, PADDED, PADDED_SHORT, SEQUENCES, SHORT, TOPOLOGIES, Measured
from pretrace.topology import Topology

VOCABULARY = 32  # token ids of the mixes lie below this
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward of one rank. Axes: B sequences, T positions; padding is on the right."""

    input_ids: Tensor  # [B, T] int64
    attention_mask: Tensor  # [B, T] int64, 0 on padding
    labels: Tensor  # [B, T] int64, not shifted (transformers): labels[b, t] is input_ids[b, t], or -100 on padding
    targets: Tensor  # [B, T] int64, shifted (nanoGPT): targets[b, t] is input_ids[b, t + 1], or -100


Step = Callable[[list[MicroBatch]], nn.Module | Iterable[Tensor]]


def sequences(indices: Sequence[int], padded: int) -> MicroBatch:
    """The sequences with these numbers (0 to 3) as one micro-batch; n labels take n + 1 tokens."""
    rows = np.zeros((len(indices), padded + 1), dtype=np.int64)
    real = np.zeros((len(indices), padded + 1), dtype=bool)
    for row, index in enumerate(indices):
        tokens = np.random.default_rng(index).integers(1, VOCABULARY, LENGTHS[index] + 1)
        rows[row, : len(tokens)], real[row, : len(tokens)] = tokens, True
    labels = np.where(real, rows, IGNORE_INDEX)
    cut = slice(0, padded)
    return MicroBatch(*(torch.from_numpy(np.ascontiguousarray(x)) for x in
                        (rows[:, cut], real[:, cut].astype(np.int64), labels[:, cut], labels[:, 1:])))  # fmt: skip


def micro_batches(topology: Topology, rank: int) -> list[MicroBatch]:
    """What `rank` reads in one update of the mix."""
    steps = range(topology.grad_accum_steps)
    return [sequences([SEQUENCES[p] for p in topology.positions(0, k, rank)], PADDED) for k in steps]


def measure(step: str) -> Measured:
    """Runs the step named `MODULE:FUNCTION` (or `path/to/file.py:FUNCTION`) in processes of their own.

    Raises
    ------
    PretraceError
        If the function cannot be found, fails, hangs, or returns no gradient.
    """
    with tempfile.TemporaryDirectory(prefix="pretrace-check-loss-") as folder:
        for world_size in sorted({t.world_size for t in TOPOLOGIES}):
            _launch(step, world_size, Path(folder))
        found: dict[str, NDArray[np.float64]] = {}
        for path in sorted(Path(folder).glob("gradients-*.npz")):
            with np.load(path) as held:
                found |= {key: held[key] for key in held.files}
    return _solve(found, step)


def _solve(found: dict[str, NDArray[np.float64]], step: str) -> Measured:
    alone = np.stack([found[f"alone-{i}"] for i in range(len(LENGTHS))], axis=1)  # [parameters, 4]
    if not np.isfinite(alone).all() or not np.linalg.norm(alone, axis=0).all():
        raise PretraceError("a single sequence leaves no gradient, or one that is not finite", step,
                            "return the model with .grad set, or its gradients, before they are cleared")  # fmt: skip
    coefficients, unexplained = {}, 0.0
    for topology in TOPOLOGIES:
        mix = found[_key(topology)]
        a, *_ = np.linalg.lstsq(alone, mix, rcond=None)
        left, whole = float(np.linalg.norm(mix - alone @ a)), float(np.linalg.norm(mix))
        unexplained = max(unexplained, left / whole if whole else 0.0)
        coefficients[topology] = tuple(map(float, a))
    stretch = float(np.linalg.norm(found["short"]) / np.linalg.norm(alone[:, SHORT]))
    return Measured(coefficients, unexplained, stretch)


def _key(topology: Topology) -> str:
    return f"mix-{topology.world_size}-{topology.grad_accum_steps}-{topology.micro_batch}"


def _launch(step: str, world_size: int, folder: Path) -> None:
    """Starts the processes of one number of ranks and waits for them; no process outlives the call."""
    store = folder / f"store-{world_size}"
    loopback = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    # The function may stand in a module beside the caller.
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    children = []
    for rank in range(world_size):
        # Launchers' variables, for steps that look at them; one rank alone is no distributed run.
        ranked = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank),
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} if world_size > 1 else {}  # fmt: skip
        code = "from pretrace.step.check_loss_run import _child; import sys; _child(*sys.argv[1:])"
        with open(folder / f"errors-{world_size}-{rank}", "wb") as errors:
            children.append(subprocess.Popen(
                [sys.executable, "-c", code, step, str(rank), str(world_size), str(store), str(folder)],
                env=os.environ | loopback | ranked | {"PYTHONPATH": path}, stdout=errors, stderr=errors,
            ))  # fmt: skip
    try:
        codes = [child.wait(timeout=TIMEOUT_S) for child in children]
    except subprocess.TimeoutExpired:
        raise PretraceError(f"the step does not come back within {TIMEOUT_S} s at {world_size} ranks", step,
                            "see that every rank takes part in every collective") from None  # fmt: skip
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for rank, failed in enumerate(codes):
        if failed:
            _explain(step, folder, world_size, rank)


def _explain(step: str, folder: Path, world_size: int, rank: int) -> None:
    told = folder / f"told-{world_size}-{rank}"
    if told.exists():
        raise PretraceError(*json.loads(told.read_text()))
    last = (folder / f"errors-{world_size}-{rank}").read_text(errors="replace").strip().splitlines()[-1:] or [
        "no message"
    ]
    raise PretraceError(f"the step fails: {last[0]}"[:300], f"{step}, rank {rank} of {world_size}",
                        "run it on its own first: it gets a list of MicroBatch")  # fmt: skip


def _child(step: str, rank: str, world_size: str, store: str, folder: str) -> None:
    torch.set_num_threads(1)
    if int(world_size) > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size))
    try:
        found = _gradients(load(step), int(rank), int(world_size))
    except PretraceError as error:
        told = [error.what, error.where or f"{step}, rank {rank} of {world_size}", error.mend]
        (Path(folder) / f"told-{world_size}-{rank}").write_text(json.dumps(told))
        raise SystemExit(2) from None
    if int(rank) == 0:
        np.savez(Path(folder) / f"gradients-{world_size}.npz", **found)  # type: ignore[arg-type]  # names are ours
    if int(world_size) > 1 and dist.is_initialized():
        dist.barrier()  # leaving while a peer still talks aborts the process (a teardown race of gloo)
        dist.destroy_process_group()


def _gradients(step: Step, rank: int, world_size: int) -> dict[str, NDArray[np.float64]]:
    found = {}
    if world_size == 1:
        for index in range(len(LENGTHS)):
            found[f"alone-{index}"] = _flat(step([sequences([index], PADDED)]))
        found["short"] = _flat(step([sequences([SHORT], PADDED_SHORT)]))
    for topology in TOPOLOGIES:
        if topology.world_size == world_size:
            found[_key(topology)] = _flat(step(micro_batches(topology, rank)))
    return found


def _flat(left: Any) -> NDArray[np.float64]:
    if isinstance(left, nn.Module):
        # A parameter that took no part (an unused position embedding) counts as zero.
        parameters = [p for p in left.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    else:
        grads = list(left or ())
    if not grads or not all(isinstance(g, Tensor) for g in grads):
        raise PretraceError(f"the step returns {type(left).__name__} without gradients", "",
                            "return the model with .grad set, or an iterable of gradient tensors")  # fmt: skip
    return torch.cat([g.detach().double().reshape(-1) for g in grads]).numpy()


def load(step: str) -> Step:
    """The function behind `MODULE:FUNCTION` or `path/to/file.py:FUNCTION`.

    Raises
    ------
    PretraceError
        If there is none.
    """
    module_name, _, function_name = step.rpartition(":")
    if not module_name:
        raise PretraceError(f"{step!r} names no function", step, "write MODULE:FUNCTION or path/to/file.py:FUNCTION")
    try:
        module = _from_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        found: Step = getattr(module, function_name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise PretraceError(
            f"{step} cannot be loaded: {error}", step, "check the name; run from the folder of the module"
        ) from None
    return found


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ImportError(f"no such file: {path}")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
