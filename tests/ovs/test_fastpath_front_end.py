"""The front-end at ports of a real OVS-DPDK: both kinds, frames of every length, its restarts, and no leak on either side."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.belongings import Holdings
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import BRIDGE, CLIENT, SERVER, add_bridge, add_port, cycle, is_up, join
from userspace_cni.fastpath.fastpath_errors import Disconnected, SocketRefused, TimedOut
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import Feature

ETHER = bytes.fromhex("02000000000202000000000188b5")
"""The head of a frame between two local addresses, with an EtherType for local experiments."""
FIRST = ETHER + bytes(50)
"""A frame with an empty payload."""
QUIET, ROUNDS = 2.0, 4

Attach = Callable[..., FrontEnd]


@pytest.fixture
def attach(switch: Switch) -> Iterator[Attach]:
    """Adds a port of a kind on the bridge, and attaches a front-end to it."""
    add_bridge(switch)
    made: list[FrontEnd | FrontEndListener] = []

    def add(name: str, kind: str = CLIENT, options: FrontEndOptions = FrontEndOptions(), *columns: str) -> FrontEnd:  # noqa: B008
        if kind == CLIENT:
            listener = FrontEndListener(f"{switch.rundir}/{name}", options)
            made.append(listener)
            add_port(switch, name, kind, *columns)
            front_end = listener.accept()
        else:
            front_end = FrontEnd.connect(add_port(switch, name, kind, *columns), options)
        made.append(front_end)
        return front_end

    yield add
    for each in reversed(made):
        each.close()


def frame_of(length: int, seed: int = 0) -> bytes:
    """A frame of random bytes; equal arguments give equal bytes."""
    return ETHER + random.Random(length + (seed << 20)).randbytes(length - len(ETHER))


def proven(source: QueuePair, sinks: tuple[QueuePair, ...]) -> None:
    """Wait until a frame arrives: for a moment after an attachment OVS drops frames for the port, though its link is up."""

    def arrives() -> bool:
        source.send_frames([FIRST])
        return any([pair.receive_frames() for pair in sinks])  # noqa: C419 - from each

    wait_until(arrives, what="a first frame")


def carried(source: QueuePair, sinks: tuple[QueuePair, ...], frames: list[bytes], window: int = 64) -> bool:
    """Whether all frames arrive as they were sent, and no others. At most `window` are under way, because more are dropped.

    Dropped frames are sent again: OVS drops some while it rebuilds its datapath for new ports.
    """
    proven(source, sinks)
    expected, missing = set(frames), set(frames)
    for _ in range(ROUNDS):
        arrived = passed(source, sinks, [frame for frame in frames if frame in missing], window)
        changed = [len(frame) for frame in arrived - expected]
        assert changed == [], "frames of such lengths have arrived and were not sent"
        missing -= arrived
        if not missing:
            return True
    return False


def passed(source: QueuePair, sinks: tuple[QueuePair, ...], frames: list[bytes], window: int) -> set[bytes]:
    """Send the frames; return what arrived, when all did or when nothing came for some time."""
    arrived: set[bytes] = set()
    sent, end = 0, time.monotonic() + QUIET
    while len(arrived) < len(frames) and time.monotonic() < end:
        room = max(0, window - (sent - len(arrived)))
        sent += source.send_frames(frames[sent : sent + room])
        sinks[0].wait(0.1 if len(sinks) == 1 else 0.001)
        got = {frame for sink in sinks for frame in sink.receive_frames() if frame != FIRST}
        arrived |= got
        if got:
            end = time.monotonic() + QUIET
    return arrived


def carried_by_reflection(switch: Switch, front_end: FrontEnd) -> bool:
    """Whether frames come back to the only port."""
    join(switch, ("vhost-a", "vhost-a"))
    frames = [frame_of(64, number) for number in range(300)]
    return carried(front_end.pairs[0], front_end.pairs, frames)


@pytest.mark.parametrize("packed", [None, False], ids=["packed", "split"])
@pytest.mark.parametrize("kind", [CLIENT, SERVER])
def test_frames_in_both_directions(switch: Switch, attach: Attach, kind: str, packed: bool | None) -> None:
    """At ports of both kinds frames go through the switch and come back as they were, while OVS says that the links are up."""
    options = FrontEndOptions(packed=packed)
    a, b = attach("vhost-a", kind, options), attach("vhost-b", kind, options)
    join(switch, ("vhost-a", "vhost-b"), ("vhost-b", "vhost-a"))
    frames = [frame_of(60 + number) for number in range(100)]
    assert carried(a.pairs[0], b.pairs, frames)
    assert carried(b.pairs[0], a.pairs, frames)
    wait_until(lambda: is_up(switch, "vhost-a") and is_up(switch, "vhost-b"), what="links up")
    assert a.peer.pid == switch.vswitchd_pid
    assert Feature.IN_ORDER in a.features
    assert (Feature.RING_PACKED in a.features) == (packed is None)
    assert a.is_alive()


def test_a_port_that_reflects(switch: Switch, attach: Attach) -> None:
    """With the action IN_PORT a frame comes back on the port that it came from, and wakes a sleeping thread."""
    front_end = attach("vhost-a")
    join(switch, ("vhost-a", "vhost-a"))
    (pair,) = front_end.pairs
    assert carried(pair, front_end.pairs, [frame_of(64)])
    for number in range(20):
        assert pair.send_frames([frame_of(64, number)]) == 1
        got: list[bytes] = []
        while frame_of(64, number) not in got:
            assert pair.wait(60)
            got = pair.receive_frames()


JUMBO = {
    "merged": FrontEndOptions(room=9018, receive_room=2048, mergeable=True, packed=True),
    "whole": FrontEndOptions(room=9018, packed=True),
    "out of order": FrontEndOptions(room=9018, receive_room=1536, mergeable=True, in_order=False, queue_size=128, packed=True),
    "split": FrontEndOptions(room=9018, receive_room=2048, mergeable=True),
    "split, out of order": FrontEndOptions(room=9018, receive_room=1536, mergeable=True, in_order=False, queue_size=128),
}


@pytest.mark.parametrize("options", JUMBO.values(), ids=JUMBO)
def test_frames_of_every_length(switch: Switch, attach: Attach, options: FrontEndOptions) -> None:
    """Frames of every length from a bare header to 9018 bytes arrive bit by bit as they were sent."""
    mtu = "mtu_request=9000"
    a, b = attach("vhost-a", CLIENT, options, mtu), attach("vhost-b", CLIENT, options, mtu)
    join(switch, ("vhost-a", "vhost-b"))
    frames = [frame_of(length) for length in range(14, 9019)]
    assert carried(a.pairs[0], b.pairs, frames, 16)  # of the longest so many fit into the smallest ring
    assert b.pairs[0].counters.rx_oversize == 0


def test_several_queues(switch: Switch, attach: Attach) -> None:
    """OVS makes as many queues as the front-end has; what is sent on any of them arrives."""
    options = FrontEndOptions(queue_pairs=4, queue_size=64)
    a, b = attach("vhost-a", CLIENT, options), attach("vhost-b", CLIENT, options)
    join(switch, ("vhost-a", "vhost-b"))
    wait_until(lambda: switch.interface("vhost-a")["status"].get("num_of_vrings") == "8", what="eight rings")
    for pair in a.pairs:
        frames = [frame_of(64 + number, pair.index) for number in range(40)]
        assert carried(pair, b.pairs, frames)
    assert sum(pair.counters.rx_frames for pair in b.pairs) >= 160


def test_hugepages(switch: Switch, attach: Attach) -> None:
    """The switch accepts memory in hugepages like any other; if there are none, the front-end says so and still works."""
    options = FrontEndOptions(hugepage_bytes=2 << 20)
    a, b = attach("vhost-a", CLIENT, options), attach("vhost-b", CLIENT, options)
    free = int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
    assert a.fallback == "" or free < 2
    join(switch, ("vhost-a", "vhost-b"))
    frames = [frame_of(1500, number) for number in range(100)]
    assert carried(a.pairs[0], b.pairs, frames)


@pytest.mark.parametrize("kind", [CLIENT, SERVER])
def test_detach_leaves_the_port_as_it_was(switch: Switch, attach: Attach, kind: str) -> None:
    """After detach the link is down without an error, and the same front-end or another can attach again."""
    front_end = attach("vhost-a", kind)
    join(switch, ("vhost-a", "vhost-a"))
    for _ in range(3):
        frames = [frame_of(64, number) for number in range(300)]
        assert carried(front_end.pairs[0], front_end.pairs, frames)
        front_end.detach()
        wait_until(lambda: not is_up(switch, "vhost-a"), what="link down")
        row = switch.interface("vhost-a")
        assert row["error"] == []
        assert row["status"]["status"] == "disconnected"
        front_end.reattach()
        wait_until(lambda: is_up(switch, "vhost-a"), what="link up")
    front_end.close()
    if kind == SERVER:
        with FrontEnd.connect(f"{switch.rundir}/vhost-a") as other:
            assert carried(other.pairs[0], other.pairs, frames)


def test_a_path_without_a_listener(switch: Switch) -> None:
    """Without a port there is no socket, and a listener without a port reports what to look at."""
    with pytest.raises(SocketRefused, match="nothing is there"):
        FrontEnd.connect(f"{switch.rundir}/no-such-port")
    with FrontEndListener(f"{switch.rundir}/no-such-port") as listener, pytest.raises(TimedOut, match="vhost-server-path"):
        listener.accept(0.05)


@pytest.mark.parametrize("kind", [CLIENT, SERVER])
def test_a_switch_that_is_stuck(switch: Switch, attach: Attach, kind: str) -> None:
    """While ovs-vswitchd is stopped an attachment ends at its deadline and says what to look at; afterwards it works."""
    front_end = attach("vhost-a", kind)
    switch.pause_vswitchd()
    try:
        with pytest.raises(TimedOut, match=r"GET_VRING_BASE|SET_VRING_ENABLE") if kind == CLIENT else nullcontext():
            front_end.detach(0.1)
        with pytest.raises(TimedOut, match="ovs-vswitchd"):
            front_end.reattach(0.2)
        with pytest.raises(TimedOut, match="ovs-vswitchd"):
            front_end.reattach(0.2)
    finally:
        switch.resume_vswitchd()
    front_end.reattach()
    assert carried_by_reflection(switch, front_end)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_switch_that_ends(own_switch: Switch, end: str) -> None:
    """The end of ovs-vswitchd, by stop or kill, is noticed; once it runs again the same queues carry frames."""
    add_bridge(own_switch)
    with FrontEndListener(f"{own_switch.rundir}/vhost-a", FrontEndOptions(packed=True)) as listener:
        add_port(own_switch, "vhost-a", CLIENT)
        with listener.accept() as front_end:
            (pair,) = front_end.pairs
            assert carried_by_reflection(own_switch, front_end)
            if end == "kill":
                own_switch.kill_vswitchd()
            with pytest.raises(Disconnected, match="hung up"):
                _wait_for_end(own_switch, pair, end)
            assert not front_end.is_alive()
            if end == "kill":
                own_switch.restart_vswitchd()
            front_end.reattach(30)
            assert Feature.RING_PACKED in front_end.features
            assert front_end.peer.pid == own_switch.vswitchd_pid
            assert carried_by_reflection(own_switch, front_end)
            assert front_end.pairs[0] is pair


def _wait_for_end(switch: Switch, pair: QueuePair, end: str) -> None:
    if end == "restart":
        switch.restart_vswitchd()
    while pair.wait(60):
        pair.receive_frames()


@pytest.mark.parametrize(("kind", "times"), [(CLIENT, 150), (SERVER, 1000)])
def test_many_attachments_leave_nothing(switch: Switch, attach: Attach, kind: str, times: int) -> None:
    """Attaching and detaching many times leaves nothing in this process or the switch, and the port still works."""
    front_end = attach("vhost-a", kind)
    cycle(front_end, kind, 20)
    before = Holdings(switch.vswitchd_pid)
    cycle(front_end, kind, times)
    # the switch closes its end of the last connection when it gets there
    wait_until(lambda: Holdings(switch.vswitchd_pid).theirs <= before.theirs, what="the switch closes its descriptors")
    after = Holdings(switch.vswitchd_pid)
    assert all(now <= then for now, then in zip(after.ours, before.ours, strict=True))  # other tests' garbage may go meanwhile
    assert after.theirs[1] <= before.theirs[1]
    assert after.hugepages <= before.hugepages
    assert after.resident[0] - before.resident[0] < 1024
    assert after.resident[1] - before.resident[1] < 4096
    assert carried_by_reflection(switch, front_end)


UNPRIVILEGED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions, FrontEndListener
from userspace_cni.fastpath.vhost.socket_paths import SocketAccess
options = FrontEndOptions(hugepage_bytes=int(sys.argv[3]) or None)
if sys.argv[1] == "listen":
    listener = FrontEndListener(sys.argv[2], options, SocketAccess(0o666))
    print("listening", flush=True)
    front_end = listener.accept()
    listener.close()
else:
    front_end = FrontEnd.connect(sys.argv[2], options)
print("attached", flush=True)
sys.stdin.readline()
(pair,) = front_end.pairs
while not pair.wait(0.1):
    pair.send_frames([bytes(64)])
print(pair.receive_frames()[0] == bytes(64), front_end.fallback, flush=True)
capabilities = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
print(os.getuid(), capabilities[0].split()[1], flush=True)
"""


@pytest.mark.parametrize("huge", [0, 2 << 20])
@pytest.mark.parametrize("kind", [CLIENT, SERVER])
def test_as_an_unprivileged_user(switch: Switch, tmp_path_factory: pytest.TempPathFactory, kind: str, huge: int) -> None:
    """A process of the user nobody, without capabilities and without locked memory, attaches to ports of both kinds."""
    add_bridge(switch)
    directory = Path(switch.rundir) / "pod"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    Path(switch.rundir).chmod(0o755)
    path = str(directory / "s") if kind == CLIENT else add_port(switch, "vhost-a", kind)
    if kind == SERVER:
        Path(path).chmod(0o666)  # what an administrator does for a pod: OVS makes it for root alone
    arguments = [sys.executable, "-c", UNPRIVILEGED, "listen" if kind == CLIENT else "connect", path, str(huge)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines: Any = process.stdout
        assert process.stdin is not None
        if kind == CLIENT:
            assert lines.readline() == "listening\n"
            where = f"options:vhost-server-path={path}"
            switch.vsctl("add-port", BRIDGE, "vhost-a", "--", "set", "Interface", "vhost-a", f"type={kind}", where)
        assert lines.readline() == "attached\n"
        join(switch, ("vhost-a", "vhost-a"))
        process.stdin.write("\n")
        process.stdin.flush()
        assert lines.readline().startswith("True")
        assert lines.readline() == "65534 0000000000000000\n"
    assert process.returncode == 0
