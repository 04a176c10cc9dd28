"""Looks at what a provider network needs of this node, in kernel, sysfs and switch, for the plan of its spec.

It changes nothing and decides nothing: `network.provider_specs` judges the facts. The addresses to move are those that the
kernel shows now, or those of the move in this boot with the changes of other programs since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from userspace_cni.attachment.steps import AddressMove, Step, Steps
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.base.provider_networks import PCI, VDEV, ProviderNetwork
from userspace_cni.host.node_net import nics, pci
from userspace_cni.host.node_net.network_managers import Manager, managers_of
from userspace_cni.host.node_net.nics import Nic
from userspace_cni.switch.interfaces import list_open_interfaces, map_interfaces_to_bridges
from userspace_cni.switch.vswitchd import JUDGED_SECONDS

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.local_switch import LocalSwitch

LOOK_S: Final = 6.0


class UplinkNode(Protocol):
    """A node, as far as it is looked at."""

    @property
    def installation(self) -> Installation: ...

    @property
    def store(self) -> AttachmentStore: ...

    @property
    def switch(self) -> LocalSwitch: ...


@dataclass(frozen=True)
class UplinkLook:
    """What was seen. `links`: those of the spec's kernel links that are there, by name, with those of its PCI devices.

    `moves`: by link, what would move from it (or has moved) to the bridge, or to the internal port of its VLAN. `managers`: by
    link, the programs that configure it. `on_bridge`: which bridge has the port of an interface. `away`: the spec's interfaces
    whose PCI device DPDK cannot have, or whose driver has released it for that, each with the reason. `lacking`: what the other
    devices and the switch still need before the uplink can be opened. `node_addresses`: those by which the cluster knows the
    node, None while they are unknown. `switch_lives`: ovs-vswitchd answers; `is_served`: also on the bridge, where addresses are
    to move to one that was made before; `is_open`: it has the uplink's port open. `former`: the steps that there are since this
    boot; `earlier`: where there are none, those of an earlier boot.
    """

    links: Mapping[str, Nic] = field(default_factory=dict)
    moves: Mapping[str, AddressMove] = field(default_factory=dict)
    managers: Mapping[str, tuple[Manager, ...]] = field(default_factory=dict)
    on_bridge: Mapping[str, str] = field(default_factory=dict)
    device_links: tuple[str, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    node_addresses: frozenset[str] | None = frozenset()
    switch_lives: bool = True
    is_served: bool = True
    is_open: bool = True
    switch_netns: str = ""
    former: tuple[Step, ...] = ()
    earlier: tuple[Step, ...] = ()

    @property
    def had(self) -> Steps:
        return Steps(self.former)


def look(network: ProviderNetwork, former: Sequence[Step], node: UplinkNode, node_addresses: Iterable[str] | None) -> UplinkLook:
    """Look for this network. `former`: the steps that it has on this node since this boot.

    Raises UserspaceError for what cannot be looked at now.
    """
    return _UplinkReader(network, tuple(former), node, Deadline.after(LOOK_S)).read(
        None if node_addresses is None else frozenset(node_addresses)
    )


def list_missing_links(network: ProviderNetwork, installation: Installation) -> list[str]:
    """The kernel links of the network that this node does not have now. Raises UserspaceError."""
    names = (*network.links, *network.vlan_interfaces)
    found = nics.look_at_all(names, installation.settings.switch_netns, installation.root)
    return [each for each in names if each not in found]


def internal_ports(network: ProviderNetwork, links: Mapping[str, Nic]) -> dict[str, str]:
    """The internal port of each VLAN sub-interface of the spec that is one, by the sub-interface."""
    uppers = {upper.name: upper for nic in network.nics if nic in links for upper in links[nic].uppers}
    found = {name: uppers[name].vlan for name in network.vlan_interfaces if name in uppers and uppers[name].vlan}
    return {name: f"{network.name}.{vlan}" for name, vlan in found.items()}


@dataclass(frozen=True)
class _UplinkReader:
    """One look."""

    network: ProviderNetwork
    former: tuple[Step, ...]
    node: UplinkNode
    deadline: Deadline

    def read(self, node_addresses: frozenset[str] | None) -> UplinkLook:
        network, node = self.network, self.node
        node.switch.ports.connect(self.deadline)
        devices = {each: pci.look(each, node.installation.root) for each in network.pci_devices}
        device_links = tuple(link for device in devices.values() if device and device.is_bifurcated for link in device.links)
        unready = {each: why for each in devices if (why := pci.find_obstacles(each, node.installation.root))}
        gone = [each for each in unready if pci.is_away(each, node.installation.root)]
        names = (*network.links, *network.vlan_interfaces, *device_links)
        links = {name: found for name in names if (found := self._link(name))}
        moves: dict[str, AddressMove] = {}
        if network.move_addresses != "no":
            targets = dict.fromkeys(network.nics, network.bridge) | internal_ports(network, links)
            moves = {name: self._move(links[name], target) for name, target in targets.items() if name in links}
        return UplinkLook(
            links=links,
            moves=moves,
            managers=managers_of(
                (links[name] for name in moves), node.installation.root, node.installation.settings.switch_netns
            ),
            on_bridge=map_interfaces_to_bridges(node.switch.ports.client, self.deadline),
            device_links=device_links,
            away={f"{PCI}{each}": "; ".join(unready[each]) for each in gone},
            lacking=(*(why for each in unready if each not in gone for why in unready[each]), *self._lacking_switch()),
            node_addresses=node_addresses,
            switch_lives=node.switch.ports.watch_liveness().state == "alive",
            is_served=self._is_served(moves.values()),
            is_open=self._is_open(),
            switch_netns=node.installation.settings.switch_netns,
            former=self.former,
        )

    def _link(self, name: str) -> Nic | None:
        return nics.look(name, self.node.installation.settings.switch_netns, self.node.installation.root)

    def _move(self, nic: Nic, target: str) -> AddressMove:
        """The desired move. The node's stack is cut off from a NIC of which OVS gets copies of the frames, until AF_XDP takes
        the frames away."""
        node, netns = self.node, self.node.installation.settings.switch_netns
        cut = nic.name in self.network.nics
        fresh = nics.plan_move(
            nic, target, store=node.store.journal.identity(), boot_id=node.store.boot_id(), switch_netns=netns, cut=cut
        )
        had = [step for step in Steps(self.former).moves if step.thing == fresh.thing]
        if had:
            return replace(nics.merge_changes(had[-1], nic, self._link(target)), cut=cut)
        return replace(fresh, next_hops=nics.find_answering(nic, netns, node.installation.root, self.deadline))

    def _lacking_switch(self) -> Iterator[str]:
        able = self.node.switch.ports.read_abilities(self.deadline)
        opened_as: set[KernelPort] = {self.network.port} if self.network.nics else set()
        if any(each.startswith((PCI, VDEV)) for each in self.network.interfaces):
            opened_as.add("af_packet")  # any device of DPDK
        yield from filter(None, (able.why_unable(each, "netdev") for each in sorted(opened_as)))

    def _is_served(self, moves: Iterable[AddressMove]) -> bool:
        """Whether the bridge, where there is one, can carry what is to move now. ovsdb-server may be back before ovs-vswitchd has
        noticed it."""
        had = Steps(self.former)
        begins = {step.thing for step in moves} - {step.thing for step in had.moves}
        return not (begins and had.uplinks) or self.node.switch.ports.serves(
            self.network.bridge, self.deadline.within(JUDGED_SECONDS)
        )

    def _is_open(self) -> bool:
        """Whether frames can pass: of a bond, by one of its interfaces."""
        names = {each.name for step in Steps(self.former).uplinks for each in step.interfaces}
        return bool(names & list_open_interfaces(self.node.switch.ports.client, self.deadline)) if names else False
