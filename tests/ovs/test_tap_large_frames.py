"""`userspace-cni tap` with offloads at a real OVS-DPDK: with `userspace-tso-enable`, without it, and over restarts between."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.frames.exchanges import datagrams, transfer
from tests.lab.frames.taps import SECONDS, TapProcess, echoes
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

LEFT, RIGHT = "10.9.0.1", "10.9.0.2"
SIZE = 32 << 20


@pytest.fixture
def pods() -> Iterator[tuple[str, str]]:
    with netns() as left, netns() as right:
        yield left, right


def take_large_frames(switch: Switch, *, wanted: bool) -> None:
    """Start the switch anew, with `userspace-tso-enable` as wanted: it is read at its start alone."""
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:userspace-tso-enable={str(wanted).lower()}")
    switch.kill_vswitchd()
    switch.restart_vswitchd()


def tap_at(stack: ExitStack, switch: Switch, pod: str, path: Path, *more: str) -> TapProcess:
    """A tap that makes the socket, and its port."""
    tap = stack.enter_context(TapProcess(pod, str(path), "--mode", "server", "--name", "net1", *more))
    wait_until(path.exists, SECONDS, f"a socket at {path}")
    name = f"tap-{path.name}"
    options = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}"]
    switch.vsctl("add-port", "br-tap", name, "--", "set", "Interface", name, *options)
    return tap


def per_frame(tap: TapProcess) -> float:
    """Bytes of a frame that the tap sent, at its end."""
    assert tap.end(signal.SIGTERM) == 0
    sent = tap.until("ended")["to_switch"]
    return float(sent["bytes"] / sent["frames"])


def test_restart_that_changes_what_is_offered(own_switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """The taps follow a switch that takes large frames after its restart and not after the next; TCP arrives intact each time."""
    left, right = pods
    own_switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")
    with ExitStack() as stack:
        one = tap_at(stack, own_switch, left, place / "a", "--address", f"{LEFT}/24")
        other = tap_at(stack, own_switch, right, place / "b", "--address", f"{RIGHT}/24")
        for number, wanted in enumerate((False, True, False)):
            if number:
                take_large_frames(own_switch, wanted=wanted)
            for tap in (one, other):
                assert ("no large frames" not in tap.until("ready")["text"]) == wanted
            wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
            transfer(left, right, RIGHT, SIZE)
            datagrams(right, left, LEFT, range(1, 60000, 9001))


def test_large_frames_pass_whole(own_switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """With a switch that takes them the kernel's large frames pass whole."""
    left, right = pods
    own_switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")
    take_large_frames(own_switch, wanted=True)
    with ExitStack() as stack:
        one = tap_at(stack, own_switch, left, place / "a", "--address", f"{LEFT}/24")
        other = tap_at(stack, own_switch, right, place / "b", "--address", f"{RIGHT}/24")
        for tap in (one, other):
            tap.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        transfer(left, right, RIGHT, SIZE)
        assert per_frame(one) > 8000


@pytest.mark.parametrize("without", ["sender", "receiver"])
def test_one_end_without_offloads(own_switch: Switch, pods: tuple[str, str], place: Path, without: str) -> None:
    """A tap that has agreed to nothing understands what OVS sends it nevertheless when the other end sends large frames."""
    left, right = pods
    own_switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")
    take_large_frames(own_switch, wanted=True)
    with ExitStack() as stack:
        options = [("--no-offloads",) if without == end else () for end in ("sender", "receiver")]
        one = tap_at(stack, own_switch, left, place / "a", "--address", f"{LEFT}/24", *options[0])
        other = tap_at(stack, own_switch, right, place / "b", "--address", f"{RIGHT}/24", *options[1])
        for tap in (one, other):
            tap.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        transfer(left, right, RIGHT, SIZE)
        assert (per_frame(one) > 8000) == (without == "receiver")


@pytest.mark.parametrize("option", [(), ("--no-offloads",)], ids=["cut here", "not asked for"])
def test_frames_of_the_wire(switch: Switch, pods: tuple[str, str], place: Path, option: tuple[str, ...]) -> None:
    """Without it no frame is longer than the MTU, and a tap with offloads speaks with one that has none."""
    left, right = pods
    switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")
    with ExitStack() as stack:
        one = tap_at(stack, switch, left, place / "a", "--address", f"{LEFT}/24", *option)
        other = tap_at(stack, switch, right, place / "b", "--address", f"{RIGHT}/24")
        assert ("cut here" in one.until("ready")["text"]) == (not option)
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        transfer(left, right, RIGHT, SIZE)
        transfer(right, left, LEFT, SIZE)
        assert per_frame(one) < 1515
