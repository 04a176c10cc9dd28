"""Finds what on a node keeps all its VMs from their vhost-user network: the switch, and huge pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.findings import Finding, Severity
from userspace_cni.base.process_users import ProcessUser
from userspace_cni.fastpath.memory.hugepages import HugepagePool, format_size, read_socket_mem
from userspace_cni.pod import launcher
from userspace_cni.pod.socket_path import SUN_PATH_MAX

SWITCH: Final = "switch"
"""The place that findings about all VMs name."""
_SHORT_DIR_MAX: Final = SUN_PATH_MAX - len(f"/{'0' * 16}/{launcher.socket_file(launcher.interface_name(''))}")


@dataclass(frozen=True)
class SeenSwitch:
    """The switch. `problem`: why it cannot be asked, or serves nothing; `user`: None when its user is not known."""

    problem: str = ""
    other_config: Mapping[str, str] = field(default_factory=dict)
    user: ProcessUser | None = None
    enforcing: bool = False
    short_dir: str = ""
    mounts_always: bool = True


def may_connect(user: ProcessUser) -> bool:
    """Whether ovs-vswitchd of that user may connect to QEMU's socket, which is open to QEMU's user and group."""
    return user.overrides_modes or user.uid == launcher.QEMU_ID or launcher.QEMU_ID in user.groups


def judge_switch(switch: SeenSwitch, *, guests: bool) -> Iterator[Finding]:
    """Find what is wrong with the switch for all VMs. `guests`: whether the node has VMs."""
    where = SWITCH
    if switch.problem:
        remedy = "start Open vSwitch: until then QEMU waits for it, and every start of a VM hangs"
        yield Finding("port-down", "error", where, switch.problem, remedy)
        return
    if switch.user and not may_connect(switch.user):
        message = (
            f"ovs-vswitchd runs as user {switch.user.uid}, who is not in group {launcher.QEMU_ID} and may not use QEMU's sockets"
        )
        yield Finding("ovs-user", "error", where, message, f"run it as root, or add its user to group {launcher.QEMU_ID}")
    if switch.enforcing:
        yield judge_selinux(where)
    if not switch.mounts_always:
        message = (
            "setting mount_pod_dirs is 'long': a VM could put a link in the place of its socket, which Open vSwitch would follow"
        )
        yield Finding("short-mount", "warning", where, message, "set it to 'always' where ovs-vswitchd sees short_dir")
    if len(switch.short_dir.encode()) > _SHORT_DIR_MAX:
        message = f"setting short_dir, {switch.short_dir}, leaves no room for a socket's name in {SUN_PATH_MAX} bytes"
        yield Finding("path-too-long", "error", where, message, f"set it to a directory of at most {_SHORT_DIR_MAX} bytes")
    yield from _of_config(switch, where) if guests else ()


def judge_selinux(where: str) -> Finding:
    """The note on a node where SELinux is enforcing."""
    message = "SELinux is enforcing: a pod's directory has categories of its own, which Open vSwitch's policy lacks"
    return Finding("selinux", "note", where, message, "set host.vhost.selinuxLabel in the network if ovs-vswitchd is denied")


def judge_hugepages(
    pools: Sequence[HugepagePool], socket_mem: str, wanted: int | None, *, failing: bool = False
) -> Iterator[Finding]:
    """Judge huge pages. `socket_mem`: other_config:dpdk-socket-mem; `wanted`: bytes of a guest that is to be started.

    That VMs have taken all pages is normal, unless another VM needs some: `failing` says that a VM on this node does not run.
    """
    where = "huge pages"
    pools = [pool for pool in pools if pool.total]
    free = max((pool.available * pool.page_bytes for pool in pools), default=0)
    if wanted and free < wanted:
        message = f"a guest of {format_size(wanted)} finds {format_size(free)} at most, of one page size and on one node"
        yield Finding("hugepages-short", "error", where, message, "reserve more, or move VMs away")
    elif not pools:
        message = "none reserved: a VM that asks for them does not start"
        yield Finding("hugepages-short", "note", where, message, "reserve some: sysctl vm.nr_hugepages, or hugepages= at boot")
    for pool in pools if not wanted else ():
        if not pool.available:
            message = f"{_all(pool)} taken: no VM with them starts there"
            severity: Severity = "warning" if failing else "note"
            yield Finding("hugepages-short", severity, where, message, "reserve more, or move VMs away")
    needed = read_socket_mem(socket_mem)
    for node, amount in enumerate(needed):
        mine = [pool for pool in pools if pool.node in (None, node)]
        free = max((pool.available * pool.page_bytes for pool in mine), default=0)
        if mine and 0 < free < amount:
            given = f"beside what it holds, {format_size(free)} are free"
            message = f"ovs-vswitchd starts with {format_size(amount)} on node {node}; {given}"
            remedy = "start no VM while it is restarted: it ends if another program takes the pages that it released"
            yield Finding("hugepages-short", "note", where, message, remedy)


def _all(pool: HugepagePool) -> str:
    place = "" if pool.node is None else f" on node {pool.node}"
    size = format_size(pool.page_bytes)
    return f"the only page of {size}{place} is" if pool.total == 1 else f"all {pool.total} pages of {size}{place} are"


def _of_config(switch: SeenSwitch, where: str) -> Iterator[Finding]:
    postcopy = switch.other_config.get("vhost-postcopy-support") == "true"
    if not postcopy:
        message = "other_config:vhost-postcopy-support is not set: a migration that turns to post-copy fails"
        yield Finding("post-copy", "note", where, message, "let no migration policy for these VMs have allowPostCopy")
    if switch.other_config.get("vhost-iommu-support") != "true":
        message = "other_config:vhost-iommu-support is not set: DPDK in a guest cannot use vfio-pci with an IOMMU"
        yield Finding("iommu", "note", where, message, "load vfio with enable_unsafe_noiommu_mode=1 in such a guest, or set it")
