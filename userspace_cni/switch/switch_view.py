"""The switch as the node sees it: its session, whether it lives, and what is asked of it. Nothing here writes.

All methods may be called from several threads, and raise only errors of `userspace_cni.base.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from userspace_cni.attachment.steps import OWNER, OwnerKind, PortRef, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, SwitchRefused, Unavailable
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.switch.ovsdb.rows.bridge_row import DATAPATH_TYPE, datapath_of, missing_bridge_of_ovn
from userspace_cni.switch.ovsdb.rows.interface_row import SERVER_PATH
from userspace_cni.switch.ovsdb.rows.marks import BridgeMaker, find_maker, is_ours
from userspace_cni.switch.ovsdb.rows.port_row import KnownPort, ref_of
from userspace_cni.switch.ovsdb.rows.switch_row import Abilities, SwitchSettings
from userspace_cni.switch.ovsdb.switch_database import SwitchClient
from userspace_cni.switch.vswitchd import JUDGED_SECONDS, Daemon, DaemonLiveness

if TYPE_CHECKING:
    from userspace_cni.base.polling import PollingReading
    from userspace_cni.base.seen_bridge import SeenBridge, TracedFrame
    from userspace_cni.switch.bridge_service import BridgeService, ServiceState
    from userspace_cni.switch.counters import Counters, LimitDrops
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

T = TypeVar("T")

SERVING_SECONDS = 2.0

_RUNNING_PODS_SUFFER = 51


@dataclass(frozen=True)
class FoundPort:
    """A port, ours or another. `marks`: our marks among its external_ids, {} if there are none."""

    name: str
    bridge: str
    interface_type: str
    server_path: str
    marks: dict[str, str]


class SwitchView:
    """What is asked of the switch, through the one client of OVSDB. `ovs_rundir`: where ovs-vswitchd has its control socket."""

    def __init__(self, client: SwitchClient, ovs_rundir: str) -> None:
        self.client = client
        self.daemon = Daemon(client.remote, ovs_rundir)

    def locate_management(self, bridge: str) -> str:
        """The bridge's management socket, on which it speaks OpenFlow, as this process sees it."""
        return f"{self.daemon.rundir}/{bridge}.mgmt"

    def connect(self, deadline: Deadline) -> None:
        """Open a session unless one is open. Raises Unavailable."""
        self.client.connect(deadline)

    @property
    def connected(self) -> bool:
        return self.client.connected

    @property
    def sessions(self) -> int:
        """The number of sessions opened so far."""
        return self.client.sessions

    def close(self) -> None:
        """End the session; calls that wait for it fail. The next call opens another; a resident driver's call fails."""
        self.client.close()
        if "_service" in vars(self):
            self._service.forget()

    def watch_liveness(self) -> DaemonLiveness:
        """Ask ovs-vswitchd whether it lives, for up to 2 s, and remember it for `require_serving`."""
        return self.daemon.watch()

    def glance(self) -> DaemonLiveness:
        """Ask ovs-vswitchd for 30 ms whether it lives; when it is silent, the result of the last `watch_liveness`."""
        return self.daemon.glance()

    def service(self, bridges: Iterable[str]) -> ServiceState:
        """Whether the own links of these bridges can carry frames, where ovs-vswitchd lives: without ovsdb-server it serves none.

        As `BridgeService.look`. For one thread.
        """
        return self._service.look(bridges)

    def serves(self, bridge: str, deadline: Deadline) -> bool:
        """Whether ovs-vswitchd answers on the bridge by the deadline, as it does only while its own link can carry frames."""
        from userspace_cni.switch.openflow.management import Management

        try:
            with Management(self.locate_management(bridge), deadline):
                return True
        except SwitchRefused:  # it speaks, if in no version of ours
            return True
        except Unavailable:
            return False

    @cached_property
    def _service(self) -> BridgeService:
        from userspace_cni.switch.bridge_service import BridgeService

        return BridgeService(self.locate_management)

    def reach(self, name: str, bridge: str, deadline: Deadline) -> BridgeMaker:
        """Open the session with OVSDB for this port; returns who made its bridge.

        A resident replica may lag behind the program that has just made the bridge: so the server confirms that there is none.
        Raises Unavailable, before any effect that would have to be undone.
        """
        from userspace_cni.ovsdb.database import named

        def look(session: SwitchSession) -> BridgeMaker | None:
            marks = session.index.bridge_marks.get(bridge)
            return None if marks is None else find_maker(marks)

        needs, what = named(name, bridge), f"port {name}: before adding it"
        maker = self.client.use(look, needs, what, deadline)
        if maker is None and self.client.resident:
            maker = self.client.read(look, needs, what, deadline, enough=lambda found: found is not None)
        return maker or ""

    def list_marked(
        self, deadline: Deadline, *, network: str | None = None, container_id: str | None = None, ifname: str | None = None
    ) -> list[PortRef]:
        """Every port of a pod with our owner mark and the given marks, of any store."""
        from userspace_cni.ovsdb.database import with_ids
        from userspace_cni.switch.ovsdb.switch_reads import list_port_rows

        chosen = {"network": network, "container-id": container_id, "ifname": ifname}
        wanted = {"owner": OWNER} | {key: value for key, value in chosen.items() if value is not None}
        rows = self.client.read(lambda session: list_port_rows(session, wanted), with_ids(wanted), "listing our ports", deadline)
        return sorted(map(ref_of, (row for row in rows if is_ours(row.marks))), key=lambda step: step.name)

    def list_owned(self) -> dict[str, Mapping[str, str]]:
        """external_ids of every port with our owner mark, by name, from the replica of a resident driver. Raises Unavailable."""
        marks = self.client.require_session().index.marks.copy()
        return {name: of for name, of in marks.items() if is_ours(of)}

    def list_of_kind(self, kind: OwnerKind, store: str) -> dict[str, Mapping[str, str]]:
        """external_ids of every port of this store for such owners, by name, from the replica of a resident driver.

        Raises Unavailable.
        """
        marks = self.client.require_session().index.marks.copy()
        return {name: of for name, of in marks.items() if owner_kind(of) == kind and of.get("store") == store}

    def list_mirror_outputs(self) -> frozenset[tuple[str, str]]:
        """As `switch_reads.list_mirror_outputs`, from a resident replica. May raise Unavailable."""
        from userspace_cni.switch.ovsdb.switch_reads import list_mirror_outputs

        return self.client.require_session().look(list_mirror_outputs)

    def has_failed(self, name: str, deadline: Deadline) -> bool:
        """Whether an ovs-vswitchd that may be alive could not open the port of that name. Raises Unavailable."""
        from userspace_cni.ovsdb.database import named
        from userspace_cni.switch.ovsdb.switch_reads import is_closed

        if self.daemon.peek().state == "dead":
            return False
        # The caller removes the socket of a port that has not failed. The replica may lag: so the server must confirm it.
        what = f"port {name}: looking at it"
        return self.client.read(lambda session: is_closed(session, name), named(name), what, deadline, enough=bool)

    def list_ports(self) -> list[KnownPort]:
        """All ports but the local ones of bridges, from the replica of a resident driver. Raises Unavailable."""
        from userspace_cni.switch.ovsdb.switch_reads import list_ports

        return self.client.require_session().look(list_ports)

    def list_bridges(self) -> Mapping[str, str]:
        """The datapath of each bridge, from the replica of a resident driver. Raises Unavailable."""
        index = self.client.require_session().index
        return {name: datapath_of(kind) for name, kind in index.datapaths.copy().items()}

    @property
    def dpdk(self) -> bool:
        """Whether DPDK runs, from the replica of a resident driver. Raises Unavailable."""
        return self.client.require_session().index.dpdk

    def has_bridge(self, name: str) -> bool:
        """Whether there is a bridge of that name, from the replica of a resident driver; False without a session."""
        return self.client.connected and name in self.client.require_session().index.bridge_marks

    def list_administrators_bridges(self) -> frozenset[str]:
        """Names of the bridges that are not ours and can have vhost-user ports, from the replica of a resident driver.

        Costs no lock. Raises Unavailable.
        """
        index = self.client.require_session().index
        marks = index.bridge_marks.copy()
        kinds = index.datapaths.copy().items()
        return frozenset(name for name, kind in kinds if kind == DATAPATH_TYPE and not is_ours(marks.get(name, {})))

    def read_hardware(self) -> tuple[Mapping[str, tuple[str, ...]], str]:
        """The device arguments of the NICs of each bridge, and other_config:pmd-cpu-mask, "" if unset.

        From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.switch.ovsdb.switch_reads import list_uplinks, read_other_config

        return self.client.require_session().look(
            lambda session: (list_uplinks(session), read_other_config(session).get("pmd-cpu-mask", ""))
        )

    def read_abilities(self, deadline: Deadline) -> Abilities:
        """What kinds of ports and bridges the switch can have. Raises Unavailable."""
        from userspace_cni.switch.ovsdb.switch_reads import read_abilities

        return self.client.read(read_abilities, frozenset(), "asking what the switch can do", deadline)

    def read_limit_drops(self, deadline: Deadline) -> list[LimitDrops]:
        """The frames that limits of our ports have dropped; asks of limited ports alone. For a resident driver.

        Raises Unavailable and SwitchRefused.
        """
        from userspace_cni.switch import counters

        return counters.ask_drops(self.client, self.daemon, deadline)

    def read_counters(self, deadline: Deadline, *, others: bool = False) -> list[Counters]:
        """As `counters.ask`. Raises Unavailable and SwitchRefused."""
        from userspace_cni.switch import counters

        return counters.ask(self.client, self.daemon.rundir, deadline, others=others)

    def read_polling_threads(self, deadline: Deadline, *, lately: bool = False) -> PollingReading:
        """As `polling_threads.read_polling_threads`. Raises Unavailable and SwitchRefused."""
        from userspace_cni.switch.polling_threads import read_polling_threads

        return read_polling_threads(self.daemon, deadline, lately=lately)

    def read_statistics(self, ports: Collection[str], deadline: Deadline) -> Mapping[str, Mapping[str, int]]:
        """Interface.statistics of these ports, by name. Raises Unavailable and SwitchRefused."""
        from userspace_cni.switch import counters

        return counters.read_statistics(self.client, ports, deadline)

    def read_bridges(self, names: Collection[str], deadline: Deadline) -> dict[str, SeenBridge]:
        """What the bridges of these names have now, without those that are not there. For a resident driver.

        Raises Unavailable.
        """
        from userspace_cni.switch.seen_bridges import read_bridges

        return read_bridges(self.client, self.daemon, names, deadline)

    def trace_frame(self, bridge: str, flow: str, deadline: Deadline) -> TracedFrame:
        """As `seen_bridges.trace`. Raises Unavailable and SwitchRefused."""
        from userspace_cni.switch.seen_bridges import trace

        return trace(self.daemon, bridge, flow, deadline)

    def find(self, name: str, deadline: Deadline) -> FoundPort | None:
        from userspace_cni.ovsdb.database import named
        from userspace_cni.switch.ovsdb.switch_reads import find_port

        what = f"port {name}: looking for it"
        row = self.client.read(lambda session: find_port(session, name), named(name), what, deadline, enough=bool)
        if row is None:
            return None
        return FoundPort(name, row.bridge, row.interface["type"], row.interface["options"].get(SERVER_PATH, ""), row.marks)

    def look(
        self,
        look: Callable[[SwitchSession], T],
        chosen: Mapping[str, str],
        what: str,
        deadline: Deadline,
        *,
        enough: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """The result of `look` on a session with the ports that have these external_ids; a resident driver's has all ports.

        A resident replica may lag behind other programs: so the server is asked where its result is not `enough`.
        """
        from userspace_cni.ovsdb.database import with_ids

        return self.client.read(look, with_ids(dict(chosen)), what, deadline, enough=enough)

    def read_settings(self, deadline: Deadline) -> SwitchSettings:
        """The settings of the switch, of a resident driver with the MTUs of all ports. Raises Unavailable."""
        from userspace_cni.switch.ovsdb.switch_reads import read_switch_settings

        return self.client.read(read_switch_settings, frozenset(), "reading the switch's settings", deadline)

    def read_vhost_sock_dir(self, deadline: Deadline) -> str:
        """Open_vSwitch.other_config:vhost-sock-dir, relative to OVS's run directory; "" if unset."""

        from userspace_cni.switch.ovsdb.switch_reads import read_other_config

        return self.client.read(read_other_config, frozenset(), "reading vhost-sock-dir", deadline).get("vhost-sock-dir", "")

    def require_serving(
        self, bridge: str, deadline: Deadline, *, datapath: Datapath = DATAPATH_TYPE, needs_dpdk: bool = True
    ) -> None:
        """NotServing if a port could not be added to `bridge` now: 50, or 51 when running pods suffer too. Writes nothing.

        `datapath`: the datapath_type that the bridge must have. `needs_dpdk`: of all ports but those opened as system or afxdp.
        """
        try:
            dpdk, datapath_type = self._facts(bridge, deadline.within(SERVING_SECONDS))
        except Unavailable as error:
            raise NotServing(error.message, error.details) from error
        asked = deadline.within(SERVING_SECONDS)
        liveness = self.daemon.glance() if self.client.resident else self.daemon.ask(asked, JUDGED_SECONDS)
        if liveness.state in ("dead", "silent"):
            raise NotServing(f"ovs-vswitchd is {liveness.state}: {liveness.reason}", "see its log", code=_RUNNING_PODS_SUFFER)
        if needs_dpdk and not dpdk:
            hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
            raise NotServing("ovs-vswitchd runs without DPDK", hint, code=_RUNNING_PODS_SUFFER)
        if datapath_type is not None and datapath_of(datapath_type) != datapath:
            raise NotServing(f"bridge {bridge} has datapath_type {datapath_of(datapath_type)}", f"{datapath} is needed")

    def require_bridge_of_ovn(self, bridge: str, deadline: Deadline) -> None:
        """Raise NotServing unless OVN's integration bridge, of that name, is there."""
        if self._facts(bridge, deadline.within(SERVING_SECONDS))[1] is None:
            raise NotServing(*missing_bridge_of_ovn(bridge))

    def _facts(self, bridge: str, deadline: Deadline) -> tuple[bool, str | None]:
        """Whether DPDK runs, and the datapath type of the bridge (None: there is none); a resident driver does not wait."""
        if self.client.resident:
            index = self.client.require_session().index
            return index.dpdk, index.datapaths.get(bridge)

        def look(session: SwitchSession) -> tuple[bool, str | None]:
            return session.index.dpdk, session.index.datapaths.get(bridge)

        return self.client.read(look, frozenset(), "asking OVSDB", deadline)
