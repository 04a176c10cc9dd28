"""Composition root: implements what attachments ask of the node. It may import every room.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.steps import Driver, PortRef, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.log import say
from userspace_cni.base.notices import Recipient
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import require_mirrors
from userspace_cni.cni.links import opened_as
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Environment, Request
from userspace_cni.linux import boot
from userspace_cni.node.addresses import LocalAddresses
from userspace_cni.node.callbacks import Callbacks
from userspace_cni.node.drivers import MAKERS
from userspace_cni.node.installation import Installation
from userspace_cni.node.sandboxes import LocalSandboxes

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Noted
    from userspace_cni.attachment.listing import Limited
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.spool import Spool
    from userspace_cni.kube.events import Events
    from userspace_cni.kube.watch import PodWatch
    from userspace_cni.node.gathering import Gathering
    from userspace_cni.node.probes import DeadRuns
    from userspace_cni.node.provider_bridges import ProviderBridges
    from userspace_cni.node.subnets import Subnets
    from userspace_cni.switch.counters import Counters
    from userspace_cni.switch.ovsdb.rows.port import KnownPort
    from userspace_cni.switch.ports import PortDriver
    from userspace_cni.switch.vswitchd import Lifeline

_UPSTREAM_SOCKDIR: Final = "/usr/local/var/run/openvswitch"
_COUNTERS_S: Final = 2.0
"""Less than a scraper's timeout: the other metrics are needed most while the switch is silent."""


class LocalNode:
    """This node: `attachment.node.Node` for the settings of this installation.

    `resident`: for a process that lives on. It sees the host below `host_root`, and keeps one session with OVSDB in which
    all our ports are known. `tell`: whom it tells of what happens meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        resident: bool = False,
        tell: Callbacks | None = None,
    ) -> None:
        self.installation = Installation(settings, environ, resident=resident)
        self.settings = settings
        self.resident = resident
        self.root = self.installation.root
        self._callbacks = tell or Callbacks()
        self._watch: PodWatch | None = None
        self._events: Events | None = None
        self._made: dict[type[Step], Driver[Any]] = {}

    @property
    def log_level(self) -> str:
        """The log level of networks without one of their own."""
        return self.settings.log_level

    @property
    def deadline_s(self) -> float:
        """Seconds that one verb may take."""
        return self.settings.deadline_s

    @cached_property
    def journal(self) -> Journal:
        """The records of this node."""
        state, run = map(self.root.path, (self.settings.state_dir, self.settings.run_dir))
        return Journal(state, run, lambda text: say("warning", text), self.boot_id, self._on_state)

    def _on_state(self, record: Record) -> None:
        if "subnets" in vars(self):
            self.subnets.on_state(record)

    @cached_property
    def spool(self) -> Spool:
        """The DELs that were called while no agent answered."""
        from userspace_cni.attachment.spool import Spool

        state = self.root.path(self.settings.state_dir)
        return Spool(f"{state}/spool", f"{state}/quarantine")

    @cached_property
    def ports(self) -> PortDriver:
        """The only user of OVSDB in this process."""
        from userspace_cni.host.node_net.switch_links import SwitchLinks
        from userspace_cni.node.switch_sockets import NodeSockets
        from userspace_cni.switch.ovsdb.client import Client
        from userspace_cni.switch.ports import PortDriver

        kind, _, place = self.settings.ovsdb.partition(":")
        ovsdb = f"unix:{self.root.path(place)}" if kind == "unix" else self.settings.ovsdb
        client = Client(
            ovsdb,
            resident=self.resident,
            on_group=self._callbacks.group,
            listeners=self._callbacks.listeners() if self.resident else None,
        )
        rundir = self.root.path(self.settings.ovs_rundir)
        return PortDriver(
            client,
            rundir,
            self.journal.identity,
            NodeSockets(self),
            SwitchLinks(self.settings.switch_netns, self.root),
            self.settings.afxdp_max,
        )

    @cached_property
    def sandboxes(self) -> LocalSandboxes:
        """The network namespaces of containers."""
        return LocalSandboxes(self.installation, self.journal.identity)

    @cached_property
    def addresses(self) -> LocalAddresses:
        """Where addresses come from."""
        return LocalAddresses(self.installation, lambda: self.subnets)

    @cached_property
    def subnets(self) -> Subnets:
        """The Subnets that networks name."""
        from userspace_cni.node.subnets import Subnets

        return Subnets(self.installation, self.journal, self.pod_is_gone)

    @property
    def watch(self) -> PodWatch | None:
        """The watched pods of this node; None before `warm_up`, or without credentials."""
        return self._watch

    def driver(self, step: Step) -> Driver[Any]:
        """The driver that knows this type of step."""
        kind = type(step)
        if kind not in self._made:
            self._made[kind] = MAKERS[kind](self)
        return self._made[kind]

    @cached_property
    def _boot_id(self) -> str:
        return boot.boot_id()

    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return self._boot_id

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME now."""
        return boot.boottime_ns()

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The kinds of consumers, by their names in a network's key `consumer`."""
        from userspace_cni.consumers import CONSUMERS

        return CONSUMERS

    def gathering(self, request: Request, options: Options, consumer: Consumer, deadline: Deadline) -> Gathering:
        """What this ADD asks of node and pod, and of the API server if there is one."""
        from userspace_cni.node.gathering import Gathering

        return Gathering(self, request, options, consumer, deadline)

    def require_mirrors(self, environment: Environment, mirrors: Iterable[str], outputs: Iterable[str]) -> None:
        """Raise MirrorRefused unless the rules let the call's pod have that part."""
        require_mirrors(self.settings.rules, environment.pod_namespace, mirrors, outputs)

    @cached_property
    def provider_bridges(self) -> ProviderBridges:
        """The bridges that are made with their uplinks alone."""
        from userspace_cni.node.provider_bridges import ProviderBridges

        return ProviderBridges(self.installation, self.journal, lambda: self.subnets)

    def sockdir(self, deadline: Deadline) -> str:
        """Where OVS makes server-mode sockets, as the host calls it: our setting, else OVS's own."""
        settings = self.settings
        if settings.ovs_sockdir:
            return settings.ovs_sockdir
        configured = self.ports.vhost_sock_dir(deadline)
        if configured:
            return f"{settings.ovs_rundir}/{configured}"
        return settings.ovs_rundir if self.root.is_directory(settings.ovs_rundir) else _UPSTREAM_SOCKDIR

    def noted(self, record: Record) -> Noted | None:
        """What the attachment's pod says of its interface now; None where the pod is not watched. Raises BadRequest."""
        if not self._watch or not record.port:
            return None
        pod = self._watch.view(record.pod_namespace, record.pod_name, record.pod_uid)
        if pod is None:
            return None
        from userspace_cni.node.gathering import noted

        return noted(record.port, pod, record, self.settings)

    def guarded(self) -> tuple[int, int]:
        """How many recorded host ends have the guard that they need, and how many need one."""
        from userspace_cni.node.links import guards

        return guards(self)

    def sweep(self) -> int:
        """Remove guards of host ends that are gone and rows of limits without a port, which no record names. Never fails."""
        from userspace_cni.node.links import sweep

        return sweep(self)

    def marked_ports(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """All ports with our owner mark for this network, None for any."""
        return self.ports.marked(deadline, network=network)

    def serving(self, options: Options, deadline: Deadline) -> None:
        """Raise NotServing unless an ADD could be served now."""
        link = options.link
        if link is None:
            self.ports.serving(options.bridge, deadline)
        else:
            dpdk = opened_as(link, self.settings.kernel_port).startswith("af_")
            self.ports.serving(options.bridge, deadline, datapath=link.datapath, needs_dpdk=dpdk)
        self._require_writable()

    def ready(self, deadline: Deadline) -> None:
        """Raise NotServing unless the switch and the directories could take a vhost-user port now."""
        self.ports.serving("", deadline)
        self._require_writable()

    def _require_writable(self) -> None:
        for path in (self.settings.state_dir, self.settings.run_dir, self.settings.short_dir):
            reason = self.unwritable(path)
            if reason:
                raise NotServing(f"directory {path}: {reason}", "see the settings state_dir, run_dir and short_dir")

    def unwritable(self, path: str) -> str:
        """Why nothing can be written to a directory of the host, or to its nearest parent that exists; "" if something can."""
        from userspace_cni.node.surroundings import unwritable

        return unwritable(self.root.path(path))

    # -- for a process that lives on --------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """What this process lacks to be the node's agent, one sentence each."""
        from userspace_cni.node.surroundings import missing

        return missing(self.settings)

    def begin_telling(self) -> None:
        """Make Events of what is told from now on, if there is an account. Raises Unavailable."""
        from userspace_cni.kube.events import Events

        if self.installation.has_account:
            self._events = Events(self.installation.clients.of("").session, self.installation.name, self._callbacks.untold)
            self._events.start()

    def warm_up(self, deadline: Deadline) -> None:
        """Import what verbs will use, begin to watch the pods of this node, and try to open the session with OVSDB."""
        from userspace_cni.attachment import plan  # noqa: F401
        from userspace_cni.kube.watch import PodWatch

        if self.installation.has_account and self.settings.netconf_kubeconfig != "always":
            session = self.installation.clients.of("").session
            self._watch = PodWatch(session, self.installation.name, on_change=self._callbacks.pod)
            self._watch.start()
        for kind, make in MAKERS.items():
            self._made[kind] = make(self)
        try:
            self.ports.connect(deadline.half())
        except UserspaceError as error:
            say("warning", "there is no session with OVSDB yet", error=error)

    def await_pods(self, deadline: Deadline) -> None:
        """Wait until the pods of this node are known, after `warm_up`. Not known by then, they are not waited for."""
        if self._watch and not self._watch.wait_synced(deadline):
            say("warning", "the pods of this node are not known yet", problem=self._watch.problem)

    def tell(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        """Have the pod or object told by Events of the API; a pod without a UID is the one of that name which the watch knows."""
        if not self._events or not notices:
            return
        if recipient.kind == "Pod" and not recipient.uid and self._watch:
            from userspace_cni.kube.client import view_of

            known = self._watch.get(recipient.namespace, recipient.name)
            recipient = replace(recipient, uid=view_of(known).uid if known else "")
        self._events.tell(recipient, notices)

    def connect(self, deadline: Deadline) -> int:
        """Open the session with OVSDB unless one is open; how many were opened so far. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.sessions

    def watch_life(self, ended: Callable[[], None]) -> Lifeline:
        """A connection to ovs-vswitchd to be held: `ended` is called when the daemon ends, on a thread of its own."""
        from userspace_cni.switch.vswitchd import Lifeline

        return Lifeline(self.root.path(self.settings.ovs_rundir), ended)

    def free_sources(self) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        from userspace_cni.node.switch_sockets import free_sources

        return free_sources(self)

    def owned_ports(self, deadline: Deadline) -> Mapping[str, Mapping[str, str]]:
        """Name and marks of every port that is marked as ours. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.owned()

    def desired_ports(self, deadline: Deadline) -> Mapping[str, Mapping[str, str]]:
        """Name and marks of every port that is marked as the node's own, of this installation. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.of_node(self.journal.identity())

    def vswitchd(self) -> str:
        """Whether ovs-vswitchd lives, without waiting: `alive`, `dead`, `silent` or `unknown`."""
        return self.ports.glance().state

    def known_ports(self) -> list[KnownPort] | None:
        """Every port with what the switch says of it; None while it cannot be asked."""
        try:
            return self.ports.known()
        except UserspaceError:
            return None

    def counters(self) -> list[Counters]:
        """The switch's counters of our ports. Raises Unavailable and SwitchRefused."""
        return self.ports.counters(Deadline.after(_COUNTERS_S))

    def limited(self, records: Iterable[Record]) -> list[Limited]:
        """Each limited direction of these attachments, with what its limit has dropped. Never fails."""
        from userspace_cni.node.limits import limited

        return limited(records, self, Deadline.after(_COUNTERS_S))

    @cached_property
    def dead_probes(self) -> DeadRuns:
        """What killed probes left."""
        from userspace_cni.node.probes import DeadRuns

        return DeadRuns(self.ports, self.settings, self.journal.identity)

    def pod_is_gone(self, uid: str) -> bool:
        """Whether the pod is missing in the API's list or, where that is not known, in the kubelet's directory."""
        known = self._watch.uids() if self._watch else None
        if known is None:
            try:
                known = frozenset(os.listdir(self.root.path(f"{self.settings.kubelet_dir}/pods")))  # noqa: PTH208
            except OSError:
                return False
        return uid not in known

    def close(self) -> None:
        """End the session with OVSDB and the watch; calls that wait for the switch fail."""
        if self._events:
            self._events.stop()
        if self._watch:
            self._watch.stop()
        if "subnets" in vars(self):
            self.subnets.stop()
        if "ports" in vars(self):
            self.ports.close()
