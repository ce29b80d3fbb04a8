"""Training: state + batch + plan -> state + record, on disk or in memory.

`run` and `resume` work in a folder, `replay` in memory, `begin` and `advance` update by update. This face imports torch.
"""

from pretrace.train.folder import RunFolder
from pretrace.train.replay import Replay, replay
from pretrace.train.run import Company, RunResult, resume, run
from pretrace.train.update import Training, advance, begin

__all__ = ["Company", "Replay", "RunFolder", "RunResult", "Training", "advance", "begin", "replay", "resume", "run"]
