"""What of a cluster's logical network, and of this node's part in it, is not as it should be. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from userspace_cni.base.findings import Finding
from userspace_cni.ovn.chassis_ids import SYSTEM_ID, Address, list_absent_ends, list_missing_ids
from userspace_cni.ovn.gateways.bridge_mappings import MAPPINGS, read_mappings
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.ovn_facts import ChassisFact, NorthFacts

_SHOWN = 5
_COMMANDS = {"cluster": "init-cluster", "gateway": "init-gateway"}
"""What writes the rows with a mark that begins so."""


def find_network_faults(facts: NorthFacts, chassis: Sequence[ChassisFact]) -> Iterator[Finding]:
    """What both databases show."""
    if not facts.cluster.router:
        yield Finding("ovn-no-cluster", "error", "OVN", "there is no router of a cluster", "userspace-cni ovn init-cluster")
    for table, names in facts.twice.items():
        for name in names:
            message = f"two rows of {table} have this name"
            why = "OVN takes both, and ports and routes are in either of them"
            yield Finding("ovn-name-twice", "error", name, message, "delete the one that is not in use", why=why)
    yield from _rows(facts)
    asked, done = (facts.configurations[name] for name in ("nb_cfg", "sb_cfg"))
    if done < asked:
        message = f"ovn-northd has done {done} of {asked} configurations that were waited for"
        yield Finding("ovn-northd-behind", "warning", "ovn-northd", message, "does it run, and reach both databases?")
    yield from _chassis(facts, chassis)
    known = {each.name for each in chassis}
    for gateway in facts.gateways:
        if not known & set(gateway.chassis):
            message = f"the southbound database has no chassis {' or '.join(gateway.chassis)}"
            why = "pods that leave by it reach nothing outside"
            yield Finding(
                "ovn-gateway-down", "error", f"gateway {gateway.name}", message, "does ovn-controller run there?", why=why
            )
    down = [each.name for each in facts.ports if each.up is False]
    if down:
        remedy = "a port with this iface-id on the integration bridge of one chassis brings it up"
        yield Finding("ovn-ports-down", "note", "logical ports", f"no chassis has {_shorten(down)}", remedy)
    if facts.fragmented:
        message = f"rules on ports of {_shorten(facts.fragmented)} do not cover IP fragments"
        why = "OVN before 26.03, or without acl_ct_translation, knows no ports of fragments: they are dropped, or pass to all"
        remedy = "a newer OVN, or the setting policy_fragments of the controller"
        yield Finding("ovn-policy-fragments", "note", "policies", message, remedy, why=why)


def find_node_faults(
    ids: Mapping[str, str], chassis: Sequence[ChassisFact], addresses: Collection[Address] | None
) -> Iterator[Finding]:
    """What the switch's external_ids show: this node as a chassis. `addresses`: those of this node, None while not known."""
    missing = list_missing_ids(ids)
    if missing:
        message = f"Open_vSwitch has no external_ids:{', '.join(missing)}"
        yield Finding(
            "ovn-chassis-incomplete", "error", "this node", message, "userspace-cni ovn init-node", why="ovn-controller waits"
        )
        return
    name = ids["system-id"]
    if name not in {each.name for each in chassis}:
        message = f"there is no chassis {name} in the southbound database"
        yield Finding("ovn-chassis-absent", "error", "this node", message, "does ovn-controller run? see its log")
    if absent := list_absent_ends(ids, addresses):
        yield Finding(
            "ovn-encap-ip-absent",
            "error",
            "this node",
            f"external_ids:ovn-encap-ip has {', '.join(absent)}, which no link and no bridge of this node has",
            "userspace-cni ovn init-node --encap-ip with an address of a bridge of OVS, or userspace-cni nic-to-bridge",
            why="tunnels from other nodes lead to an address that is not here",
        )
    if ids.get("ovn-bridge-datapath-type") != "netdev":
        yield Finding(
            "ovn-kernel-datapath",
            "warning",
            "this node",
            "external_ids:ovn-bridge-datapath-type is not netdev",
            "userspace-cni ovn init-node",
            why="ports for vhost-user do not open on OVN's bridge, and it needs a kernel module",
        )


def find_gateway_faults(ids: Mapping[str, str], gateways: Sequence[AskedGateway]) -> Iterator[Finding]:
    """What the switch's external_ids show: this node as the chassis of gateways."""
    for gateway in gateways:
        if ids.get(SYSTEM_ID) in gateway.chassis and not gateway.shared and gateway.network not in read_mappings(ids):
            message = f"external_ids:{MAPPINGS} has no bridge for the network {gateway.network}"
            remedy = "userspace-cni ovn init-gateway with the same options writes it again"
            yield Finding("ovn-mapping-missing", "error", f"gateway {gateway.name}", message, remedy)


def _rows(facts: NorthFacts) -> Iterator[Finding]:
    for scope, changes in facts.differences.items():
        command = next((command for word, command in _COMMANDS.items() if scope.startswith(word)), "init-node")
        remedy = f"userspace-cni ovn {command}"
        for change in changes.rows:
            said = {"insert": "is missing", "delete": "is not asked for"}.get(
                change.kind, f"differs in {', '.join(change.columns)}"
            )
            message = f"{change.key} {said}"
            yield Finding("ovn-row-differs", "error", scope, message, f"{remedy} with the same options writes it again")
        for refused in changes.refused:
            yield Finding("ovn-row-refused", "error", scope, refused.message, f"{remedy}: {refused.details}")


def _chassis(facts: NorthFacts, chassis: Sequence[ChassisFact]) -> Iterator[Finding]:
    by_host: dict[str, list[str]] = defaultdict(list)
    by_end: dict[str, list[str]] = defaultdict(list)
    for each in chassis:
        by_host[each.hostname].append(each.name)
        for _, address in each.ends:
            by_end[address].append(each.name)
    for what, groups in (("hostname", by_host), ("end of tunnels", by_end)):
        for value, names in groups.items():
            if value and len(set(names)) > 1:
                message = f"chassis {' and '.join(sorted(set(names)))} have the {what} {value}"
                remedy = "ovn-sbctl chassis-del the one whose machine was set up again"
                yield Finding(
                    "ovn-chassis-twice", "warning", value, message, remedy, why="tunnels lead to a chassis that is gone"
                )
    hosts = {each.hostname.lower() for each in chassis} | {each.name.lower() for each in chassis}
    for node in facts.cluster.nodes.values():
        if not any(host == node.name or host.startswith(f"{node.name}.") for host in hosts):
            message = "no chassis has this node's name as hostname or system-id"
            yield Finding(
                "ovn-node-without-chassis", "note", f"node {node.name}", message, "run init-node there, and ovn-controller"
            )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
