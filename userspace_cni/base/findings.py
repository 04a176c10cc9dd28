"""The result of a check of one thing: what is wrong, why it matters, and what to do. Pure.

Every room that sees something wrong says it as a `Finding`, for commands, Events and reports alike. How it is shown is
`diagnosis/`'s: nothing here knows who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

Severity = Literal["error", "warning", "note", "good"]
"""error: it does not work; warning: it may stop working; note: good to know; good: it was looked at, and works."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note", "good")
"""The gravest first."""


@dataclass(frozen=True)
class Finding:
    """One thing found.

    `name`: of its kind; programs compare it, so it never changes its meaning. `subject`: what it is about, as people call it
    (`gateway br0-gw`, a file and the object in it); "" where only the reader knows. `message`: what is wrong; `remedy`: what to
    do. `path`: the place in the subject, as a key or a sysctl, "" for all of it. `why`: why it matters.

    `expected`, `found`: of a comparison, which `message` says in words. `code`: the CNI code with which ADD refuses it, 0 for
    none. `since`: seconds since the epoch when it was first found, None where that is not known: the same finding a moment later
    is equal.
    """

    name: str
    severity: Severity
    subject: str
    message: str
    remedy: str = ""
    path: str = ""
    why: str = ""
    expected: str = ""
    found: str = ""
    code: int = 0
    since: float | None = field(default=None, compare=False)


def date_findings(findings: Iterable[Finding], former: Iterable[Finding], now: float) -> tuple[Finding, ...]:
    """The findings with the time since when they are there: those of the `former` look since then, the others since `now`."""
    since = {each: each.since for each in former}
    return tuple(replace(each, since=since.get(each, now)) for each in findings)
