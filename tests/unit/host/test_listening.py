"""Threads that wait until the kernel reports a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.base.errors import Unavailable
from userspace_cni.host.netlink import listening
from userspace_cni.host.netlink.listening import KernelWatch


class PipeWatch(KernelWatch):
    """Listens to a pipe; the first attempt fails."""

    def __init__(self, read: int) -> None:
        super().__init__("pipe", "watching a pipe", "what comes is not noticed")
        self.tried = self.noticed = 0
        self._read = read

    def _round(self) -> float:
        self.tried += 1
        if self.tried == 1:
            raise Unavailable("it is not there", "it is tried again")
        while self._waited(self._read):
            os.read(self._read, 1)
            self.noticed += 1
        return 0.0


def test_what_could_not_listen_listens_later(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """While it listens there is no problem, even for days; otherwise the next failure would not be reported.

    A stop ends it while it waits.
    """
    monkeypatch.setattr(listening, "AGAIN_S", 0.01)
    read, write = os.pipe()
    watch = PipeWatch(read)
    watch.start()
    os.write(write, b"x")
    wait_until(lambda: watch.noticed == 1)
    assert (watch.tried, watch.problem) == (2, "")
    assert capsys.readouterr().err.count("what comes is not noticed: it is not there") == 1
    watch.stop()
    watch.stop()
    assert not watch.alive
    for each in (read, write):
        os.close(each)


def test_one_that_was_never_started_can_be_stopped() -> None:
    """It leaves no descriptor open."""
    before = len([*Path("/proc/self/fd").iterdir()])
    PipeWatch(-1).stop()
    assert len([*Path("/proc/self/fd").iterdir()]) == before
