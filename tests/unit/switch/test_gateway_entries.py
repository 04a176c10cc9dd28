"""The flows of a bridge that OVN's gateway router shares, as OpenFlow has them."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.openflow.flow_entries import FlowEntry, add_entry, delete_entry, output, read_entries
from userspace_cni.switch.openflow.gateway_entries import (
    SERVICE,
    TABLE,
    ServicePort,
    SharedBridge,
    list_base_entries,
    list_service_entries,
)
from userspace_cni.switch.openflow.openflow_messages import ONE_PORT, OpenflowMessage, cookie_of

BRIDGE = SharedBridge(uplink=1, patch=2, mac=bytes.fromhex("0a0000000011"), zone=64000)
COOKIE = cookie_of(0x01020304, 3)
UPLINK_TO_US = "80000004 00000001 80000606 0a0000000011 80000c02 0000"
TO_US = UPLINK_TO_US.replace(" ", "")
CONNTRACK = "ffff 0018 00002320 0023"


def entries_of(match: str) -> list[FlowEntry]:
    """The base flows of that match."""
    return [each for each in list_base_entries(BRIDGE) if each.match == bytes.fromhex(match)]


def test_what_comes_from_the_nic_is_tracked() -> None:
    """Untagged IP of both families to the common MAC is looked up in the zone, and goes on in the table of its own."""
    for family in ("0800", "86dd"):
        [found] = entries_of(f"{UPLINK_TO_US} 80000a02 {family}")
        assert (found.table, found.actions) == (0, bytes.fromhex(f"{CONNTRACK} 0000 00000000 fa00 {TABLE:02x} 000000 0000"))


def test_what_ovn_sends_is_committed() -> None:
    """IP from the patch port is committed in the zone, and leaves by the NIC."""
    [found] = entries_of("80000004 00000002 80000a02 0800")
    committed = bytes.fromhex(f"{CONNTRACK} 0001 00000000 fa00 ff 000000 0000")
    assert found.actions == committed + output(1)


def test_neighbours_are_told_to_both() -> None:
    """ARP, and each type of neighbour discovery, goes to the node and to OVN."""
    types = ["0806", *(f"86dd 80001401 3a 80003a01 {number:02x}" for number in range(133, 138))]
    found = [entry for each in types for entry in entries_of(f"{UPLINK_TO_US} 80000a02 {each}")]
    assert [each.actions for each in found] == [output(0xFFFFFFFE, 2)] * 6


@pytest.mark.parametrize(("protocol", "number", "field"), [("TCP", "06", "1c"), ("UDP", "11", "20"), ("SCTP", "84", "24")])
def test_a_node_port(protocol: str, number: str, field: str) -> None:
    """It is asked for in both families, at any address, and goes to OVN without a look at conntrack."""
    found = list_service_entries(BRIDGE, [ServicePort(protocol, 30080)])  # type: ignore[arg-type]
    matches = {f"{TO_US}80000a02{family}80001401{number}8000{field}027580" for family in ("0800", "86dd")}
    assert {each.match.hex() for each in found} == matches
    assert {(each.table, each.priority, each.actions) for each in found} == {(0, SERVICE, output(2))}


def test_an_address_of_a_service() -> None:
    """It has its own family alone."""
    [found] = list_service_entries(BRIDGE, [ServicePort("TCP", 80, ip_address("2001:db8::7"))])
    assert found.match.hex().startswith(TO_US + "80000a0286dd80003610" + ip_address("2001:db8::7").packed.hex())


def test_messages_name_our_cookie() -> None:
    """A flow is added with it and deleted only with it; none of others can be named."""
    entry = FlowEntry(3, 7, b"", output(2))
    assert add_entry(0x04, 9, entry, COOKIE).hex()[:48] == "040e0050" + "00000009" + f"{COOKIE:016x}" + "0" * 16
    gone = delete_entry(0x04, 9, entry, COOKIE, ONE_PORT)
    assert struct.unpack_from("!QQBBHHH", gone, 8) == (COOKIE, ONE_PORT, 3, 4, 0, 0, 7)
    for theirs in (0, 0x77, COOKIE ^ 1 << 63):
        with pytest.raises(ValueError, match="others"):
            add_entry(0x04, 9, entry, theirs)
        with pytest.raises(ValueError, match="others"):
            delete_entry(0x04, 9, entry, theirs, ONE_PORT)


def test_what_a_switch_says_of_flows() -> None:
    """Counters and age are left out, so that the same flow is the same; several messages make one answer."""

    def said(age: int, packets: int) -> bytes:
        head = struct.pack("!HBxIIHHHH4xQQQ", 56, 3, age, age, 7, 0, 0, 0, COOKIE, packets, packets)
        return head + bytes.fromhex("0001000400000000")

    def answer(flags: int, *flows: bytes) -> OpenflowMessage:
        return OpenflowMessage(0x04, 19, 1, struct.pack("!HH4x", 1, flags) + b"".join(flows))

    (one,), last = read_entries(answer(1, said(1, 2)))
    (other,), end = read_entries(answer(0, said(3, 4)))
    assert (one, last, end) == (other, False, True)
    assert (one.table, one.priority, one.is_ours) == (3, 7, True)
    with pytest.raises(Unavailable, match="flow of 0 bytes"):
        read_entries(answer(0, bytes(56)))
    with pytest.raises(Unavailable, match="type 10"):
        read_entries(OpenflowMessage(0x04, 10, 1, b""))
