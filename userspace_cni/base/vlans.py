"""Bridge names and VLANs of a port, as networks and the administrator's rules write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Final

from userspace_cni.base.errors import InvalidConfig

BRIDGE_MAX: Final = 15
"""Characters of a bridge's name: a bridge is also a kernel link."""
VLAN_MAX: Final = 4094
_UNTAGGED: Final = 0
_FIELDS: Final = frozenset({"id", "minid", "maxid"})


@dataclass(frozen=True)
class Vlan:
    """Port.tag, Port.trunks and Port.vlan_mode of ovs-vswitchd.conf.db(5)."""

    tag: int | None = None
    trunks: tuple[int, ...] = ()
    mode: str = ""


def vlan_ranges(item: object, where: str) -> tuple[range, ...]:
    """Read a VLAN id, a range as "100-110", or an object of ovs-cni and the bridge plugin; `where` is for errors.

    Such an object is {"id": 5}, {"minID": 10, "maxID": 19}, or both in one, which is all of these VLANs. Its keys match in any
    case, and null is as good as absent. Raises InvalidConfig for every other one: those programs leave out what they do not know
    and a bound without the other.
    """
    if isinstance(item, dict):
        return tuple(_range(low, high, item, where) for low, high in _bounds(item, where))
    if isinstance(item, str) and re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", item):
        first, _, last = item.partition("-")
        return (_range(int(first), int(last or first), item, where),)
    return (_range(item, item, item, where),)


def _bounds(item: Mapping[str, object], where: str) -> list[tuple[object, object]]:
    """The first and the last VLAN of each range that the object says; a range begins with 1: of ovs-cni's 0 would be none."""
    given = {key.lower(): value for key, value in item.items() if value is not None}
    if len(given) < sum(value is not None for value in item.values()) or not given.keys() <= _FIELDS:
        raise _no_vlans(item, where)
    bounds = [(given["id"], given["id"])] if "id" in given else []
    if "minid" in given or "maxid" in given:
        bounds.append((given.get("minid") or None, given.get("maxid")))
    if not bounds:
        raise _no_vlans(item, where)
    return bounds


def _range(low: object, high: object, item: object, where: str) -> range:
    numbers = all(isinstance(number, int) and not isinstance(number, bool) for number in (low, high))
    if not (numbers and isinstance(low, int) and isinstance(high, int) and 0 <= low <= high <= VLAN_MAX):
        raise _no_vlans(item, where)
    return range(low, high + 1)


def _no_vlans(item: object, where: str) -> InvalidConfig:
    right = f"VLAN ids from 0 to {VLAN_MAX}, or ranges of them as '100-110'"
    if isinstance(item, dict):
        right = f'an object has "id" from 0, or "minID" from 1 with "maxID", or all three; {VLAN_MAX} is the last VLAN'
    return InvalidConfig(f"{where} holds {item!r}", right)


def vlans_of(ranges: Iterable[range]) -> tuple[int, ...]:
    """All VLANs of the ranges, in order. Each may be of all VLANs, and there may be as many: none is gone through one by one."""
    if not (named := list(ranges)):
        return ()
    found = bytearray(VLAN_MAX + 1)
    for each in named:
        found[each.start : each.stop] = b"\1" * len(each)
    return tuple(compress(range(VLAN_MAX + 1), found))


def list_carried_vlans(vlan: Vlan) -> frozenset[int] | None:
    """The VLANs that a port carries (ovs-vswitchd.conf.db(5), Port.vlan_mode); None for all, 0 for untagged."""
    own = frozenset({vlan.tag or _UNTAGGED})
    if vlan.mode in ("access", "dot1q-tunnel") or (not vlan.mode and vlan.tag is not None):
        return own
    if not vlan.trunks:
        return None
    return frozenset(vlan.trunks) | (own if vlan.mode.startswith("native-") else frozenset())


def share_one(one: Vlan, another: Vlan) -> bool:
    """Whether two ports carry a VLAN that is the same."""
    of_one, of_another = list_carried_vlans(one), list_carried_vlans(another)
    return of_one is None or of_another is None or not of_one.isdisjoint(of_another)
