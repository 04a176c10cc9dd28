"""Composition root: implements what attachments ask of the node. It may import every room.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.steps import Driver, Lease, LegacyRecord, PortRef, Step, port_name
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import ContainerGone, DelegateFailed, HostNamespace, NotServing, UserspaceError, VolumeMissing
from userspace_cni.base.log import say
from userspace_cni.base.notices import HUGEPAGES_MISSING, VOLUME_MISSING, Notice, Recipient, give
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import require_port
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Environment, Request, Verb
from userspace_cni.host import link
from userspace_cni.node.drivers import MAKERS
from userspace_cni.pod.document import DEFAULT_MAPPED_DIR

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Allocation, Facts, Place, Pod
    from userspace_cni.attachment.spool import Spool
    from userspace_cni.dataplane.counters import Counters
    from userspace_cni.dataplane.ovsdb.rows.port import KnownPort
    from userspace_cni.dataplane.ports import PortDriver
    from userspace_cni.dataplane.vswitchd import Lifeline
    from userspace_cni.host.devices import DeviceDirectories
    from userspace_cni.host.leases import LeaseDriver
    from userspace_cni.kube.client import Clients
    from userspace_cni.kube.events import Events
    from userspace_cni.kube.watch import PodWatch
    from userspace_cni.node.probes import DeadRuns

_UPSTREAM_SOCKDIR: Final = "/usr/local/var/run/openvswitch"
_SOURCES_S: Final = 5.0
_HUGEPAGES: Final = (
    "no container of the pod asks for hugepages: DPDK ends with 'no free hugepages' unless it is run with --no-huge, and without "
    "shared memory an application cannot connect; ask for hugepages-2Mi in resources.limits"
)
_COUNTERS_S: Final = 2.0
"""Less than a scraper's timeout: the other metrics are needed most while the switch is silent."""


class LocalNode:
    """This node: `attachment.node.Node` for the settings of this installation.

    `resident`: for a process that lives on. It sees the host below `host_root`, and keeps one session with OVSDB in which
    all our ports are known. `on_group` is called with the number of ports of each transaction, `on_disconnect` with the name of a
    port whose application has disconnected, `on_untold` with the number of notices that no pod was told; none of them may wait.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        resident: bool = False,
        on_group: Callable[[int], None] = lambda _: None,
        on_disconnect: Callable[[str], None] = lambda _: None,
        on_untold: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.resident = resident
        self.root = HostRoot(settings.host_root) if resident else HERE
        self._on_group = on_group
        self._on_disconnect = on_disconnect
        self._on_untold = on_untold
        self._environ = environ
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
        return Journal(state, run, lambda text: say("warning", text), self.boot_id)

    @cached_property
    def spool(self) -> Spool:
        """The DELs that were called while no agent answered."""
        from userspace_cni.attachment.spool import Spool

        state = self.root.path(self.settings.state_dir)
        return Spool(f"{state}/spool", f"{state}/quarantine")

    @cached_property
    def ports(self) -> PortDriver:
        """The only user of OVSDB in this process."""
        from userspace_cni.dataplane.ovsdb.client import Client
        from userspace_cni.dataplane.ports import PortDriver
        from userspace_cni.node.switch_sockets import free_name

        kind, _, place = self.settings.ovsdb.partition(":")
        ovsdb = f"unix:{self.root.path(place)}" if kind == "unix" else self.settings.ovsdb
        client = Client(ovsdb, resident=self.resident, on_group=self._on_group, on_disconnect=self._on_disconnect)
        rundir = self.root.path(self.settings.ovs_rundir)
        return PortDriver(
            client,
            rundir,
            self.journal.identity,
            lambda name, deadline: free_name(name, self, deadline),
            afxdp_max=self.settings.afxdp_max,
        )

    @cached_property
    def clients(self) -> Clients:
        """The clients of API servers, one per set of credentials."""
        from userspace_cni.kube.client import Clients
        from userspace_cni.kube.kubeconfig import Bounds

        return Clients(Bounds.of(self.settings), self.root, self.settings.kubeconfig)

    @cached_property
    def leases(self) -> LeaseDriver:
        """The caller of delegated plugins."""
        from userspace_cni.host.leases import LeaseDriver

        return LeaseDriver(self.root)

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
        return link.boot_id()

    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return self._boot_id

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME now."""
        return link.boottime_ns()

    def sandbox(self, environment: Environment) -> int:
        """Inode of the network namespace CNI_NETNS. Raises HostNamespace when it is our own."""
        facts = link.namespace(environment.netns, self.root)
        if link.is_own(environment.netns, self.root) and not environment.netns_override:
            raise HostNamespace(
                f"CNI_NETNS {environment.netns!r} is the namespace that the runtime itself runs in",
                "a container with the host's network cannot be attached; CNI_NETNS_OVERRIDE=1 overrides",
            )
        return facts.inode

    def has_link(self, environment: Environment) -> bool:
        """Whether a kernel interface of this name is in the container."""
        return link.link_exists(environment.netns, environment.ifname, self.root)

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The kinds of consumers, by their names in a network's key `consumer`."""
        from userspace_cni.consumers import CONSUMERS

        return CONSUMERS

    def gather(self, request: Request, options: Options, consumer: Consumer, netns_inode: int, deadline: Deadline) -> Facts:
        """Gather what is known of node and pod, after the rules allowed the port. Asks the API server if there is one."""
        from userspace_cni.attachment.facts import Pod, SocketFacts
        from userspace_cni.host.device_info import find_allocation

        environment, settings = request.environment, self.settings
        require_port(settings.rules, environment.pod_namespace, options.bridge, options.vlan)
        info, allocation = find_allocation(options.asked.device_info_file, settings.device_info_dir, self.root)
        name = port_name(environment.container_id, environment.ifname)
        foreign_bridge = self.ports.reach(name, options.bridge, deadline)
        kubeconfig = self._kubeconfig(options)
        known = self._ask_for_pod(environment, consumer, kubeconfig, deadline)
        uid = environment.pod_uid or (known.uid if known else "")
        # the rules are those of the runtime's namespace: a network may choose its API server, whose answer is not trusted
        pod = replace(known or Pod(), namespace=environment.pod_namespace, name=environment.pod_name, uid=uid)
        place = self._device_place(request, options, consumer, pod, deadline)
        mapped_dir = DEFAULT_MAPPED_DIR if place else consumer.mapped_dir(pod, settings)
        place = place or consumer.find_place(pod, environment.container_id, options.shared_dir, settings, self.root)
        if place.unseen and not allocation:
            self._require_seen(place, pod, known=known is not None)
        if pod.lacks_hugepages and consumer.needs_hugepages:
            give(HUGEPAGES_MISSING, _HUGEPAGES)
        return SocketFacts(
            boot_id=self.boot_id(),
            store=self.journal.identity(),
            netns_inode=netns_inode,
            pod=pod,
            place=place,
            mapped_dir=mapped_dir,
            short_dir=settings.short_dir,
            mount_always=settings.mount_pod_dirs == "always",
            ovs_sockdir=self._ovs_sockdir(options, allocation, deadline),
            noted=known is not None,
            kubeconfig=kubeconfig,
            allocation=allocation,
            device_info_file=info,
            device_info_dir=settings.device_info_dir,
            foreign_bridge=foreign_bridge,
        )

    def _device_place(self, request: Request, options: Options, consumer: Consumer, pod: Pod, deadline: Deadline) -> Place | None:
        """The directory of the device that the kubelet gave to this pod for this interface; None where it gave none."""
        if not self.settings.devices_per_bridge or not consumer.takes_device(pod, self.settings, self.root):
            return None
        from userspace_cni.attachment.facts import Place
        from userspace_cni.node.devices import device_of

        device = device_of(request.environment, options, self, deadline)
        if not device:
            return None
        directory = self.devices.present(device)
        return Place(
            directory.path,
            directory.trusted,
            create=False,
            own=False,
            mount_name=directory.identity,
            subdirectory=f"{device}/",
            closed=True,
        )

    @cached_property
    def devices(self) -> DeviceDirectories:
        """The directories that are offered to pods as devices."""
        from userspace_cni.host.devices import DeviceDirectories

        return DeviceDirectories(self.settings.run_dir, self.root)

    def _require_seen(self, place: Place, pod: Pod, *, known: bool) -> None:
        """Raise VolumeMissing for a pod whose socket no container of it would see; warn where its spec is not known."""
        volume = self.settings.shared_volume
        text = f"the pod has no place for its socket: {place.unseen}, and its network has no 'sharedDir'"
        if known and self.settings.require_volume:
            remedy = f"give it an emptyDir volume '{volume}' and mount that, as at {DEFAULT_MAPPED_DIR}"
            if self.settings.devices_per_bridge:
                remedy += ", or a device of the bridge that its network names"
            named = f"pod {pod.namespace}/{pod.name}: " if pod.name else ""
            raise VolumeMissing(named + text, f"{remedy}; the node's setting require_volume decides whether it is refused")
        give(VOLUME_MISSING, f"{text}; using the default directory, {place.path} on the node")

    def _has_account(self) -> bool:
        """Whether there are credentials of our own: the setting's, or those of the pod in which this process runs."""
        from userspace_cni.kube.client import in_cluster

        return bool(self.settings.kubeconfig) or in_cluster(self._environ)

    def _kubeconfig(self, options: Options) -> str:
        """The network's credentials to use, "" for our own. A service account counts as our own only for the agent."""
        use = self.settings.netconf_kubeconfig
        own = bool(self.settings.kubeconfig) or (self.resident and self._has_account())
        return "" if use == "never" or (use == "fallback" and own) else options.kubeconfig

    def _ask_for_pod(self, environment: Environment, consumer: Consumer, kubeconfig: str, deadline: Deadline) -> Pod | None:
        if not (environment.pod_namespace and environment.pod_name) or not (kubeconfig or self._has_account()):
            return None
        if self._watch and not kubeconfig:
            known = self._watch.view(environment.pod_namespace, environment.pod_name, environment.pod_uid)
            if known:
                return known
        try:
            view = self.clients.of(kubeconfig).get_pod(environment.pod_namespace, environment.pod_name, deadline)
        except UserspaceError as error:
            if consumer.reads_note or not environment.pod_uid:
                raise
            say("warning", "the pod could not be read from the API server; attaching without a note in it", problem=error)
            return None
        if view is None or (environment.pod_uid and view.uid != environment.pod_uid):
            raise ContainerGone(
                f"pod {environment.pod_namespace}/{environment.pod_name} with UID {environment.pod_uid or '(any)'} is gone",
                "the API server does not know it any more; nothing was done",
            )
        return view

    def _ovs_sockdir(self, options: Options, allocation: Allocation | None, deadline: Deadline) -> str:
        """Where OVS will make the attachment's socket, if it makes one."""
        serves = allocation.mode == "client" if allocation else options.ovs_role == "server"
        return self.sockdir(deadline) if serves else self.settings.ovs_sockdir

    def sockdir(self, deadline: Deadline) -> str:
        """Where OVS makes server-mode sockets, as the host calls it: our setting, else OVS's own."""
        settings = self.settings
        if settings.ovs_sockdir:
            return settings.ovs_sockdir
        configured = self.ports.vhost_sock_dir(deadline)
        if configured:
            return f"{settings.ovs_rundir}/{configured}"
        return settings.ovs_rundir if self.root.is_directory(settings.ovs_rundir) else _UPSTREAM_SOCKDIR

    def require_delegate(self, request: Request) -> None:
        """Raise unless the network's IPAM plugin can be run."""
        from userspace_cni.host.ipam import find
        from userspace_cni.host.leases import require_path

        find(request.network.ipam, require_path(request.network.ipam, request.environment.variables), self.root)

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        """Call ADD of the IPAM plugin; returns its decoded answer."""
        return self.leases.lease(step, deadline, lock)

    def forward(self, verb: Verb, request: Request, deadline: Deadline) -> None:
        """Call CHECK, GC or STATUS of the IPAM plugin, if there is one that knows the verb."""
        if not request.network.ipam:
            return
        from userspace_cni.host.leases import delegate

        plugin = delegate(Lease(request.network.ipam, request.stdin.decode(), request.environment.variables), self.root)
        if not plugin.knows(verb, deadline):
            return
        calls = {"CHECK": plugin.check, "GC": plugin.gc, "STATUS": plugin.status}
        try:
            calls[verb](request.stdin, deadline)
        except UserspaceError as error:
            if verb != "STATUS":
                raise
            code = error.code if isinstance(error, DelegateFailed) and error.code in (50, 51) else 50
            raise NotServing(error.message, error.details, code=code) from error

    def legacy(self, container_id: str, ifname: str) -> LegacyRecord | None:
        """The former plugin's record of this attachment."""
        from userspace_cni.host.legacy import find_record

        return find_record(self.settings.legacy_state_dir, container_id, ifname, self.root)

    def marked_ports(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """All ports with our owner mark for this network, None for any."""
        return self.ports.marked(deadline, network=network)

    def serving(self, options: Options, deadline: Deadline) -> None:
        """Raise NotServing unless an ADD could be served now."""
        self.ready(deadline, options.bridge)

    def ready(self, deadline: Deadline, bridge: str = "") -> None:
        """Raise NotServing unless the switch and the directories could take a port of `bridge` now."""
        self.ports.serving(bridge, deadline)
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

    def warm_up(self, deadline: Deadline) -> None:
        """Import what verbs will use, watch the pods of this node, and try to open the session with OVSDB."""
        from socket import gethostname

        from userspace_cni.attachment import plan  # noqa: F401
        from userspace_cni.kube.events import Events
        from userspace_cni.kube.watch import PodWatch

        if self._has_account():
            session, name = self.clients.of("").session, self.settings.node_name or gethostname().lower()
            self._events = Events(session, name, self._on_untold)
            self._events.start()
            if self.settings.netconf_kubeconfig != "always":
                self._watch = PodWatch(session, name)
                self._watch.start()
        for kind, make in MAKERS.items():
            self._made[kind] = make(self)
        try:
            self.ports.connect(deadline.half())
        except UserspaceError as error:
            say("warning", "there is no session with OVSDB yet", error=error)
        if self._watch and not self._watch.wait_synced(deadline):
            say("warning", "the pods of this node are not known yet", problem=self._watch.problem)

    def tell(self, recipient: Recipient, notices: Sequence[Notice]) -> None:
        """Have the pod told by Events of the API; without a UID it is the pod of that name which the watch knows."""
        if not self._events or not notices:
            return
        if not recipient.uid and self._watch:
            from userspace_cni.kube.client import view_of

            known = self._watch.get(recipient.namespace, recipient.name)
            recipient = replace(recipient, uid=view_of(known).uid if known else "")
        self._events.tell(recipient, notices)

    def connect(self, deadline: Deadline) -> int:
        """Open the session with OVSDB unless one is open; how many were opened so far. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.sessions

    def watch_switch(self) -> str:
        """Ask ovs-vswitchd whether it lives, and remember the answer for STATUS; names its process, "" unless it is alive."""
        seen = self.ports.watch_liveness()
        return f"pid {seen.pid}, since {seen.born}" if seen.pid and seen.state == "alive" else ""

    def watch_life(self, ended: Callable[[], None]) -> Lifeline:
        """A connection to ovs-vswitchd to be held: `ended` is called when the daemon ends, on a thread of its own."""
        from userspace_cni.dataplane.vswitchd import Lifeline

        return Lifeline(self.root.path(self.settings.ovs_rundir), ended)

    def free_sources(self) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        from userspace_cni.node.switch_sockets import free_source

        deadline, count = Deadline.after(_SOURCES_S), 0
        try:
            for record in self.journal.records():
                if record.socket and record.socket.switch_path:
                    count += free_source(record.socket.switch_path, self, deadline)
        except UserspaceError as error:
            say("warning", "sockets of the dead ovs-vswitchd may keep the next one from binding", error=error)
        return count

    def owned_ports(self, deadline: Deadline) -> Mapping[str, Mapping[str, str]]:
        """Name and marks of every port that is marked as ours. Raises Unavailable."""
        self.ports.connect(deadline)
        return self.ports.owned()

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

    @cached_property
    def dead_probes(self) -> DeadRuns:
        """What killed probes left."""
        from userspace_cni.node.probes import DeadRuns

        return DeadRuns(self.ports, self.settings, self.journal.identity)

    def netns_is_gone(self, path: str) -> bool:
        """Whether nothing is at `path` while another namespace is visible in the same directory."""
        return link.is_gone(path, self.root)

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
        if "ports" in vars(self):
            self.ports.close()
