"""What the northbound database is to have for the policies of a cluster, kept while pods, ports, namespaces and policies come and
go. Pure; for one thread at a time.

A policy is a port group with the ports of its pods and with the ACLs of its rules. Ports that some policy isolates are in a group
of their namespace, too, for each direction, which drops what none of its policies lets through. A choice of peers is an address
set, for each version of IP, and policies that make the same choice share it.

A change costs what it changes: nothing here looks at all policies because of one pod, or at all pods because of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from userspace_cni.ovn.desired_rows import DesiredRow, MemberSet, RowKey
from userspace_cni.ovn.northbound_tables import ADDRESS_SET, PORT_GROUP
from userspace_cni.ovn.policy.label_selectors import EVERYTHING
from userspace_cni.ovn.policy.pod_selections import PodChoice, PodKey, PodSelection, PodSelections, PolicyPod
from userspace_cni.ovn.policy.policy_acls import (
    METER_NAME,
    NODES_GROUP,
    deny_content,
    deny_group,
    meter_rows,
    nodes_content,
    policy_content,
    policy_group,
    set_name,
    with_family,
)
from userspace_cni.ovn.policy.policy_members import (
    NUMBERS_MAX,
    MemberRow,
    MemberSource,
    PeerSet,
    PolicyPort,
    PortSubject,
    SelectedPorts,
)
from userspace_cni.ovn.policy.policy_objects import (
    DEFAULT,
    EGRESS,
    INGRESS,
    MULTI_POLICY,
    POLICY,
    BlockPeer,
    Direction,
    NetworkPolicy,
    Peer,
    PodPeer,
    PolicyNamespace,
    PolicyPorts,
    PolicyRule,
)


@dataclass
class _Kept:
    """A policy, and what it uses."""

    policy: NetworkPolicy
    selection: PodSelection
    selected: SelectedPorts
    sets: list[PeerSet] = field(default_factory=list)


_PeerKey = tuple[PodChoice, frozenset[str], tuple[str, str] | None, tuple[str, ...] | None]
"""Which pods, by their addresses in which networks; a port, by protocol and name; blocks in which the addresses have to be."""


class PolicyBook:
    """It knows nothing at first. There are address sets for the versions of IP that ports have."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """The kinds of which all policies are in it: before that no one can say which groups a port is to have."""
        self._families: tuple[int, ...] = ()
        self._selections = PodSelections()
        self._namespaces: dict[str, PolicyNamespace] = {}
        self._policies: dict[str, _Kept] = {}
        self._of_namespace: dict[str, set[str]] = {}
        self._uses: dict[PodSelection, dict[MemberSource, None]] = {}
        self._peer_sets: dict[_PeerKey, PeerSet] = {}
        self._ports: dict[str, PolicyPort] = {}
        self._owned: dict[tuple[str, str], set[str]] = {}
        self._owners: dict[tuple[str, str], set[PodKey]] = {}
        self._rows: dict[str, MemberRow] = {}
        self._changed: set[str] = set()
        self._stale: set[str] = set()
        """Policies whose ACLs are to be made anew."""
        self._fragments = False
        self._unwritable: AbstractSet[str] = frozenset()

    # -- what it is told ----------------------------------------------------------------------------------------------------

    def take_policy(self, key: str, policy: NetworkPolicy | None) -> None:
        """The policy of this key is this from now on, None for none."""
        kept = self._policies.get(key)
        if kept is not None and kept.policy == policy:
            return
        if kept is not None:
            self._remove(key, kept)
        if policy is not None:
            self._add(key, policy)

    def take_namespace(self, name: str, namespace: PolicyNamespace | None) -> None:
        """The namespace is this from now on, None for none."""
        former = self._namespaces.pop(name, None)
        if namespace is not None:
            self._namespaces[name] = namespace
        if former == namespace:
            return
        for selection, key, is_chosen in self._selections.take_namespace(name, namespace.labels if namespace else None):
            pod = self._selections.pods[key]
            for use in self._uses.get(selection, ()):
                self._count_pod(use, pod, 1 if is_chosen else -1)
        if _logging(former) != _logging(namespace):
            self._changed.add(METER_NAME)
            self._stale |= self._of_namespace.get(name, set())
            for direction in (INGRESS, EGRESS):
                self._fill_deny(name, direction)

    def take_pod(self, key: PodKey, pod: PolicyPod | None) -> None:
        """The pod is this from now on, None for one that has no ports any more."""
        former = self._selections.pods.get(key)
        if former == pod:
            return
        if former is not None and (pod is None or (former.owner, former.ports) != (pod.owner, pod.ports)):
            left, _ = self._selections.take_pod(key, None)
            self._count_all(left, former, -1)
            self._drop_owner(key, former)
            former = None
        if pod is None:
            return
        if former is None:
            self._owners.setdefault((pod.namespace, pod.owner), set()).add(key)
        left, come = self._selections.take_pod(key, pod)
        if former is not None:
            self._count_all(left, former, -1)
        self._count_all(come, pod, 1)

    def take_port(self, name: str, port: PolicyPort | None) -> None:
        """The logical port is this from now on, None for none."""
        former = self._ports.get(name)
        if former == port:
            return
        if former is not None:
            self._count_port(former, -1)
            del self._ports[name]
            owned = self._owned[former.namespace, former.owner]
            owned.discard(name)
            if not owned:
                del self._owned[former.namespace, former.owner]
        if port is not None:
            if new := {version for version, _ in port.addresses} - {*self._families}:
                self._add_families(new)
            self._ports[name] = port
            self._owned.setdefault((port.namespace, port.owner), set()).add(name)
            self._count_port(port, 1)

    def take_node_port(self, name: str, *, is_nodes: bool) -> None:
        """Whether the logical port is a node's own."""
        row = self._row(PORT_GROUP, NODES_GROUP)
        row.content = nodes_content()
        if is_nodes != (name in row.members):
            row.count(name, 1 if is_nodes else -1)
            self._changed.add(row.name)

    def take_fragments(self, *, passed: bool) -> None:
        """Whether fragments of requests pass to every port where a rule with ports lets their sender through."""
        if passed != self._fragments:
            self._fragments = passed
            self._stale |= {key for key, kept in self._policies.items() if kept.policy.has_ports}

    def take_unwritable(self, names: AbstractSet[str]) -> None:
        """Which rows the database does not take. Sets of peers among them let nothing through: their addresses may be others'."""
        changed, self._unwritable = names ^ self._unwritable, names
        for each in self._peer_sets.values() if changed else ():
            if any(row.name in changed for row in each.rows.values()):
                self._stale |= each.users.keys()

    # -- what it says -------------------------------------------------------------------------------------------------------

    def list_groups(self, subjects: Iterable[PortSubject]) -> frozenset[str] | None:
        """The port groups that a port with these pods is to be in; None while that is not known."""
        found: set[str] = set()
        for each in subjects:
            if (POLICY if each.network == DEFAULT else MULTI_POLICY) not in self.known:
                return None
            for selection in self._selections.find(each.namespace, each.labels):
                for use in self._uses.get(selection, ()):
                    if isinstance(use, SelectedPorts) and each.network in use.policy.networks:
                        found.update(row.name for row in use.rows)
        return frozenset(found)

    def take_changed(self) -> set[str]:
        """The names of the rows that may have to be others since the last call."""
        for key in self._stale:
            if kept := self._policies.get(key):
                self._fill(kept)
        self._stale.clear()
        changed, self._changed = self._changed, set()
        return changed

    def desired(
        self, name: str, find_port: Callable[[str], UUID | None], staying: AbstractSet[UUID] = frozenset()
    ) -> tuple[DesiredRow, ...]:
        """A row as it is to be, and what is in it; () for one that is not to be. `find_port`: the row of a port, by its name;
        `staying`: ports that a group is to have beside those that are known to be its own."""
        if name == METER_NAME:
            return meter_rows() if self._is_logging else ()
        row = self._rows.get(name)
        if row is None or (name == NODES_GROUP and not self._policies):
            return ()
        if row.table == ADDRESS_SET:
            return (DesiredRow(RowKey(ADDRESS_SET, name), {"addresses": MemberSet(frozenset(row.members))}),)
        ports = frozenset(found for each in row.members if (found := find_port(each)) is not None)
        return row.content.list_rows(name, MemberSet(ports | staying))

    @property
    def rows(self) -> set[str]:
        """The names of all rows that may be."""
        return {*self._rows, METER_NAME}

    @property
    def _is_logging(self) -> bool:
        return any(each.deny or each.allow for each in self._namespaces.values())

    @property
    def policies(self) -> int:
        """How many policies it has."""
        return len(self._policies)

    def list_refused(self, unwritable: Mapping[str, str]) -> dict[str, tuple[NetworkPolicy, str]]:
        """The policies that close, or that let less through than they say, and why, by key. `unwritable`: rows that the database
        does not take, and why."""
        found = {key: (kept.policy, kept.policy.refused) for key, kept in self._policies.items() if kept.policy.refused}
        for each in self._peer_sets.values():
            if each.is_excessive:
                why = f"pods have more than {NUMBERS_MAX} numbers for the port called {each.port and each.port[1]}"
                for key in each.users:
                    found.setdefault(key, (self._policies[key].policy, why))
        for key, kept in self._policies.items() if unwritable else ():
            for row in kept.selected.rows:
                if row.name in unwritable:
                    found[key] = (kept.policy, f"a row of it cannot be written: {unwritable[row.name]}")
        for each in self._peer_sets.values() if unwritable else ():
            for row in each.rows.values():
                for key in each.users if row.name in unwritable else ():
                    found[key] = (
                        self._policies[key].policy,
                        f"a set of its peers is not kept, and let through no more: {unwritable[row.name]}",
                    )
        return found

    def list_with_ports(self) -> dict[str, NetworkPolicy]:
        """The policies that let through to some ports of some pods only, by key."""
        found = ((key, kept) for key, kept in self._policies.items() if kept.selected.rows[0].members)
        return {key: kept.policy for key, kept in found if kept.policy.has_ports}

    # -- policies -----------------------------------------------------------------------------------------------------------

    def _add(self, key: str, policy: NetworkPolicy) -> None:
        if not self._policies:
            self._changed.add(NODES_GROUP)
        self._of_namespace.setdefault(policy.namespace, set()).add(key)
        groups = [policy_group(policy), *(deny_group(policy.namespace, each) for each in policy.directions)]
        rows = [self._row(PORT_GROUP, each) for each in groups]
        selection = self._selections.use(PodChoice(policy.namespace, None, policy.pods))
        kept = self._policies[key] = _Kept(policy, selection, SelectedPorts(policy, rows))
        self._start(selection, kept.selected)
        for direction in policy.directions:
            self._fill_deny(policy.namespace, direction)
            for rule in policy.rules(direction) or ():
                for port in [None, *(each for each in rule.ports or () if each.name)]:
                    for peer in _list_asked(direction, rule, port):
                        self._use_set(kept, self._choice(policy, direction, peer, port))
        self._stale.add(key)

    def _remove(self, key: str, kept: _Kept) -> None:
        policy = kept.policy
        for each in kept.sets:
            self._leave_set(key, each)
        self._end(kept.selection, kept.selected)
        self._selections.leave(kept.selection)
        del self._policies[key]
        self._drop(kept.selected.rows[0])
        siblings = self._of_namespace[policy.namespace]
        siblings.discard(key)
        if not siblings:
            del self._of_namespace[policy.namespace]
        for direction in policy.directions:
            if not any(direction in self._policies[each].policy.directions for each in siblings):
                self._drop(self._rows[deny_group(policy.namespace, direction)])
        if not self._policies:
            self._changed.add(NODES_GROUP)

    def _fill(self, kept: _Kept) -> None:
        """Make the ACLs of a policy anew."""
        row, policy = kept.selected.rows[0], kept.policy

        def list_sets(direction: Direction, peer: Peer | None, port: PolicyPorts | None) -> Mapping[int, str]:
            found = self._peer_sets[self._choice(policy, direction, peer, port)]
            lacking = {number for (number, _), row in found.rows.items() if row.name in self._unwritable}
            return {number: set_name(found.said, number) for number in found.numbers if number not in lacking}

        row.content = policy_content(
            policy, self._namespace(policy.namespace), list_sets, self._families, fragments=self._fragments
        )
        self._changed.add(row.name)

    def _fill_deny(self, namespace: str, direction: Direction) -> None:
        row = self._rows.get(deny_group(namespace, direction))
        if row is not None:
            content = deny_content(self._namespace(namespace), direction)
            if row.content != content:
                row.content = content
                self._changed.add(row.name)

    def _namespace(self, name: str) -> PolicyNamespace:
        return self._namespaces.get(name) or PolicyNamespace(name)

    def _choice(self, policy: NetworkPolicy, direction: Direction, peer: Peer | None, port: PolicyPorts | None) -> _PeerKey:
        """Which pods a rule means by a peer, or where it says none by a port with a name."""
        blocks: tuple[str, ...] | None = None
        if peer is None and direction == INGRESS:
            choice = PodChoice(policy.namespace, None, policy.pods)
        elif peer is None:
            choice = PodChoice("", EVERYTHING, EVERYTHING)
        elif isinstance(peer, BlockPeer):
            choice, blocks = PodChoice("", EVERYTHING, EVERYTHING), peer.blocks
        else:
            choice = PodChoice(policy.namespace if peer.namespaces is None else "", peer.namespaces, peer.pods)
        return choice, policy.networks, None if port is None else (port.protocol, port.name), blocks

    # -- sets of peers ------------------------------------------------------------------------------------------------------

    def _use_set(self, kept: _Kept, key: _PeerKey) -> None:
        found = self._peer_sets.get(key)
        if found is None:
            choice, networks, port, blocks = key
            found = self._peer_sets[key] = PeerSet(self._selections.use(choice), networks, port, blocks)
            if port is None:
                self._make_rows(found, 0)
            self._start(found.selection, found)
        found.users[kept.policy.key] = found.users.get(kept.policy.key, 0) + 1
        kept.sets.append(found)

    def _leave_set(self, policy: str, used: PeerSet) -> None:
        used.users[policy] -= 1
        if not used.users[policy]:
            del used.users[policy]
        if used.users:
            return
        del self._peer_sets[used.selection.choice, used.networks, used.port, used.blocks]
        self._uses[used.selection].pop(used)
        if not self._uses[used.selection]:
            del self._uses[used.selection]
        self._selections.leave(used.selection)
        for row in used.rows.values():
            self._drop(row)

    def _make_rows(self, used: PeerSet, number: int) -> None:
        for version in self._families:
            used.rows[number, version] = self._row(ADDRESS_SET, with_family(set_name(used.said, number), version))

    def _count_number(self, used: PeerSet, pod: PolicyPod, change: int) -> None:
        """A pod has come to the choice, or has left it: rows for a number that is new, none for one that no pod has."""
        number = used.number_of(pod)
        if used.port is None or number is None:
            return
        used.pods[number] = used.pods.get(number, 0) + change
        if used.pods[number] == 1 and change > 0 and len(used.pods) <= NUMBERS_MAX:
            self._make_rows(used, number)
        elif not used.pods[number]:
            was_excessive = used.is_excessive
            del used.pods[number]
            for version in self._families:
                if row := used.rows.pop((number, version), None):
                    self._drop(row)
            if was_excessive:
                self._renew(used)
        else:
            return
        self._stale |= used.users.keys()

    def _renew(self, used: PeerSet) -> None:
        """Make the rows of a choice anew: other numbers count, or other versions of IP."""
        for row in used.rows.values():
            self._drop(row)
        used.rows = {}
        for number in [0] if used.port is None else sorted(used.pods)[:NUMBERS_MAX]:
            self._make_rows(used, number)
        for key in used.selection.members:
            pod = self._selections.pods[key]
            for name in self._owned.get((pod.namespace, pod.owner), ()):
                self._count_members(used, pod, self._ports[name], 1)
        self._stale |= used.users.keys()

    def _add_families(self, versions: set[int]) -> None:
        self._families = tuple(sorted({*self._families, *versions}))
        for each in self._peer_sets.values():
            self._renew(each)
        self._stale |= self._policies.keys()

    # -- counting -----------------------------------------------------------------------------------------------------------

    def _start(self, selection: PodSelection, use: MemberSource) -> None:
        self._uses.setdefault(selection, {})[use] = None
        for key in selection.members:
            self._count_pod(use, self._selections.pods[key], 1)

    def _end(self, selection: PodSelection, use: MemberSource) -> None:
        for key in selection.members:
            self._count_pod(use, self._selections.pods[key], -1)
        del self._uses[selection][use]
        if not self._uses[selection]:
            del self._uses[selection]

    def _count_all(self, selections: Iterable[PodSelection], pod: PolicyPod, change: int) -> None:
        for selection in selections:
            for use in self._uses.get(selection, ()):
                self._count_pod(use, pod, change)

    def _count_pod(self, use: MemberSource, pod: PolicyPod, change: int) -> None:
        if isinstance(use, PeerSet) and change > 0:
            self._count_number(use, pod, change)
        for name in self._owned.get((pod.namespace, pod.owner), ()):
            self._count_members(use, pod, self._ports[name], change)
        if isinstance(use, PeerSet) and change < 0:
            self._count_number(use, pod, change)

    def _count_port(self, port: PolicyPort, change: int) -> None:
        for key in self._owners.get((port.namespace, port.owner), ()):
            pod = self._selections.pods[key]
            for selection in self._selections.find(pod.namespace, pod.labels):
                for use in self._uses.get(selection, ()):
                    self._count_members(use, pod, port, change)

    def _count_members(self, use: MemberSource, pod: PolicyPod, port: PolicyPort, change: int) -> None:
        for row, member in use.list_members(pod, port):
            if row.count(member, change):
                self._changed.add(row.name)

    def _drop_owner(self, key: PodKey, pod: PolicyPod) -> None:
        owners = self._owners[pod.namespace, pod.owner]
        owners.discard(key)
        if not owners:
            del self._owners[pod.namespace, pod.owner]

    def _row(self, table: str, name: str) -> MemberRow:
        if name not in self._rows:
            self._rows[name] = MemberRow(table, name)
            self._changed.add(name)
        return self._rows[name]

    def _drop(self, row: MemberRow) -> None:
        self._rows.pop(row.name, None)
        self._changed.add(row.name)


def _logging(namespace: PolicyNamespace | None) -> tuple[str, str]:
    return (namespace.deny, namespace.allow) if namespace is not None else ("", "")


def _list_asked(direction: Direction, rule: PolicyRule, port: PolicyPorts | None) -> list[Peer | None]:
    """The peers of which a rule needs the addresses: those of pods with the port, where it asks for one by its name."""
    if port is not None and (direction == INGRESS or rule.peers is None):
        return [None]
    return [each for each in rule.peers or () if port is not None or isinstance(each, PodPeer)]
