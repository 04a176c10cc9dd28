"""Who gets a signal: our handler while it is entered, the former one afterwards; ignored signals stay ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from userspace_cni.base.signals import STOPPING, Signals, waking


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    """Tell this process to end."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_signals_are_handled_and_put_back(number: int) -> None:
    """Each of the three signals reaches our handler within the block, even
    after another one had it, and the former one afterwards.
    """
    outer: list[int] = []
    inner: list[int] = []
    before = signal.getsignal(number)
    with Signals(lambda which, _: outer.append(which)) as first:
        with Signals(lambda which, _: inner.append(which)):
            send(number)
            first.hear()
            send(number)
        send(number)
    assert (outer, inner) == ([number, number], [number])
    assert signal.getsignal(number) == before


def test_what_is_ignored_stays_so() -> None:
    """A signal that is ignored, as under nohup(1), stays ignored unless a program has to get it all the same."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard: list[int] = []
    with Signals(lambda which, _: heard.append(which)):
        send(signal.SIGHUP)
    assert heard == []
    with Signals(lambda which, _: heard.append(which), ignored_too=True):
        send(signal.SIGHUP)
    assert heard == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_muted_signals_end_nothing() -> None:
    """Signals during a cleanup are ignored; the former handlers are restored all the same, and only once."""
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda which, _: heard.append(which))
    signals = Signals(lambda which, _: heard.append(-which))
    signals.mute()  # none is heard yet: nothing is changed
    send(signal.SIGTERM)
    signals.hear()
    signals.mute()
    send(signal.SIGTERM)
    signals.restore()
    signals.restore()
    send(signal.SIGTERM)
    assert heard == [signal.SIGTERM, signal.SIGTERM]


def test_a_thread_that_waits_is_woken() -> None:
    """A signal writes a byte where the main thread waits."""
    woken = waking()
    try:
        with Signals(lambda *_: None):
            send(signal.SIGTERM)
            assert os.read(woken, 64) == bytes([signal.SIGTERM])
    finally:
        os.close(signal.set_wakeup_fd(-1))
        os.close(woken)
