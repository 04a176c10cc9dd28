"""Says what an attachment with a vhost-user interface consists of, and derives every name in it. Pure.

    client mode (OVS connects)   Lease, Directory, SocketFile, PodMount, OvsPort, DeviceInfo, ConfigFile | PodNote
    server mode (OVS listens)    Lease, Directory, OvsPort, PlacedSocket, DeviceInfo, ConfigFile | PodNote

No ConfigFile is made for a consumer that reads no note.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.facts import Allocation, SocketFacts, SocketPlace
from userspace_cni.attachment.planned import Attachment, logical_of, mac_of, marks_of, require_text
from userspace_cni.attachment.steps import (
    ConfigFile,
    DeviceInfo,
    Directory,
    OvsPort,
    PlacedSocket,
    PodMount,
    PodNote,
    SocketFile,
    Step,
    VhostUserClient,
    VhostUserServer,
    port_name,
)
from userspace_cni.base.errors import BadEnvironment, InvalidConfig
from userspace_cni.cni.options import Access, Options, Role
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import LATEST, ResultAddresses, ResultInterface, build
from userspace_cni.pod.document import build_entry, render_file
from userspace_cni.pod.socket_path import SUN_PATH_MAX

_PATH_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def plan_socket(
    request: Request, options: Options, consumer: Consumer, facts: SocketFacts, addresses: ResultAddresses
) -> Attachment:
    """Plan everything that has to become true for this ADD, with every name in it. `consumer`: the one that `options` names.

    Raises BadEnvironment or InvalidConfig for names that cannot be part of a socket path, and for a device plugin's
    allocation that contradicts the configuration.
    """
    role = _ovs_role(options, consumer, facts)
    derived = consumer.socket_file(request.environment.ifname)
    socket_file = _checked_name(derived or _given_name(request, options, facts.allocation), request, consumer)
    place, access = facts.place, options.access
    pod_path = facts.allocation.path if facts.allocation and not derived else facts.mapped_dir + place.subdirectory + socket_file
    _fits(pod_path, "the path in the pod")
    require_text(request.environment.ifname)
    mount = _mount_target(facts, socket_file) if role == "client" else ""
    host_path = f"{mount or place.path}/{socket_file}"
    if role == "client":
        _fits(host_path, "the path that OVS is given")
    mac = mac_of(request, options, consumer, facts)
    interface = ResultInterface(
        name=request.environment.ifname,
        sandbox=request.environment.netns,
        mac=mac,
        mtu=options.mtu,
        socket_path=host_path,
    )
    port = OvsPort(
        bridge=facts.bridge or options.bridge,
        name=port_name(request.environment.container_id, request.environment.ifname),
        interface=VhostUserClient(host_path, options.mtu) if role == "client" else VhostUserServer(options.mtu),
        vlan=facts.vlan,
        mac=mac,
        marks=marks_of(request, facts, consumer.marks(facts.pod)),
        foreign_bridge=facts.foreign_bridge,
        limits=facts.limits,
        mirrors=facts.mirrors,
        mirror_outputs=options.mirror_outputs,
        terms=facts.terms,
        logical=logical_of(facts, addresses),
    )
    directory = Directory(
        path=place.path,
        trusted=place.trusted,
        create=place.create,
        own=place.own,
        user=access.user,
        group=access.group,
        mode=access.directory_mode,
        selinux_label=access.selinux_label,
        parents=place.parents,
    )
    steps: list[Step] = [directory]
    if role == "client":
        steps.append(SocketFile(place.path, place.trusted, socket_file))
        steps += [PodMount(place.path, place.trusted, mount)] if mount else []
        steps.append(port)
    else:
        _fits(f"{facts.ovs_sockdir}/{port.name}", "the path at which OVS listens")
        steps += [port, _placed_socket(port, place, socket_file, access, facts)]
    steps += _documents(request, options, consumer, facts, _ApplicationView(role, socket_file, pod_path, interface, addresses))
    return Attachment(tuple(steps), (interface,), role)


def _ovs_role(options: Options, consumer: Consumer, facts: SocketFacts) -> Role:
    """OVS's role: the opposite of the one that a device plugin gave the application, else the configuration's.

    In a closed place only a socket that the application makes is seen: there OVS is client, unless the network says otherwise.
    """
    allocation, closed = facts.allocation, facts.place.closed
    role = "client" if closed and not options.mode_given else options.ovs_role
    if allocation is not None:
        consumer.check_allocation(allocation)
        role = "server" if allocation.mode == "client" else "client"
        if options.role_given and role != options.ovs_role:
            raise InvalidConfig(
                f"the device plugin allocated mode {allocation.mode!r}, and 'host.vhost.mode' makes OVS the {options.ovs_role}",
                "they contradict each other; see the file runtimeConfig.CNIDeviceInfoFile",
            )
    if closed and role == "server":
        raise InvalidConfig(
            f"OVS is to be the server, and the pod's socket is in the directory of a device, {facts.place.path}",
            "a container does not see a socket that is mounted there later: 'host.vhost.mode' has to be 'client', or the pod "
            "needs the volume for sockets",
        )
    return role


def _given_name(request: Request, options: Options, allocation: Allocation | None) -> str:
    """The socket's name as the device plugin or the network gives it, else the port's."""
    allocated = allocation.path.rpartition("/")[2] if allocation else ""
    if allocated and options.socket_file and allocated != options.socket_file:
        raise InvalidConfig(
            f"the device plugin allocated the socket {allocated!r}, 'host.vhost.socketfile' is {options.socket_file!r}",
            "they contradict each other; see the file runtimeConfig.CNIDeviceInfoFile",
        )
    if allocated and not _PATH_SAFE.fullmatch(allocated):
        raise InvalidConfig(
            f"the device plugin allocated the socket {allocated!r}, which cannot be a socket's name here",
            f"DPDK's arguments and the pod's annotations take {_PATH_SAFE.pattern}; see the file runtimeConfig.CNIDeviceInfoFile",
        )
    return allocated or options.socket_file or port_name(request.environment.container_id, request.environment.ifname)


def _checked_name(name: str, request: Request, consumer: Consumer) -> str:
    if not _PATH_SAFE.fullmatch(name):
        raise BadEnvironment(
            f"CNI_IFNAME {request.environment.ifname!r} cannot be part of a socket's name",
            f"DPDK's arguments and the pod's annotations take {_PATH_SAFE.pattern}; {consumer.naming_remedy}",
        )
    return name


def _fits(path: str, what: str) -> None:
    if len(path.encode("utf-8", "surrogateescape")) > SUN_PATH_MAX:
        raise InvalidConfig(
            f"{what}, {path!r}, has more than {SUN_PATH_MAX} bytes",
            "a unix socket cannot have it; give a shorter 'host.vhost.socketfile' or mount path",
        )


def _mount_target(facts: SocketFacts, socket_file: str) -> str:
    """The mount below short_dir through which OVS is given the pod's directory; "" for the directory itself.

    A closed place is always mounted: the next pod gets another directory at its path, which this pod's port must never reach.
    """
    place = facts.place
    if (
        not (facts.mount_always or place.closed)
        and len(f"{place.path}/{socket_file}".encode("utf-8", "surrogateescape")) <= SUN_PATH_MAX
    ):
        return ""
    digest = hashlib.sha256(place.path.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{facts.short_dir}/{place.mount_name or digest[:16]}"


def _placed_socket(port: OvsPort, place: SocketPlace, socket_file: str, access: Access, facts: SocketFacts) -> PlacedSocket:
    return PlacedSocket(
        source=f"{facts.ovs_sockdir}/{port.name}",
        directory=place.path,
        trusted=place.trusted,
        name=socket_file,
        user=access.user,
        group=access.group,
        mode=access.socket_mode,
        selinux_label=access.selinux_label,
    )


@dataclass(frozen=True)
class _ApplicationView:
    """The attachment as it is described to the application."""

    ovs_role: Role
    socket_file: str
    pod_path: str
    interface: ResultInterface
    addresses: ResultAddresses

    @property
    def mode(self) -> Role:
        """The application's role: the opposite of OVS's."""
        return "server" if self.ovs_role == "client" else "client"


def _documents(request: Request, options: Options, consumer: Consumer, facts: SocketFacts, view: _ApplicationView) -> list[Step]:
    environment = request.environment
    steps: list[Step] = []
    if facts.device_info_file:
        steps.append(_device_info(facts, view))
    # a note's names begin at the pod's mapped directory, a file's where the file is
    name = facts.place.subdirectory + view.socket_file if facts.noted else view.socket_file
    entry = render_file(_entry(request, options, view, name))
    if facts.noted:
        steps.append(
            PodNote(
                namespace=facts.pod.namespace,
                pod=facts.pod.name,
                uid=facts.pod.uid,
                container_id=environment.container_id,
                ifname=environment.ifname,
                entry=entry,
                mapped_dir=facts.mapped_dir,
                kubeconfig=facts.kubeconfig,
                optional=not consumer.reads_note,
            )
        )
    elif consumer.reads_note:
        name = f"configData-{port_name(environment.container_id, environment.ifname)}.json"
        steps.append(ConfigFile(facts.place.path, facts.place.trusted, name, entry))
    return steps


def _device_info(facts: SocketFacts, view: _ApplicationView) -> DeviceInfo:
    allocated = facts.allocation.content if facts.allocation else {}
    content: dict[str, Any] = {"type": "vhost-user", "version": "1.1.0", **allocated}
    content["vhost-user"] = {"mode": view.mode, "path": view.pod_path}
    return DeviceInfo(
        path=facts.device_info_file,
        trusted=facts.device_info_dir,
        content=json.dumps(content),
        existed=bool(allocated),
        before=json.dumps(allocated["vhost-user"]) if allocated else "",
    )


def _entry(request: Request, options: Options, view: _ApplicationView, socket_file: str) -> dict[str, Any]:
    """One element of userspace/configuration-data: the `container` block, completed as the application needs it."""
    block = options.application.block
    vhost = {**(block.get("vhost") or {}), "mode": view.mode, "socketfile": socket_file}
    config: dict[str, Any] = {key: block[key] for key in ("engine", "iftype", "netType", "memif", "bridge") if key in block}
    config = {
        **config,
        "iftype": config.get("iftype") or "vhostuser",
        "netType": config.get("netType") or "interface",
        "vhost": vhost,
    }
    result = build(LATEST, (view.interface,), view.addresses, options.dns)
    return build_entry(request.environment.container_id, request.environment.ifname, request.network.name, config, result)
