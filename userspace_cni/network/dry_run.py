"""What a change of the node's network would do, in words: for commands that print it and do nothing.

The changes of addresses and routes are written as ip(8) takes them, in the order and batches in which the kernel gets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from userspace_cni.attachment.steps import AddressMove, Step, UplinkPort
from userspace_cni.host.netlink.rtnetlink import shown


def would_do(former: Sequence[Step], steps: Sequence[Step]) -> Iterable[tuple[str, Sequence[str]]]:
    """Headings with lines: what is undone and made on the way from the former steps to these, and the way back."""
    gone, made = [each for each in former if each not in steps], [each for each in steps if each not in former]
    there = [*_undone(gone), *_made(made)]
    yield "what would be done:" if there else "nothing would be done", there
    if there:
        yield "the way back:", [*_undone(made), *_made(gone)]


def _made(steps: Sequence[Step]) -> Iterable[str]:
    for step in steps:
        yield f"make {step.summary}"
        yield from (f"  {line}" for line in _there(step))


def _undone(steps: Sequence[Step]) -> Iterable[str]:
    for step in reversed(steps):
        yield f"undo {step.summary}"
        yield from (f"  {line}" for line in _back(step))


def _there(step: Step) -> Iterable[str]:
    if isinstance(step, UplinkPort):
        yield _carried(step)
    if not isinstance(step, AddressMove):
        return
    yield f"ip link set dev {step.bridge} up"
    yield from (f"ip address replace {_address(each)} dev {step.bridge} noprefixroute" for each in step.addresses)
    yield from (f"ip route replace {shown(each)} dev {step.bridge}" for each in step.routes)
    if step.cut:
        yield f"nft: the node's own stack no longer hears {step.nic}"
    yield from (f"ip address delete {_address(each)} dev {step.nic}" for each in reversed(step.addresses))
    if step.next_hops:
        told = "one of " if len(step.next_hops) > 1 else ""
        yield f"{told}{', '.join(step.next_hops)} has to answer on {step.bridge}, else all of it goes back"


def _carried(step: UplinkPort) -> str:
    """What passes the uplink."""
    tags = [str(tag) for tag in step.trunks if tag]
    untagged = "frames without a tag" if not step.trunks or 0 in step.trunks else ""
    vlans = f"VLANs {', '.join(tags)}" if tags else "" if step.trunks else "all VLANs"
    mtu = f", MTU {step.mtu}" if step.mtu else ""
    return f"it carries {' and '.join(filter(None, (untagged, vlans)))}{mtu}"


def _back(step: Step) -> Iterable[str]:
    if not isinstance(step, AddressMove):
        return
    if step.cut:
        yield f"nft: the node's own stack hears {step.nic} again"
    yield from (f"ip address replace {_address(each)} dev {step.nic}" for each in step.addresses)
    yield from (f"ip route replace {shown(each)} dev {step.nic}" for each in step.routes)
    yield from (f"ip address delete {_address(each)} dev {step.bridge}" for each in reversed(step.addresses))


def _address(entry: Mapping[str, Any]) -> str:
    return f"{entry['address']}/{entry['prefixlen']}"
