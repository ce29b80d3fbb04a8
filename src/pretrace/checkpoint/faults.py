"""What is wrong with a file: an error that also carries the short code of the finding it becomes.

Codes are `group` or `group-detail`; the groups are `header`, `index`, `files`, `size`, `keys`, `pickle`, `zip`, `crc`,
`step`, `replicas` and `chunks`.
"""

from __future__ import annotations

from typing import Any

from pretrace.errors import EXIT_USAGE, PretraceError
from pretrace.findings import Finding, Severity


class DamagedFile(PretraceError):
    """A checkpoint file that cannot be read as what it says it is.

    Parameters
    ----------
    code : stable short name of the fault (`header-overlap`).
    what, where, mend : as in `PretraceError`.
    evidence : plain numbers and strings that a reader can recompute.
    """

    def __init__(self, code: str, what: str, where: str = "", mend: str = "", **evidence: Any) -> None:
        super().__init__(what, where, mend, exit_code=EXIT_USAGE)
        self.code, self.evidence = code, evidence

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.what, self.where, self.mend, self.evidence))

    def finding(self) -> Finding:
        """The same as a finding of severity `error`."""
        return Finding(self.code, "error", self.what, self.where, dict(self.evidence), self.mend)


def _rebuild(code: str, what: str, where: str, mend: str, evidence: dict[str, Any]) -> DamagedFile:
    return DamagedFile(code, what, where, mend, **evidence)


def raise_finding(finding: Finding) -> None:
    """Raises an error finding as the exception it stands for."""
    raise DamagedFile(finding.code, finding.what, finding.where, finding.mend, **finding.evidence)


def said(code: str, severity: Severity, what: str, where: str, mend: str, **evidence: Any) -> Finding:
    """A finding, its evidence as keywords."""
    return Finding(code, severity, what, where, evidence, mend)
