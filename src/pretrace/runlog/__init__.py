"""Our own log: one JSON line a step.

`Record` is a line, `LogWriter` appends them, `records` reads a file back.
"""

from pretrace.runlog.read import records
from pretrace.runlog.record import Alarm, Record
from pretrace.runlog.write import LogWriter

__all__ = ["Alarm", "LogWriter", "Record", "records"]
