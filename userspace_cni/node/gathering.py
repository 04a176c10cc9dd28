"""Gathers what has to be known of node and pod to plan an attachment, and refuses what the node does not allow.

It changes nothing on the node: what it raises leaves nothing to be undone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from userspace_cni.attachment.facts import (
    Allocation,
    ChangeableOptions,
    Facts,
    JoinableDevice,
    LinkFacts,
    NodePort,
    Pod,
    SocketFacts,
    SocketPlace,
)
from userspace_cni.attachment.planned import mac_of
from userspace_cni.attachment.steps import OvsPort, PortTerms, host_end, port_name
from userspace_cni.base.errors import ContainerGone, InvalidConfig, Unavailable, UnsupportedField, UserspaceError, VolumeMissing
from userspace_cni.base.limits import UNLIMITED
from userspace_cni.base.log import say
from userspace_cni.base.logical_ports import is_further_name
from userspace_cni.base.notices import HUGEPAGES_MISSING, VOLUME_MISSING, give
from userspace_cni.base.tenancy import require_mirrors, require_opened, require_port
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.addressing import choose_vlan, read_addresses_noted
from userspace_cni.cni.annotations import DEFAULT_INTERFACE, PodInterface
from userspace_cni.cni.bandwidth import Bandwidth, limits_of, require_possible, require_possible_by_ovn, resolve
from userspace_cni.cni.interface_keys import choose_kernel_port, require_openable
from userspace_cni.cni.mirror_keys import mirrors_of
from userspace_cni.cni.result import EMPTY
from userspace_cni.node.pod_annotations import find_awaited_addresses, has_enough, interface_of, read_addresses, require_addresses
from userspace_cni.node.pod_logical_port import KUBEOVN, logical_port, require_allowed
from userspace_cni.pod.document import DEFAULT_MAPPED_DIR

if TYPE_CHECKING:
    from collections.abc import Callable

    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.consumer import Consumer
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.limits import Limits
    from userspace_cni.base.port_kinds import PortKind
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.call import Awaited
    from userspace_cni.cni.interface_keys import LinkOptions
    from userspace_cni.cni.options import Options
    from userspace_cni.cni.request import Request
    from userspace_cni.kube.pod_requests import KubeClient
    from userspace_cni.kube.watch import PodWatch
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.local_switch import LocalSwitch

_HUGEPAGES: Final = (
    "no container of the pod asks for hugepages: DPDK ends with 'no free hugepages' unless it is run with --no-huge, and without "
    "shared memory an application cannot connect; ask for hugepages-2Mi in resources.limits"
)


FactsOf = TypeVar("FactsOf", bound=Facts)


@dataclass(frozen=True)
class FactSources:
    """What is asked. `watch`: the watched pods of this node, None without them."""

    installation: Installation
    store: AttachmentStore
    switch: LocalSwitch
    watch: PodWatch | None


@dataclass(frozen=True)
class LocalGathering:
    """What one ADD asks of the node."""

    node: FactSources
    request: Request
    options: Options
    consumer: Consumer
    deadline: Deadline

    def find_awaited(self) -> Awaited | None:
        """The annotations that the pod lacks yet, where the network says that its addresses are there.

        Raises as `attachment.node.Gathering`.
        """
        if not self.options.addresses_noted:
            return None
        self._reach_allowed()  # what is refused waits for nothing
        kubeconfig, interface = self._kubeconfig(), self._interface

        def sources() -> tuple[PodWatch | None, KubeClient]:
            return None if kubeconfig else self.node.watch, self.node.installation.clients.of(kubeconfig)

        return find_awaited_addresses(sources, self._ask_for_pod(kubeconfig), interface, self.deadline)

    @property
    def chooses(self) -> bool:
        """Whether the interface takes the first free device of its pod, one of those that a `deviceID` means, or perhaps the name
        of its pod's first logical port."""
        settings, options = self.node.installation.settings, self.options
        takes_free = (bool(settings.devices_per_bridge) and options.link is None) or bool(options.asked.device_id)
        return takes_free or (options.ovn is not None and settings.ovn_naming != KUBEOVN)

    def facts(self, netns_inode: int) -> Facts:
        """The facts; `netns_inode` is that of the pod's network namespace. Raises as `attachment.node.Gathering`."""
        environment, node, link = self.request.environment, self.node, self.options.link
        allocation, more = (None, {}) if link else self._allocation()
        self._require_no_other(allocation)
        foreign_bridge = self._reach_allowed()
        kubeconfig = self._kubeconfig()
        if self.options.addresses_noted:
            known = self._ask_for_pod(kubeconfig, partial(has_enough, interface=self._interface))
            require_addresses(known, self._interface)
        else:
            known = self._ask_for_pod(kubeconfig)
        uid = environment.pod_uid or (known.uid if known else "")
        # the rules are those of the runtime's namespace: a network may choose its API server, whose answer is not trusted
        pod = replace(known or Pod(), namespace=environment.pod_namespace, name=environment.pod_name, uid=uid)
        interface = self._interface.judged(pod.annotations)
        common: dict[str, Any] = {
            "boot_id": node.store.boot_id(),
            "store": node.store.journal.identity(),
            "netns_inode": netns_inode,
            "pod": pod,
            "foreign_bridge": foreign_bridge,
            "bridge": self._options.bridge,
            "logical": logical_port(self.options, environment, interface, node.installation, self.consumer.logical_owner(pod)),
            "node_ports": self._node_ports(),
        }
        if link:
            seen = self._link(link)
            return self._beside_others(LinkFacts(**common, **seen, **self._noted(pod, interface, seen["opened_as"], seen["mtu"])))
        common |= self._noted(pod, interface, "vhostuser", self._options.mtu)
        more = {**more, **self._socket(pod, allocation, known=known is not None), "joined": self._joined}
        return self._beside_others(SocketFacts(**common, **more, kubeconfig=kubeconfig))

    def _beside_others(self, facts: FactsOf) -> FactsOf:
        """The facts, with the ports of pods that have the interface's MAC already."""
        from userspace_cni.switch.node_ports import find_ports_with_mac

        if not facts.pod.namespace:
            return facts
        mac = mac_of(self.request, self.options, self.consumer, facts)
        return replace(
            facts, same_mac=find_ports_with_mac(self.node.switch.ports.client, self._options.bridge, mac, self.deadline)
        )

    # -- a device of the pod's claims -------------------------------------------------------------------------------------

    @cached_property
    def _joined(self) -> JoinableDevice | None:
        """The device of the pod's claims that the network's `deviceID` means; None where it means none.

        Raises as `find_joinable`, and UnsupportedField for a kind of interface that no claim has.
        """
        if not self.options.asked.device_id:
            return None
        from userspace_cni.attachment.joined_plan import require_joinable
        from userspace_cni.node.joined_ports import find_joinable

        store, plugin = self.node.store, bool(self.node.installation.settings.devices_per_bridge)
        found = find_joinable(self.request.environment, self.options, store.journal, store.boot_id(), plugin_has_devices=plugin)
        if found:
            require_joinable(self.options, found)
        return found

    @cached_property
    def _options(self) -> Options:
        """The options, with what the device has that the interface joins."""
        if self._joined is None:
            return self.options
        from userspace_cni.attachment.joined_plan import as_claimed

        return as_claimed(self.options, self._joined)

    def _require_no_other(self, allocation: Allocation | None) -> None:
        """Raise InvalidConfig for a device plugin's socket beside a claim's, and for a `deviceID` that only a claim's device can
        have, where no claim of the pod has it."""
        settings, joined = self.node.installation.settings, self._joined
        if joined and allocation:
            raise InvalidConfig(
                f"a device plugin allocated socket {allocation.path}, and the interface joins the port of claim {joined.claim}",
                "two drivers have devices of one resource's name: one of them has to go",
            )
        if joined or allocation or not self.options.asked.device_id or settings.devices_per_bridge:
            return
        from userspace_cni.node.joined_ports import require_elsewhere

        require_elsewhere(self.request.environment, self.options, claims_are_served=settings.dra)

    def _reach_allowed(self) -> bool:
        """Open the session with OVSDB, after the rules allowed the port; whether the bridge is there and not of pods.

        Raises BadRequest for what the rules refuse, BridgeRefused for a bridge of a provider network that no rule opens,
        LinkNameTaken for a name that a link of the node has, and Unavailable for a provider network's bridge that is not there
        yet: made for the pod it would be in the way of the uplink.
        """
        node, bridge, environment = self.node, self._options.bridge, self.request.environment
        settings, namespace = node.installation.settings, environment.pod_namespace
        rules = settings.rules
        require_allowed(self._options, environment, settings)
        require_mirrors(rules, namespace, (each.name for each in self.options.mirrors), self.options.mirror_outputs)
        port = (host_end if self.options.link else port_name)(environment.container_id, environment.ifname)
        maker = node.switch.ports.reach(port, bridge, self.deadline)
        if bridge == settings.ovn_bridge:
            if not maker:
                from userspace_cni.switch.ovsdb.rows.bridge_row import missing_bridge_of_ovn

                raise Unavailable(*missing_bridge_of_ovn(bridge))
        elif maker == "node" or (not maker and node.switch.provider_bridges.has(bridge, self.deadline)):
            require_opened(rules, namespace, bridge)
            if not maker:
                raise Unavailable(
                    f"bridge {bridge} of a provider network is not there yet",
                    "the node's agent makes it with its uplink; 'userspace-cni network' says what is missing",
                )
        # the link of a host end is ours: the step that makes it judges its name
        makes_name = not self.options.link and not self._joined
        node.switch.ports.require_free([bridge, *([port] if makes_name else [])], self.deadline)
        return maker in ("node", "another") or bridge == settings.ovn_bridge

    @cached_property
    def _interface(self) -> PodInterface:
        """The interface as annotations know it. Of a pod's logical ports the first has the pod's name: `eth0`, else one beside
        which no other of this container has it, unless the pod's annotations speak of it as a further one; with kube-ovn's names
        it is `eth0` alone."""
        settings, environment, ovn = self.node.installation.settings, self.request.environment, self.options.ovn
        if ovn is None:
            return interface_of(self.request, settings)
        if environment.ifname == DEFAULT_INTERFACE:
            return interface_of(self.request, settings, "first")
        if settings.ovn_naming == KUBEOVN or is_further_name(ovn.port, environment.ifname):
            return interface_of(self.request, settings, "further")
        from userspace_cni.switch.ovn_installation import find_first_interface

        first = find_first_interface(self.node.switch.ports.client, environment.container_id, self.deadline)
        return interface_of(self.request, settings, "further" if first not in ("", environment.ifname) else "open")

    def _node_ports(self) -> tuple[NodePort, ...]:
        """The links of the node itself on the bridge; with their addresses, where the pod gets some.

        Open vSwitch changes no link that was moved to another network namespace, and still shows the state that it had.
        """
        from userspace_cni.switch.node_ports import list_node_ports

        found = list_node_ports(self.node.switch.ports.client, self._options.bridge, self.deadline)
        gets_addresses = bool(self.request.network.ipam or self.options.addresses_noted)
        asked = [each.name for each in found if gets_addresses or each.mtu]
        if not asked:
            return found
        from userspace_cni.host.node_net.switch_links import addresses_of

        held = addresses_of(asked, self.node.installation.settings.switch_netns, self.node.installation.root)
        return tuple(replace(each, addresses=held.get(each.name, ()), mtu=each.mtu if each.name in held else 0) for each in found)

    # -- what the pod's annotations say -----------------------------------------------------------------------------------

    def _noted(self, pod: Pod, interface: PodInterface, kind: PortKind, mtu: int | None) -> dict[str, Any]:
        """VLAN, MAC, limits and mirrors: what network, runtime and pod say, within the rules and what the port's kind can do."""
        options, environment, settings = self._options, self.request.environment, self.node.installation.settings
        noted = read_addresses(pod, interface, kind)
        vlan = Vlan()  # that of a logical port is its switch's
        if options.ovn is None:
            vlan = choose_vlan(options.vlan, noted)
            require_port(settings.rules, environment.pod_namespace, options.bridge, vlan)
        asked = limits_of(pod.annotations, interface)
        limits = resolve(options.bandwidth, asked)
        by_ovn = options.ovn is not None and options.ovn.limits is not None
        _require_limits(limits, kind, mtu, by_ovn=by_ovn)
        mirrors = mirrors_of(pod.annotations, interface, options.mirrors, options.mirror_outputs)
        require_mirrors(settings.rules, environment.pod_namespace, (each.name for each in mirrors), options.mirror_outputs)
        return {
            "vlan": vlan,
            # the one who gives the addresses knows the MAC, too; else an annotation comes after what the runtime was asked
            "mac": noted.mac if options.addresses_noted or not options.asked.mac else "",
            "addresses": read_addresses_noted(pod.annotations, interface) if options.addresses_noted else EMPTY,
            "limits": UNLIMITED if by_ovn else limits,
            "mirrors": mirrors,
            "terms": PortTerms(options.bandwidth.runtime, asked, options.bandwidth.network, options.mirrors, by_ovn),
        }

    # -- a vhost-user interface -------------------------------------------------------------------------------------------

    def _allocation(self) -> tuple[Allocation | None, dict[str, Any]]:
        from userspace_cni.host.files.device_info import find_allocation

        trusted = self.node.installation.settings.device_info_dir
        info, allocation = find_allocation(self.options.asked.device_info_file, trusted, self.node.installation.root)
        return allocation, {"allocation": allocation, "device_info_file": info, "device_info_dir": trusted}

    def _socket(self, pod: Pod, allocation: Allocation | None, *, known: bool) -> dict[str, Any]:
        settings, consumer, joined = self.node.installation.settings, self.consumer, self._joined
        place = joined.place if joined else self._device_place(pod)
        if joined:
            _require_one_directory(consumer.mapped_dir(pod, settings), joined)
        mapped_dir = DEFAULT_MAPPED_DIR if place else consumer.mapped_dir(pod, settings)
        container_id, shared_dir = self.request.environment.container_id, self.options.shared_dir
        place = place or consumer.find_place(pod, container_id, shared_dir, settings, self.node.installation.root)
        if place.unseen and not allocation:
            self._require_seen(place, pod, known=known)
        if pod.lacks_hugepages and consumer.needs_hugepages:
            give(HUGEPAGES_MISSING, _HUGEPAGES)
        return {
            "place": place,
            "mapped_dir": mapped_dir,
            "short_dir": joined.short_dir if joined else settings.short_dir,
            "mount_always": settings.mount_pod_dirs == "always",
            "ovs_sockdir": self._ovs_sockdir(allocation),
            "noted": known,
        }

    def _device_place(self, pod: Pod) -> SocketPlace | None:
        """The directory of the device that the kubelet gave to this pod for this interface; None where it gave none."""
        node = self.node
        if not node.installation.settings.devices_per_bridge or not self.consumer.takes_device(
            pod, node.installation.settings, node.installation.root
        ):
            return None
        from userspace_cni.node.devices import device_of

        device = device_of(self.request.environment, self.options, node.installation, node.store.journal, self.deadline)
        if not device:
            return None
        directory = node.installation.devices.present(device)
        return SocketPlace(
            directory.path,
            directory.trusted,
            create=False,
            own=False,
            mount_name=directory.identity,
            subdirectory=f"{device}/",
            closed=True,
        )

    def _require_seen(self, place: SocketPlace, pod: Pod, *, known: bool) -> None:
        """Raise VolumeMissing for a pod whose socket no container of it would see; warn where its spec is not known.

        A call that names no pod has no volumes: the default directory is where its socket belongs.
        """
        settings = self.node.installation.settings
        if not (pod.name or pod.uid):
            default = f"this call names no pod, and its network has no 'sharedDir': the socket is in {place.path} on the node"
            say("info", default)
            return
        volume = settings.shared_volume
        text = f"the pod has no place for its socket: {place.unseen}, and its network has no 'sharedDir'"
        if known and settings.require_volume:
            remedy = f"give it an emptyDir volume '{volume}' and mount that, as at {DEFAULT_MAPPED_DIR}"
            if settings.devices_per_bridge:
                remedy += ", or a device of the bridge that its network names"
            named = f"pod {pod.namespace}/{pod.name}: " if pod.name else ""
            raise VolumeMissing(named + text, f"{remedy}; the node's setting require_volume decides whether it is refused")
        give(VOLUME_MISSING, f"{text}; using the default directory, {place.path} on the node")

    def _ovs_sockdir(self, allocation: Allocation | None) -> str:
        """Where OVS will make the attachment's socket, if it makes one."""
        serves = allocation.mode == "client" if allocation else self.options.ovs_role == "server"
        return self.node.switch.sockets.directory(self.deadline) if serves else self.node.installation.settings.ovs_sockdir

    # -- a kernel link ----------------------------------------------------------------------------------------------------

    def _link(self, link: LinkOptions) -> dict[str, Any]:
        from userspace_cni.host.node_net.mtu import NodeMtu, node_mtu, node_services
        from userspace_cni.host.pod_net.pod_links import own_addresses

        settings = self.node.installation.settings
        said = NodeMtu(self.options.mtu) if self.options.mtu else node_mtu(settings, self.node.installation.root)
        kind = choose_kernel_port(link, settings.kernel_port)
        require_openable(kind, said.link)
        if kind != "system" or link.datapath != "netdev":
            lack = self.node.switch.ports.read_abilities(self.deadline).why_unable(kind, link.datapath)
            if lack:
                key = f"key 'host.engine' with 'host.port' {kind!r}" if link.datapath == "system" else f"a port of type {kind!r}"
                raise UnsupportedField(f"{key} cannot be served by this switch: {lack}", "'host.port' can be 'system'")
        return {
            "switch_netns": settings.switch_netns,
            "opened_as": kind,
            "mtu": said.link,
            "route_mtu": said.routable or 0,
            "node_addresses": own_addresses() if link.node_routes else (),
            "node_services": (node_services(settings, self.node.installation.root),) if link.node_services else (),
        }

    # -- the pod ----------------------------------------------------------------------------------------------------------

    def _kubeconfig(self) -> str:
        """The network's credentials to use, "" for our own. A service account counts as our own only for the agent."""
        node = self.node
        use = node.installation.settings.netconf_kubeconfig
        own = bool(node.installation.settings.kubeconfig) or (node.installation.resident and node.installation.has_account)
        return "" if use == "never" or (use == "fallback" and own) else self.options.kubeconfig

    def _ask_for_pod(self, kubeconfig: str, suffices: Callable[[Pod], bool] = lambda _: True) -> Pod | None:
        """The pod; the API server is asked for one that the watch does not know, or only so that it does not suffice."""
        environment, node = self.request.environment, self.node
        if not (environment.pod_namespace and environment.pod_name) or not (kubeconfig or node.installation.has_account):
            return None
        if node.watch and not kubeconfig:
            known = node.watch.view(environment.pod_namespace, environment.pod_name, environment.pod_uid)
            if known and suffices(known):
                return known
        try:
            client = node.installation.clients.of(kubeconfig)
            view = client.get_pod(environment.pod_namespace, environment.pod_name, self.deadline)
        except UserspaceError as error:
            needed = self.options.addresses_noted or (self.consumer.reads_note and not self.options.link)
            if needed or not environment.pod_uid:
                raise
            say("warning", "the pod could not be read from the API server; attaching without what it says", problem=error)
            return None
        if view is None or (environment.pod_uid and view.uid != environment.pod_uid):
            raise ContainerGone(
                f"pod {environment.pod_namespace}/{environment.pod_name} with UID {environment.pod_uid or '(any)'} is gone",
                "the API server does not know it any more; nothing was done",
            )
        return view


def _require_one_directory(mapped_dir: str, joined: JoinableDevice) -> None:
    """Raise InvalidConfig for a pod whose note would say another directory of its sockets than that of claims' devices."""
    if mapped_dir != DEFAULT_MAPPED_DIR:
        raise InvalidConfig(
            f"the pod's volume for sockets is mounted at {mapped_dir}, and the socket of claim {joined.claim} is in "
            f"{DEFAULT_MAPPED_DIR}{joined.place.subdirectory}",
            f"the pod's annotations name one directory for all of them: mount the volume at {DEFAULT_MAPPED_DIR}",
        )


def read_changeable_options(port: OvsPort, pod: Pod, record: Record, settings: Settings) -> ChangeableOptions:
    """What the pod says now of the interface of a living attachment.

    Raises BadRequest for what cannot be read of it, what the rules do not allow, and what the port's kind cannot do.
    """
    interface = PodInterface(record.network, record.pod_namespace, record.ifname, settings.kubeovn_annotations)
    terms, limits = port.terms, limits_of(pod.annotations, interface)
    now = resolve(Bandwidth(terms.runtime, terms.network), limits, before=terms.noted)
    _require_limits(now, port.interface.limited_as, port.interface.mtu, by_ovn=terms.by_ovn)
    mirrors = mirrors_of(pod.annotations, interface, terms.mirrors, port.mirror_outputs)
    joined = (each.name for each in mirrors if each not in port.mirrors)  # later rules do not hold for what there is
    require_mirrors(settings.rules, record.pod_namespace, joined, ())
    return ChangeableOptions(limits, mirrors)


def _require_limits(limits: Limits, kind: PortKind | None, mtu: int | None, *, by_ovn: bool) -> None:
    """Raise BadRequest for limits that the port cannot have, or that OVN cannot set where they are its."""
    if by_ovn:
        require_possible_by_ovn(limits, mtu)
    else:
        require_possible(limits, kind, mtu)
