"""Which policies a trace of ovn-trace has met, in words: by the names of port groups in the flows that matched.

OVN says a policy's name only where it logs. But the match of a flow has the match of its ACL, and that has the group's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.ovn.desired_rows import read_scope
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import ACL, PORT_GROUP, SWITCH_PORT
from userspace_cni.ovsdb.column_values import read_references, value_of

_GROUP: Final = re.compile(r"@(policy_\w+)")
_SHOWN: Final = 10
_ISOLATED: Final = "isolated"
"""The key of a group of ports that policies isolate in the direction that it names."""


@dataclass(frozen=True)
class TracedGroup:
    """A port group of policies. `ids`: whose it is; `acls`: match, action and rule of each; `ports`: names."""

    ids: Mapping[str, str]
    ports: frozenset[str] = frozenset()
    acls: Sequence[tuple[str, str, str]] = field(default=())


def look_groups(session: NorthboundSession) -> dict[str, TracedGroup]:
    """The groups of policies, by name."""
    ports, acls = session.tables[SWITCH_PORT].rows, session.tables[ACL].rows
    found = {}
    for row in session.rows(PORT_GROUP):
        ids, name = value_of(row, "external_ids"), value_of(row, "name")
        if read_scope(ids) and _GROUP.fullmatch(f"@{name}"):
            members = frozenset(value_of(ports[each], "name") for each in read_references(row, "ports") if each in ports)
            rules = [_read_acl(acls[each]) for each in sorted(read_references(row, "acls")) if each in acls]
            found[name] = TracedGroup(ids, members, rules)
    return found


def _read_acl(row: object) -> tuple[str, str, str]:
    return value_of(row, "match"), value_of(row, "action"), value_of(row, "external_ids").get("rule", "")


def explain_policies(trace: str, groups: Mapping[str, TracedGroup], ends: Mapping[str, str]) -> Iterator[str]:
    """What the policies did that a detailed trace has met, in its order. `ends`: the port for "ingress" and that for "egress"."""
    for line in trace.splitlines():
        name = next(iter(_GROUP.findall(line)), "")
        if (group := groups.get(name)) is not None:
            for match, action, rule in group.acls:
                if match in line:
                    yield _say(group, action, rule, groups, ends)


def list_isolating(groups: Mapping[str, TracedGroup], port: str) -> Mapping[str, tuple[str, ...]]:
    """The directions ("ingress", "egress") in which the port gets only what policies let through, each with all its policies."""
    directions = {each.ids[_ISOLATED] for each in groups.values() if port in each.ports and _ISOLATED in each.ids}
    return {direction: tuple(sorted(_selecting(groups, port))) for direction in sorted(directions)}


def _selecting(groups: Mapping[str, TracedGroup], port: str) -> Iterator[str]:
    return (f"{each.ids['kind']} {each.ids['namespace']}/{each.ids['policy']}" for each in _policies(groups, port))


def _say(group: TracedGroup, action: str, rule: str, groups: Mapping[str, TracedGroup], ends: Mapping[str, str]) -> str:
    ids, (direction, _, what) = group.ids, rule.partition(" ")
    if "policy" in ids:
        return f"let through by {ids['kind']} {ids['namespace']}/{ids['policy']}, {direction} rule {what}"
    if action != "drop":
        return f"let through whatever policies say: {direction} {what}"
    port = ends.get(direction, "")
    selecting = sorted(_selecting(groups, port))
    more = f" and {len(selecting) - _SHOWN} more" if len(selecting) > _SHOWN else ""
    shown = ", ".join(selecting[:_SHOWN])
    return f"dropped: {port} is isolated for {direction}, and none of its policies lets this through: {shown}{more}"


def _policies(groups: Mapping[str, TracedGroup], port: str) -> Iterator[TracedGroup]:
    return (each for each in groups.values() if "policy" in each.ids and port in each.ports)
