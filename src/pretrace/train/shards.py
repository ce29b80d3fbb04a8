"""Training state in shards: every process writes its own parts, in torch's distributed checkpoint format.

What one number of processes wrote another reads: `open_state` puts any tensor together from the parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.state_dict_saver import save

from pretrace.errors import naming
from pretrace.train.capture import PARAM
from pretrace.train.update import Training

FOLDER = "shards"  # of a training state


def write_shards(training: Training, folder: Path) -> None:
    """Writes parameters and moments into `folder`; every process calls this."""
    state, tensors = training.state, dict[str, Any]()
    for name, parameter in state.params.items():
        tensors[PARAM + name] = parameter.detach()
        for slot, held in state.optimizer.tensors.items():
            tensors[f"{slot}.{name}"] = _like(held[name], parameter)
    with naming(folder, "writing the shards"):
        save(tensors, checkpoint_id=str(folder), process_group=training.team.group)


def _like(local: Any, parameter: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride(), run_check=False
    )  # fmt: skip
