"""Bridge names and VLANs of a port, as networks and the administrator's rules write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import InvalidConfig

BRIDGE_MAX: Final = 15
"""Characters of a bridge's name: a bridge is also a kernel link."""
VLAN_MAX: Final = 4094
_UNTAGGED: Final = 0


@dataclass(frozen=True)
class Vlan:
    """Port.tag, Port.trunks and Port.vlan_mode of ovs-vswitchd.conf.db(5)."""

    tag: int | None = None
    trunks: tuple[int, ...] = ()
    mode: str = ""


def vlan_range(item: object, where: str) -> range:
    """Read a VLAN id, a range as "100-110", or ovs-cni's {"id": 5} and {"minID": 5, "maxID": 9}; `where` is for errors."""
    low: object = None
    high: object = None
    if isinstance(item, dict):
        low, high = (item.get("id"), item.get("id")) if "id" in item else (item.get("minID"), item.get("maxID"))
    elif isinstance(item, str) and re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", item):
        first, _, last = item.partition("-")
        low, high = int(first), int(last or first)
    else:
        low = high = item
    numbers = all(isinstance(number, int) and not isinstance(number, bool) for number in (low, high))
    if not (numbers and isinstance(low, int) and isinstance(high, int) and 0 <= low <= high <= VLAN_MAX):
        raise InvalidConfig(f"{where} holds {item!r}", f"VLAN ids from 0 to {VLAN_MAX}, or ranges of them as '100-110'")
    return range(low, high + 1)


def vlans_of(ranges: Iterable[range]) -> tuple[int, ...]:
    """All VLANs of the ranges, in order. Each may be of all VLANs, and there may be as many: none is gone through one by one."""
    found = bytearray(VLAN_MAX + 1)
    for each in ranges:
        found[each.start : each.stop] = b"\1" * len(each)
    return tuple(vlan for vlan, there in enumerate(found) if there)


def carried(vlan: Vlan) -> frozenset[int] | None:
    """The VLANs that a port carries (ovs-vswitchd.conf.db(5), Port.vlan_mode); None for all, 0 for untagged."""
    own = frozenset({vlan.tag or _UNTAGGED})
    if vlan.mode in ("access", "dot1q-tunnel") or (not vlan.mode and vlan.tag is not None):
        return own
    if not vlan.trunks:
        return None
    return frozenset(vlan.trunks) | (own if vlan.mode.startswith("native-") else frozenset())


def share_one(one: Vlan, another: Vlan) -> bool:
    """Whether two ports carry a VLAN that is the same."""
    of_one, of_another = carried(one), carried(another)
    return of_one is None or of_another is None or not of_one.isdisjoint(of_another)
