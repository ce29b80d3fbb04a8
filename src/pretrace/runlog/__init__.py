"""Our own log: one JSON line a step.

`Record` is a line, `LogWriter` appends them, `records` reads a file back; `Watch` raises alarms, each with its rule.
"""

from pretrace.runlog.alarms import Rules, Watch
from pretrace.runlog.read import records
from pretrace.runlog.record import Alarm, Record
from pretrace.runlog.write import LogWriter

__all__ = ["Alarm", "LogWriter", "Record", "Rules", "Watch", "records"]
