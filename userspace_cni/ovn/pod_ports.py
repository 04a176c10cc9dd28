"""The logical ports that the pods of a cluster are to have, and what has to be written for them. Pure; the caller gives the time.

It knows all pods, nodes, networks and rows, and is told which of them have changed: only their ports are judged anew. An address
that a port has stays as long as its owner lives. Where it is from, first match: what a living pod's annotations say and the row
confirms, what the annotations say, what the row says, the first free one of the switch. So after a loss of the database, or of
this process, nothing that lives gets another address.

A port's row comes first, then the annotations in its pod. A row is removed once its pod is known to be gone, or has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from userspace_cni.base.addresses import why_no_machines
from userspace_cni.base.logical_ports import NODE_SWITCH, is_called_as_a_further, names_of_nodes
from userspace_cni.base.notices import Recipient
from userspace_cni.base.subnets import Address
from userspace_cni.cni.annotations import OVN
from userspace_cni.ovn.address_book import AddressBook, Interface, SwitchSubnet
from userspace_cni.ovn.claimed_addresses import (
    confirms,
    is_one_of_each,
    list_macs,
    read_claimed_lease,
    read_claimed_note,
    read_claimed_row,
    with_length,
)
from userspace_cni.ovn.cluster_pods import LABELS_MAX, ClusterPod, LogicalNetwork, PodNode
from userspace_cni.ovn.pod_interfaces import LogicalInterface
from userspace_cni.ovn.pod_notes import AddressNote, PortAddresses, make_note
from userspace_cni.ovn.port_claimants import Claimant, Key, PortClaimants, are_same, find_changed
from userspace_cni.ovn.port_rows import (
    ACTIVATION,
    ADOPTED,
    CHASSIS,
    CLOSED,
    UNKNOWN,
    VERSION,
    DesiredLogicalPort,
    FoundLogicalPort,
    PortChange,
    find_change,
    make_addresses,
    make_security,
    read_row_addresses,
    read_row_macs,
)
from userspace_cni.ovn.port_rules import PortRules
from userspace_cni.ovn.topology import HAIRPIN_SOURCES

_ACTIVATES: Final = (25, 9)
"""The first OVN that opens a migrated port at its guest's own announcement. Before, it waits for one of RARP, which a vhost-user
guest does not send."""
_STRATEGY: Final = "garp,na"


@dataclass(frozen=True)
class LogicalFacts:
    """What all ports depend on. `networks`: definitions by "namespace/name"; `switches`: the logical switches; `routers`:
    addresses of their ports, by name; `version`: OVN's, () where it is not known; `macs`: of routers' ports, by name."""

    nodes: Mapping[str, PodNode] = field(default_factory=dict)
    networks: Mapping[str, LogicalNetwork | None] = field(default_factory=dict)
    switches: Mapping[str, tuple[SwitchSubnet, ...]] = field(default_factory=dict)
    routers: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
    version: tuple[int, ...] = ()
    macs: Mapping[str, str] = field(default_factory=dict)

    def is_made_of(self, other: LogicalFacts) -> bool:
        """Whether all of it is the other's, as one object: that takes no look at what is in it."""
        return all(getattr(self, each.name) is getattr(other, each.name) for each in fields(self))


@dataclass
class Settled:
    """What is to be written: `changes` of rows, in order, and afterwards `notes`; `lacking`: why ports cannot be, by name."""

    changes: list[PortChange] = field(default_factory=list)
    notes: list[AddressNote] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a port has, for as long as its owner lives."""

    uid: str
    switch: str
    addresses: PortAddresses


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A port that pods are to have. `lives`: it has its addresses. Else `noted`: what the annotations of each pod say, and
    `is_confirmed`: a row that may be changed has all of that. Without both it is not ours to change."""

    name: str
    claimants: list[Claimant]
    found: FoundLogicalPort | None
    noted: Sequence[PortAddresses | None] = ()
    lives: bool = False
    is_confirmed: bool = False


class PodPorts:
    """For one thread."""

    def __init__(self, rules: PortRules, book: AddressBook | None = None) -> None:
        self._rules = rules
        self._book = book or AddressBook()
        self._facts = LogicalFacts()
        self._node_switches: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()
        self._rivalled: set[str] = set()
        self.claimants = PortClaimants(rules.default, rules.naming)
        self._given: dict[str, _Given] = {}
        self._ended: list[tuple[ClusterPod, float]] = []
        self._clean: dict[str, tuple[object, ...]] = {}
        """Ports whose row was as it is to be, and what that followed from: while all of it is the same they are not compared."""
        self._doubtful: dict[str, str] = {}

    def take_facts(self, facts: LogicalFacts) -> set[str]:
        """These are the facts from now on: the names of the logical ports that have to be settled because of what has changed."""
        former, self._facts = self._facts, facts
        names = self.claimants.take_networks(facts.networks)
        self._node_switches = frozenset(each.lower() for each in facts.nodes)
        if former.nodes.keys() != facts.nodes.keys() or former.routers.keys() != facts.routers.keys():
            taken, self._taken = self._taken, frozenset({*names_of_nodes(facts.nodes), *facts.routers})
            names.update(each for each in taken ^ self._taken if each in self.claimants.names)
        if former.switches != facts.switches:
            self._book.set_switches(facts.switches)
        for name in former.routers.keys() - facts.routers.keys():
            self._book.release(f"router port {name}", 0.0, hold=False)
        for name, addresses in facts.routers.items():
            self._book.note_other(f"router port {name}", addresses)
            self._book.claim_macs(f"router port {name}", "", filter(None, [facts.macs.get(name)]))
        if macs := {facts.macs[each] for each in find_changed(former.macs, facts.macs) if facts.macs.get(each)}:
            names.update(name for name, given in self._given.items() if given.addresses.mac in macs)
        if former.version != facts.version:
            names.update(self.claimants.names)
        else:
            names |= self._list_placed(find_changed(former.nodes, facts.nodes), find_changed(former.switches, facts.switches))
        for name in names:
            self._clean.pop(name, None)
        return names

    def _list_placed(self, nodes: set[str], switches: set[str]) -> set[str]:
        """The ports of pods on these nodes, and those of these switches, a node's own too."""
        if not nodes and not switches:
            return set()
        switches = {*switches, *map(str.lower, nodes)}
        names = {name for name, given in self._given.items() if given.switch in switches}
        for name in self.claimants.names:
            if any(each.pod.node in nodes or self._switch_of(each) in switches for each in self.claimants.of(name)):
                names.add(name)
        return names

    def take_pods(self, pods: Mapping[Key, ClusterPod], changed: Iterable[Key], rows: Mapping[str, FoundLogicalPort]) -> set[str]:
        """These of the pods have changed, or are gone: the names of the logical ports that have to be settled.

        `rows`: those that there are, by name.
        """
        return self.claimants.take_pods(pods, changed, rows)

    def hold(self, pod: ClusterPod, ended: float) -> None:
        """Do not give the addresses that the annotations of this pod say, which ended then, until they have been held.

        That is done once the living have theirs: an ended pod's author may have written the address of any.
        """
        self._ended.append((pod, ended))

    @property
    def names(self) -> Collection[str]:
        """The logical ports that pods are to have."""
        return self.claimants.names

    @property
    def doubtful(self) -> Mapping[str, str]:
        """Ports that keep addresses which they could not get now, because their pods live with them, and why, by name."""
        shared = {
            name: f"logical port {name} has {address}, and {other} has it, too"
            for name, address, other in self._book.shared
            if name in self.claimants.names
        }
        return {**self._doubtful, **shared}

    def find_placed(self, name: str) -> tuple[list[Claimant], str] | None:
        """Whose port it is, and its logical switch; None where no pod is to have it."""
        if name not in self.claimants.names:
            return None
        claimants, given = self.claimants.of(name), self._given.get(name)
        return claimants, given.switch if given else self._switch_of(claimants[0])

    def list_recipients(self, name: str) -> list[Recipient]:
        """Who is told of the port: who is to have it, or those that name it though it is another pod's."""
        if name not in self.claimants.names:
            return []
        concerned = self.claimants.rivals(name) if name in self._rivalled else self.claimants.of(name)
        return [each.recipient for each in concerned]

    def settle(self, names: Iterable[str], found: Mapping[str, FoundLogicalPort], now: float) -> Settled:
        """What has to be written for these ports. `found`: the rows by name; `now`: seconds of a clock that never goes back."""
        settled = Settled()
        self._book.expire(now)
        claimed = self._list_claimed(names, found, now, settled)
        for each in claimed:
            if not each.lives:
                self._claim(each, now)
        for pod, ended in self._ended:
            self._hold(pod, ended)
        self._ended.clear()
        told: dict[Key, ClusterPod] = {}
        for each in claimed:
            if reason := self._settle_port(each.name, each.claimants, each.found, settled):
                settled.lacking[each.name] = reason
            else:
                told |= {f"{claimant.pod.namespace}/{claimant.pod.name}": claimant.pod for claimant in each.claimants}
        for key, pod in told.items():
            if note := make_note(pod, self._has(key, pod.owner_uid, settled.lacking)):
                settled.notes.append(note)
        for each in claimed:
            self._rivalled.discard(each.name)
            if each.name not in settled.lacking and self.claimants.rivals(each.name):
                owner = each.claimants[0].pod
                settled.lacking[each.name] = f"logical port {each.name} is that of pod {owner.namespace}/{owner.name}"
                self._rivalled.add(each.name)
        return settled

    def next_due(self, now: float) -> float:
        """When an address becomes free that was held; infinity for never."""
        return self._book.expire(now)

    # -- addresses ----------------------------------------------------------------------------------------------------------

    def _list_claimed(
        self, names: Iterable[str], found: Mapping[str, FoundLogicalPort], now: float, settled: Settled
    ) -> list[_Claimed]:
        """Those for which something may be to do, in the order in which they get addresses; what has no pod is settled here."""
        claimed = []
        for name in sorted(set(names)):
            if name not in self.claimants.names:
                self._unclaim(name, found.get(name), now, settled)
            elif not self._is_done(name, claimants := self.claimants.of(name), found.get(name)):
                claimed.append(self._look_at(name, claimants, found.get(name)))
        claimed.sort(key=lambda each: (not each.lives and not each.is_confirmed, each.claimants[0].pod.created, each.name))
        return claimed

    def _is_done(self, name: str, claimants: list[Claimant], found: FoundLogicalPort | None) -> bool:
        """Whether nothing is left to do: the row was as it is to be, what it follows from is the same, and the pods say it."""
        given = self._given.get(name)
        is_same = are_same(self._clean.get(name), (found, given, *claimants))
        if given is None or not is_same or name in self._doubtful or name in self._rivalled:
            return False
        has = given.addresses
        noted = all(each.interface.is_first and each.pod.notes.get(OVN) == has.text for each in claimants)
        return noted and not self.claimants.rivals(name) and not self._book.other_with_mac(name, has.mac)

    def _look_at(self, name: str, claimants: list[Claimant], found: FoundLogicalPort | None) -> _Claimed:
        given = self._given.get(name)
        lives = given is not None and given.uid == claimants[0].pod.owner_uid
        if found is not None and not self._may_change(found):
            return _Claimed(name, claimants, found)
        if lives:
            return _Claimed(name, claimants, found, lives=True)
        noted = tuple(map(read_claimed_note, claimants))
        return _Claimed(name, claimants, found, noted, is_confirmed=found is not None and confirms(found, claimants, noted))

    def _hold(self, pod: ClusterPod, ended: float) -> None:
        for each in self.claimants.list_of(pod):
            said = read_claimed_note(Claimant(pod, each))
            if said is not None and is_one_of_each(said.ips) and not self._book.claim(f"ended {pod.uid} {each.port}", said.ips):
                self._book.release(f"ended {pod.uid} {each.port}", ended)

    def _unclaim(self, name: str, found: FoundLogicalPort | None, now: float, settled: Settled) -> None:
        """A port that no pod is to have. Its addresses are taken as long as its row is there."""
        self._given.pop(name, None)
        self._clean.pop(name, None)
        self._doubtful.pop(name, None)
        if found is None:
            self._book.release(name, now)
        else:
            self._take_row(name, found)
            if change := find_change(None, found):
                settled.changes.append(change)

    def _claim(self, claimed: _Claimed, now: float) -> None:
        """Have the port, which has nothing yet, have what annotations or its row say."""
        name, first, found = claimed.name, claimed.claimants[0], claimed.found
        given = self._given.pop(name, None)
        if found is not None and not self._may_change(found):
            self._take_row(name, found)
            return
        if given is not None:
            self._book.release(name, now)
        if self._why_refused(first):
            if found is not None:  # it takes no address there, either, and loses none
                self._take_row(name, found)
            return
        if first.interface.network.source != "annotations":
            if self._leased(name, first) is None and found is not None:  # what it has is taken before others get some
                self._take_row(name, found)
            return
        if claimed.is_confirmed and self._keep_row(claimed):
            return
        for each, said in zip(claimed.claimants, claimed.noted, strict=True):
            if self._keep(name, each, said):
                return
        if found is not None and found.version == first.pod.owner_uid:
            self._keep(name, first, read_claimed_row(found, self._subnets(self._switch_of(first))))

    def _keep(self, name: str, claimant: Claimant, said: PortAddresses | None) -> bool:
        """Have the port have these addresses, if a pod can and no other port has them."""
        if said is None:
            return False
        switch = self._switch_of(claimant)
        if claimant.pod.owner != claimant.pod.name and not self._book.fits(switch, said.ips):
            former = self._book.switch_of(said.ips)  # a VM keeps its addresses where it migrates to
            switch = former if self._is_open(claimant, former) else switch
        if (
            len(said.ips) < len(self._subnets(switch))
            or not is_one_of_each(said.ips)
            or not self._book.fits(switch, said.ips)
            or self._book.claim(name, said.ips)
        ):
            return False
        self._give(name, claimant, switch, said)
        return True

    def _keep_row(self, claimed: _Claimed) -> bool:
        """Have the port keep what its row and the annotations say alike: a pod lives with it, whatever its switch has now."""
        name, found = claimed.name, claimed.found
        if found is None or not found.is_ours:
            return False
        row = read_claimed_row(found, self._subnets(found.switch))
        if row is None or not is_one_of_each(row.ips) or self._book.claim(name, row.ips, also_others=True):
            return False
        ips = {each.ip for each in row.ips}
        has = next((each for each in claimed.noted if each and {ip.ip for ip in each.ips} == ips), row)
        self._give(name, claimed.claimants[0], found.switch, replace(has, mac=has.mac or row.mac), lives=True)
        return True

    def _give(self, name: str, claimant: Claimant, switch: str, said: PortAddresses, *, lives: bool = False) -> None:
        """Have the port have these; a port that `lives` with its MAC keeps it though a router has it, too."""
        book, subnets, ips = self._book, self._subnets(switch), said.ips
        within = [each for each in subnets if any(ip.ip in each.network for ip in ips)]
        gateways = tuple(each.gateway for each in within if each.gateway is not None) if within else said.gateways
        whole = tuple(with_length(ip, subnets) for ip in ips)
        mac = next(
            each
            for each in list_macs(claimant, said.mac, ips)
            if book.claim_macs(name, switch, [each]) or (lives and book.other_with_mac(name, each))
        )
        self._given[name] = _Given(claimant.pod.owner_uid, switch, PortAddresses(whole, mac, gateways))

    def _switch_of(self, claimant: Claimant) -> str:
        switch = claimant.interface.network.switch
        return claimant.pod.node.lower() if switch == NODE_SWITCH else switch

    def _is_open(self, claimant: Claimant, switch: str) -> bool:
        """Whether the pod can have a port of this switch: that of a node, or one that a rule names.

        A pod's author chooses its node's name, the addresses that its annotations say, and what its network says at any time.
        """
        network = claimant.interface.network
        if network.switch == NODE_SWITCH and switch in self._node_switches:
            return True
        return self._rules.may_have(claimant.pod.namespace, switch) if switch != NODE_SWITCH else False

    def _subnets(self, switch: str) -> tuple[SwitchSubnet, ...]:
        return self._facts.switches.get(switch, ())

    # -- rows ---------------------------------------------------------------------------------------------------------------

    def _settle_port(self, name: str, claimants: list[Claimant], found: FoundLogicalPort | None, settled: Settled) -> str:
        """Say what is to be written for a port that pods have; why it cannot be, "" when it can."""
        first = claimants[0]
        network = first.interface.network
        self._doubtful.pop(name, None)
        if found is not None and not self._may_change(found):
            return f"logical port {name} is there and is not ours, so pod {first.pod.namespace}/{first.pod.name} has none"
        if reason := self._why_refused(first):
            return reason
        given = self._given.get(name)
        switch = given.switch if given else self._switch_of(first)
        if switch not in self._facts.switches:
            return f"there is no logical switch {switch!r}"
        if not self._is_open(first, switch):
            return f"pods of namespace {first.pod.namespace!r} cannot have ports of logical switch {switch!r}, which is no node's"
        if network.source == "annotations" and given is None:
            ips = self._book.give(name, switch)
            if not ips:
                return f"logical switch {switch!r} has no free address" if self._subnets(switch) else f"{switch!r} has no subnet"
            self._give(name, first, switch, PortAddresses(ips, ""))
        if given is not None:
            self._doubt(name, given)
        elif read_claimed_lease(first) is not None and self._leased(name, first) is None:
            return (
                f"what is leased to logical port {name} cannot be its: an address or the MAC is another port's, a router's or "
                "another switch's, no machine can have it, or two addresses of one family are its own switch's"
            )
        basis = (found, given, *claimants)
        if given is None or not are_same(self._clean.get(name), basis):
            is_adopted = found is not None and found.is_as_adopted(first.pod.owner_uid)
            if change := find_change(self._desired(name, claimants, switch, is_adopted=is_adopted), found):
                settled.changes.append(change)
                self._clean.pop(name, None)
            else:
                self._clean[name] = basis
        return ""

    def _why_refused(self, claimant: Claimant) -> str:
        """Why the administrator's rules do not allow the port, "" where they do."""
        namespace, network, rules = claimant.pod.namespace, claimant.interface.network, self._rules
        if claimant.interface.number > rules.most:
            return f"pod {namespace}/{claimant.pod.name} has more than {rules.most} logical ports (setting ovn_pod_ports)"
        if len(claimant.pod.labels) > LABELS_MAX:
            return f"pod {namespace}/{claimant.pod.name} has more than {LABELS_MAX} labels"
        if claimant.interface.port in self._taken:
            return f"logical port {claimant.interface.port} is called as one of a node or a router"
        if rules.naming == "kube-ovn" and claimant.interface.is_first and is_called_as_a_further(claimant.interface.port):
            return f"logical port {claimant.interface.port} is called as a further one of another pod, in another namespace"
        if not self._rules.may_have(namespace, network.switch):
            return f"pods of namespace {namespace!r} cannot have ports of logical switch {network.switch!r}"
        if network.without_security and not self._rules.may_send(namespace, network.switch):
            return (
                f"key {network.without_security} in network {network.name}: pods of namespace {namespace!r} cannot have ports of "
                f"logical switch {network.switch!r} that send from any address"
            )
        return ""

    def _doubt(self, name: str, given: _Given) -> None:
        """Note what the port could not get now."""
        has = given.addresses
        if not self._book.fits(given.switch, has.ips):
            ips = ", ".join(str(each.ip) for each in has.ips)
            self._doubtful[name] = f"logical port {name} has {ips}, which no pod of logical switch {given.switch!r} can have now"
        elif other := self._book.other_with_mac(name, has.mac):
            self._doubtful[name] = f"logical port {name} has {has.mac}, and {other} has it, too"

    def _may_change(self, found: FoundLogicalPort) -> bool:
        return found.is_ours or (self._rules.adopts and found.may_be_adopted)

    def _desired(self, name: str, claimants: list[Claimant], switch: str, *, is_adopted: bool) -> DesiredLogicalPort:
        first, network = claimants[0], claimants[0].interface.network
        given = self._given.get(name)
        has = given.addresses if given else self._leased(name, first)
        addresses: tuple[str, ...] = (UNKNOWN,)
        security: tuple[str, ...] = ()
        if has is None and not self._rules.may_send(first.pod.namespace, network.switch):
            addresses, security = (), CLOSED  # a lease that is not known; a pod's author can remove what Multus notes of it
        if has is not None:
            addresses = make_addresses(has.mac, has.ips)
            security = make_security(has.mac, has.ips) if network.port_security else ()
        chassis = list(dict.fromkeys(self._chassis_of(each.pod.node) for each in claimants)) if network.requested_chassis else []
        options = {
            VERSION: first.pod.owner_uid or None,
            CHASSIS: ",".join(chassis) or None,
            ACTIVATION: _STRATEGY if len(chassis) > 1 and self._facts.version >= _ACTIVATES else None,
        }
        if is_adopted:  # what the living interface has is not known here
            options = {key: value for key, value in options.items() if len(chassis) > 1 and key != VERSION}
        ids = {**first.ids, ADOPTED: first.pod.owner_uid if is_adopted else None}
        return DesiredLogicalPort(name, switch, addresses, security, options, ids)

    def _chassis_of(self, node: str) -> str:
        return self._facts.nodes[node].chassis if node in self._facts.nodes else node

    def _leased(self, name: str, claimant: Claimant) -> PortAddresses | None:
        """What the network's IPAM plugin has leased; None while that is not known, and for addresses that are not to be known."""
        has, switch = read_claimed_lease(claimant), self._switch_of(claimant)
        if has is None or not self._can_be_leased(name, switch, has.ips):
            return None
        is_taken = self._book.claim(name, has.ips, leased=True) or not self._book.claim_macs(name, switch, [has.mac])
        return None if is_taken else has

    def _can_be_leased(self, name: str, switch: str, ips: tuple[Interface, ...]) -> bool:
        """Whether a plugin can have leased these to a port of the switch: of its subnets one of each family, and none of another
        switch's, which the port has not had before. A pod's author could write all addresses of another node's pods, and the one
        from which policies let a pod reach itself."""
        subnets = self._subnets(switch)
        own = tuple(ip for ip in ips if any(ip.ip in each.network for each in subnets))
        others = [ip for ip in ips if ip not in own and self._book.switch_of([ip])]
        is_routers = any(ip.ip == each.gateway for ip in own for each in subnets)
        is_no_machines = any(str(ip.ip) in HAIRPIN_SOURCES or why_no_machines(ip.ip) for ip in ips)
        return is_one_of_each(own) and not (is_routers or is_no_machines) and all(self._book.has(name, ip) for ip in others)

    def _take_row(self, name: str, found: FoundLogicalPort) -> None:
        """What a row has that is not to be changed, or not yet, is its own."""
        self._book.note_other(name, read_row_addresses(found))
        self._book.claim_macs(name, found.switch if found.is_ours else "", read_row_macs(found))

    def _has(self, key: Key, uid: str, lacking: Mapping[str, str]) -> list[tuple[LogicalInterface, PortAddresses]]:
        """The interfaces of a pod whose addresses are to be noted in it, with these. `uid`: its own or its VM's."""
        ports = [each for each in self.claimants.interfaces(key) if each.port in self._given and each.port not in lacking]
        ports = [each for each in ports if self._given[each.port].uid == uid]
        return [(each, self._given[each.port].addresses) for each in ports]
