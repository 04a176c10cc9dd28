"""Which pods have which logical ports, and which of these have to be settled when a pod or a network definition changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import is_

from userspace_cni.base.logical_ports import is_called_as_a_further, logical_port_name
from userspace_cni.base.notices import Recipient
from userspace_cni.cni.annotations import DEFAULT_INTERFACE
from userspace_cni.ovn.cluster_pods import ClusterPod, LogicalNetwork
from userspace_cni.ovn.pod_interfaces import (
    UNKNOWN_ORDER,
    KnownOrder,
    LogicalInterface,
    list_definitions,
    list_interfaces,
)
from userspace_cni.ovn.port_rows import NETWORK, FoundLogicalPort

Key = str
"""A pod, as "namespace/name"."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pod that is to have a logical port, and the interface that is it."""

    pod: ClusterPod
    interface: LogicalInterface

    @property
    def rank(self) -> tuple[object, ...]:
        """Who comes first has the port: the pod after which it is called, then the older one. Not a pod that is itself called as
        another one's further port."""
        is_misnamed = self.interface.is_first and is_called_as_a_further(self.interface.port)
        return self.interface.is_asked, is_misnamed, self.pod.created, self.pod.name

    @property
    def recipient(self) -> Recipient:
        """Who is told of the port."""
        return Recipient(self.pod.namespace, self.pod.name, self.pod.uid, self.interface.ifname)

    @property
    def ids(self) -> dict[str, str | None]:
        """What the port's row says of both, of `external_ids`."""
        network = self.interface.definition or None
        return {"pod": "true", "namespace": self.pod.namespace, "pod-name": self.pod.owner, NETWORK: network}


class PortClaimants:
    """For one thread. `default`: the cluster's default network; `naming`: of logical ports; both as of `list_interfaces`."""

    def __init__(self, default: LogicalNetwork | None, naming: str) -> None:
        self._default = default
        self._naming = naming
        self._networks: Mapping[str, LogicalNetwork | None] = {}
        self._pods: dict[Key, ClusterPod] = {}
        self._interfaces: dict[Key, tuple[LogicalInterface, ...]] = {}
        self._claimants: dict[str, dict[Key, Claimant]] = {}
        self._users: dict[str, set[Key]] = {}
        """The connected pods that name a definition, there or not."""
        self._rows: Mapping[str, FoundLogicalPort] = {}

    @property
    def names(self) -> Collection[str]:
        """The logical ports that pods are to have."""
        return self._claimants.keys()

    def take_networks(self, networks: Mapping[str, LogicalNetwork | None]) -> set[str]:
        """These are the definitions from now on: the names of the ports of the pods that use one that has changed."""
        former, self._networks = self._networks, networks
        changed = find_changed(former, networks)
        names: set[str] = set()
        for key in {key for each in changed for key in self._users.get(each, ())}:
            names |= self._connect(key, self._pods[key], self._pods[key])
        return names

    def take_pods(self, pods: Mapping[Key, ClusterPod], changed: Iterable[Key], rows: Mapping[str, FoundLogicalPort]) -> set[str]:
        """These of the pods have changed, or are gone: the names of their ports, former ones too. `rows`: all, by name."""
        self._rows = rows
        names: set[str] = set()
        for key in changed:
            pod, former = pods.get(key), self._pods.pop(key, None)
            if pod is not None:
                self._pods[key] = pod
            if pod is None or former is None or former != pod:
                names |= self._connect(key, pod, former)
            else:
                names.update(each.port for each in self.interfaces(key))
        return names

    def list_of(self, pod: ClusterPod, known: KnownOrder = UNKNOWN_ORDER) -> tuple[LogicalInterface, ...]:
        """The interfaces that are logical ports of a pod, of this cluster or of one that it had."""
        return list_interfaces(pod, self._networks, self._default, self._naming, known)

    def interfaces(self, key: Key) -> tuple[LogicalInterface, ...]:
        """The interfaces of the pod that are logical ports, in order."""
        return self._interfaces.get(key, ())

    def of(self, name: str) -> list[Claimant]:
        """Who has the port: a pod; of a VM that migrates the launchers, that in which it began first. At least one."""
        found = self._ranked(name)
        return [each for each in found if each.pod.owner_uid == found[0].pod.owner_uid]

    def are_limited(self, name: str) -> bool:
        """Whether the limits of the port are rows of OVN, for any who names it."""
        return any(each.interface.network.limits is not None for each in self._claimants.get(name, {}).values())

    def rivals(self, name: str) -> list[Claimant]:
        """Who names the port, which another pod has."""
        found = self._ranked(name)
        return [each for each in found if each.pod.owner_uid != found[0].pod.owner_uid]

    def _ranked(self, name: str) -> list[Claimant]:
        found = self._claimants[name].values()
        return sorted(found, key=lambda each: each.rank) if len(found) > 1 else list(found)

    def _known_order(self, interfaces: Iterable[LogicalInterface]) -> KnownOrder:
        """What these interfaces of a pod, which it had before, say of its order."""
        known = UNKNOWN_ORDER
        for each in interfaces:
            known = known.first_is(each.ifname) if each.is_first else known.further_is(each.ifname)
        return known

    def _order_of_rows(self, pod: ClusterPod, interfaces: Iterable[LogicalInterface]) -> KnownOrder:
        """What the pod's rows say of it: a process before this one has made them."""
        known = UNKNOWN_ORDER
        for each in interfaces:
            if each.ifname != DEFAULT_INTERFACE:
                row = self._rows.get(logical_port_name(self._naming, pod.namespace, pod.owner, each.ifname))
                known = known.further_is(each.ifname) if row is not None and row.version == pod.owner_uid else known
        return known

    def _connect(self, key: Key, pod: ClusterPod | None, former: ClusterPod | None) -> set[str]:
        had = self._interfaces.pop(key, ())
        names = {each.port for each in had}
        for name in names:
            claimants = self._claimants[name]
            claimants.pop(key, None)
            if not claimants:
                del self._claimants[name]
        for each in list_definitions(former) if former is not None and former.is_connected else ():
            users = self._users[each]
            users.discard(key)
            if not users:
                del self._users[each]
        if pod is not None and pod.is_connected:
            for each in list_definitions(pod):
                self._users.setdefault(each, set()).add(key)
            if had and former is not None and former.uid == pod.uid:
                interfaces = self.list_of(pod, self._known_order(had))
            else:
                interfaces = self.list_of(pod)
                known = self._order_of_rows(pod, interfaces)
                interfaces = self.list_of(pod, known) if known.further else interfaces
            if interfaces:
                self._interfaces[key] = interfaces
            for interface in interfaces:
                self._claimants.setdefault(interface.port, {})[key] = Claimant(pod, interface)
                names.add(interface.port)
        return names


def find_changed(former: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {each for each in former.keys() | now.keys() if former.get(each) != now.get(each)}


def are_same(former: tuple[object, ...] | None, now: tuple[object, ...]) -> bool:
    """Whether all of them are the same objects."""
    return former is not None and len(former) == len(now) and all(map(is_, former, now))
