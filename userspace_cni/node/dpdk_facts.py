"""What a node has of what OVS-DPDK needs, for `setup dpdk`: packages, the switch's options, huge pages, memory, processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from userspace_cni.attachment.node import Liveness
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugePages
from userspace_cni.host.machine.boot_pages import BootPages, read_boot_pages
from userspace_cni.host.machine.node_memory import NodeMemory, read_node_memory
from userspace_cni.host.machine.processors import Processors, read_processors
from userspace_cni.host.machine.switch_packages import WITH_DPDK, SwitchPackages, look_at_packages
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.node_facts import other_database, read_default_bytes

__all__ = ["WITH_DPDK", "DpdkFacts", "NodeMemory", "Processors", "SwitchPackages", "gather_dpdk_facts"]


@dataclass(frozen=True)
class DpdkFacts:
    """`database`: OVSDB's remote where it is not the usual one. `away`: why it gives no answer, "" if it does.

    `runs`: ovs-vswitchd lives, or may. `dpdk`: DPDK runs in it; `dpdk_version`: of the DPDK that the running program is built
    with, "" for none. `attached`: how many attachments pods have. `socket_dir`: the directory of the setting ovs_sockdir, below
    OVS's own, "" where it is not set.
    """

    packages: SwitchPackages = field(default_factory=SwitchPackages)
    database: str = ""
    away: str = ""
    runs: bool = False
    other_config: Mapping[str, str] = field(default_factory=dict)
    dpdk: bool = False
    dpdk_version: str = ""
    processors: Processors = field(default_factory=Processors)
    memory: Mapping[int, NodeMemory] = field(default_factory=dict)
    pages: HugePages = field(default_factory=lambda: HugePages((), (), ()))
    default_bytes: int = 2 << 20
    boot_pages: BootPages = field(default_factory=dict)
    attached: int = 0
    socket_dir: str = ""


def gather_dpdk_facts(node: LocalNode, life: Liveness, patience: Callable[[], Deadline]) -> DpdkFacts:
    """Look at all of it. `life`: of ovs-vswitchd. Raises UserspaceError for what must be known before anything is set up."""
    settings, root = node.installation.settings, node.installation.root
    away, other_config, dpdk, dpdk_version = "", {}, False, ""
    try:
        node.switch.ports.connect(patience())
        other_config = dict(node.switch.ports.read_settings(patience()).other_config)
        abilities = node.switch.ports.read_abilities(patience())
        dpdk, dpdk_version = abilities.dpdk, abilities.dpdk_version
    except UserspaceError as error:
        away = str(error)
    default_bytes = read_default_bytes(root)
    below = os.path.relpath(settings.ovs_sockdir, settings.ovs_rundir) if settings.ovs_sockdir else ""
    return DpdkFacts(
        packages=look_at_packages(root),
        database=other_database(settings),
        away=away,
        runs=life.state != "dead",
        other_config=other_config,
        dpdk=dpdk,
        dpdk_version=dpdk_version,
        processors=read_processors(settings.kubelet_dir, root),
        memory=read_node_memory(root),
        pages=hugepages.read_hugepages(
            root.path("/sys"), root.path("/proc/1/mountinfo") if root.elsewhere else "/proc/self/mountinfo"
        ),
        default_bytes=default_bytes,
        boot_pages=read_boot_pages(default_bytes, root),
        attached=sum(record.owner == "pod" for record in node.store.journal.records()),
        socket_dir="" if below.startswith("..") or below == "." else below,
    )
