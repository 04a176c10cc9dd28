"""The watchdog's thread on a node in memory: what it looks at without a request."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.lab.node.world import World
from tests.lab.switch.switch import wait_until
from userspace_cni.agent import watchdog as module
from userspace_cni.agent.watchdog import Watchdog
from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable

POD = ("c0ffee", "net1")


def test_a_socket_that_outlives_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look after a connection's end is repeated, because the connection of a killed process may close before its socket."""
    looked: list[str] = []
    passed = [0.0]  # seconds: looks that are due at the same time are one, so that on a busy machine there may be fewer
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    world = World(tmp_path, resident=True)
    watchdog = Watchdog(world, world.switch, lambda _: None, lambda: None, 10_000.0)
    monkeypatch.setattr(watchdog._reconciliation, "look_at", looked.append)
    watchdog.start()
    try:
        watchdog.on_disconnect("port-1")
        for number, seconds in enumerate(module.LOOKS_S, start=1):
            passed[0] = seconds
            watchdog.wake()
            wait_until(lambda: len(looked) == number, what=f"look {number}")  # noqa: B023 - called at once
    finally:
        watchdog.stop()
    assert set(looked) == {"port-1"}


def test_what_changes_is_looked_at_without_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of pods are looked at by marks, bridges and links by name; others' are not. What is busy is looked at again."""
    looked: Counter[object] = Counter()  # what is due together is one look, or two
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    world = World(tmp_path, resident=True)
    watchdog = Watchdog(world, world.switch, lambda _: None, lambda: None, 10_000.0)

    def look(*things: Sequence[object]) -> set[object]:
        looked.update(each for some in things for each in some)
        return {POD} if looked[POD] == 1 and POD in things[0] else set()

    passes: list[object] = []
    run = watchdog._reconciliation.run
    monkeypatch.setattr(watchdog._reconciliation, "run", lambda **given: passes.append(run(**given)))
    monkeypatch.setattr(watchdog._reconciliation, "look_at_changed", look)
    watchdog.start()
    try:
        wait_until(lambda: len(passes) == 1, what="the first pass")
        watchdog.on_change("", {"owner": "another"})
        watchdog.on_link("cali1234567890a")
        watchdog.on_change("", {"owner": OWNER, "container-id": "c0ffee", "ifname": "net1"})
        watchdog.on_change("br0", {})
        watchdog.on_link("uc0123456789ab")
        wait_until(lambda: looked == {POD: 2, "br0": 1, "uc0123456789ab": 1}, what="all looks, what is busy twice")
        assert len(passes) == 1
        watchdog.on_link("")
        wait_until(lambda: len(passes) == 2, what="a pass after lost notices")
    finally:
        watchdog.stop()


def test_a_pass_that_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a pass that did not happen is answered with that, and not with an earlier pass."""
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    world = World(tmp_path, resident=True)
    watchdog = Watchdog(world, world.switch, lambda _: None, lambda: None, 10_000.0)
    watchdog.start()
    try:
        watchdog.reconcile(Deadline.after(60))
        monkeypatch.setattr(watchdog, "_connect", Mock(side_effect=OSError(errno.EMFILE, "too many files")))
        with pytest.raises(Unavailable, match="too many files"):
            watchdog.reconcile(Deadline.after(60))
    finally:
        watchdog.stop()


def test_it_sleeps_while_all_is_well(tmp_path: Path) -> None:
    """Until the next look at ovs-vswitchd, or the next pass; for a second at most where session or daemon is away, or another
    part of the agent is to be told."""
    world = World(tmp_path, resident=True)

    def seconds(watchdog: Watchdog, rounds: int = 2) -> float:
        return [watchdog._round() for _ in range(rounds)][-1]

    watchdog = Watchdog(world, world.switch, lambda _: None, lambda: None, 10_000.0)
    assert module.BEAT_S < seconds(watchdog) <= module.WATCH_S
    assert seconds(Watchdog(world, world.switch, lambda _: None, lambda: None, 0.01)) <= 0.01
    assert seconds(Watchdog(world, world.switch, lambda _: None, lambda: None, 10_000.0, lambda: None)) == module.BEAT_S
    world.unreachable = Unavailable("no session")
    assert seconds(watchdog) == module.BEAT_S
