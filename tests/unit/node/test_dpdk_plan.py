"""What `setup dpdk` would do on recorded machines: which CPUs and how much memory, by which commands, and what it refuses.

Its commands are run in tests/ovs/test_setup_dpdk and in tests/guest.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.base.root import HostRoot
from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugePages, HugetlbMount
from userspace_cni.host.machine.boot_pages import read_boot_pages
from userspace_cni.host.machine.node_memory import NodeMemory
from userspace_cni.host.machine.processors import KubeletCpus, Processors
from userspace_cni.host.machine.switch_packages import WITH_DPDK, SwitchPackages
from userspace_cni.node.dpdk_facts import DpdkFacts
from userspace_cni.node.dpdk_plan import SetupPlan, SetupRefused, SetupWishes, plan_dpdk

MIB2, GIB = 2 << 20, 1 << 30
POOL = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
SET = "ovs-vsctl --timeout=60 set Open_vSwitch . "


def pools(*totals: int, size: int = MIB2) -> tuple[HugepagePool, ...]:
    return tuple(HugepagePool(size, node, total, total, None, 0) for node, total in enumerate(totals))


MACHINE = (HugepagePool(MIB2, None, 0, 0, 0, 0), HugepagePool(GIB, None, 0, 0, 0, 0))
DEBIAN = SwitchPackages(True, True, True, "/usr/lib/openvswitch-switch/ovs-vswitchd", "openvswitch-switch", systemd=True)
FRESH = DpdkFacts(
    packages=DEBIAN,
    away="connection refused",
    processors=Processors(frozenset(range(8)), {0: frozenset(range(4)), 1: frozenset(range(4, 8))}),
    memory={0: NodeMemory(64 * GIB, 60 * GIB), 1: NodeMemory(64 * GIB, 60 * GIB)},
    pages=HugePages(MACHINE, pools(0, 0), ()),
)
ONE_NODE = replace(
    FRESH,
    processors=Processors(frozenset({0, 1}), {0: frozenset({0, 1})}),
    memory={0: NodeMemory(2 * GIB, GIB)},
    pages=HugePages(MACHINE, pools(0), ()),
)
MOUNT = HugetlbMount("/dev/hugepages", MIB2, 0o755, 0, 0, None, None, writable=True)
READY = replace(
    FRESH,
    packages=replace(DEBIAN, chosen=WITH_DPDK),
    away="",
    runs=True,
    dpdk=True,
    dpdk_version="DPDK 23.11",
    other_config={"dpdk-init": "true", "pmd-cpu-mask": "0x88", "dpdk-socket-mem": "1024,1024"},
    pages=HugePages(MACHINE, pools(1024, 1024), (MOUNT,)),
    boot_pages={(None, MIB2): 2048},
)


def commands(plan: SetupPlan) -> list[str]:
    return [command for step in plan.steps for command in step.commands]


def planned(facts: DpdkFacts, **wishes: Any) -> SetupPlan:
    return plan_dpdk(facts, SetupWishes(**wishes))


def refused(facts: DpdkFacts, **wishes: Any) -> str:
    with pytest.raises(SetupRefused) as caught:
        planned(facts, **wishes)
    return str(caught.value)


def test_a_fresh_machine_of_two_nodes() -> None:
    """One CPU and the same memory on each node, in the order in which one needs the other, without a restart."""
    plan = planned(FRESH)
    lines = [f"w {POOL.format(node)} - - - - 1024" for node in (0, 1)]
    options = "pmd-cpu-mask=0x88 dpdk-socket-mem=1024,1024 dpdk-socket-limit=1024,1024 dpdk-init=true"
    found = "ovs-vsctl --timeout=60 get Open_vSwitch . other_config:${option%%=*} > /dev/null 2>&1"
    assert commands(plan) == [
        *(f"echo 1024 > {POOL.format(node)}" for node in (0, 1)),
        f"printf '%s\\n' '{lines[0]}' '{lines[1]}' > /etc/tmpfiles.d/99-userspace-cni-hugepages.conf",
        "mkdir -p /dev/hugepages && mount -t hugetlbfs -o pagesize=2M hugetlbfs /dev/hugepages",
        f"update-alternatives --set ovs-vswitchd {WITH_DPDK}",
        "systemctl start openvswitch-switch",
        f'for option in {options}; do {found} || {SET}other_config:"$option"; done',
    ]
    assert plan.restart is None
    assert plan.reasons[0].startswith("CPU 3,7 for polling threads: the highest CPU of each NUMA node")


def test_a_machine_that_has_all() -> None:
    """Nothing is to be done, with the derived amounts and with the same ones by name."""
    for wishes in ({}, {"memory": GIB, "pod_memory": GIB, "cpus": frozenset({3, 7})}):
        plan = planned(READY, **wishes)
        assert (commands(plan), plan.restart) == ([], None)


def test_a_small_machine() -> None:
    """A quarter of the memory at most for the switch, a sysctl on one node, and fstab without systemd."""
    plan = planned(replace(ONE_NODE, packages=replace(DEBIAN, systemd=False)))
    told = commands(plan)
    assert f"echo 512 > {POOL.format(0)}" in told
    assert "echo vm.nr_hugepages=512 > /etc/sysctl.d/99-userspace-cni-hugepages.conf" in told
    assert "mkdir -p /dev/hugepages && echo 'hugetlbfs /dev/hugepages hugetlbfs pagesize=2M 0 0' >> /etc/fstab" in told
    assert any("dpdk-socket-mem=512" in each for each in told)
    assert "service openvswitch-switch start" in told


def test_pages_of_another_size() -> None:
    """1 GiB pages have a mount and a file of their own; a kernel without them is told."""
    plan = planned(FRESH, page_bytes=GIB)
    told = commands(plan)
    assert told[0] == "echo 2 > /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages"
    assert "mkdir -p /dev/hugepages-1024M && mount -t hugetlbfs -o pagesize=1024M hugetlbfs /dev/hugepages-1024M" in told
    without = replace(FRESH, pages=HugePages(MACHINE[:1], pools(0, 0), ()))
    assert refused(without, page_bytes=GIB) == "--page-size: the kernel has no huge pages of 1 GiB, but of 2 MiB"


def test_pages_at_boot_without_systemd() -> None:
    """A sysctl for all nodes; pages of another size than the kernel's own take its command line."""
    facts = replace(FRESH, packages=replace(DEBIAN, systemd=False))
    assert "echo vm.nr_hugepages=2048 > /etc/sysctl.d/99-userspace-cni-hugepages.conf" in commands(planned(facts))
    assert "hugepagesz=1024M hugepages=4; boot with it" in refused(facts, page_bytes=GIB)


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    """The files that the commands write are those that say what the next boot reserves: then nothing is left to do."""
    for directory in ("sysctl.d", "tmpfiles.d"):
        (tmp_path / "etc" / directory).mkdir(parents=True)
    for facts in (FRESH, ONE_NODE, replace(FRESH, packages=replace(DEBIAN, systemd=False))):
        [keep] = [step for step in planned(facts).steps if step.name == "huge pages at boot"]
        subprocess.run(["sh", "-ec", keep.commands[0].replace("> /etc", f"> {tmp_path}/etc")], check=True)
        kept = replace(facts, boot_pages=read_boot_pages(MIB2, HostRoot(str(tmp_path))))
        assert "huge pages at boot" not in {step.name for step in planned(kept).steps}
        for file in (tmp_path / "etc").glob("*/*"):
            file.unlink()


def test_cpus_of_pods_are_not_taken() -> None:
    """Neither by default nor by name; isolated ones come first."""
    kubelet = KubeletCpus("static", frozenset({0, 1, 2, 4, 5, 6}), frozenset({3, 7}))
    facts = replace(FRESH, processors=replace(FRESH.processors, kubelet=kubelet))
    assert planned(facts).reasons[0].startswith("CPU 2,6 ")
    assert "the kubelet has given CPU 3 to a pod" in refused(facts, cpus=frozenset({2, 3}))
    isolated = replace(facts, processors=replace(facts.processors, isolated=frozenset({2, 3})))
    assert planned(isolated).reasons[0] == "CPU 2 for polling threads: isolated by the kernel's command line"
    assert "there is no CPU 9" in refused(facts, cpus=frozenset({9}))


def test_a_machine_of_one_cpu() -> None:
    """A polling thread would take all of it; it is done only by name."""
    facts = replace(ONE_NODE, processors=Processors(frozenset({0}), {0: frozenset({0})}))
    assert "no CPU is free" in refused(facts)
    assert f'{SET}other_config:pmd-cpu-mask="0x1"' in commands(planned(facts, cpus=frozenset({0})))


def test_memory_of_what_runs_is_not_taken() -> None:
    """Where less is to spare, nothing is planned; fewer pages than there are is no reason to give some back."""
    facts = replace(ONE_NODE, memory={0: NodeMemory(2 * GIB, GIB // 2)})
    assert "node 0 has 512 MiB of memory to spare, and 1 GiB of huge pages are missing" in refused(facts)
    assert commands(planned(READY, memory=256 << 20, pod_memory=0))[0].startswith("ovs-vsctl")


def test_a_changed_amount_takes_a_restart() -> None:
    """Of a switch that runs with DPDK; the restart is told with the number of attachments, and is no step."""
    plan = planned(replace(READY, attached=3), memory=512 << 20)
    assert commands(plan) == [f'{SET}other_config:dpdk-socket-mem="512,512" other_config:dpdk-socket-limit="512,512"']
    assert plan.restart
    assert plan.restart.why.startswith("dpdk-socket-limit, dpdk-socket-mem take effect at a restart; no port of this node moves")
    assert plan.restart.why.endswith("; 3 attachments of pods here")


def test_packages() -> None:
    """Debian's package is named; what another distribution lacks is told."""
    assert commands(planned(replace(FRESH, packages=replace(DEBIAN, with_dpdk=False))))[0] == (
        "apt-get install -y openvswitch-switch-dpdk"
    )
    other = SwitchPackages(systemd=True)
    assert "there is no Open vSwitch" in refused(replace(FRESH, packages=other))
    told = commands(planned(replace(FRESH, packages=replace(other, installed=True))))
    assert "systemctl start openvswitch" in told
    assert not any("alternatives" in each for each in told)


def test_another_database() -> None:
    """Where the setting ovsdb names one, the command names it, too."""
    facts = replace(READY, database="unix:/run/other/db.sock", socket_dir="vhost")
    assert commands(planned(facts))[0].startswith("ovs-vsctl --timeout=60 --db=unix:/run/other/db.sock set ")


def test_the_directory_of_sockets() -> None:
    """Where the setting ovs_sockdir names one below OVS's own, OVS is told, too."""
    assert commands(planned(replace(READY, socket_dir="vhost"))) == [f'{SET}other_config:vhost-sock-dir="vhost"']
