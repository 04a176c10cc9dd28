"""What of a node would keep its VMs from their vhost-user network: decided from what was looked at. Pure.

A VM's start hangs without a word while the switch does not come to QEMU's socket. So everything between the two is named here:
the port, the way to the socket, the socket, and who may open it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubevirt.findings import SEVERITIES, Finding, Severity
from userspace_cni.attachment.listing import SwitchPort, name_of, objects, port_step
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Directory, SocketFile
from userspace_cni.cli.kubevirt.sockets import Party
from userspace_cni.consumers.kubevirt.drifts import ANEW, Access, Drifts, cuts_off, judge_drifts
from userspace_cni.fastpath.memory.hugepages import Pool, size_text
from userspace_cni.pod import launcher

SWITCH: Final = "switch"
"""Where findings are that are of all VMs."""
STARTING_S: Final = 60.0
"""How long after ADD a VM may take to have its socket, before that is worth a warning."""
_PATH_MAX: Final = 107
_SHORT_DIR_MAX: Final = _PATH_MAX - len(f"/{'0' * 16}/{launcher.socket_file(launcher.interface_name(''))}")
_DAC_OVERRIDE: Final = 1 << 1


@dataclass(frozen=True)
class Socket:
    """What is at the path that the switch connects to: `kind` is "socket", "other", "" for nothing; None when it can not be seen.

    `is_seen`: whether ovs-vswitchd sees the same directory there; None when that is not known. `party`: who is at the socket.
    `access`: of the directory; None when it can not be seen.
    """

    kind: str | None = None
    uid: int = 0
    is_seen: bool | None = None
    party: Party = ""
    access: Access | None = None


@dataclass(frozen=True)
class Guest:
    """One interface of a VM. `port`: what the switch says; None when it has none, or could not be asked.

    `drifts` and `unchecked` are as `check` has them; `mtu`: Interface.mtu; `age_s`: seconds since ADD; `rivals`: other VMs'
    interfaces that have its MAC.
    """

    record: Record
    port: SwitchPort | None
    socket: Socket = Socket()
    drifts: Drifts = field(default_factory=dict)
    unchecked: Sequence[Mapping[str, str]] = ()
    mtu: int | None = None
    age_s: float = 0.0
    rivals: Sequence[str] = ()

    @property
    def machine(self) -> str:
        """NAMESPACE/VM."""
        return machine_of(self.record)

    @property
    def vhost(self) -> str:
        """`connected`, `disconnected` or `unknown`."""
        return (self.port.status.get("status", "") if self.port else "") or "unknown"


@dataclass(frozen=True)
class User:
    """Who ovs-vswitchd is to the file system: of /proc/PID/status."""

    uid: int
    groups: frozenset[int]
    capabilities: int

    @property
    def may_connect(self) -> bool:
        """Whether it may connect to QEMU's socket, which its user and group may."""
        overrides = bool(self.capabilities & _DAC_OVERRIDE)
        return overrides or self.uid in (0, launcher.QEMU_ID) or launcher.QEMU_ID in self.groups


@dataclass(frozen=True)
class Switch:
    """The switch: `problem`: why it can not be asked, or serves nothing; `user` None when it is not known who it runs as."""

    problem: str = ""
    other_config: Mapping[str, str] = field(default_factory=dict)
    user: User | None = None
    enforcing: bool = False
    short_dir: str = ""
    mounts_always: bool = True


def is_guest(record: Record) -> bool:
    """Whether it is a VM's interface: marked so, or with its socket where those of VMs are."""
    step = port_step(record)
    marked = bool(step and step.marks.get("vm-name"))
    ending = f"/{launcher.VOLUME}/{launcher.DIRECTORY}"
    return marked or any(isinstance(each, Directory) and each.path.endswith(ending) for each in record.steps)


def machine_of(record: Record) -> str:
    """NAMESPACE/VM of a VM's interface."""
    step = port_step(record)
    name = (step.marks.get("vm-name") if step else "") or launcher.machine_of_pod(record.pod_name) or record.pod_name
    return "/".join(filter(None, (record.pod_namespace, name)))


def mac_of(record: Record) -> str:
    """The MAC that its VM is to have, in small letters; "" when ADD was not told one."""
    step = port_step(record)
    interfaces = objects((record.result or {}).get("interfaces"))
    told = (each.get("mac") for each in interfaces if (each.get("name"), each.get("sandbox")) == (record.ifname, record.netns))
    return str((step.mac if step else "") or next(told, "") or "").lower()


def rivals(record: Record, guests: Sequence[Record]) -> list[str]:
    """The interfaces of VMs that have its MAC on its bridge and VLAN; its own in its other pod, as it migrates, is none."""

    def place(each: Record) -> tuple[str, int, str] | None:
        step, mac = port_step(each), mac_of(each)
        return (step.bridge, step.tag or 0, mac) if step and mac and each.state == "ready" else None

    mine = (machine_of(record), record.ifname)
    alike = [each for each in guests if place(record) and place(each) == place(record)]
    others = {(machine_of(each), each.ifname) for each in alike} - {mine}
    return [f"{machine}, interface {ifname}" for machine, ifname in sorted(others)]


def is_named(record: Record, name: str) -> bool:
    """Whether `name` is a VM's, VM or NAMESPACE/VM, that of one of its interfaces, with /ifname, or an interface's alone."""
    machine = machine_of(record)
    machines = (machine, machine.rpartition("/")[2])
    return name in (*machines, *(f"{each}/{record.ifname}" for each in machines), record.ifname)


def read_user(status: str) -> User | None:
    """The text of /proc/PID/status."""
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    try:
        ids = [int(lines[name].split()[3]) for name in ("Uid", "Gid")]
        groups = {int(group) for group in lines.get("Groups", "").split()}
        return User(ids[0], frozenset({ids[1], *groups}), int(lines.get("CapEff", "0").strip() or "0", 16))
    except (KeyError, IndexError, ValueError):
        return None


def judge_guest(guest: Guest) -> list[Finding]:
    """Everything that is wrong with one interface, the gravest first."""
    faults = judge_drifts(guest.record.steps, guest.drifts, guest.socket.access)
    found = [
        *_of_port(guest),
        *(_finding(name, severity, guest, message, remedy) for name, severity, message, remedy in faults),
        *_of_directory(guest),
        *_of_socket(guest),
        *_of_mac(guest),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def judge_switch(switch: Switch, *, guests: bool) -> Iterator[Finding]:
    """What is wrong with the switch for all VMs. `guests`: there are some."""
    where = SWITCH
    if switch.problem:
        remedy = "start Open vSwitch: until then QEMU waits for it, and every start of a VM hangs"
        yield Finding("port-down", "error", where, switch.problem, remedy)
        return
    if switch.user and not switch.user.may_connect:
        message = (
            f"ovs-vswitchd runs as user {switch.user.uid}, who is not in group {launcher.QEMU_ID} and may not use QEMU's sockets"
        )
        yield Finding("ovs-user", "error", where, message, f"run it as root, or add its user to group {launcher.QEMU_ID}")
    if switch.enforcing:
        message = (
            "SELinux is enforcing: a launcher pod's directory has categories of its own, which Open vSwitch's policy has not"
        )
        yield Finding("selinux", "note", where, message, "set host.vhost.selinuxLabel in the network if ovs-vswitchd is denied")
    if not switch.mounts_always:
        message = (
            "setting mount_pod_dirs is 'long': a VM could put a link in the place of its socket, which Open vSwitch would follow"
        )
        yield Finding("short-mount", "warning", where, message, "set it to 'always' where ovs-vswitchd sees short_dir")
    if len(switch.short_dir.encode()) > _SHORT_DIR_MAX:
        message = f"setting short_dir, {switch.short_dir}, leaves no room for a socket's name in {_PATH_MAX} bytes"
        yield Finding("path-too-long", "error", where, message, f"set it to a directory of at most {_SHORT_DIR_MAX} bytes")
    yield from _of_config(switch, where) if guests else ()


def judge_hugepages(pools: Sequence[Pool], socket_mem: str, wanted: int | None, *, failing: bool = False) -> Iterator[Finding]:
    """Huge pages. `socket_mem`: other_config:dpdk-socket-mem; `wanted`: bytes of a guest that is to be started.

    Pages that VMs have taken are as it should be, unless a VM needs them: `failing` says that one here does not run.
    """
    where = "huge pages"
    pools = [pool for pool in pools if pool.total]
    free = max((pool.available * pool.page_bytes for pool in pools), default=0)
    if wanted and free < wanted:
        message = f"a guest of {size_text(wanted)} finds {size_text(free)} at most, of one page size and on one node"
        yield Finding("hugepages-short", "error", where, message, "reserve more, or move VMs away")
    elif not pools:
        message = "none reserved: a VM that asks for them does not start"
        yield Finding("hugepages-short", "note", where, message, "reserve some: sysctl vm.nr_hugepages, or hugepages= at boot")
    for pool in pools if not wanted else ():
        if not pool.available:
            message = f"{_all(pool)} taken: no VM with them starts there"
            severity: Severity = "warning" if failing else "note"
            yield Finding("hugepages-short", severity, where, message, "reserve more, or move VMs away")
    needed = _needed(socket_mem)
    for node, amount in enumerate(needed):
        mine = [pool for pool in pools if pool.node in (None, node)]
        free = max((pool.available * pool.page_bytes for pool in mine), default=0)
        if mine and 0 < free < amount:
            message = (
                f"ovs-vswitchd starts with {size_text(amount)} on node {node}; beside what it holds, {size_text(free)} are free"
            )
            remedy = "start no VM while it is restarted: it ends when the pages that it has set free are taken"
            yield Finding("hugepages-short", "note", where, message, remedy)


def _all(pool: Pool) -> str:
    place = "" if pool.node is None else f" on node {pool.node}"
    size = size_text(pool.page_bytes)
    return f"the only page of {size}{place} is" if pool.total == 1 else f"all {pool.total} pages of {size}{place} are"


def _of_config(switch: Switch, where: str) -> Iterator[Finding]:
    postcopy = switch.other_config.get("vhost-postcopy-support") == "true"
    if not postcopy:
        message = "other_config:vhost-postcopy-support is not set: a migration that turns to post-copy fails"
        yield Finding("post-copy", "note", where, message, "let no migration policy for these VMs have allowPostCopy")
    if switch.other_config.get("vhost-iommu-support") != "true":
        message = "other_config:vhost-iommu-support is not set: DPDK in a guest can not use vfio-pci with an IOMMU"
        yield Finding("iommu", "note", where, message, "load vfio with enable_unsafe_noiommu_mode=1 in such a guest, or set it")


def _of_port(guest: Guest) -> Iterator[Finding]:
    step = port_step(guest.record)
    if guest.record.state != "ready":
        message = f"the attachment is in state {guest.record.state}: its ADD or DEL is under way, or died"
        yield _finding("port-down", "warning", guest, message, "run userspace-cni gc unless it is under way")
    if step is None:
        return
    if step.interface_type == "dpdkvhostuser":
        message = f"port {step.name} makes the socket itself: QEMU's network ends with the next restart of Open vSwitch"
        yield _finding(
            "server-mode", "error", guest, message, 'write `"consumer": "kubevirt"` in the network, and restart the VM'
        )
    if len(step.server_path.encode()) > _PATH_MAX:
        message = f"the socket's path, {step.server_path}, has more than {_PATH_MAX} bytes"
        yield _finding("path-too-long", "error", guest, message, "set short_dir to a shorter directory, and restart the VM")
    if guest.port is None:
        return
    columns = {each.field for each in guest.drifts.get("port", ())}
    if guest.port.error and not columns & {"state", "bridge", "Interface.type", "options:vhost-server-path"}:
        message = f"port {step.name} is not open: {guest.port.error}"
        yield _finding("port-down", "error", guest, message, "see the log of ovs-vswitchd; a VM that is started meanwhile waits")
    elif step.mtu and guest.mtu and guest.mtu != step.mtu and not columns & {"MTU", "mtu_request", "bridge"}:
        message = f"port {step.name} has MTU {guest.mtu}, and the network asks for {step.mtu}"
        yield _finding("mtu-mismatch", "warning", guest, message, "see the log of ovs-vswitchd: is there memory for such frames?")


def _of_directory(guest: Guest) -> Iterator[Finding]:
    """A directory that is as the network asks for, and that QEMU can not use."""
    access = guest.socket.access
    if access and not access.is_qemu_s and not any(map(guest.drifts.get, ("directory", "pod-mount"))):
        message = f"the socket's directory is {access}: QEMU, user {launcher.QEMU_ID}, can not make its socket there"
        remedy = "leave user, group and dirmode out of the network's host.vhost, and restart the VM"
        yield _finding("no-vhost-directory", "warning", guest, message, remedy)


def _of_mac(guest: Guest) -> Iterator[Finding]:
    if guest.rivals:
        message = f"MAC {mac_of(guest.record)} is also that of {', '.join(guest.rivals)}, on the same bridge and VLAN"
        remedy = "give each VM a MAC of its own, or none, in spec.domain.devices.interfaces, and restart it"
        yield _finding("mac-conflict", "warning", guest, message, remedy)


def _of_socket(guest: Guest) -> Iterator[Finding]:
    """Nobody behind the socket: whose fault that is."""
    socket, step = guest.socket, port_step(guest.record)
    if cuts_off(guest.drifts) or guest.record.state != "ready":
        return
    if step is None or step.interface_type == "dpdkvhostuser":
        return
    if guest.vhost == "connected":
        yield from _of_lost_name(guest)
    elif socket.is_seen is False:
        message = f"ovs-vswitchd does not see {step.server_path.rpartition('/')[0]}: it has a mount namespace of its own"
        remedy = "give its container short_dir with mountPropagation HostToContainer, or set mount_pod_dirs"
        yield _finding("short-mount", "error", guest, message, remedy)
    elif socket.kind == "":
        young = guest.age_s < STARTING_S
        age = f"{int(guest.age_s)} s after ADD"
        message = f"no socket, {age}: the VM is not started, has ended, or has no interface for it in its definition"
        remedy = "wait for the VM" if young else "see the logs of the launcher pod's hook-sidecar and compute containers"
        yield _finding("no-listener", "note" if young else "warning", guest, message, remedy)
    elif socket.kind == "socket" and socket.uid not in (launcher.QEMU_ID, 0):
        message = f"the socket is user {socket.uid}'s, and QEMU is {launcher.QEMU_ID}"
        yield _finding("no-listener", "warning", guest, message, "look who made it: VMs that run as root are 0")
    elif socket.kind == "socket" and guest.port and not guest.port.error:
        yield from _of_parties(guest)


def _of_lost_name(guest: Guest) -> Iterator[Finding]:
    """Connected, and not by the name that the switch has: it is, until it has to connect again."""
    socket = guest.socket
    if socket.kind == "" or (socket.kind == "socket" and socket.party == "nobody"):
        gone = (
            "its socket's name is gone" if socket.kind == "" else "its socket's name is now another one's, where nobody listens"
        )
        message = f"connected, and {gone}: after the next restart of Open vSwitch it has no network"
        yield _finding("no-listener", "warning", guest, message, ANEW)


def _of_parties(guest: Guest) -> Iterator[Finding]:
    """There is a socket, and the switch has no guest there that is up."""
    party = guest.socket.party
    if party == "connected":
        message = (
            "QEMU is connected, and the guest's driver is not up: it is paused, is booting, has crashed, or is being migrated"
        )
        yield _finding("guest-not-up", "note", guest, message, "nothing, if that is so: virtctl console shows the guest")
    elif party == "listening":
        message = "QEMU listens, and Open vSwitch is not connected: a VM that is being started waits"
        yield _finding("no-listener", "warning", guest, message, "see the log of ovs-vswitchd, which tries once a second")
    elif party == "nobody":
        message = "there is a socket, and nobody listens there: QEMU has ended and left it"
        yield _finding("no-listener", "warning", guest, message, "see the log of the launcher pod's compute container")


def unlooked(guest: Guest) -> Iterator[str]:
    """What could not be looked at, in words."""
    yield from (f"step '{each['step']}' could not be looked at: {each['error']}" for each in guest.unchecked)
    if guest.socket.kind == "socket" and guest.vhost == "disconnected" and not guest.socket.party:
        where = f"VM {guest.machine}, interface {guest.record.ifname}"
        yield f"{where}: who is at its socket could not be looked at: not all of the node's processes are seen from here"


def row_of(guest: Guest, findings: Sequence[Finding]) -> dict[str, Any]:
    """An interface as programs are shown it."""
    step = port_step(guest.record)
    files = [each for each in guest.record.steps if isinstance(each, SocketFile)]
    return {
        "name": name_of(guest.record),
        "vm": guest.machine,
        "ifname": guest.record.ifname,
        "network": guest.record.network,
        "bridge": step.bridge if step else "",
        "port": step.name if step else "",
        "socket": f"{files[0].directory}/{files[0].name}" if files else "",
        "mtu": guest.mtu,
        "link_state": (guest.port.link_state if guest.port else "") or "unknown",
        "vhost": guest.vhost,
        "verdict": findings[0].severity if findings else "good" if guest.vhost == "connected" else "unknown",
    }


def _finding(name: str, severity: Severity, guest: Guest, message: str, remedy: str) -> Finding:
    return Finding(name, severity, f"VM {guest.machine}, interface {guest.record.ifname}", message, remedy)


def _needed(socket_mem: str) -> list[int]:
    """Bytes on each NUMA node that dpdk-socket-mem asks for, which is in MiB."""
    parts = socket_mem.split(",")
    return [int(part) << 20 if part.isdecimal() and len(part) < 10 else 0 for part in parts]
