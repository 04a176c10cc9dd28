"""Drift becomes English: what people read of it, and what the verb CHECK answers."""

from __future__ import annotations

import pytest

from userspace_cni.attachment.drift import Absent, Condition, Dead, Drift, Other, finding, refusal, sentence
from userspace_cni.base.findings import Finding

SENTENCES = {
    "a column": (Drift("port p", "tag", 5, 0, joint=", "), "port p, tag: expected 5, found 0"),
    "numbers": (Drift("port p", "trunks", (1, 2), Absent(), joint=", "), "port p, trunks: expected (1, 2), found nothing"),
    "an owner": (Drift("directory /d", "uid", 0, 107), "directory /d: uid: expected 0, found 107"),
    "the thing itself": (Drift("mount /m", "", "/s", Absent("no mount")), "mount /m: expected /s, found no mount"),
    "another thing": (Drift("socket /s", "", "a socket", Other("a FIFO")), "socket /s: expected a socket, found a FIFO"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_sentence(case: str) -> None:
    """Subject, field, what was expected and what was found; an absent thing is described in its own words."""
    drift, expected = SENTENCES[case]
    assert sentence(drift) == expected


def test_a_sentence_about_a_known_subject() -> None:
    """The subject can be left out where it was named before."""
    assert sentence(Drift("directory /d", "mode", "0750", "0777"), "mode") == "mode: expected 0750, found 0777"


def test_a_finding() -> None:
    """Every part is text; a value that looks like a sentence stays whole."""
    drift = Drift("port p", "state", "an open interface", "could not open: expected x, found y", "its log", ", ")
    assert finding(drift, "port", "pod/net1") == Finding(
        "port",
        "error",
        "pod/net1",
        "expected an open interface, found could not open: expected x, found y",
        "its log",
        "port p, state",
        expected="an open interface",
        found="could not open: expected x, found y",
    )


def test_conditions_differ_by_what_they_are() -> None:
    """The same words do not make a dead thing an absent one."""
    conditions: list[Condition] = [Absent("a socket"), Dead("a socket"), Other("a socket")]
    assert [conditions.index(each) for each in conditions] == [0, 1, 2]


def test_the_answer_of_check() -> None:
    """One error with every difference; what to look at is named once."""
    drifts = [Drift("port p", each, 1, 2, "its log", ", ") for each in ("tag", "MTU")]
    error = refusal(drifts)
    assert (error.code, error.details) == (103, "its log")
    assert error.message == "port p, tag: expected 1, found 2; port p, MTU: expected 1, found 2"
