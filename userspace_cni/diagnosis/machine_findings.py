"""Whether kernel, memory and directories of a node are as its switch and this plugin need them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.consumers.kubevirt.node_faults import judge_selinux
from userspace_cni.node.node_facts import SOCK_DIR, DirectoryState, NodeFacts

KERNEL: Final = "kernel"
MEMORY: Final = "memory"
DIRECTORIES: Final = "directories"
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_STOPS: Final = "it stops polling threads for as long as that takes"


def judge_memory(facts: NodeFacts) -> Iterator[Finding]:
    """What the kernel does with memory while frames wait."""
    kernel = facts.kernel
    if kernel is None:
        return
    if kernel.thp == "always":
        message = "transparent huge pages are 'always': the kernel moves memory of every process to make some"
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding("transparent-hugepages", "warning", MEMORY, message, remedy, "transparent_hugepage", _STOPS)
    if kernel.numa_balancing and facts.processors and len(facts.processors.nodes) > 1:
        message = "automatic NUMA balancing is on: the kernel unmaps memory to see who uses it"
        remedy = "sysctl -w kernel.numa_balancing=0"
        yield Finding("numa-balancing", "warning", MEMORY, message, remedy, "kernel.numa_balancing", _STOPS)
    used, total = kernel.swap
    if total:
        message = f"{total >> 20} MiB of swap are on, {used >> 20} MiB of it in use"
        yield Finding("swap", "note", MEMORY, message, "swapoff -a", "swap", "a process that is swapped out waits for the disk")


def judge_kernel(facts: NodeFacts) -> Iterator[Finding]:
    """Parts of the kernel that what is configured needs."""
    kernel = facts.kernel
    if kernel is None:
        return
    for module, purpose in _needed(facts).items():
        state = kernel.modules.get(module, "unknown")
        if state == "absent":
            message = f"kernel {kernel.release} has no module {module}: {purpose} needs it"
            remedy = f"boot a kernel with it; on Debian apt-get install linux-image-{kernel.release}"
            yield Finding("kernel-module", "error", KERNEL, message, remedy, module)
        elif state == "loadable":
            message = f"module {module} is not loaded: {purpose} needs it"
            yield Finding("kernel-module", "warning", KERNEL, message, f"modprobe {module}", module)
    if facts.switch and "dpdk" in facts.switch.kinds and kernel.modules.get("vfio_pci") == "there" and not kernel.iommus:
        message = "no IOMMU is in use, and there are ports of type dpdk"
        remedy = "boot with intel_iommu=on or amd_iommu=on, and switch it on in the firmware"
        why = "a NIC of DPDK reaches all memory; vfio-pci works only with enable_unsafe_noiommu_mode"
        yield Finding("iommu-off", "warning", KERNEL, message, remedy, "IOMMU", why)
    if kernel.enforcing:
        yield judge_selinux(KERNEL)


def judge_directories(facts: NodeFacts) -> Iterator[Finding]:
    """The plugin's directories: whether something can be written, or executed, there, and by whom."""
    for each in facts.directories:
        if each.name == "bin_dir":
            if each.no_exec:
                message = f"{each.path}, with the plugin, is on {each.mount}, which is mounted noexec"
                why = "the runtime cannot start the plugin: no pod with this network starts"
                yield _finding(each, "no-exec", message, f"mount -o remount,exec {each.mount}", why)
        elif each.read_only:
            message = f"{each.path} is on {each.mount}, which is mounted read-only"
            yield _finding(each, "read-only", message, f"mount -o remount,rw {each.mount}", "nothing can be attached or detached")
        elif each.problem:
            message, remedy = f"{each.path}: {each.problem}", "see df and df -i; run this as root"
            yield _finding(each, "directory-unwritable", message, remedy, "nothing can be attached or detached")
        if each.name == SOCK_DIR and not each.exists:
            message, why = f"other_config:{SOCK_DIR} names {each.path}, which is not there", "OVS makes sockets elsewhere then"
            yield Finding("sock-dir-missing", "warning", DIRECTORIES, message, f"mkdir -p {each.path}", each.name, why)
        if each.exists and each.open_to:
            message = f"{each.path} can be written by {each.open_to}"
            why = "what is there is believed by a program of root"
            yield Finding("directory-open", "error", DIRECTORIES, message, f"chmod o-w {each.path}", each.name, why)
        if each.name == "state_dir" and each.filesystem in _IN_MEMORY:
            message = f"{each.path} is on {each.mount}, a file system in memory ({each.filesystem})"
            remedy = "set state_dir to a directory on a disk"
            why = "after a boot it is not known which addresses were leased: they are lost to their pools"
            yield Finding("state-in-memory", "warning", DIRECTORIES, message, remedy, each.name, why)


def _finding(each: DirectoryState, name: str, message: str, remedy: str, why: str) -> Finding:
    return Finding(name, "error", DIRECTORIES, message, remedy, each.name, why)


def _needed(facts: NodeFacts) -> dict[str, str]:
    """Modules that something on this node needs, and what that is."""
    needed: dict[str, str] = {}
    if facts.links:
        needed |= {"veth": "a kernel link of a pod", "nf_tables": "the guard of a kernel link"}
    datapaths = facts.switch.datapaths if facts.switch else frozenset()
    if "netdev" in datapaths:
        needed |= {"tun": "the local port of a bridge of datapath_type netdev"}
    if "system" in datapaths:
        needed |= {"openvswitch": "a bridge of datapath_type system"}
    return needed
