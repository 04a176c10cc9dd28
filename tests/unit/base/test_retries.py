"""When a port that the switch could not open is tried again."""

from __future__ import annotations

from userspace_cni.base.retries import FIRST_S, LAST_S, Retries


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_at_once_and_then_at_longer_intervals() -> None:
    """The first try is due at once; each further one after twice the time, up to an hour."""
    clock = Clock()
    retries = Retries(clock)
    pauses = []
    for _ in range(12):
        assert retries.is_due("p", "1")
        retries.note_try("p", "1")
        tried_at = clock.now
        while not retries.is_due("p", "1"):
            clock.now += FIRST_S
        pauses.append(clock.now - tried_at)
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-2:] == [LAST_S, LAST_S]


def test_another_daemon_starts_from_zero() -> None:
    """A port that failed in one ovs-vswitchd may succeed in the next one; other ports are not affected."""
    retries = Retries(Clock())
    retries.note_try("p", "1")
    assert not retries.is_due("p", "1")
    assert retries.is_due("p", "2")
    assert retries.is_due("q", "1")


def test_a_port_that_was_open_starts_from_zero() -> None:
    """A port that has been opened, or deleted, meanwhile is tried at once when it closes again."""
    retries = Retries(Clock())
    retries.note_try("p", "1")
    retries.keep({"p"})
    assert not retries.is_due("p", "1")
    retries.keep(set())
    assert retries.is_due("p", "1")
