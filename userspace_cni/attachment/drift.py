"""What CHECK found of an attachment that is not as ADD made it: data, which becomes English here and nowhere else.

Programs ask for fields and types, never for words: how something is said may change. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from userspace_cni.base.errors import Drifted


@dataclass(frozen=True)
class Condition:
    """What was found where there is no value to compare. `words` are for people: no program compares them."""

    words: str


@dataclass(frozen=True)
class Absent(Condition):
    """It is not there, or not set."""

    words: str = "nothing"


class Dead(Condition):
    """It is there, and the process that served it has ended."""


class Other(Condition):
    """Something else is in its place."""


Value = str | int | tuple[int, ...] | Condition


@dataclass(frozen=True)
class Drift:
    """One difference between a step and the node.

    `subject`: the thing as people name it, `port x`; `field`: what of it differs, `tag`, or "" for the thing itself; `details`:
    what to look at; `joint`: what stands between subject and field.
    """

    subject: str
    field: str
    expected: Value
    found: Value
    details: str = ""
    joint: str = ": "


def row(drift: Drift) -> dict[str, str]:
    """It in English, as `check` shows it: what, expected, found, details."""
    return {
        "what": drift.subject + (drift.joint + drift.field if drift.field else ""),
        "expected": _shown(drift.expected),
        "found": _shown(drift.found),
        "details": drift.details,
    }


def told(drift: Drift, what: str = "") -> str:
    """It in one sentence. `what` stands for subject and field where the reader knows the subject."""
    parts = row(drift)
    return f"{what or parts['what']}: expected {parts['expected']}, found {parts['found']}"


def refusal(drifts: Sequence[Drift]) -> Drifted:
    """What the verb CHECK answers: every drift in one error."""
    return Drifted("; ".join(map(told, drifts)), "; ".join(dict.fromkeys(each.details for each in drifts)))


def _shown(value: Value) -> str:
    return value.words if isinstance(value, Condition) else str(value)
