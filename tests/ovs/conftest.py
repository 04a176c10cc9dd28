"""Fixtures around the private OVS-DPDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from tests.cni.spec import switch_of
from tests.lab.network.gateways import Site, kept, routed
from tests.lab.network.outside import Wire
from tests.lab.node.node import Node
from tests.lab.node.node import clean as clean_node
from tests.lab.node.ports import port_with
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.spare import SpareSwitch
from tests.lab.switch.switch import Switch
from userspace_cni.attachment.steps import HostEnd, OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.switch.ovsdb.rows.port_row import desired_port
from userspace_cni.switch.ovsdb.switch_database import switch_client
from userspace_cni.switch.ports import PortDriver, PortSettings

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.put import Put
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

STORE = "store-of-the-test"
LINK = "k1"
"""The name of a kernel link of the tests."""


def attach(driver: PortDriver, step: OvsPort, deadline: Deadline) -> None:
    """Apply the step, and wait until its port is open."""
    driver.apply(step, deadline)()


def adding(session: SwitchSession, step: OvsPort, marks: dict[str, str]) -> Put:
    """The command that adds the port; its names are free."""
    from userspace_cni.switch.ovsdb.put import Put

    return Put(session, desired_port(step, marks), held=frozenset({step.bridge, step.name}))


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


def kernel_port(kind: KernelPort = "system", name: str = LINK, mtu: int | None = 1500) -> OvsPort:
    marks = {"container-id": "c" * 64, "network": "podnet", "ifname": name}
    return OvsPort("br-test", name, HostEnd(kind, mtu), marks=marks)


@pytest.fixture(autouse=True)
def clean(switch: Switch) -> Iterator[None]:
    """Remove all that a test made in the shared switch."""
    yield
    switch.clear()


@pytest.fixture(scope="session")
def warm(switch: Switch) -> None:
    """Make a switch's first vhost-user connection: for it the switch takes memory, and does not answer for seconds."""
    switch.vsctl("add-br", "br-first", "--", "set", "Bridge", "br-first", "datapath_type=netdev")
    with TemporaryDirectory(prefix="uc-") as directory, clean_node(Node(Path(directory) / "n", switch)) as node:
        argv = [sys.executable, "-m", "userspace_cni", "probe", "br-first", "--count", "1", "--timeout", "50"]
        subprocess.run(argv, env=node.environ, stdout=subprocess.DEVNULL, timeout=110, check=True)
        switch.vsctl("del-br", "br-first")


@pytest.fixture(scope="module")
def spare() -> Iterator[SpareSwitch]:
    """A switch for those tests of the module that need one of their own."""
    lent = SpareSwitch()
    yield lent
    lent.close()


@pytest.fixture
def own_switch(spare: SpareSwitch) -> Iterator[Switch]:
    """A switch of the test's own, which it may stop and kill."""
    yield spare.take()
    spare.give_back()


@pytest.fixture
def veths(switch: Switch) -> Iterator[Veths]:
    """Makes kernel links where ovs-vswitchd opens them."""
    made = Veths(switch)
    yield made
    made.clean()


@pytest.fixture
def wire(node: Node) -> Iterator[Wire]:
    """A NIC of the node, which forwards, and a network beyond it."""
    with routed(switch_of(node).netns) as made:
        yield made


@pytest.fixture
def site(node: Node, wire: Wire) -> Iterator[Site]:
    """The node's own network beside that NIC's."""
    with kept(node, wire.node) as made:
        yield made


@pytest.fixture
def connect() -> Iterator[Callable[..., PortDriver]]:
    """Makes drivers for a switch, or for another remote of it, and closes them. `links`: the kernel links that they see."""
    made: list[PortDriver] = []

    def make(
        switch: Switch, remote: str = "", store: str = STORE, *, links: Veths | None = None, afxdp_max: int = 0, **kinds: Any
    ) -> PortDriver:
        client = switch_client(remote or switch.ovsdb, **kinds)
        made.append(PortDriver(client, switch.rundir, lambda: store, links=links, settings=PortSettings(afxdp_max)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def driver(switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    return connect(switch)


@pytest.fixture
def port(switch: Switch) -> Callable[..., OvsPort]:
    """Makes steps of one network; a client port on br-test unless told otherwise."""

    def make(number: int = 1, **changes: Any) -> OvsPort:
        container = f"{number:012d}" + "c" * 52
        columns: dict[str, Any] = {
            "bridge": "br-test",
            "name": f"{container[:12]}-net1",
            "interface_type": "dpdkvhostuserclient",
            "server_path": f"{switch.rundir}/pod-{number}",
            "marks": {"container-id": container, "network": "dpdk-net", "ifname": "net1"},
        }
        return port_with(**columns | changes)

    return make
