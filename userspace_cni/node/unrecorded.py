"""What the node, or a run of a command, has and no record names: the steps of a record that was lost, by what can be seen.

A record is written before the first row and dropped after the last one: so rows without one, seen under the lock of their
attachment, have lost it (a file that cannot be read, an older state directory from a backup). Only rows of this state directory
count. Addresses that a NIC had are with its bridge: they are found there, so that nothing takes the bridge away with them. What a
gateway has in the kernel is found by our protocol number (`unrecorded_gateways`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from userspace_cni.attachment.run_ids import PREFIX, RunId
from userspace_cni.attachment.specs import UNKNOWN
from userspace_cni.attachment.steps import (
    AddressMove,
    GatewayFlows,
    PolledUplink,
    PortFlow,
    PortRef,
    SocketDirectory,
    Step,
    Steps,
    Translation,
    node_marks,
    owner_kind,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.host.node_net import nics
from userspace_cni.host.node_net.address_moves import table_of
from userspace_cni.host.pod_net.ingress_drops import Drops
from userspace_cni.node.unrecorded_gateways import UnrecordedGateway, translation
from userspace_cni.switch.openflow.openflow_messages import cookie_of
from userspace_cni.switch.ovsdb.rows.marks import is_nodes

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.steps import UplinkInterface, UplinkPort
    from userspace_cni.host.node_net.nics import Nic
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession
    from userspace_cni.switch.ports import PortDriver

Key = tuple[str, str]
"""Kind and name of a spec."""


def named_in_rows(ports: PortDriver, store: str, deadline: Deadline) -> frozenset[Key]:
    """The specs that rows of this store name; a process that lives on asks its replica. Raises Unavailable."""
    from userspace_cni.ovsdb.database import every_name
    from userspace_cni.switch.ovsdb.node_rows import list_specs

    found = ports.client.read(partial(list_specs, store=store), every_name(), "looking for the node's own rows", deadline)
    return frozenset((kind, name) for kind, _, name in (each.partition(" ") for each in found) if name)


def gateways_in_rows(ports: PortDriver, deadline: Deadline) -> frozenset[tuple[str, str]]:
    """Store and port of each gateway that has one, of any installation: the port has the spec's name. Raises Unavailable."""
    from userspace_cni.ovsdb.database import every_name

    def look(session: SwitchSession) -> frozenset[tuple[str, str]]:
        rows = session.index.marks.items()
        named = ((name, marks) for name, marks in rows if is_nodes(marks) and marks.get("spec", "").partition(" ")[2] == name)
        return frozenset((marks.get("store", ""), name) for name, marks in named)

    return ports.client.read(look, every_name(), "looking for the node's gateways", deadline)


@dataclass(frozen=True)
class Left:
    """What there is of the spec `kind` `name` on this node, by a fresh look."""

    installation: Installation
    store: AttachmentStore
    ports: PortDriver
    kind: str
    name: str

    def steps(self, deadline: Deadline) -> tuple[Step, ...]:
        """Its steps, in the order of a plan; () where no row is of it, nor the table of address translation. Raises
        UserspaceError."""
        from userspace_cni.ovsdb.database import every_name, with_ids
        from userspace_cni.switch.ovsdb.node_rows import rebuild_steps

        if self.kind == Translation.kind:
            settings, root = self.installation.settings, self.installation.root
            return translation(self.store.journal.identity(), settings.switch_netns, root, deadline)
        marks = node_marks(self.kind, self.name, self.store.journal.identity())
        look = partial(rebuild_steps, marks=marks, switch_netns=self.installation.settings.switch_netns)
        # the replica may lag behind a process that has just undone all of it
        what, needs = f"{self.kind} {self.name}: looking for its rows", every_name() | with_ids(marks)
        found = self.ports.client.read(look, needs, what, deadline, enough=lambda steps: not steps)
        uplinks = Steps(found).uplinks
        moves = [move for uplink in uplinks for move in self._moves(uplink, found)]
        polled = [each for each in uplinks if _is_polled(each) and any(move.nic in each.links for move in moves)]
        before = [(each, _before_polling(each)) for each in polled]
        plain = (next((former for now, former in before if now is step), step) for step in found)
        flows = self._shared_flows() if found and self.kind == GatewayFlows.kind else ()
        return (*plain, *self._of_gateway(found, deadline), *moves, *map(_polling, polled), *flows)

    def _shared_flows(self) -> tuple[GatewayFlows, ...]:
        """Those of the bridge that is the spec's name, as far as undoing them needs."""
        from userspace_cni.switch.gateway_flows import number_of

        return (GatewayFlows(self.name, "", "", 0, number_of(self.store.journal.identity(), self.name)),)

    def _of_gateway(self, found: Sequence[Step], deadline: Deadline) -> tuple[Step, ...]:
        """What the kernel has of it, if it is a gateway: its port has its name."""
        if not any(port.name == self.name for port in Steps(found).ports):
            return ()
        records = self.store.journal.node_records()
        recorded = Steps(tuple(step for record in records for step in record.steps))
        known = {record.ifname for record in records if record.network != UNKNOWN and record.complete is not None}
        others = gateways_in_rows(self.ports, deadline) - {(self.store.journal.identity(), self.name)}
        alone = all(store == self.store.journal.identity() and name in known for store, name in others)
        return UnrecordedGateway(
            self.name, recorded, alone, self.installation.settings.switch_netns, self.installation.root
        ).steps()

    def _moves(self, uplink: UplinkPort, found: Sequence[Step]) -> Iterator[AddressMove]:
        """The moves from its NICs, and before these from their VLAN sub-interfaces.

        Something has moved where the bridge has addresses and the NIC's row says that they move. Without that mark it has where
        the NIC is cut off or away, or shares an address with the bridge because a process died while it moved them.
        """
        netns, root = self.installation.settings.switch_netns, self.installation.root
        cut = Drops(netns, table_of(self.store.journal.identity()), root)()
        internal = {port.vlan.tag: port.name for port in Steps(found).ports if port.vlan.tag}
        for each in (each for each in uplink.interfaces if not each.devargs):
            name = each.name
            links = nics.look_at_all((name, uplink.bridge), netns, root)
            nic, bridge = links.get(name), links.get(uplink.bridge)
            if bridge is None or not (name in cut or _may_have_moved(each, nic, bridge)):
                continue
            for upper in nic.uppers if nic else ():
                if upper.vlan in internal:
                    yield from self._move(upper.name, internal[upper.vlan], cut=False)
            yield from self._move(name, uplink.bridge, cut=True)

    def _move(self, name: str, target: str, *, cut: bool) -> Iterator[AddressMove]:
        netns, store = self.installation.settings.switch_netns, self.store
        links = nics.look_at_all((name, target), netns, self.installation.root)
        identity, boot_id, nic = store.journal.identity(), store.boot_id(), links.get(name)
        move = AddressMove(name, nic.index if nic else 0, target, identity, boot_id, cut=cut, switch_netns=netns)
        yield nics.merge_changes(move, nic, links.get(target))


def left_of_runs(installation: Installation, ports: PortDriver, store: str) -> Mapping[RunId, tuple[str, tuple[Step, ...]]]:
    """As `attachment.node.Switch`. Its flows may be on any bridge, also without a port. A directory has no mark of a store: it is
    another installation's where the run's rows are. Needs an open session that replicates everything. Raises Unavailable."""
    settings, index = installation.settings, ports.client.require_session().index
    rows = {name: marks for name, marks in index.marks.copy().items() if owner_kind(marks) == "run" and marks.get("run")}
    others = {marks["run"] for marks in rows.values() if marks.get("store") != store}
    own = {name: marks for name, marks in rows.items() if marks["run"] not in others}
    found: dict[RunId, tuple[str, tuple[Step, ...]]] = {}
    for directory in _directories(installation.root.path(settings.short_dir)) | {PREFIX + marks["run"] for marks in own.values()}:
        run = RunId.parse(directory.removeprefix(PREFIX))
        if run is None or run.name in others:
            continue
        mine = {name: marks for name, marks in sorted(own.items()) if marks["run"] == run.name}
        steps = (
            SocketDirectory(f"{settings.short_dir}/{directory}", settings.short_dir, settings.ovs_rundir),
            *(PortRef(name, marks=marks) for name, marks in mine.items()),
            *(
                PortFlow(bridge, "", "", cookie_of(int(run.number, 16)), bridge.startswith(PREFIX + run.number))
                for bridge in sorted(index.bridge_marks.copy())
            ),
        )
        found[run] = next((marks.get("purpose", "") for marks in mine.values()), ""), steps
    return found


def _directories(path: str) -> set[str]:
    """The names in the directory that may be those of runs' directories."""
    with suppress(OSError):
        return {each.name for each in os.scandir(path) if each.name.startswith(PREFIX) and each.is_dir(follow_symlinks=False)}
    return set()


def _may_have_moved(interface: UplinkInterface, nic: Nic | None, bridge: Nic) -> bool:
    there = {each.key for each in bridge.addresses}
    return bool(there) if nic is None or interface.moves else any(each.key in there for each in nic.addresses)


def _is_polled(uplink: UplinkPort) -> bool:
    return any(each.type == "afxdp" for each in uplink.interfaces)


def _before_polling(uplink: UplinkPort) -> UplinkPort:
    """The port as it was before it was polled."""
    interfaces = tuple(replace(each, type="system", polled="later") for each in uplink.interfaces)
    return replace(uplink, interfaces=interfaces, rx_queues=0)


def _polling(uplink: UplinkPort) -> PolledUplink:
    interfaces = tuple(replace(each, polled="now", offloads=None, mtu=None, moves=False) for each in uplink.interfaces)
    return PolledUplink(**{**vars(uplink), "interfaces": interfaces})
