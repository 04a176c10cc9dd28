"""What is read of a real bridge, in each version of OpenFlow that it may be restricted to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import BRIDGE, CLIENT, add_bridge, add_port
from tests.ovs.conftest import soon
from userspace_cni.base.seen_bridge import SeenBridge, SeenController, SeenMirror
from userspace_cni.switch.ports import PortDriver

RUN = ("external_ids:owner=userspace-cni", "external_ids:owner-kind=run")


@pytest.fixture
def look(switch: Switch, connect: Callable[..., PortDriver]) -> Callable[[], SeenBridge]:
    """Reads the bridge, which has the open ports a and b."""
    add_bridge(switch)
    for name in ("a", "b"):
        add_port(switch, name, CLIENT)
    driver = connect(switch, resident=True)
    driver.connect(soon())
    wait_until(lambda: switch.interface("b")["ofport"], what="the ports open")

    def read() -> SeenBridge:
        return driver.read_bridges([BRIDGE, "none"], soon())[BRIDGE]

    wait_until(lambda: all(port.number for port in read().ports), what="their numbers known")
    return read


def test_mirrors_of_a_capture_are_ours(switch: Switch, look: Callable[[], SeenBridge]) -> None:
    """A mirror with our mark is ours, also one of a command that runs now; another is not."""
    own = ("--id=@m", "create", "Mirror", "name=own", "select_all=true", *RUN)
    other = ("--id=@n", "create", "Mirror", "name=other", "select_dst_port=@a", "output_port=@b")
    ports = ("--id=@a", "get", "Port", "a", "--", "--id=@b", "get", "Port", "b")
    switch.vsctl("--", *ports, "--", *own, "--", *other, "--", "set", "Bridge", BRIDGE, "mirrors=@m,@n")
    wait_until(lambda: len(look().mirrors) == 2, what="the mirrors known")
    assert set(look().mirrors) == {
        SeenMirror("own", ours=True, everything=True),
        SeenMirror("other", ours=False, to_ports=frozenset({"a"}), output="b"),
    }


@pytest.mark.parametrize(("versions", "words"), [("", {"down", "no-flood"}), ("OpenFlow13", {"down"}), ("OpenFlow15", None)])
def test_what_openflow_forbids(switch: Switch, look: Callable[[], SeenBridge], versions: str, words: set[str] | None) -> None:
    """1.0 says all; 1.3 does not know `no-flood`; where the bridge speaks neither, that is named, and the rest is there."""
    place = f"unix:{switch.rundir}/{BRIDGE}.mgmt"
    for word in ("down", "no-flood"):
        subprocess.run(["ovs-ofctl", "mod-port", place, "a", word], check=True, capture_output=True)
    switch.vsctl("set", "Bridge", BRIDGE, f"protocols={versions or '[]'}")
    seen = look()
    assert [port.name for port in seen.ports] == ["a", "b"]
    assert seen.fail_mode == "secure"
    assert seen.learned.maximum > 0
    if words is None:
        assert [what for what, _ in seen.unasked] == [f"what OpenFlow forbids ports of {BRIDGE}"]
    else:
        assert ([set(port.config) for port in seen.ports], seen.unasked) == ([words, set()], ())


def test_controllers(switch: Switch, look: Callable[[], SeenBridge]) -> None:
    """Each is named; one that cannot be reached is not connected."""
    switch.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:1", "punix:" + f"{switch.rundir}/c.sock")
    found = {each.target: each for each in look().controllers}
    assert found.keys() == {"tcp:127.0.0.1:1", f"punix:{switch.rundir}/c.sock"}
    assert isinstance(found["tcp:127.0.0.1:1"], SeenController)
    assert not found["tcp:127.0.0.1:1"].connected
