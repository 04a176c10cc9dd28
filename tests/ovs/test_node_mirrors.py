"""The mirrors of the node's own settings on a real OVS-DPDK: made beside other people's, and gone with their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import STORE, attach, kernel_port
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken
from userspace_cni.base.mirrors import MirrorSource, NodeMirror
from userspace_cni.dataplane.node_mirrors import NodeMirrors
from userspace_cni.dataplane.node_ports import node_ports
from userspace_cni.dataplane.ports import PortDriver

MakePort = Callable[..., OvsPort]
ALL = NodeMirror("all", "br-test", "mirror0")
JOINED = NodeMirror("m0", "br-test", "mirror1", "joined")
NO_LINKS: frozenset[str] = frozenset()


def soon() -> Deadline:
    """Time enough for one call."""
    return Deadline.after(60)


@pytest.fixture
def resident(switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that has all rows, as the agent's, on a switch with an administrator's bridge and mirror."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    switch.vsctl("--", "--id=@m", "create", "Mirror", "name=theirs", "--", "set", "Bridge", "br-test", "mirrors=@m")
    made = connect(switch, resident=True)
    made.connect(soon())
    return made


@pytest.fixture
def mirrors(resident: PortDriver) -> NodeMirrors:
    """What the agent uses."""
    return NodeMirrors(resident.client, resident.daemon, lambda: STORE)


def names(switch: Switch) -> list[str]:
    """All mirrors."""
    return sorted(row["name"] for row in switch.rows("Mirror"))


def test_mirrors_come_and_go_with_the_settings(switch: Switch, resident: PortDriver, mirrors: NodeMirrors) -> None:
    """Made with internal ports as outputs, once; changed in place; removed with what was made for them, and nothing else."""
    assert mirrors.keep([ALL, JOINED], NO_LINKS, soon()) == {}
    row = switch.row("Mirror", "all")
    assert (row["select_all"], row["output_port"]) == (True, switch.port("mirror0")["_uuid"])
    assert switch.interface("mirror0")["type"] == "internal"
    assert names(switch) == ["all", "m0", "theirs"]
    number = switch.rows("Open_vSwitch")[0]["next_cfg"]
    assert mirrors.keep([ALL, JOINED], NO_LINKS, soon()) == {}
    assert switch.rows("Open_vSwitch")[0]["next_cfg"] == number
    assert mirrors.keep([replace(ALL, select="joined")], NO_LINKS, soon()) == {}
    assert switch.row("Mirror", "all")["select_all"] is False
    assert switch.ports("br-test") == ["mirror0"]
    assert mirrors.keep([], NO_LINKS, soon()) == {}
    assert (names(switch), switch.ports("br-test")) == (["theirs"], [])


def test_an_output_keeps_its_mtu(switch: Switch, connect: Callable[..., PortDriver], mirrors: NodeMirrors, veths: Veths) -> None:
    """The MTU of a pod's port changes no output that is made here; one without an MTU of its own is no reason to refuse a pod."""
    assert mirrors.keep([ALL], NO_LINKS, soon()) == {}
    driver = connect(switch, links=veths, resident=True)
    driver.connect(soon())
    veths.set_up("mirror0")
    veths.add("k1", 1400)
    step = kernel_port(mtu=1400)
    attach(driver, step, soon())
    wait_until(lambda: switch.interface("k1")["mtu"] == 1400, what="the pod's MTU")
    assert veths()["mirror0"].mtu == 1500
    switch.vsctl("clear", "Interface", "mirror0", "mtu_request")
    wait_until(lambda: switch.interface("mirror0")["admin_state"] == "up", what="OVS to say that it is up")
    wait_until(lambda: veths()["mirror0"].mtu == 1400, what="what OVS does by itself")
    [found] = [each for each in node_ports(driver.client, "br-test", soon()) if each.name == "mirror0"]
    assert found.mtu == 0
    assert mirrors.keep([ALL], NO_LINKS, soon()) == {}
    wait_until(lambda: veths()["mirror0"].mtu == 1500, what="the MTU that it asks for")
    driver.undo(step, soon())
    assert mirrors.keep([], NO_LINKS, soon()) == {}


def test_ports_join_a_mirror_of_the_node(switch: Switch, resident: PortDriver, mirrors: NodeMirrors, port: MakePort) -> None:
    """A port whose spec was there before, and one that comes later, are sources; its output is no pod's to take."""
    early, late = (replace(port(n), mirrors=(MirrorSource("m0", from_pod=False),)) for n in (1, 2))
    attach(resident, early, soon())
    assert mirrors.keep([JOINED], NO_LINKS, soon()) == {}
    attach(resident, late, soon())
    row = switch.row("Mirror", "m0")
    assert sorted(row["select_dst_port"]) == sorted(switch.port(each.name)["_uuid"] for each in (early, late))
    assert row["select_src_port"] == []
    with pytest.raises(NameTaken, match="userspace-cni-node"):
        attach(resident, replace(port(3), mirror_outputs=("m0",)), soon())
    assert resident.check(late, soon()) == []
    resident.undo(late, soon())
    assert switch.row("Mirror", "m0")["select_dst_port"] == switch.port(early.name)["_uuid"]


def test_what_is_in_the_way_is_told(switch: Switch, resident: PortDriver, mirrors: NodeMirrors, port: MakePort) -> None:
    """A bridge that is not there yet, another's mirror of that name, a pod's port as output: told, the others are made."""
    attach(resident, port(1), soon())
    wanted = [
        NodeMirror("all", "br-none", "mirror2"),
        NodeMirror("theirs", "br-test", "mirror3"),
        NodeMirror("pods", "br-test", port(1).name),
        JOINED,
    ]
    before = switch.row("Mirror", "theirs")
    problems = mirrors.keep(wanted, NO_LINKS, soon())
    assert [each.name for each in problems] == ["all", "theirs", "pods"]
    assert "no bridge br-none" in problems[wanted[0]]
    assert "does not mark its rows" in problems[wanted[1]]
    assert switch.row("Mirror", "theirs") == before
    assert names(switch) == ["m0", "theirs"]


def test_a_mirror_that_was_cleared_is_made_again(switch: Switch, resident: PortDriver, mirrors: NodeMirrors) -> None:
    """The bridge's mirrors cleared, the output deleted, the sources changed: the next pass puts it right."""
    mirrors.keep([ALL], NO_LINKS, soon())
    for harm in (
        ("clear", "Bridge", "br-test", "mirrors"),
        ("del-port", "mirror0"),
        ("set", "Mirror", "all", "select_all=false"),
    ):
        switch.vsctl(*harm)

        def right() -> bool:
            mirrors.keep([ALL], NO_LINKS, soon())
            row = switch.row("Mirror", "all")
            return bool(row and row["select_all"] and row["output_port"] == switch.port("mirror0").get("_uuid"))

        wait_until(right, what=" ".join(harm))
