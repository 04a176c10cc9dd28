"""The kernel and the memory of the machine: settings that disturb polling, modules, IOMMU, SELinux, and swap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import list_names, read_text, read_word

ModuleState = Literal["there", "loadable", "absent", "unknown"]
_THP: Final = "/sys/kernel/mm/transparent_hugepage/enabled"
_CHOSEN: Final = re.compile(r"\[(\w+)\]")


@dataclass(frozen=True)
class KernelState:
    """`thp`: always, madvise, never, or "" where the kernel has no such pages. `numa_balancing`: None where it cannot balance.

    `modules`: by name; `unknown` where the kernel's list of modules is not on this machine. `iommus`: how many the kernel uses.
    `without_iommu`: vfio may be used without one. `enforcing`: SELinux. `swap`: bytes in use and of all.
    """

    release: str = ""
    thp: str = ""
    numa_balancing: bool | None = None
    modules: Mapping[str, ModuleState] = field(default_factory=dict)
    iommus: int = 0
    without_iommu: bool = False
    enforcing: bool = False
    swap: tuple[int, int] = (0, 0)


def read_kernel(modules: Iterable[str], root: HostRoot = HERE) -> KernelState:
    """What the kernel says of itself, and of these modules. Raises Unavailable."""
    import psutil

    release = read_word("/proc/sys/kernel/osrelease", root)
    thp = _CHOSEN.search(read_word(_THP, root))
    balancing = read_word("/proc/sys/kernel/numa_balancing", root)
    swap = psutil.swap_memory()
    return KernelState(
        release=release,
        thp=thp[1] if thp else "",
        numa_balancing=balancing != "0" if balancing else None,
        modules=_look_for(modules, release, root),
        iommus=len(list_names("/sys/class/iommu", root)),
        without_iommu=read_word("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", root) in ("Y", "1"),
        enforcing=read_word("/sys/fs/selinux/enforce", root) == "1",
        swap=(swap.used, swap.total),
    )


def _look_for(modules: Iterable[str], release: str, root: HostRoot) -> dict[str, ModuleState]:
    directory = next(
        (place for place in ("/lib/modules", "/usr/lib/modules") if read_text(f"{place}/{release}/modules.dep", root)), ""
    )
    built_in = _names(read_text(f"{directory}/{release}/modules.builtin", root) or "") if directory else frozenset()
    loadable = _names(read_text(f"{directory}/{release}/modules.dep", root) or "") if directory else frozenset()
    loaded = frozenset(list_names("/sys/module", root))

    def state_of(name: str) -> ModuleState:
        if name in loaded or name in built_in:
            return "there"
        return "loadable" if name in loadable else "absent" if directory else "unknown"

    return {name: state_of(name) for name in modules}


def _names(listing: str) -> frozenset[str]:
    """The modules that a file of depmod(8) lists by their paths, with the kernel's spelling of the name."""
    paths = (line.partition(":")[0] for line in listing.splitlines())
    return frozenset(path.rpartition("/")[2].partition(".ko")[0].replace("-", "_") for path in paths)
