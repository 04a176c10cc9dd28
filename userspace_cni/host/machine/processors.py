"""The processors of the machine: NUMA nodes, isolation, frequency governors, and what the kubelet gives to pods."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.cpu_sets import read_list
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import list_names, read_text, read_word
from userspace_cni.host.node_net.numa import read_nodes

_CPUS: Final = "/sys/devices/system/cpu"
_CPU: Final = re.compile(r"cpu([0-9]+)")
_PARTITION: Final = "/sys/fs/cgroup/cpuset.cpus.isolated"
"""Those that cgroups isolate while the machine runs (cpuset.cpus.partition), since Linux 6.7."""
_MANAGER: Final = "cpu_manager_state"


@dataclass(frozen=True)
class KubeletCpus:
    """The kubelet's CPU manager. `shared`: CPUs of all pods that have none of their own; `given`: those of single containers."""

    policy: str
    shared: frozenset[int]
    given: frozenset[int]


@dataclass(frozen=True)
class Processors:
    """`nodes`: those of each NUMA node; one node 0 where the kernel shows none.

    `isolated`, `nohz_full`, `rcu_nocbs`: by those words of the kernel's command line; `isolated` by cgroups, too.
    `init`: where processes run that are bound to no CPU (the affinity of process 1). `siblings`: the threads of each one's core.
    """

    online: frozenset[int] = frozenset()
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    isolated: frozenset[int] = frozenset()
    nohz_full: frozenset[int] = frozenset()
    rcu_nocbs: frozenset[int] = frozenset()
    init: frozenset[int] = frozenset()
    siblings: Mapping[int, frozenset[int]] = field(default_factory=dict)
    governors: Mapping[int, str] = field(default_factory=dict)
    kubelet: KubeletCpus | None = None


def read_processors(kubelet_dir: str, root: HostRoot = HERE) -> Processors:
    """The processors of the host. Raises Unavailable where the kernel does not list them."""
    online = read_list(read_text(f"{_CPUS}/online", root) or "")
    numbers = [int(match[1]) for name in list_names(_CPUS, root) if (match := _CPU.fullmatch(name))]
    siblings = {cpu: read_list(read_word(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list", root)) for cpu in numbers}
    governors = {cpu: read_word(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor", root) for cpu in numbers}
    words = dict(word.partition("=")[::2] for word in read_word("/proc/cmdline", root).split())
    status = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_word("/proc/1/status", root), re.MULTILINE)
    return Processors(
        online=online or frozenset(numbers),
        nodes=read_nodes(root) or {0: online},
        isolated=read_list(read_word(f"{_CPUS}/isolated", root)) | read_list(read_word(_PARTITION, root)),
        nohz_full=read_list(read_word(f"{_CPUS}/nohz_full", root)),
        rcu_nocbs=read_list(words.get("rcu_nocbs", "")),
        init=read_list(status[1]) if status else frozenset(),
        siblings={cpu: found for cpu, found in siblings.items() if len(found) > 1},
        governors={cpu: name for cpu, name in governors.items() if name},
        kubelet=_read_kubelet(f"{kubelet_dir}/{_MANAGER}", root),
    )


def _read_kubelet(path: str, root: HostRoot) -> KubeletCpus | None:
    """What the kubelet has written of its CPU manager; None without a kubelet, or in a form that is not known."""
    text = read_text(path, root)
    try:
        content = json.loads(text) if text else None
        if not isinstance(content, dict):
            return None
        entries = content.get("entries") or {}
        given = (read_list(str(cpus)) for containers in entries.values() for cpus in containers.values())
        return KubeletCpus(
            str(content.get("policyName", "")), read_list(str(content.get("defaultCpuSet", ""))), frozenset().union(*given)
        )
    except (ValueError, AttributeError, RecursionError):
        return None
