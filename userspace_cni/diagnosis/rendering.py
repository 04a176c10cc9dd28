"""Findings as text and as JSON: which of their fields are shown, in which order and under which keys. The words are their own.

Pure: printing them, and in which colours, is the command line's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from userspace_cni.base.findings import SEVERITIES, Finding

Keys = Mapping[str, str]
"""The keys of a JSON object, in their order, and of which field of a finding each is."""
_KIND: Final[Keys] = {each: each for each in ("name", "severity")}
_SAID: Final[Keys] = {each: each for each in ("message", "remedy")}
OF_TRAPS: Final[Keys] = {**_KIND, "where": "subject", **_SAID, "path": "path"}
OF_DRIFTS: Final[Keys] = {"step": "name", "what": "path", "expected": "expected", "found": "found", "details": "remedy"}
OF_NODE: Final[Keys] = {**_KIND, **{each: each for each in ("subject", "path", "message", "why", "remedy")}}
OF_NETWORKS: Final[Keys] = {**_KIND, **_SAID, "key": "path", "code": "code"}


def as_json(finding: Finding, keys: Keys) -> dict[str, Any]:
    return {key: getattr(finding, field) for key, field in keys.items()}


def by_subject(findings: Iterable[Finding]) -> Mapping[str, list[Finding]]:
    """The findings of each subject, each subject where it comes first."""
    found: dict[str, list[Finding]] = {}
    for each in findings:
        found.setdefault(each.subject, []).append(each)
    return found


def lines(finding: Finding, *, reasons: bool = False) -> list[tuple[str, str]]:
    """Labels and texts about one finding, below its subject; a text may be "". `reasons`: with why it matters."""
    said = f"{finding.name}: {finding.message}"
    why = [("  why", finding.why)] if reasons else []
    return [(finding.severity, said), ("  at", finding.path), *why, ("  do", finding.remedy)]


def in_words(finding: Finding) -> str:
    """What is so, why it matters and what to do, on one line."""
    return "; ".join(filter(None, (". ".join(filter(None, (finding.message, finding.why))), finding.remedy)))


def counts_text(findings: Sequence[Finding]) -> str:
    """`1 error, 2 notes`."""
    counts = Counter(each.severity for each in findings)
    found = [f"{counts[each]} {each}{'' if counts[each] == 1 else 's'}" for each in SEVERITIES if counts[each]]
    return ", ".join(found) or "nothing found"
