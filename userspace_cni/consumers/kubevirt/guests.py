"""Finds what on a node keeps a VM's interface from its vhost-user network, from what was looked at before. Pure.

A VM's start hangs without a message while the switch does not connect to QEMU's socket. So everything between the two is judged
here: the port, the path to the socket, the socket, and who may open it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from userspace_cni.attachment.steps import OvsPort, Step, Steps
from userspace_cni.base.findings import SEVERITIES, Finding
from userspace_cni.consumers.kubevirt.drifts import NEXT_POD, DirectoryAccess, Drifts, cuts_off, judge_drifts
from userspace_cni.pod import launcher
from userspace_cni.pod.socket_path import SUN_PATH_MAX

STARTING_S: Final = 60.0
"""Seconds after ADD until a missing socket is worth a warning."""
Party = Literal["connected", "listening", "none", ""]
"""connected: a process has connected and was accepted; listening: none has; none: no process listens; "": not known."""


@dataclass(frozen=True)
class SeenSocket:
    """What is at the path to which the switch connects: `kind` is "socket", "other", "" for nothing; None when it cannot be seen.

    `is_seen`: whether ovs-vswitchd sees the same directory there; None when that is not known. `party`: who is at the socket.
    `access`: the directory's; None when it cannot be seen.
    """

    kind: str | None = None
    uid: int = 0
    is_seen: bool | None = None
    party: Party = ""
    access: DirectoryAccess | None = None


@dataclass(frozen=True)
class Guest:
    """One interface of a VM: as it was attached, and what was seen of it since.

    `machine`: NAMESPACE/VM; `state` and `steps`: its record's; `mac`: in small letters, "" when ADD was given none. `vhost`:
    `connected`, `disconnected` or `unknown`; `error`: Interface.error, None when the switch has no such port, or could not be
    asked. `drifts` and `unchecked` are as `check` gives them; `mtu`: Interface.mtu; `age_s`: seconds since ADD; `rivals`: the
    interfaces of other VMs that have its MAC.
    """

    machine: str
    ifname: str
    state: str
    steps: tuple[Step, ...]
    mac: str = ""
    vhost: str = "unknown"
    error: str | None = None
    socket: SeenSocket = SeenSocket()
    drifts: Drifts = field(default_factory=dict)
    unchecked: Sequence[Mapping[str, str]] = ()
    mtu: int | None = None
    age_s: float = 0.0
    rivals: Sequence[str] = ()

    @property
    def where(self) -> str:
        return f"VM {self.machine}, interface {self.ifname}"

    @property
    def port(self) -> OvsPort | None:
        return Steps(self.steps).port


def is_guest(steps: Sequence[Step]) -> bool:
    """Whether the steps are a VM's: the port has a VM's mark, or the socket is in the directory of VMs' sockets."""
    directory, ending = Steps(steps).directory, f"/{launcher.VOLUME}/{launcher.DIRECTORY}"
    return bool(_mark_of(steps)) or bool(directory and directory.path.endswith(ending))


def machine_of(steps: Sequence[Step], namespace: str, pod: str) -> str:
    """NAMESPACE/VM of a VM's interface, by its steps and its pod."""
    return "/".join(filter(None, (namespace, _mark_of(steps) or launcher.machine_of_pod(pod) or pod)))


def rivals(guest: Guest, guests: Sequence[Guest]) -> list[str]:
    """The interfaces of other VMs with the same MAC on the same bridge and VLAN. A migrating VM's other pod does not count."""

    def place(each: Guest) -> tuple[str, int, str] | None:
        port = each.port
        return (port.bridge, port.vlan.tag or 0, each.mac) if port and each.mac and each.state == "ready" else None

    alike = [each for each in guests if place(guest) and place(each) == place(guest)]
    others = {(each.machine, each.ifname) for each in alike} - {(guest.machine, guest.ifname)}
    return [f"{machine}, interface {ifname}" for machine, ifname in sorted(others)]


def is_named(guest: Guest, name: str) -> bool:
    """Whether `name` is the VM's (VM or NAMESPACE/VM), the VM's with /ifname, or the interface's alone."""
    machines = (guest.machine, guest.machine.rpartition("/")[2])
    return name in (*machines, *(f"{each}/{guest.ifname}" for each in machines), guest.ifname)


def verdict_on(guest: Guest, findings: Sequence[Finding]) -> str:
    """The gravest severity of the findings; without findings `good`, or `unknown` where QEMU is not known to be connected."""
    return findings[0].severity if findings else "good" if guest.vhost == "connected" else "unknown"


def judge_guest(guest: Guest) -> list[Finding]:
    """Everything that is wrong with one interface, the gravest first."""
    drifted = judge_drifts(guest.steps, guest.drifts, guest.socket.access)
    found = [
        *_of_port(guest),
        *(replace(each, subject=guest.where) for each in drifted),
        *_of_directory(guest),
        *_of_socket(guest),
        *_of_mac(guest),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _of_port(guest: Guest) -> Iterator[Finding]:
    step = guest.port
    if guest.state != "ready":
        message = f"the attachment is in state {guest.state}: its ADD or DEL is under way, or died"
        yield Finding("port-down", "warning", guest.where, message, "run userspace-cni gc unless it is under way")
    if step is None:
        return
    if step.switch_makes_socket:
        message = f"port {step.name} makes the socket itself: QEMU's network ends with the next restart of Open vSwitch"
        yield Finding(
            "server-mode", "error", guest.where, message, 'write `"consumer": "kubevirt"` in the network, and restart the VM'
        )
    if len(step.server_path.encode()) > SUN_PATH_MAX:
        message = f"the socket's path, {step.server_path}, has more than {SUN_PATH_MAX} bytes"
        yield Finding("path-too-long", "error", guest.where, message, "set short_dir to a shorter directory, and restart the VM")
    if guest.error is None:
        return
    columns = {each.field for each in guest.drifts.get("port", ())}
    if guest.error and not columns & {"state", "bridge", "Interface.type", "options:vhost-server-path"}:
        message = f"port {step.name} is not open: {guest.error}"
        yield Finding(
            "port-down", "error", guest.where, message, "see the log of ovs-vswitchd; a VM that is started meanwhile waits"
        )
    elif step.interface.mtu and guest.mtu and guest.mtu != step.interface.mtu and not columns & {"MTU", "mtu_request", "bridge"}:
        message = f"port {step.name} has MTU {guest.mtu}, and the network asks for {step.interface.mtu}"
        yield Finding(
            "mtu-mismatch", "warning", guest.where, message, "see the log of ovs-vswitchd: is there memory for such frames?"
        )


def _of_directory(guest: Guest) -> Iterator[Finding]:
    """Judge a directory that is as the network asks for, and that QEMU cannot use."""
    access = guest.socket.access
    if access and not access.qemu_can_write and not any(map(guest.drifts.get, ("directory", "pod-mount"))):
        message = f"the socket's directory is {access}: QEMU, user {launcher.QEMU_ID}, cannot make its socket there"
        remedy = "leave user, group and dirmode out of the network's host.vhost, and restart the VM"
        yield Finding("no-vhost-directory", "warning", guest.where, message, remedy)


def _of_mac(guest: Guest) -> Iterator[Finding]:
    if guest.rivals:
        message = f"MAC {guest.mac} is also that of {', '.join(guest.rivals)}, on the same bridge and VLAN"
        remedy = "give each VM a MAC of its own, or none, in spec.domain.devices.interfaces, and restart it"
        yield Finding("mac-conflict", "warning", guest.where, message, remedy)


def _of_socket(guest: Guest) -> Iterator[Finding]:
    """Find why no QEMU is connected at the socket."""
    socket, step = guest.socket, guest.port
    if cuts_off(guest.drifts) or guest.state != "ready":
        return
    if step is None or step.switch_makes_socket:
        return
    if guest.vhost == "connected":
        yield from _of_lost_name(guest)
    elif socket.is_seen is False:
        message = f"ovs-vswitchd does not see {step.server_path.rpartition('/')[0]}: it has a mount namespace of its own"
        remedy = "give its container short_dir with mountPropagation HostToContainer, or set mount_pod_dirs"
        yield Finding("short-mount", "error", guest.where, message, remedy)
    elif socket.kind == "":
        young = guest.age_s < STARTING_S
        age = f"{int(guest.age_s)} s after ADD"
        message = f"no socket, {age}: the VM is not started, has ended, or has no interface for it in its definition"
        remedy = "wait for the VM" if young else "see the logs of the launcher pod's hook-sidecar and compute containers"
        yield Finding("no-listener", "note" if young else "warning", guest.where, message, remedy)
    elif socket.kind == "socket" and socket.uid not in (launcher.QEMU_ID, 0):
        message = f"the socket is user {socket.uid}'s, and QEMU is {launcher.QEMU_ID}"
        yield Finding("no-listener", "warning", guest.where, message, "find out what made it: VMs that run as root are 0")
    elif socket.kind == "socket" and guest.error == "":
        yield from _of_parties(guest)


def _of_lost_name(guest: Guest) -> Iterator[Finding]:
    """Judge a connection whose socket has lost its name: it lasts until the switch has to connect again."""
    socket = guest.socket
    if socket.kind == "" or (socket.kind == "socket" and socket.party == "none"):
        gone = "its socket's name is gone" if socket.kind == "" else "another socket has its name, at which no process listens"
        message = f"connected, and {gone}: after the next restart of Open vSwitch it has no network"
        yield Finding("no-listener", "warning", guest.where, message, NEXT_POD)


def _of_parties(guest: Guest) -> Iterator[Finding]:
    """Judge a socket at which the switch has no guest that is up, by the processes that are there."""
    party = guest.socket.party
    if party == "connected":
        message = (
            "QEMU is connected, but the guest's driver is not up: it is paused, is booting, has crashed, or is being migrated"
        )
        yield Finding("guest-not-up", "note", guest.where, message, "nothing, if that is so: virtctl console shows the guest")
    elif party == "listening":
        message = "QEMU listens, and Open vSwitch is not connected: a VM that is being started waits"
        yield Finding(
            "no-listener",
            "warning",
            guest.where,
            message,
            "see the log of ovs-vswitchd: it tries once a second, and where it gives up, a running agent recreates the port",
        )
    elif party == "none":
        message = "there is a socket, and no process listens there: QEMU has ended and left it"
        yield Finding("no-listener", "warning", guest.where, message, "see the log of the launcher pod's compute container")


def not_looked_at(guest: Guest) -> Iterator[str]:
    yield from (f"step '{each['step']}' could not be looked at: {each['error']}" for each in guest.unchecked)
    if guest.socket.kind == "socket" and guest.vhost == "disconnected" and not guest.socket.party:
        yield f"{guest.where}: who is at its socket is unknown: not all of the node's processes are visible from here"


def _mark_of(steps: Sequence[Step]) -> str:
    """The VM's name in the port's marks; "" for none."""
    port = Steps(steps).port
    return port.marks.get("vm-name", "") if port else ""
