"""What is looked at on a node to find what disturbs its switch: the switch, its process, processors, kernel, memory, directories.

Each part is asked for on its own: one that cannot be asked is None, with the reason in `unknown`, and never counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from userspace_cni.attachment.node import Liveness
from userspace_cni.base.cpu_sets import read_mask
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.host_paths import as_host_names
from userspace_cni.base.polling import PollingReading
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugePages
from userspace_cni.host.machine.boot_pages import BootPages, read_boot_pages
from userspace_cni.host.machine.cpu_users import CpuUse, CpuUser, look_at_cpus
from userspace_cni.host.machine.daemon_process import DaemonProcess, look_at_daemon
from userspace_cni.host.machine.directory_states import DirectoryState, look_at_directory
from userspace_cni.host.machine.kernel_files import read_word
from userspace_cni.host.machine.kernel_state import KernelState, read_kernel
from userspace_cni.host.machine.processors import Processors, read_processors
from userspace_cni.linux.processes import find_daemon, is_stopped
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.surroundings import missing, unwritable
from userspace_cni.switch.ovsdb.rows.bridge_row import datapath_of

__all__ = [
    "SOCK_DIR",
    "CpuUser",
    "DaemonProcess",
    "DirectoryState",
    "NodeFacts",
    "Processors",
    "SwitchReport",
    "gather_node_facts",
]

SOCK_DIR: Final = "vhost-sock-dir"
"""The option of the switch that says where it makes sockets, below its run directory."""
MODULES: Final = ("nf_tables", "openvswitch", "tun", "veth", "vfio_pci")
_POLLED: Final = frozenset({"dpdk", "dpdkvhostuser", "dpdkvhostuserclient"})
_VSWITCHD: Final = "ovs-vswitchd"
_DIRECTORIES: Final = ("state_dir", "run_dir", "short_dir")
_DEFAULT_BYTES: Final = 2 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class SwitchReport:
    """What the switch says of itself. `dpdk`: it runs. `kinds`: types of its interfaces; `datapaths`: types of its bridges.

    `version`: as ovs-vswitchd tells it, "" without an answer; `dpdk_version`: of the DPDK that it is built with, "" for none.
    `polled_ports`: ports that polling threads have to poll, each with its NUMA node, None where that is not known.
    """

    other_config: Mapping[str, str] = field(default_factory=dict)
    dpdk: bool = False
    kinds: frozenset[str] = frozenset()
    datapaths: frozenset[str] = frozenset()
    polled_ports: Mapping[str, int | None] = field(default_factory=dict)
    version: str = ""
    dpdk_version: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """What was seen; None is what could not be asked, for the reasons in `unknown`.

    `database`: OVSDB's remote where it is not the usual one. `away`: why it gives no answer, "" if it does; then `database_pid`
    is its server's, 0 where none is seen, and `database_stopped`: by a signal. `life`: of ovs-vswitchd, with the reason.
    `default_bytes`: the size of page that vm.nr_hugepages is about. `links`: there are pods with kernel links. `others`: versions
    of ovn-controller and the container runtime. `lacking`: what this process lacks to be the node's agent, where it sees the host
    below another root.
    """

    database: str = ""
    away: str = ""
    database_pid: int = 0
    database_stopped: bool = False
    life: tuple[str, str] = ("unknown", "")
    switch: SwitchReport | None = None
    polling: PollingReading | None = None
    daemon: DaemonProcess | None = None
    processors: Processors | None = None
    use: CpuUse | None = None
    kernel: KernelState | None = None
    pages: HugePages | None = None
    default_bytes: int = _DEFAULT_BYTES
    boot_pages: BootPages | None = None
    directories: tuple[DirectoryState, ...] = ()
    links: bool = False
    others: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def polled(self) -> frozenset[int]:
        """The processors of the polling threads: those that run, and without one those that are configured."""
        running = self.daemon.polled if self.daemon else frozenset()
        return running or (read_mask(self.switch.other_config.get("pmd-cpu-mask", "")) if self.switch else None) or frozenset()


def gather_node_facts(
    node: LocalNode, life: Liveness, bin_dirs: Sequence[str], seconds: float, patience: Callable[[], Deadline]
) -> NodeFacts:
    """Look at everything. `seconds`: how long it is watched who runs on the processors of polling threads.

    `life`: of ovs-vswitchd. `bin_dirs`: directories with the installed plugin. `patience` gives the deadline of a question to the
    switch.
    """
    settings, root = node.installation.settings, node.installation.root
    unknown: list[str] = []

    def asked(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except UserspaceError as error:
            unknown.append(str(error))
            return None

    if life.state == "unknown":
        unknown.append(f"whether ovs-vswitchd lives: {life.reason}")
    away = ""
    switch = None
    try:
        node.switch.ports.connect(patience())
        switch = _ask_switch(node, life, patience)
    except UserspaceError as error:
        away = str(error)
    server = find_daemon(root.path(settings.ovs_rundir), "ovsdb-server", root.path("/proc")) if away else 0
    pid = life.pid if life.state != "dead" else None
    daemon = asked(lambda: look_at_daemon(pid, _VSWITCHD, settings.short_dir, root)) if pid else None
    if pid and daemon is None:
        unknown.append(f"process {pid}, ovs-vswitchd: not visible from here (a container needs hostPID: true)")
    pages = hugepages.read_hugepages(
        root.path("/sys"), root.path("/proc/1/mountinfo") if root.elsewhere else "/proc/self/mountinfo"
    )
    if not pages.machine and not pages.nodes:
        unknown.append("huge pages: /sys shows none of any size (a kernel without them, or a container without the host's /sys)")
    default_bytes = read_default_bytes(root)
    facts = NodeFacts(
        database=other_database(settings),
        away=away,
        database_pid=server,
        database_stopped=bool(server) and is_stopped(server, root.path("/proc")),
        life=(life.state, life.reason),
        switch=switch,
        polling=asked(lambda: node.switch.ports.read_polling_threads(patience(), lately=True))
        if switch and switch.dpdk
        else None,
        daemon=daemon,
        processors=asked(lambda: read_processors(settings.kubelet_dir, root)),
        kernel=asked(lambda: read_kernel(MODULES, root)),
        pages=pages if pages.machine or pages.nodes else None,
        default_bytes=default_bytes,
        boot_pages=asked(lambda: read_boot_pages(default_bytes, root)),
        directories=tuple(_look_at_directories(settings, bin_dirs, switch, root)),
        others=tuple(_read_versions(node, patience)),
        lacking=tuple(map(as_host_names, missing(settings))) if root.elsewhere else (),
        links=any(record.link for record in node.store.journal.records()),
    )
    use = asked(lambda: _watch(facts, seconds, root)) if facts.polled else None
    return replace(facts, use=use, unknown=tuple(unknown))


def _ask_switch(node: LocalNode, life: Liveness, patience: Callable[[], Deadline]) -> SwitchReport:
    """Raises UserspaceError."""
    switch = node.switch.ports
    ports = switch.list_ports()
    abilities = switch.read_abilities(patience())
    return SwitchReport(
        switch.read_settings(patience()).other_config,
        abilities.dpdk,
        frozenset(port.interface_type for port in ports),
        switch.look(lambda session: frozenset(map(datapath_of, session.index.datapaths.values())), {}, "its bridges", patience()),
        {port.name: _node_of(port.status) for port in ports if port.interface_type in _POLLED and not port.error},
        life.reason if life.state == "alive" else "",
        abilities.dpdk_version,
    )


def _node_of(status: Mapping[str, str]) -> int | None:
    """The NUMA node that Interface.status names: of a vhost-user port `numa`, known once it is connected; of a NIC `numa_id`."""
    told = status.get("numa", "") or status.get("numa_id", "")
    return int(told) if told.isdecimal() else None


def _watch(facts: NodeFacts, seconds: float, root: HostRoot) -> CpuUse:
    besides = {facts.daemon.pid} if facts.daemon else set[int]()
    processors = facts.processors or Processors()
    return look_at_cpus(facts.polled, seconds, besides, processors.isolated | processors.nohz_full, root)


def _look_at_directories(
    settings: Settings, bin_dirs: Sequence[str], switch: SwitchReport | None, root: HostRoot
) -> Iterator[DirectoryState]:
    named = [(name, str(getattr(settings, name))) for name in _DIRECTORIES]
    if switch and (below := switch.other_config.get(SOCK_DIR)):
        named.append((SOCK_DIR, f"{settings.ovs_rundir}/{below}"))
    for name, path in (*named, *(("bin_dir", path) for path in bin_dirs)):
        seen = look_at_directory(name, path, root)
        if seen:
            yield seen if name == "bin_dir" else replace(seen, problem=unwritable(root.path(path)))


def _read_versions(node: LocalNode, patience: Callable[[], Deadline]) -> Iterator[str]:
    """Of programs that need not be here: one that gives no answer is left out."""
    from userspace_cni.host.runtimes.cri import Cri
    from userspace_cni.switch.ovn_controller import read_controller_version

    settings, root = node.installation.settings, node.installation.root
    if ovn := read_controller_version(root.path(settings.ovn_rundir), patience()):
        yield ovn
    if settings.cri_socket and root.exists(settings.cri_socket):
        with suppress(UserspaceError):
            yield Cri(settings.cri_socket, root).read_version()


def other_database(settings: Settings) -> str:
    """OVSDB's remote where commands of Open vSwitch have to be told it, else ""."""
    return "" if settings.ovsdb == Settings.ovsdb else settings.ovsdb


def read_default_bytes(root: HostRoot) -> int:
    found = re.search(r"^Hugepagesize:\s*([0-9]+) kB", read_word("/proc/meminfo", root), re.MULTILINE)
    return int(found[1]) << 10 if found else _DEFAULT_BYTES
