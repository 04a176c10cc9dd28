"""Which pods have which logical ports, and which of these have to be settled when a pod or a network definition changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from userspace_cni.base.notices import Recipient
from userspace_cni.ovn.cluster_pods import ClusterPod, LogicalNetwork
from userspace_cni.ovn.pod_interfaces import LogicalInterface, list_definitions, list_interfaces

Key = str
"""A pod, as "namespace/name"."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pod that is to have a logical port, and the interface that is it."""

    pod: ClusterPod
    interface: LogicalInterface

    @property
    def recipient(self) -> Recipient:
        """Who is told of the port."""
        return Recipient(self.pod.namespace, self.pod.name, self.pod.uid, self.interface.ifname)


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

    @property
    def names(self) -> Collection[str]:
        """The logical ports that pods are to have."""
        return self._claimants.keys()

    def take_networks(self, networks: Mapping[str, LogicalNetwork | None]) -> set[str]:
        """These are the definitions from now on: the names of the ports of the pods that use one that has changed."""
        former, self._networks = self._networks, networks
        changed = [each for each in former.keys() | networks.keys() if former.get(each) != networks.get(each)]
        names: set[str] = set()
        for key in {key for each in changed for key in self._users.get(each, ())}:
            names |= self._connect(key, self._pods[key], self._pods[key])
        return names

    def take_pods(self, pods: Mapping[Key, ClusterPod], changed: Iterable[Key]) -> set[str]:
        """These of the pods have changed, or are gone: the names of their ports, former ones too."""
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

    def list_of(self, pod: ClusterPod) -> tuple[LogicalInterface, ...]:
        """The interfaces that are logical ports of a pod, of this cluster or of one that it had."""
        return list_interfaces(pod, self._networks, self._default, self._naming)

    def interfaces(self, key: Key) -> tuple[LogicalInterface, ...]:
        """The interfaces of the pod that are logical ports, in order."""
        return self._interfaces.get(key, ())

    def of(self, name: str) -> list[Claimant]:
        """Who has the port: a pod; of a VM that migrates the launchers, that in which it began first. At least one."""
        found = self._claimants[name]
        if len(found) == 1:
            return list(found.values())
        return sorted(found.values(), key=lambda each: (each.pod.created, each.pod.name))

    def _connect(self, key: Key, pod: ClusterPod | None, former: ClusterPod | None) -> set[str]:
        names = {each.port for each in self._interfaces.pop(key, ())}
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
            if interfaces := self.list_of(pod):
                self._interfaces[key] = interfaces
            for interface in interfaces:
                self._claimants.setdefault(interface.port, {})[key] = Claimant(pod, interface)
                names.add(interface.port)
        return names
