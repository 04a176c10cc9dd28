"""The switch as this node has it: what is asked of it with the records, the kernel and the files of the node beside it.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.cni.interface_keys import choose_kernel_port
from userspace_cni.node.pod_logical_port import place_options
from userspace_cni.node.switch_sockets import NodeSockets

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.listing import LimitedDirection
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.run_ids import RunId
    from userspace_cni.attachment.steps import PortRef, Step
    from userspace_cni.base.seen_bridge import SeenBridge
    from userspace_cni.base.switch_bridges import FrameCounts, SwitchBridge
    from userspace_cni.cni.options import Options
    from userspace_cni.node.callbacks import Callbacks
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.known_subnets import Subnets
    from userspace_cni.node.provider_bridges import ProviderBridges
    from userspace_cni.switch.counters import Counters
    from userspace_cni.switch.ovsdb.rows.port_row import KnownPort
    from userspace_cni.switch.ports import PortDriver
    from userspace_cni.switch.vswitchd import DaemonLifeline

_COUNTERS_S: Final = 2.0
"""Less than a scraper's timeout: the other metrics are needed most while the switch is silent."""


class LocalSwitch:
    """`attachment.node.Switch` of this node. A process that lives on keeps one session, in which all our ports are known.

    `subnets` is asked for when objects of the API have to be looked at. `tell`: whom it tells of what happens meanwhile.
    """

    def __init__(
        self, installation: Installation, store: AttachmentStore, subnets: Callable[[], Subnets], tell: Callbacks
    ) -> None:
        self._installation = installation
        self._store = store
        self._journal = store.journal
        self._subnets = subnets
        self._callbacks = tell
        self.sockets = NodeSockets(installation, lambda: self.ports)

    @cached_property
    def ports(self) -> PortDriver:
        """The only user of OVSDB in this process."""
        from userspace_cni.host.node_net.switch_links import SwitchLinks
        from userspace_cni.switch.ovsdb.switch_database import switch_client
        from userspace_cni.switch.ports import PortDriver, PortSettings

        settings, root, resident = self._installation.settings, self._installation.root, self._installation.resident
        kind, _, place = settings.ovsdb.partition(":")
        client = switch_client(
            f"unix:{root.path(place)}" if kind == "unix" else settings.ovsdb,
            resident=resident,
            on_group=self._callbacks.group,
            listeners=self._callbacks.listeners(),
        )
        links = SwitchLinks(settings.switch_netns, root)
        rundir = root.path(settings.ovs_rundir)
        of_ports = PortSettings(settings.afxdp_max, root.path(settings.ovn_rundir))
        return PortDriver(client, rundir, self._journal.identity, self.sockets, links, of_ports)

    @cached_property
    def provider_bridges(self) -> ProviderBridges:
        """The bridges that are made with their uplinks alone."""
        from userspace_cni.node.provider_bridges import ProviderBridges

        return ProviderBridges(self._installation, self._journal, self._subnets)

    # -- ports ------------------------------------------------------------------------------------------------------------

    def list_marked(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """All ports with our owner mark for this network, None for any."""
        return self.ports.list_marked(deadline, network=network)

    def list_owned(self, deadline: Deadline) -> Mapping[str, Mapping[str, str]]:
        """Name and marks of every port that is marked as ours. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.list_owned()

    def of_node(self, deadline: Deadline) -> Mapping[str, Mapping[str, str]]:
        """Name and marks of every port that is marked as the node's own, of this installation. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.list_of_kind("node", self._journal.identity())

    def specs_in_rows(self, deadline: Deadline) -> frozenset[tuple[str, str]]:
        """Kind and name of the specs that rows of this installation name. Raises Unavailable."""
        from userspace_cni.node.unrecorded import named_in_rows

        return named_in_rows(self.ports, self._journal.identity(), deadline)

    def left_of(self, kind: str, name: str, deadline: Deadline) -> tuple[Step, ...]:
        """What there is of the spec whose record was lost, as the record's steps. Raises UserspaceError."""
        from userspace_cni.node.unrecorded import Left

        return Left(self._installation, self._store, self.ports, kind, name).steps(deadline)

    def has_translation(self) -> bool:
        """Whether the table of the gateways' address translation is there. Raises UserspaceError."""
        from userspace_cni.node.unrecorded_gateways import has_translation

        settings = self._installation.settings
        return has_translation(self._journal.identity(), settings.switch_netns, self._installation.root)

    def left_of_runs(self, deadline: Deadline) -> Mapping[RunId, tuple[str, tuple[Step, ...]]]:
        """What there is of each run, by marks and its directory's name. Raises Unavailable."""
        from userspace_cni.node.unrecorded import left_of_runs

        self.ports.connect(deadline)
        return left_of_runs(self._installation, self.ports, self._journal.identity())

    def list_ports(self) -> list[KnownPort] | None:
        """Every port with what the switch says of it; None while it cannot be asked."""
        try:
            return self.ports.list_ports()
        except UserspaceError:
            return None

    def list_bridges(self) -> tuple[SwitchBridge, ...]:
        """Every bridge with all its ports and mirrors, those of other programs too. Raises Unavailable."""
        from userspace_cni.switch.ovsdb.bridge_reads import list_bridges

        return self.ports.client.require_session().look(list_bridges)

    def count_frames(self) -> Mapping[str, FrameCounts]:
        """The counters of every interface, as far as the bridges answer. Raises Unavailable."""
        from userspace_cni.switch.counters import ask_all

        return ask_all(self.ports.client, self.ports.daemon.rundir, Deadline.after(_COUNTERS_S))

    def counters(self, *, others: bool = False) -> list[Counters]:
        """The switch's counters of our ports; `others`: of uplinks and ports of other programs, too, where ovs-vswitchd is asked.

        Raises Unavailable and SwitchRefused.
        """
        return self.ports.read_counters(Deadline.after(_COUNTERS_S), others=others)

    def list_counted(self) -> list[Counters] | None:
        """As `counters`, None where the switch does not answer."""
        try:
            return self.counters()
        except UserspaceError as error:
            say("debug", "what the switch has counted is not known", error=error)
            return None

    def read_statistics(self, ports: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """Interface.statistics of these ports, by name; without those that are not known. Never fails."""
        try:
            return self.ports.read_statistics(ports, Deadline.after(_COUNTERS_S))
        except UserspaceError as error:
            say("debug", "why the switch has dropped frames is not known", error=error)
            return {}

    def read_own_addresses(self, bridge: SeenBridge) -> frozenset[str]:
        """The addresses, without prefix, of the node's own links on that bridge. Raises UserspaceError."""
        from userspace_cni.host.node_net.switch_links import addresses_of

        links = [bridge.name, *(port.name for port in bridge.ports if port.kind == "internal")]
        held = addresses_of(links, self._installation.settings.switch_netns, self._installation.root)
        return frozenset(address for addresses in held.values() for address in addresses)

    def list_limited(self, records: Iterable[Record]) -> list[LimitedDirection]:
        """Each limited direction of these attachments, with what its limit has dropped. Never fails."""
        from userspace_cni.node.limited_directions import list_limited

        return list_limited(records, self.ports, self._installation.root, Deadline.after(_COUNTERS_S))

    # -- whether it serves ------------------------------------------------------------------------------------------------

    def require_serving(self, options: Options, deadline: Deadline) -> None:
        """Raise NotServing unless an ADD could be served now."""
        link, settings = options.link, self._installation.settings
        bridge = place_options(options, settings).bridge
        if link is None:
            self.ports.require_serving(bridge, deadline)
        else:
            dpdk = choose_kernel_port(link, settings.kernel_port).startswith("af_")
            self.ports.require_serving(bridge, deadline, datapath=link.datapath, needs_dpdk=dpdk)
        if bridge == settings.ovn_bridge:
            self.ports.require_bridge_of_ovn(bridge, deadline)
        self._require_writable()

    def ready(self, deadline: Deadline) -> None:
        """Raise NotServing unless the switch and the directories could take a vhost-user port now."""
        self.ports.require_serving("", deadline)
        self._require_writable()

    def _require_writable(self) -> None:
        from userspace_cni.node.surroundings import unwritable

        settings, root = self._installation.settings, self._installation.root
        for path in (settings.state_dir, settings.run_dir, settings.short_dir):
            reason = unwritable(root.path(path))
            if reason:
                raise NotServing(f"directory {path}: {reason}", "see the settings state_dir, run_dir and short_dir")

    def vswitchd(self) -> str:
        """Whether ovs-vswitchd lives, without waiting: `alive`, `dead`, `silent` or `unknown`."""
        return self.ports.glance().state

    def service(self, bridges: Iterable[str]) -> str:
        """Whether the own links of these bridges can carry frames, without waiting, as `switch_view.SwitchView`."""
        return self.ports.service(bridges)

    def ask_ovn_to_recompute(self, deadline: Deadline) -> None:
        """Have this node's ovn-controller compute all its flows anew. Raises Unavailable."""
        from userspace_cni.switch.ovn_controller import ask_to_recompute

        ask_to_recompute(self._installation.root.path(self._installation.settings.ovn_rundir), deadline)

    def watch_life(self, ended: Callable[[], None]) -> DaemonLifeline:
        """A connection to ovs-vswitchd to be held: `ended` is called when the daemon ends, on a thread of its own."""
        from userspace_cni.switch.vswitchd import DaemonLifeline

        return DaemonLifeline(self._installation.root.path(self._installation.settings.ovs_rundir), ended)

    # -- what nothing needs any more --------------------------------------------------------------------------------------

    def free_sources(self) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        return self.sockets.free_sources(self._journal.records)

    def count_guarded(self) -> tuple[int, int]:
        """How many recorded host ends have the guard that they need, and how many need one. Raises UserspaceError."""
        from userspace_cni.node.links import guards

        return guards(self._installation, self._journal)

    def sweep(self) -> int:
        """Remove guards of host ends that are gone and rows of limits without a port, which no record names. Never fails."""
        from userspace_cni.node.links import sweep

        return sweep(self._installation, self._journal, self.ports if self._installation.resident else None)

    def close(self) -> None:
        """End the session with OVSDB; calls that wait for the switch fail."""
        if "ports" in vars(self):
            self.ports.close()
