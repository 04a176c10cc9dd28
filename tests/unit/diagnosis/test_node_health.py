"""What `doctor` finds in recorded facts: each fault by its name with the remedy, and nothing on a sound node.

Faults that a test can make on a real switch or kernel are in tests/ovs/test_doctor_remedies and tests/guest; these here are also
those that need another machine: frequency governors, hyperthreads, isolated CPUs, a kubelet with a CPU manager, AppArmor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.base.findings import Finding
from userspace_cni.base.polling import PolledQueue, PollingReading, PollingThread
from userspace_cni.base.process_users import ProcessUser
from userspace_cni.diagnosis.node_health import judge_node, judge_versions, sort_findings
from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugePages, HugetlbMount
from userspace_cni.host.machine.cpu_users import CpuInterrupt, CpuUse, CpuUser, InterruptBalancer
from userspace_cni.host.machine.daemon_process import DaemonProcess
from userspace_cni.host.machine.directory_states import DirectoryState
from userspace_cni.host.machine.kernel_state import KernelState, ModuleState
from userspace_cni.host.machine.processors import KubeletCpus, Processors
from userspace_cni.node.node_facts import NodeFacts, SwitchReport

SHORT = "/var/lib/vhost_sockets"
MIB2 = 2 << 20
CONFIG = {
    "dpdk-init": "true",
    "dpdk-socket-mem": "1024,1024",
    "dpdk-socket-limit": "1024,1024",
    "pmd-cpu-mask": "0xc",
    "dpdk-lcore-mask": "0x1",
}


def pool(node: int, total: int = 1024, free: int = 512) -> HugepagePool:
    return HugepagePool(MIB2, node, total, free, None, 0)


MOUNT = HugetlbMount("/dev/hugepages", MIB2, 0o755, 0, 0, None, None, writable=True)
THREAD = PollingThread(2, 0, overhead=1, queues=(PolledQueue("p", 0, True, 10),))
SWITCH = SwitchReport(
    CONFIG,
    dpdk=True,
    kinds=frozenset({"dpdkvhostuserclient"}),
    datapaths=frozenset({"netdev"}),
    polled_ports={"p": 0},
    version="ovs-vswitchd 3.3.0",
    dpdk_version="DPDK 23.11",
)
DAEMON = DaemonProcess(
    7,
    user=ProcessUser(0, frozenset(), 1 << 14),
    age_s=9e5,
    files=200,
    files_max=65536,
    locked_max=8 << 20,
    crashes=0,
    replaced=False,
    swapped=0,
    label="unconfined",
    sees=True,
    receives=True,
    polled=frozenset({2, 3}),
)
PROCESSORS = Processors(
    online=frozenset(range(4)),
    nodes={0: frozenset({0, 2}), 1: frozenset({1, 3})},
    isolated=frozenset({2, 3}),
    nohz_full=frozenset({2, 3}),
    rcu_nocbs=frozenset({2, 3}),
    init=frozenset({0, 1}),
)
MODULES: Mapping[str, ModuleState] = dict.fromkeys(("nf_tables", "openvswitch", "tun", "veth", "vfio_pci"), "there")
KERNEL = KernelState("6.1.0", "madvise", numa_balancing=False, modules=MODULES)
SOUND = NodeFacts(
    life=("alive", "ovs-vswitchd (Open vSwitch) 3.3.0"),
    switch=SWITCH,
    polling=PollingReading((THREAD, replace(THREAD, core=3, numa=1, queues=())), 5),
    daemon=DAEMON,
    processors=PROCESSORS,
    use=CpuUse(1.0),
    kernel=KERNEL,
    pages=HugePages((), (pool(0), pool(1)), (MOUNT,)),
    boot_pages={(None, MIB2): 2048},
    directories=(
        DirectoryState("state_dir", "/var/lib/cni/userspace", filesystem="ext4"),
        DirectoryState("bin_dir", "/opt/cni/bin"),
    ),
)


def configured(**changes: str | None) -> NodeFacts:
    """The sound node with other options, whose names have `_` for `-`; None leaves one out."""
    config = CONFIG | {name.replace("_", "-"): value for name, value in changes.items() if value is not None}
    for name in (name.replace("_", "-") for name, value in changes.items() if value is None):
        config.pop(name, None)
    return replace(SOUND, switch=replace(SWITCH, other_config=config))


def with_daemon(**changes: Any) -> NodeFacts:
    return replace(SOUND, daemon=replace(DAEMON, **changes))


def with_processors(**changes: Any) -> NodeFacts:
    return replace(SOUND, processors=replace(PROCESSORS, **changes))


def with_kernel(**changes: Any) -> NodeFacts:
    return replace(SOUND, kernel=replace(KERNEL, **changes))


def with_switch(**changes: Any) -> NodeFacts:
    return replace(SOUND, switch=replace(SWITCH, **changes))


def with_pages(*pools: HugepagePool, mounts: tuple[HugetlbMount, ...] = (MOUNT,)) -> NodeFacts:
    return replace(SOUND, pages=HugePages((), pools, mounts))


def used(**changes: Any) -> NodeFacts:
    return replace(SOUND, use=replace(CpuUse(1.0), **changes))


def found_in(facts: NodeFacts) -> list[Finding]:
    return [each for each in judge_node(facts, SHORT) if each.severity != "good"]


def test_nothing_is_wrong_on_a_sound_node() -> None:
    """Only good findings, one for each subject, with figures."""
    findings = judge_node(SOUND, SHORT)
    assert {each.severity for each in findings} == {"good"}, findings
    told = {each.subject: each.message for each in findings}
    assert told["huge pages"] == "1024 of 2 MiB on node 0, 512 free; 1024 of 2 MiB on node 1, 512 free"
    assert told["ovs-vswitchd"] == "process 7, since 10 days, 200 of 65536 files open"
    assert told["polling threads"] == "CPU 2-3, which no other program uses"


def test_what_is_not_known_is_no_fault() -> None:
    """Facts that could not be had lead to no finding at all, neither a bad nor a good one."""
    assert judge_node(NodeFacts(), SHORT) == []


FAULTS: Mapping[str, tuple[NodeFacts, str, str, str]] = {
    "no pages": (with_pages(), "hugepages-none", "error", "sysctl -w vm.nr_hugepages=1024"),
    "a node without pages": (
        with_pages(pool(0), pool(1, 100)),
        "hugepages-short",
        "error",
        "echo 512 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
    ),
    "all pages taken": (with_pages(pool(0), pool(1, free=0)), "hugepages-taken", "note", "reserve more"),
    "no mount": (with_pages(pool(0), pool(1), mounts=()), "hugetlbfs-missing", "note", "mount -t hugetlbfs"),
    "no mount for files": (
        replace(configured(dpdk_hugepage_dir="/huge"), pages=HugePages((), (pool(0), pool(1)), ())),
        "hugetlbfs-missing",
        "error",
        "mount -t hugetlbfs -o pagesize=2M hugetlbfs /dev/hugepages",
    ),
    "a mount that is read-only": (
        with_pages(pool(0), pool(1), mounts=(replace(MOUNT, writable=False),)),
        "hugetlbfs-missing",
        "note",
        "mount -o remount,rw /dev/hugepages",
    ),
    "pages that a boot takes": (replace(SOUND, boot_pages={}), "hugepages-not-kept", "warning", "vm.nr_hugepages=2048"),
    "memory of one node": (
        configured(dpdk_socket_mem="1024"),
        "socket-mem-node",
        "warning",
        "ovs-vsctl set Open_vSwitch . other_config:dpdk-socket-mem=1024,1024",
    ),
    "built without DPDK": (with_switch(dpdk=False, dpdk_version=""), "dpdk-not-built", "error", "update-alternatives --set"),
    "DPDK off": (
        replace(configured(dpdk_init=None), switch=replace(SWITCH, other_config={}, dpdk=False)),
        "dpdk-off",
        "error",
        "ovs-vsctl set Open_vSwitch . other_config:dpdk-init=true",
    ),
    "DPDK failed": (with_switch(dpdk=False), "dpdk-failed", "error", "EAL"),
    "no PCI": (
        with_switch(kinds=frozenset({"dpdk"}), other_config=CONFIG | {"dpdk-extra": "--no-pci"}),
        "dpdk-no-pci",
        "warning",
        "ovs-vsctl remove Open_vSwitch . other_config dpdk-extra",
    ),
    "no limit": (configured(dpdk_socket_limit=None), "dpdk-socket-limit", "note", "dpdk-socket-limit=1024,1024"),
    "sleeping threads": (configured(pmd_sleep_max="100"), "pmd-sleeps", "note", "other_config pmd-sleep-max"),
    "no mask": (configured(pmd_cpu_mask=None), "pmd-mask-unset", "note", "pmd-cpu-mask=0x8"),
    "no such mask": (configured(pmd_cpu_mask="cores"), "pmd-mask-invalid", "error", "pmd-cpu-mask=0x8"),
    "no such CPU": (configured(pmd_cpu_mask="0x1c"), "pmd-cpu-absent", "error", "pmd-cpu-mask=0xc"),
    "no such CPU of DPDK": (configured(dpdk_lcore_mask="0x11"), "pmd-cpu-absent", "error", "dpdk-lcore-mask=0x1"),
    "all CPUs": (configured(pmd_cpu_mask="0xf"), "pmd-everywhere", "warning", "pmd-cpu-mask=0xe"),
    "one CPU for all": (configured(dpdk_lcore_mask="0x4"), "pmd-lcore-shared", "warning", "dpdk-lcore-mask=0x1,"),
    "not isolated": (
        with_processors(isolated=frozenset(), init=frozenset(range(4))),
        "pmd-not-isolated",
        "warning",
        "isolcpus=2-3 nohz_full=2-3 rcu_nocbs=2-3",
    ),
    "with a timer": (with_processors(nohz_full=frozenset({2})), "pmd-timer", "note", "nohz_full=2-3"),
    "isolated and unused": (with_processors(isolated=frozenset({1, 2, 3})), "isolated-unused", "note", "pmd-cpu-mask=0xe"),
    "a pod's own CPU": (
        with_processors(kubelet=KubeletCpus("static", frozenset(), frozenset({2}))),
        "pmd-given-to-pod",
        "error",
        'reservedSystemCPUs: "0,2-3"',
    ),
    "all pods' CPUs": (
        with_processors(isolated=frozenset(), kubelet=KubeletCpus("static", frozenset({0, 2}), frozenset())),
        "pmd-kubelet",
        "warning",
        "strict-cpu-reservation",
    ),
    "a slow CPU": (
        with_processors(governors={2: "performance", 3: "powersave"}),
        "pmd-governor",
        "warning",
        "echo performance > /sys/devices/system/cpu/cpu3/cpufreq/scaling_governor",
    ),
    "a hyperthread": (with_processors(siblings={2: frozenset({0, 2})}), "pmd-sibling", "note", "isolcpus=0,2-3"),
    "another process": (
        used(users=(CpuUser(99, "nosy", frozenset({3}), 0.5, bound=False),)),
        "pmd-cpu-shared",
        "warning",
        "echo 99 | xargs -n 1 taskset -apc 0-1",
    ),
    "another switch": (
        used(users=(CpuUser(98, "ovs-vswitchd-dp", frozenset({3}), 1.0, bound=True),)),
        "pmd-cpu-two-switches",
        "warning",
        "at its own database (ovs-vsctl --db=REMOTE)",
    ),
    "an interrupt": (
        used(interrupts=(CpuInterrupt(30, "eth0-rx", frozenset({2}), 5),)),
        "pmd-interrupt",
        "warning",
        "echo 0-1 > /proc/irq/30/smp_affinity_list",
    ),
    "irqbalance": (used(balancer=InterruptBalancer(50, frozenset({2}))), "irqbalance", "warning", "BANNED_CPULIST=2-3"),
    "a full thread": (
        replace(SOUND, polling=PollingReading((replace(THREAD, queues=(PolledQueue("p", 0, True, 97),)),), 5)),
        "pmd-saturated",
        "warning",
        "pmd-cpu-mask=0x",
    ),
    "a port of another node": (
        replace(with_switch(polled_ports={"p": 1}), polling=PollingReading((THREAD,), 5)),
        "port-not-polled",
        "warning",
        "pmd-cpu-mask=0xc",
    ),
    "a port without a thread": (with_switch(polled_ports={"q": 0}), "port-not-polled", "error", "pmd-cpu-mask=0xc"),
    "no database": (replace(SOUND, away="connection refused", switch=None), "switch-away", "error", "start"),
    "a database that is stopped": (
        replace(SOUND, away="no answer", switch=None, database_pid=9, database_stopped=True),
        "switch-away",
        "error",
        "kill -CONT 9",
    ),
    "a database that hangs": (
        replace(SOUND, away="no answer", switch=None, database_pid=9),
        "switch-away",
        "error",
        "service openvswitch-switch restart",
    ),
    "a dead switch": (replace(SOUND, life=("dead", "no control socket")), "vswitchd-dead", "error", "restart"),
    "a silent switch": (replace(SOUND, life=("silent", "no answer")), "vswitchd-silent", "error", "log"),
    "a young switch": (with_daemon(age_s=10.0), "vswitchd-young", "note", "log"),
    "crashes": (with_daemon(crashes=2), "vswitchd-crashed", "warning", "coredumpctl"),
    "an upgrade that waits": (with_daemon(replaced=True), "vswitchd-replaced", "warning", "restart"),
    "swapped out": (with_daemon(swapped=4096), "vswitchd-swapped", "warning", "swapoff -a"),
    "few files": (with_daemon(files=900, files_max=1024), "open-files", "warning", "prlimit --pid 7 --nofile=65536:65536"),
    "locked memory": (
        with_daemon(user=ProcessUser(5, frozenset(), 2), locked_max=65536),
        "locked-memory",
        "warning",
        "prlimit --pid 7 --memlock=unlimited:unlimited",
    ),
    "a user without rights": (with_daemon(user=ProcessUser(5, frozenset(), 1 << 14)), "ovs-user", "warning", "OVS_USER_ID"),
    "AppArmor": (with_daemon(label="/usr/sbin/ovs-vswitchd (enforce)"), "apparmor", "note", "aa-complain"),
    "another directory": (with_daemon(sees=False), "short-dir-unseen", "error", f"mount {SHORT} into its container"),
    "no propagation": (with_daemon(receives=False), "mounts-unseen", "error", "mountPropagation: HostToContainer"),
    "huge pages of all": (with_kernel(thp="always"), "transparent-hugepages", "warning", "echo madvise >"),
    "balanced nodes": (with_kernel(numa_balancing=True), "numa-balancing", "warning", "sysctl -w kernel.numa_balancing=0"),
    "swap": (with_kernel(swap=(0, 1 << 30)), "swap", "note", "swapoff -a"),
    "no module": (with_kernel(modules={"tun": "absent"}), "kernel-module", "error", "linux-image-6.1.0"),
    "a module that is not loaded": (with_kernel(modules={"tun": "loadable"}), "kernel-module", "warning", "modprobe tun"),
    "no IOMMU": (with_switch(kinds=frozenset({"dpdk"})), "iommu-off", "warning", "intel_iommu=on"),
    "SELinux": (with_kernel(enforcing=True), "selinux", "note", "selinuxLabel"),
    "no directory of sockets": (
        replace(SOUND, directories=(DirectoryState("vhost-sock-dir", "/run/o/s", exists=False),)),
        "sock-dir-missing",
        "warning",
        "mkdir -p /run/o/s",
    ),
    "a container that lacks something": (
        replace(SOUND, lacking=("short_dir /x: the mount / is not shared",)),
        "agent-lacks",
        "error",
        "deploy/cluster/base",
    ),
    "no execution": (
        replace(SOUND, directories=(DirectoryState("bin_dir", "/opt/cni/bin", mount="/opt", no_exec=True),)),
        "no-exec",
        "error",
        "mount -o remount,exec /opt",
    ),
    "read-only": (
        replace(SOUND, directories=(DirectoryState("run_dir", "/run/x", mount="/run", read_only=True),)),
        "read-only",
        "error",
        "mount -o remount,rw /run",
    ),
    "a full disk": (
        replace(SOUND, directories=(DirectoryState("run_dir", "/run/x", problem="its file system is full"),)),
        "directory-unwritable",
        "error",
        "df",
    ),
    "open to all": (
        replace(SOUND, directories=(DirectoryState("run_dir", "/run/x", open_to="all users"),)),
        "directory-open",
        "error",
        "chmod o-w /run/x",
    ),
    "records in memory": (
        replace(SOUND, directories=(DirectoryState("state_dir", "/run/x", filesystem="tmpfs"),)),
        "state-in-memory",
        "warning",
        "state_dir",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_with_its_remedy(fault: str) -> None:
    """One finding of that name, with its gravity, a message and a remedy; and nothing graver that it does not entail."""
    facts, name, severity, remedy = FAULTS[fault]
    findings = found_in(facts)
    [found] = [each for each in findings if each.name == name]
    assert (found.severity, remedy in found.remedy, bool(found.message)) == (severity, True, True), found
    assert all(each.remedy and each.subject for each in findings), findings
    assert not [each for each in judge_node(facts, SHORT) if each.severity == "good" and each.subject == found.subject] or (
        severity == "note"
    )


def test_all_processes_on_polled_cpus_are_one_finding() -> None:
    """A busy machine has many; no remedy moves the threads of another switch."""
    users = [CpuUser(pid, "nosy", frozenset({3}), 0.5, bound=False) for pid in range(100, 130)]
    users[7] = CpuUser(107, "ovs-vswitchd-dp", frozenset({3}), 1.0, bound=True)
    found = {each.name: each for each in found_in(used(users=tuple(users)))}
    assert sorted(found) == ["pmd-cpu-shared", "pmd-cpu-two-switches"]
    shared, second = found["pmd-cpu-shared"], found["pmd-cpu-two-switches"]
    assert "process 100 (nosy) took 50% of CPU 3, process 101" in shared.message
    assert shared.message.endswith(", and 9 more")
    assert "107" not in shared.message + shared.remedy
    assert ("107" in second.message, "taskset" in second.remedy) == (True, False)


def test_the_gravest_come_first() -> None:
    """Errors, then warnings, then notes, then what is good."""
    facts = replace(with_kernel(thp="always", swap=(0, 1 << 30)), life=("dead", "gone"))
    order = [each.severity for each in judge_node(facts, SHORT)]
    assert (order[:3], set(order[3:])) == (["error", "warning", "note"], {"good"})
    assert sort_findings([]) == []


def test_a_switch_without_huge_pages_needs_none() -> None:
    """Neither one that was started with --no-huge, nor one without DPDK, lacks pages."""
    for facts in (configured(dpdk_extra="--no-huge"), configured(dpdk_init="false")):
        assert not [each for each in found_in(replace(facts, pages=HugePages((), (), ()))) if each.subject == "huge pages"]


def test_an_agent_of_another_version() -> None:
    """It is a warning; without an agent, or with one of this version, the versions are good to know."""
    assert judge_versions("1.0", "1.1", []).severity == "warning"
    assert judge_versions("1.0", "", []).severity == "good"
    assert judge_versions("", "1.1", ["OVS 3"]).message == "OVS 3, userspace-cni 1.1"
    assert judge_versions("1.1", "1.1", []).message == "userspace-cni 1.1, agent 1.1"
