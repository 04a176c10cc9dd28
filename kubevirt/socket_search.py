"""Finds the sockets of a VM's vhost-user interfaces and their facts: asks sources in order, waits for them, logs the choice.

For each network of the binding, the first source that knows a path is taken:

1. DRA metadata, for a network with a resourceClaim (`dra`): the driver made the port and the directory. Without it, what the
   claim itself brings into the sidecar's container (`claim_directory`).
2. network-info (`network_info`): device-info of type vhost-user, that is, a device plugin and a CNI made them.
3. the annotation's explicit `path` (`annotation`): for a CNI that publishes no device-info.
4. the deterministic path (`userspace_cni.pod.launcher`), where our own plugin makes it: a function of the network's name.

The last always exists for a network of Multus or of the pod, and whether our plugin made it cannot be seen from here: its
directory is in the compute container, not in the sidecar's. So the explicit path comes before it, or would never be taken. The
annotation's other specs (queues, ring sizes, MTU) hold wherever the path is from. A network with a resourceClaim has no
deterministic path: no CNI runs for it.

Waiting. network-info comes with the kubelet's next look at the pod after virt-controller has written the annotation, often
before the sidecar runs and else a second or two later. No file: the binding is registered without `downwardAPI: device-info`,
nothing will come. A filled file is complete, and what it lacks will not come (`network_info` says why). An empty one may fill
up, or stay empty for good (KubeVirt before 1.8 with a CNI that has no device-info, as ours): it is waited for as long as
`SidecarPlaces.patience` says, once in the sidecar's life, because every start of such a VM pays it. A claim's files are
mounted before the container runs; they get the same patience, unless the claim itself tells the socket. Each call looks at
least once, so that what comes later counts from then on.

It never decides between two who tell different things: the VM's MAC and the CNI's, the MTU asked for and the port's, the role
asked for and the port's. A VM made so would start and not be reached; its definition is refused instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kubevirt.agreement import settle_mac, settle_mode, settle_mtu
from kubevirt.annotation import ANNOTATION, InterfaceAnnotation, read_annotation
from kubevirt.claim_directory import find_in_directory
from kubevirt.dra import Device
from kubevirt.mounted_files import read_claim, read_file
from kubevirt.network_info import NetworkInfoEntry, read_network_info
from kubevirt.patience import Patience
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.taken_sockets import CLUSTER_ROOTS, OWNER_ROOTS, TakenSockets, check_owners, check_path
from kubevirt.vm_socket_source import Origin, Role, VmSocketSource
from kubevirt.vmi import NetworkClaim, VirtualMachine, VmInterface, VmNetwork, find_bound_interfaces
from userspace_cni.pod import launcher

POLL_S: Final = 0.1
PRIMARY: Final = "eth0"
"""The pod's interface for its own network, and for a Multus network that replaces it."""

_EMPTY: Final = "empty"
"""What is missing when network-info is empty; all else is missing by the name of its error."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class SidecarPlaces:
    """Where to look in the sidecar's container, and where sockets may be in the compute container.

    `patience`: with what may never come, that of the whole process. `roots`: for paths from the annotation. `environment`: the
    container's.
    """

    podinfo: str = "/etc/podinfo/network-info"
    claims: str = "/var/run/kubernetes.io/dra-device-attributes"
    patience: Patience = field(default_factory=Patience)
    roots: tuple[str, ...] = OWNER_ROOTS
    cluster_roots: tuple[str, ...] = CLUSTER_ROOTS
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Told:
    """What the files say. `info` is None while network-info is empty; `state` says what it is like, for the log.

    `failures`: what another look might find different, by network; "" is network-info, where None means that it is only empty.
    `missed_s`: seconds since an empty network-info was met first. `unread`: why a network's device is not from metadata.
    """

    info: Mapping[str, NetworkInfoEntry] | None = None
    state: str = ""
    devices: dict[str, Device] = field(default_factory=dict)
    failures: dict[str, KubevirtError | None] = field(default_factory=dict)
    missed_s: float = 0.0
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> set[str]:
        """The kinds of what may still come."""
        return {failure.name if failure else _EMPTY for failure in self.failures.values()}


@dataclass(frozen=True)
class _FoundSocket:
    """The socket of one network. `mode`: None where its origin does not tell QEMU's role; `passed`: why not those before it."""

    origin: Origin
    path: str
    mode: Role | None
    roots: tuple[str, ...]
    where: str
    passed: tuple[str, ...]


def resolve(
    machine: VirtualMachine, binding: str, places: SidecarPlaces, deadline_s: float, log: Log
) -> dict[str, VmSocketSource]:
    """The source of each network that `binding` brings to the VM, by network name. One line of log each says which and why.

    Waits for files at most `deadline_s` seconds. Raises Refused (no-source, dra-not-mounted, path-not-allowed, path-too-long,
    mac-mismatch, mtu-mismatch, server-mode, ring-size, socket-name-collision) and BadInput.
    """
    wanted = find_bound_interfaces(machine, binding)
    if not wanted:
        return {}
    specs = read_annotation(machine.annotations.get(ANNOTATION, ""), machine.networks.keys())
    networks = [_network_of(machine, interface) for interface in wanted]
    _warn_of_mixture(machine, log)
    told = _wait_for(machine, networks, places, deadline_s)
    sources: dict[str, VmSocketSource] = {}
    taken: TakenSockets[str] = TakenSockets()
    for interface, network in zip(wanted, networks, strict=True):
        spec = specs.get(network.name, InterfaceAnnotation())
        found = _find(network, told, spec, places)
        where = f"network {network.name!r}, {found.where}"
        check_path(found.path, found.roots, where)
        if found.origin == "annotation":
            check_owners(found.path, launcher.socket_path(_interface_name(network)), where)
        source, remarks = _with_facts(machine, interface, network, told, spec, found)
        log(_explained(network.name, source, found, remarks))
        if other := taken.take(source.path, network.name):
            raise _shared(other, network.name, sources[other].path, source.path)
        sources[network.name] = source
    return sources


def _network_of(machine: VirtualMachine, interface: VmInterface) -> VmNetwork:
    network = machine.networks.get(interface.network)
    if network is None:
        raise BadInput(f"interface {interface.network!r} has no network of its name", "add it to spec.template.spec.networks")
    return network


def _warn_of_mixture(machine: VirtualMachine, log: Log) -> None:
    multus = sorted(network.name for network in machine.networks.values() if network.multus)
    claims = sorted(network.name for network in machine.networks.values() if network.claim)
    if multus and claims:
        log(
            f"mixed-multus-and-dra: networks {', '.join(multus)} are of Multus and {', '.join(claims)} of resource claims; "
            "KubeVirt's API refuses a VM with both, so something changed this one behind it"
        )


def _wait_for(machine: VirtualMachine, networks: Sequence[VmNetwork], places: SidecarPlaces, deadline_s: float) -> _Told:
    """Look until there is nothing more to expect, or the patience or the time is at its end."""
    end = time.monotonic() + deadline_s
    while True:
        told = _look(machine, networks, places)
        left = min(places.patience.left(told.missing), end - time.monotonic())
        if left <= 0:
            told.missed_s = places.patience.spent(_EMPTY)
            return told
        time.sleep(min(POLL_S, left))


def _look(machine: VirtualMachine, networks: Sequence[VmNetwork], places: SidecarPlaces) -> _Told:
    told = _Told()
    if not all(network.claim for network in networks):
        _look_at_network_info(told, places)
    for network in networks:
        if network.claim:
            try:
                told.devices[network.name] = read_claim(places.claims, network.claim)
            except KubevirtError as error:
                _look_at_directory(told, machine, network.name, network.claim, places, error)
    return told


def _look_at_directory(
    told: _Told, machine: VirtualMachine, network: str, claim: NetworkClaim, places: SidecarPlaces, failure: KubevirtError
) -> None:
    """`failure`: why there is no metadata, which is told where the claim itself tells nothing either."""
    device = None
    try:
        if not isinstance(failure, BadInput):  # what is there and cannot be read is not passed over
            device = find_in_directory(places.environment, machine, claim)
    except BadInput as error:
        failure = error
    if device:
        told.devices[network], told.unread[network] = device, failure.message
    else:
        told.failures[network] = failure


def _look_at_network_info(told: _Told, places: SidecarPlaces) -> None:
    try:
        content = read_file(places.podinfo)
        told.info = {} if content is None else read_network_info(content)
    except BadInput as error:  # half of it may be written
        told.failures[""] = error
        return
    if told.info is None:
        told.failures[""] = None
    told.state = "no such file" if content is None else ("empty" if told.info is None else "no entry for the network")


def _find(network: VmNetwork, told: _Told, spec: InterfaceAnnotation, places: SidecarPlaces) -> _FoundSocket:
    """Take the first source that knows a path."""
    device, attached = told.devices.get(network.name), _attached(network, told)
    if device and network.claim and network.name in told.unread:
        where = f"the directory of claim {network.claim.name!r}"
        return _FoundSocket("claim", device.path, None, places.cluster_roots, where, (f"DRA: {told.unread[network.name]}",))
    if device and network.claim:
        where = f"DRA metadata of claim {network.claim.name!r}" + (f" ({device.driver})" if device.driver else "")
        return _FoundSocket("dra", device.path, None, places.cluster_roots, where, ())
    passed = [_why_no_device(network, told)]
    if attached.path:
        return _FoundSocket("device-info", attached.path, attached.mode, places.cluster_roots, "network-info", tuple(passed))
    passed.append(_why_no_device_info(network, attached, told))
    if spec.path:
        return _FoundSocket("annotation", spec.path, None, places.roots, f"annotation {ANNOTATION}", tuple(passed))
    passed.append(f"annotation {ANNOTATION}: no path")
    failure = told.failures.get(network.name)
    if failure:
        raise failure
    if not (network.multus or network.pod):
        raise DefinitionRefused(
            "no-source",
            f"network {network.name!r} is neither of Multus, nor the pod's, nor of a resource claim; {'; '.join(passed)}",
            f"give it one of these in the VM's networks, or a path in annotation {ANNOTATION}",
        )
    ifname = _interface_name(network)
    path = launcher.socket_path(ifname)
    return _FoundSocket(
        "path", path, "server", places.cluster_roots, f"the deterministic path of interface {ifname}", tuple(passed)
    )


def _attached(network: VmNetwork, told: _Told) -> NetworkInfoEntry:
    """The network's entry in network-info. Raises the error of reading that file."""
    failure = told.failures.get("")
    if failure:
        raise failure
    return (told.info or {}).get(network.name, NetworkInfoEntry())


def _why_no_device(network: VmNetwork, told: _Told) -> str:
    if not network.claim:
        return "DRA: the network has no resourceClaim"
    failure = told.failures.get(network.name)
    return f"DRA: {failure.message if failure else 'nothing told'}"


def _why_no_device_info(network: VmNetwork, attached: NetworkInfoEntry, told: _Told) -> str:
    if network.claim:
        return "network-info: not for resource claims"
    if told.info and network.name in told.info:
        return "network-info: " + (f"device-info of type {attached.device!r}" if attached.device else "no device-info")
    waited = f" after {told.missed_s:.1f} s" if told.info is None else ""
    return f"network-info: {told.state}{waited}"


def _interface_name(network: VmNetwork) -> str:
    return PRIMARY if network.pod else launcher.interface_name(network.name)


def _with_facts(
    machine: VirtualMachine,
    interface: VmInterface,
    network: VmNetwork,
    told: _Told,
    spec: InterfaceAnnotation,
    found: _FoundSocket,
) -> tuple[VmSocketSource, list[str]]:
    """The source with all facts, and remarks on them for the log."""
    device, attached = told.devices.get(network.name), _attached(network, told)
    mac_told = (device.mac if device else "") or attached.mac
    mac, mac_from = settle_mac(machine, interface, _interface_name(network), mac_told, of_claim=network.claim is not None)
    port_mtu = (device.mtu if device else None) or attached.mtu
    source = VmSocketSource(
        path=found.path,
        mac=mac,
        mode=settle_mode(network.name, spec.mode, found.mode, found.where),
        mtu=settle_mtu(network.name, spec.mtu, port_mtu),
        origin=found.origin,
        queues=spec.queues,
        rx_queue_size=spec.rx_queue_size,
        tx_queue_size=spec.tx_queue_size,
    )
    remarks = [f"MAC {mac} {mac_from}"]
    if source.mtu is None:
        remarks.append("the port's MTU is not known")
    else:
        remarks.append(f"MTU {source.mtu}" + ("" if port_mtu else ", the port's is not told"))
    if spec.path and found.origin != "annotation":
        remarks.append(f"the annotation's path {spec.path[:200]!r} is not used")
    return source, remarks


def _explained(name: str, source: VmSocketSource, found: _FoundSocket, remarks: Sequence[str]) -> str:
    why = f" ({'; '.join(found.passed)})" if found.passed else ""
    return f"network {name}: socket {source.path} from {found.where}{why}; QEMU is {source.mode}; {'; '.join(remarks)}"


def _shared(one: str, other: str, path: str, path_2: str) -> DefinitionRefused:
    both = path_2 if path == path_2 else f"{path} and {path_2}"
    return DefinitionRefused(
        "socket-name-collision",
        f"networks {one!r} and {other!r} have one socket, or one's path is the other's directory: {both}",
        "each needs its own: look at where the paths come from, in the lines above this one",
    )
