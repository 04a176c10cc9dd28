"""The error of a passed deadline has the time that there was, and the setting that limits it, if any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable

VERB = Deadline.after(7200, "deadline_s")


def said(deadline: Deadline) -> str:
    """The error of this deadline when it has passed."""
    with pytest.raises(Unavailable) as passed:
        replace(deadline, at=0.0).require("opening a session")
    return str(passed.value)


def test_the_setting_that_bounds_it_is_named() -> None:
    """The error has the time and the setting; half of the time is limited by the same setting."""
    assert said(VERB) == "opening a session: out of time; the 7200 s that it may take (setting deadline_s) have passed"
    assert said(VERB.half()).endswith("(setting deadline_s) have passed")
    assert 0 < VERB.half().seconds <= VERB.seconds / 2


def test_no_setting_is_named_where_none_bounds_it() -> None:
    """The error of a fixed deadline has the time alone, also when it is earlier than a setting's."""
    alone = "opening a session: out of time; the 6 s that it may take have passed"
    assert said(Deadline.after(6)) == said(VERB.within(6)) == said(VERB.within(6).within(60)) == alone
    assert said(Deadline.after(None).within(6)) == alone


def test_what_would_be_later_bounds_nothing() -> None:
    """Within a longer time it is the same deadline, with its setting."""
    assert VERB.within(7300) == VERB
    assert said(VERB.within(7300)) == said(VERB)
