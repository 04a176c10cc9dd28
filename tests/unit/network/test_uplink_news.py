"""Events for pods about the uplink of their bridge: from the switch's state, once, and only about what concerns them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.lab.node.world import World
from userspace_cni.attachment.port_now import NOTHING, PortNow
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import HostEnd, NodeBridge, OvsPort, UplinkInterface, UplinkPort
from userspace_cni.network.uplink_news import UplinkNews, down

UPLINK = UplinkPort("br-net1", "eth1", (UplinkInterface("eth1", "system"),))
BOND = replace(UPLINK, name="up-net1", interfaces=(UplinkInterface("eth1", "system"), UplinkInterface("eth2", "system")))
WELL = SpecStatus("provider-network", "net1", "objects", "ProviderNetwork net1", "", (NodeBridge("br-net1"), UPLINK))
REFUSED = replace(WELL, problem="another NIC is refused")
ABSENT = replace(REFUSED, steps=())


@dataclass(frozen=True)
class Port:
    """A port as the switch has it."""

    name: str = "eth1"
    link_state: str = "up"
    error: str = ""
    installed: str = ""
    now: PortNow = NOTHING


@pytest.mark.parametrize(
    ("status", "ports", "cause"),
    [
        (WELL, [Port()], ""),
        (REFUSED, [Port()], ""),
        (WELL, [Port(link_state="down")], "eth1 has no link"),
        (WELL, [Port(link_state="down", error="could not open it")], "could not open it"),
        (WELL, [Port(link_state="")], ""),
        (ABSENT, [], "another NIC is refused"),
        (REFUSED, [], "another NIC is refused"),
        (replace(REFUSED, steps=(NodeBridge("br-net1"), BOND)), [], ""),
        (replace(ABSENT, desired=False), [], ""),
        (replace(ABSENT, kind="gateway"), [], ""),
    ],
)
def test_which_uplinks_carry_nothing(status: SpecStatus, ports: list[Port], cause: str) -> None:
    """An uplink without a link, one that is not open, and one that the node lacks; not one of which only a change is refused."""
    assert down([status], ports) == ({"br-net1": cause} if cause else {})


def test_a_bridge_of_another_name() -> None:
    """It is the one that the node has, which need not be called as the network."""
    named = replace(WELL, steps=(NodeBridge("breth1"), replace(UPLINK, bridge="breth1")))
    assert list(down([named], [Port(link_state="down")])) == ["breth1"]


def test_each_interface_is_told_once(tmp_path: Path) -> None:
    """A pod of the bridge gets one Event per cause, and one when it is over; so does a later pod, and other pods get none."""
    world = World(tmp_path)
    news = UplinkNews(world.journal, world.pods.tell)

    def attached(number: int, bridge: str = "br-net1") -> None:
        port = OvsPort(bridge, f"p{number}", HostEnd("system", 1500))
        record = Record("ready", "podnet", f"{number:064x}", "net1", steps=(port,), boot_id=world.boot)
        world.journal.write(replace(record, pod_namespace="default", pod_name=f"pod{number}", pod_uid=f"uid{number}"))

    def told() -> list[tuple[str, str]]:
        found = [(recipient.name, notice.name) for recipient, notice in world.told]
        world.told.clear()
        return sorted(found)

    attached(1)
    attached(2, "br-other")
    news.tell([WELL], [Port()])
    assert told() == []
    for _ in range(3):
        news.tell([WELL], [Port(link_state="down")])
    assert told() == [("pod1", "UplinkDown")]
    attached(3)
    news.tell([WELL], [Port(link_state="down")])
    assert told() == [("pod3", "UplinkDown")]
    news.tell([WELL], [Port(error="could not open it")])
    assert told() == [("pod1", "UplinkDown"), ("pod3", "UplinkDown")]
    for _ in range(2):
        news.tell([WELL], [Port()])
    assert told() == [("pod1", "UplinkUp"), ("pod3", "UplinkUp")]
