"""The mirrors of the node's own settings on a real OVS-DPDK are made beside other programs' and removed with their table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cni.spec import paused_vswitchd
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import attach, kernel_port, soon
from userspace_cni.attachment.specs import Specs, undo
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import NameTaken, Unavailable
from userspace_cni.base.mirrors import MirrorSource, NodeMirror
from userspace_cni.base.settings import Settings
from userspace_cni.network.mirror_specs import specs
from userspace_cni.network.spec_list import SETTINGS
from userspace_cni.node.local_node import LocalNode
from userspace_cni.switch.node_ports import list_node_ports
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
ALL = NodeMirror("all", "br-test", "mirror0")
JOINED = NodeMirror("m0", "br-test", "mirror1", "joined")


class Mirrors:
    """The settings' mirrors as an agent keeps them."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        self._specs = Specs(node)

    def keep(self, *wanted: NodeMirror) -> dict[str, str]:
        """Reconcile these; the result says by mirror why one is not as desired."""
        found = self._specs.reconcile(tuple(specs([(SETTINGS, each) for each in wanted], self.node)), {SETTINGS}, now=True)
        return {each.name: each.problem for each in found if not each.holds}

    def steps(self) -> list[str]:
        return [step.kind for record in self.node.store.journal.node_records() for step in record.steps]


@pytest.fixture
def node(switch: Switch, tmp_path: Path) -> Iterator[LocalNode]:
    """An agent's node, on a switch with an administrator's bridge and mirror."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    switch.vsctl("--", "--id=@m", "create", "Mirror", "name=theirs", "--", "set", "Bridge", "br-test", "mirrors=@m")
    places = {name: str(tmp_path / name) for name in ("state_dir", "run_dir", "short_dir")}
    settings = Settings(ovsdb=switch.ovsdb, ovs_rundir=switch.rundir, switch_netns=switch.netns, **places)  # type: ignore[arg-type]
    with closing(LocalNode(settings, {}, resident=True)) as made:
        made.switch.ports.connect(soon())
        yield made


@pytest.fixture
def resident(node: LocalNode) -> PortDriver:
    return node.switch.ports


@pytest.fixture
def mirrors(node: LocalNode) -> Mirrors:
    return Mirrors(node)


def names(switch: Switch) -> list[str]:
    return sorted(row["name"] for row in switch.rows("Mirror"))


def test_mirrors_come_and_go_with_the_settings(switch: Switch, resident: PortDriver, mirrors: Mirrors) -> None:
    """They are made once, with internal ports as outputs, changed in place, and removed with exactly what was made for them."""
    assert mirrors.keep(ALL, JOINED) == {}
    row = switch.row("Mirror", "all")
    assert (row["select_all"], row["output_port"]) == (True, switch.port("mirror0")["_uuid"])
    assert switch.interface("mirror0")["type"] == "internal"
    assert names(switch) == ["all", "m0", "theirs"]
    number = switch.rows("Open_vSwitch")[0]["next_cfg"]
    assert mirrors.keep(ALL, JOINED) == {}
    assert switch.rows("Open_vSwitch")[0]["next_cfg"] == number
    assert mirrors.keep(replace(ALL, select="joined")) == {}
    assert switch.row("Mirror", "all")["select_all"] is False
    assert switch.ports("br-test") == ["mirror0"]
    assert mirrors.keep() == {}
    assert (names(switch), switch.ports("br-test")) == (["theirs"], [])


def test_an_output_keeps_its_mtu(switch: Switch, connect: Callable[..., PortDriver], mirrors: Mirrors, veths: Veths) -> None:
    """The MTU of a pod's port changes no output that is made here.

    An output without its own MTU does not make a pod be refused.
    """
    assert mirrors.keep(ALL) == {}
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
    [found] = [each for each in list_node_ports(driver.client, "br-test", soon()) if each.name == "mirror0"]
    assert found.mtu == 0
    assert mirrors.keep(ALL) == {}
    wait_until(lambda: veths()["mirror0"].mtu == 1500, what="the MTU that it asks for")
    driver.undo(step, soon())
    assert mirrors.keep() == {}


def test_ports_join_a_mirror_of_the_node(switch: Switch, resident: PortDriver, mirrors: Mirrors, port: MakePort) -> None:
    """Ports that come before or after the mirror are its sources; no pod can take its output."""
    early, late = (replace(port(n), mirrors=(MirrorSource("m0", from_pod=False),)) for n in (1, 2))
    attach(resident, early, soon())
    assert mirrors.keep(JOINED) == {}
    attach(resident, late, soon())
    row = switch.row("Mirror", "m0")
    assert sorted(row["select_dst_port"]) == sorted(switch.port(each.name)["_uuid"] for each in (early, late))
    assert row["select_src_port"] == []
    with pytest.raises(NameTaken, match="belongs to userspace-cni: mirror m0 on br-test"):
        attach(resident, replace(port(3), mirror_outputs=("m0",)), soon())
    assert resident.check(late, soon()) == []
    resident.undo(late, soon())
    assert switch.row("Mirror", "m0")["select_dst_port"] == switch.port(early.name)["_uuid"]


def test_what_is_in_the_way_is_told(switch: Switch, resident: PortDriver, mirrors: Mirrors, port: MakePort) -> None:
    """A missing bridge, another's mirror of that name and a pod's port as output are reported; the other mirrors are made."""
    attach(resident, port(1), soon())
    wanted = [
        NodeMirror("all", "br-none", "mirror2"),
        NodeMirror("theirs", "br-test", "mirror3"),
        NodeMirror("pods", "br-test", port(1).name),
        JOINED,
    ]
    before = switch.row("Mirror", "theirs")
    problems = mirrors.keep(*wanted)
    assert list(problems) == ["all on br-none", "theirs on br-test", "pods on br-test"]
    assert "no bridge br-none" in problems["all on br-none"]
    assert "does not mark its rows" in problems["theirs on br-test"]
    assert "is a pod's" in problems["pods on br-test"]
    assert switch.row("Mirror", "theirs") == before
    assert names(switch) == ["m0", "theirs"]


def test_a_mirror_that_was_cleared_is_made_again(switch: Switch, resident: PortDriver, mirrors: Mirrors) -> None:
    """Cleared mirrors, a deleted output and changed sources are put right by the next pass."""
    mirrors.keep(ALL)
    for harm in (
        ("clear", "Bridge", "br-test", "mirrors"),
        ("del-port", "mirror0"),
        ("set", "Mirror", "all", "select_all=false"),
    ):
        switch.vsctl(*harm)

        def right() -> bool:
            assert mirrors.keep(ALL) == {}
            row = switch.row("Mirror", "all")
            return bool(row and row["select_all"] and row["output_port"] == switch.port("mirror0").get("_uuid"))

        wait_until(right, what=" ".join(harm))


def test_a_port_of_others_as_output(switch: Switch, mirrors: Mirrors) -> None:
    """Such a port is unchanged when the mirror is made, changed and removed; if it is deleted, one is made in its place."""
    switch.vsctl("add-port", "br-test", "mirror0", "--", "set", "Interface", "mirror0", "type=internal")
    before = switch.port("mirror0"), switch.interface("mirror0")["external_ids"]
    assert mirrors.keep(ALL) == {}
    assert switch.row("Mirror", "all")["output_port"] == before[0]["_uuid"]
    assert mirrors.steps() == ["mirror-output"]
    assert (
        mirrors.node.driver(mirrors.node.store.journal.node_records()[0].steps[0]).check(
            mirrors.node.store.journal.node_records()[0].steps[0], soon()
        )
        == []
    )
    assert mirrors.keep(replace(ALL, select="joined")) == {}
    assert switch.row("Mirror", "all")["select_all"] is False
    switch.vsctl("set", "Mirror", "all", "select_all=true")
    wait_until(lambda: not mirrors.keep(replace(ALL, select="joined")) and not switch.row("Mirror", "all")["select_all"])
    switch.vsctl("clear", "Bridge", "br-test", "mirrors")
    wait_until(lambda: not mirrors.keep(ALL) and switch.row("Mirror", "all"), what="the mirror is made again")
    assert (switch.port("mirror0"), switch.interface("mirror0")["external_ids"]) == before
    switch.vsctl("del-port", "mirror0")
    wait_until(lambda: not mirrors.keep(ALL) and mirrors.steps() == ["port"], what="an output of ours")
    assert switch.row("Mirror", "all")["output_port"] == switch.port("mirror0")["_uuid"]
    assert mirrors.keep() == {}
    assert (names(switch), switch.ports("br-test")) == ([], [])


def test_an_output_that_was_deleted_is_made_again_as_it_was(switch: Switch, resident: PortDriver, mirrors: Mirrors) -> None:
    """It is made again even before ovs-vswitchd has removed its link, which does not count as another program's."""
    assert mirrors.keep(ALL) == {}
    [record] = mirrors.node.store.journal.node_records()
    [spec] = specs([(SETTINGS, ALL)], mirrors.node)
    with paused_vswitchd(switch):
        switch.vsctl("--no-wait", "del-port", "mirror0")
        wait_until(lambda: "mirror0" not in resident.client.require_session().index.marks, what="the replica to know")
        [step] = spec.plan(record)
    assert isinstance(step, OvsPort)
    assert step.interface.type == "internal"
    assert mirrors.keep(ALL) == {}
    assert switch.interface("mirror0")["type"] == "internal"


def test_the_link_of_a_port_of_others_that_was_deleted_is_no_output(
    switch: Switch, resident: PortDriver, mirrors: Mirrors
) -> None:
    """While ovs-vswitchd has not yet removed it: it is awaited, and not taken for a link that stays."""
    switch.vsctl("add-port", "br-test", "mirror0", "--", "set", "Interface", "mirror0", "type=internal")
    assert mirrors.keep(ALL) == {}
    [record] = mirrors.node.store.journal.node_records()
    [spec] = specs([(SETTINGS, ALL)], mirrors.node)
    planned: list[str] = []

    def plan() -> None:
        with suppress(Unavailable):
            planned.extend(step.interface.type for step in spec.plan(record) if isinstance(step, OvsPort))

    planning = threading.Thread(target=plan)
    with paused_vswitchd(switch):
        switch.vsctl("--no-wait", "del-port", "mirror0")
        wait_until(lambda: "mirror0" not in resident.client.require_session().index.marks, what="the replica to know")
        number = switch.rows("Open_vSwitch")[0]["next_cfg"]
        planning.start()
        wait_until(lambda: planned or switch.rows("Open_vSwitch")[0]["next_cfg"] > number, what="ovs-vswitchd is awaited")
        assert planned == []
    planning.join(60)
    assert planned in ([], ["internal"])
    wait_until(lambda: mirrors.keep(ALL) == {}, what="the mirror is made again")
    assert switch.interface("mirror0")["type"] == "internal"


def test_a_kernel_link_as_output(switch: Switch, mirrors: Mirrors, veths: Veths) -> None:
    """It is added to the bridge as it is and stays when the mirror is removed; after it was made anew, frames arrive again."""
    veths.add("mirror0")
    assert mirrors.keep(ALL) == {}
    assert switch.interface("mirror0")["type"] == "system"
    veths.run("ip", "link", "del", "mirror0")
    veths.add("mirror0")
    wait_until(lambda: mirrors.keep(ALL) == {} and switch.interface("mirror0")["ifindex"] == veths()["mirror0"].index)
    assert mirrors.keep() == {}
    assert (names(switch), switch.ports("br-test")) == (["theirs"], [])
    assert "mirror0" in veths()


def test_a_death_leaves_a_record(switch: Switch, mirrors: Mirrors) -> None:
    """What an agent left that died while it made a mirror is finished or
    undone by its record, whatever the settings say by then.
    """
    [spec] = specs([(SETTINGS, ALL)], mirrors.node)

    def dies(record: object) -> tuple[object, ...]:
        steps = spec.plan(None)
        mirrors.node.driver(steps[0]).apply(steps[0], soon())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Specs(mirrors.node).reconcile([replace(spec, plan=dies)], {SETTINGS})  # type: ignore[arg-type]
    assert names(switch) == ["all", "theirs"]
    assert mirrors.keep(ALL) == {}
    assert mirrors.steps() == ["port"]
    undo("mirror", "all on br-test", mirrors.node)
    assert (names(switch), switch.ports("br-test")) == (["theirs"], [])
