"""Differences between what ADD made and what CHECK found. They are data, and become English here and nowhere else.

Programs read fields and types, never the words: the words may change. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from userspace_cni.base.errors import Drifted
from userspace_cni.base.findings import Finding


@dataclass(frozen=True)
class Condition:
    """What was found where there is no value to compare. `words` are for people: no program compares them."""

    words: str


@dataclass(frozen=True)
class Absent(Condition):
    """The thing does not exist, or the field is not set."""

    words: str = "nothing"


class Dead(Condition):
    """The thing exists, and the process that served it has ended."""


class Other(Condition):
    """Another thing is in its place."""


class Hidden(Condition):
    """The thing exists, and processes that need it do not see it."""


class Unfollowed(Condition):
    """The thing is seen, and its next one will not be: the mount does not follow that of the host."""


Value = str | int | tuple[int, ...] | Condition


@dataclass(frozen=True)
class Drift:
    """One difference between a step and the node.

    `subject`: the thing as people name it, `port x`; `field`: its part that differs, such as `tag`, or "" for the thing itself;
    `details`: what to look at; `joint`: what stands between subject and field.
    """

    subject: str
    field: str
    expected: Value
    found: Value
    details: str = ""
    joint: str = ": "


def finding(drift: Drift, kind: str = "", attachment: str = "") -> Finding:
    """The drift in English, as a finding about an attachment. `kind`: of its step."""
    what = drift.subject + (drift.joint + drift.field if drift.field else "")
    expected, found = _shown(drift.expected), _shown(drift.found)
    said = f"expected {expected}, found {found}"
    return Finding(kind, "error", attachment, said, drift.details, what, expected=expected, found=found)


def sentence(drift: Drift, what: str = "") -> str:
    """The drift in one sentence. `what` replaces subject and field where the reader knows the subject."""
    found = finding(drift)
    return f"{what or found.path}: {found.message}"


def without_told(drifts: Sequence[Drift], subject: str, told: Mapping[str, object]) -> list[Drift]:
    """The drifts without those of `subject` that found what a later plugin of the chain has set there, as tuning does.

    `told`: the subject's entry in the result of the whole chain, by the fields' names.
    """

    by_field = {key: value.lower() if isinstance(value, str) else value for key, value in told.items()}
    return [drift for drift in drifts if drift.subject != subject or by_field.get(drift.field) != drift.found]


def refusal(drifts: Sequence[Drift]) -> Drifted:
    """The error with which the verb CHECK answers: every drift in one."""
    return Drifted("; ".join(map(sentence, drifts)), "; ".join(dict.fromkeys(each.details for each in drifts)))


def _shown(value: Value) -> str:
    return value.words if isinstance(value, Condition) else str(value)
