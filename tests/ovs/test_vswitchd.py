"""What can be known about ovs-vswitchd from its control socket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.lab.switch.proxy import Babbler
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.switch import vswitchd


def test_a_living_daemon_answers_with_its_version(switch: Switch) -> None:
    """A running daemon is alive and answers with its version, as `ovs-appctl version` does."""
    liveness = vswitchd.ask(switch.ovsdb, switch.rundir)
    assert (liveness.state, liveness.reason) == ("alive", switch.appctl("version").splitlines()[0])


def test_a_daemon_dies_and_comes_back(own_switch: Switch) -> None:
    """A stopped daemon is silent after half a second; a killed one is dead at once though its socket exists.

    A restarted one is alive.
    """
    own_switch.pause_vswitchd()
    begin = time.monotonic()
    assert vswitchd.ask(own_switch.ovsdb, own_switch.rundir).state == "silent"
    assert time.monotonic() - begin > 0.4
    own_switch.kill_vswitchd()
    assert list(own_switch.dir.glob("ovs-vswitchd.*.ctl"))
    assert vswitchd.ask(own_switch.ovsdb, own_switch.rundir).state == "dead"
    own_switch.restart_vswitchd()
    assert vswitchd.ask(own_switch.ovsdb, own_switch.rundir).state == "alive"


def test_without_a_socket_it_depends_on_where_we_looked(switch: Switch, tmp_path: Path) -> None:
    """Without a control socket beside the database the daemon is dead.

    In a directory without the database, and over tcp, it is unknown.
    """
    assert vswitchd.ask(f"unix:{tmp_path}/db.sock", str(tmp_path)).state == "dead"
    assert vswitchd.ask(switch.ovsdb, str(tmp_path)).state == "unknown"
    assert vswitchd.ask(switch.ovsdb, f"{tmp_path}/missing").state == "unknown"
    assert vswitchd.ask("tcp:127.0.0.1:6640", switch.rundir).state == "unknown"


@pytest.mark.parametrize("answer", [b"", b"not json", b'{"id"'])
def test_nonsense_is_silence(tmp_path: Path, answer: bytes) -> None:
    """A socket that answers nonsense counts as silent, and delays the caller no longer than its limit."""
    with Babbler(tmp_path / "ovs-vswitchd.1.ctl", answer):
        assert vswitchd.ask(f"unix:{tmp_path}/db.sock", str(tmp_path), 0.1).state == "silent"


def test_one_living_daemon_among_dead_sockets_is_enough(switch: Switch) -> None:
    """Sockets of earlier, killed daemons do not count."""
    stale = switch.dir / "ovs-vswitchd.999999.ctl"
    stale.touch()
    try:
        assert vswitchd.ask(switch.ovsdb, switch.rundir).state == "alive"
    finally:
        stale.unlink()


def test_the_end_of_a_daemon_is_noticed_at_once(own_switch: Switch) -> None:
    """The holder of a lifeline is told once when each daemon ends, but not when it releases the lifeline itself."""
    ended: list[bool] = []
    life = vswitchd.DaemonLifeline(own_switch.rundir, lambda: ended.append(True))
    life.hold()
    life.hold()
    for times in (1, 2):
        own_switch.kill_vswitchd()
        wait_until(lambda: len(ended) == times, what="the news")  # noqa: B023
        life.hold()
        own_switch.restart_vswitchd()
        life.hold()
        assert vswitchd.ask(own_switch.ovsdb, own_switch.rundir).state == "alive"
    life.let_go()
    own_switch.kill_vswitchd()
    life.hold()
    assert len(ended) == 2
