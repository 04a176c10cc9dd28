"""A node in memory: drivers that write into a set, so that everything a verb leaves can be compared at once.

It replaces switch, file system and API server in tests of the order of steps; other tests use the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.node.memory_switch import MemoryLifeline, MemoryPorts
from userspace_cni.attachment.attachment_store import AttachmentStore
from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.drift import Absent, Dead, Drift
from userspace_cni.attachment.facts import ChangeableOptions, Facts, LinkFacts, Pod, SocketFacts, SocketPlace
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.listing import LimitedDirection
from userspace_cni.attachment.node import ServeOptions
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.spool import Spool
from userspace_cni.attachment.steps import (
    Driver,
    Guard,
    Lease,
    LegacyRecord,
    Link,
    OvsPort,
    PlacedSocket,
    PodMount,
    PortRef,
    SharedReads,
    SocketFile,
    Step,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.limits import UNLIMITED
from userspace_cni.base.notices import Recipient
from userspace_cni.base.subnets import Placement
from userspace_cni.cni.bandwidth import resolve
from userspace_cni.cni.options import Options, read_options
from userspace_cni.cni.request import Environment, Request, Verb
from userspace_cni.cni.subnet_keys import as_leased, complete_request
from userspace_cni.consumers import CONSUMERS

Fault = Callable[[str, Step], None]


def no_fault(_when: str, _step: Step) -> None:
    """No fault."""


@dataclass
class MemoryDriver(Driver[Step]):
    """Makes a step true by adding its name to the world."""

    world: World

    def apply(self, step: Step, deadline: Deadline) -> Callable[[], None]:
        """Add it, and fail before or after that as the world's fault says; a failed call may have had its effect."""
        self.world.fault("before apply", step)
        self.world.true.add(name_of(step))
        if isinstance(step, SocketFile):
            self.world.dead.discard(step.name)
        if isinstance(step, OvsPort):
            self.world.closed.discard(step.name)
        self.world.fault("after apply", step)
        return lambda: self.world.fault("while waiting", step)

    def make_again(self, step: Step, deadline: Deadline) -> Callable[[], None]:
        """The same; the world remembers that no long wait was allowed."""
        self.world.made_again.append(step.kind)
        return self.apply(step, deadline)

    def undo(self, step: Step, deadline: Deadline) -> None:
        self.world.fault("before undo", step)
        self.world.true.discard(name_of(step))
        if isinstance(step, PlacedSocket):
            self.world.mounted.discard(step.name)
        self.world.fault("after undo", step)

    def check(self, step: Step, deadline: Deadline) -> list[Drift]:
        is_there = name_of(step) in self.world.true or isinstance(step, Lease)
        if isinstance(step, SocketFile) and step.name in self.world.dead:
            return [Drift(name_of(step), "", "an application, or nothing", Dead("a dead socket"))]
        return [] if is_there else [Drift(name_of(step), "", "what ADD made", Absent())]

    def is_present(self, step: Step) -> bool:
        return name_of(step) in self.world.true

    def is_lost(self, step: Step, seen: SharedReads, deadline: Deadline) -> bool:
        """As the real drivers of each type."""
        if isinstance(step, OvsPort):
            return seen.ports is not None and (step.name not in seen.ports or step.name in self.world.closed)
        if isinstance(step, SocketFile):
            return step.name in self.world.dead
        return isinstance(step, (PodMount, PlacedSocket)) and bool(self.check(step, deadline))

    def is_mounted(self, step: Step, seen: SharedReads) -> bool:
        """Of mounts, those that are true; of sockets, as the test says."""
        return name_of(step) in self.world.true if isinstance(step, PodMount) else getattr(step, "name", "") in self.world.mounted


def name_of(step: Step) -> str:
    """A short name for what a step makes."""
    if step.resource and not isinstance(step, SocketFile):
        return step.resource.key
    if isinstance(step, Guard | Link):
        return f"{step.kind}:{step.link if isinstance(step, Guard) else step.host}"
    port = f"port:{getattr(step, 'name', '')}"
    names = {"lease": "lease", "port": port, "port-ref": port}
    return names.get(step.kind, f"{step.kind}:{getattr(step, 'name', getattr(step, 'path', ''))}")


@dataclass(frozen=True)
class MemoryGathering:
    """The facts that an ADD asks a world for; it never waits."""

    world: World
    request: Request
    options: Options

    chooses = False

    def find_awaited(self) -> None: ...

    def facts(self, netns_inode: int) -> Facts:
        return self.world.facts(self.request, self.options, netns_inode)


@dataclass(frozen=True)
class MemorySandboxes:
    """The network namespaces of a world, in which nothing is left without a record."""

    world: World

    def inode(self, environment: Environment) -> int:
        return 4711

    def has_link(self, environment: Environment) -> bool:
        return (environment.netns, environment.ifname) in self.world.links

    def is_gone(self, path: str) -> bool:
        return path in self.world.gone

    def legacy(self, container_id: str, ifname: str) -> LegacyRecord | None:
        """None here."""
        return None

    def link_traces(self, container_id: str, ifname: str) -> tuple[Step, ...]:
        return ()


@dataclass(frozen=True)
class MemoryAddresses:
    """Where addresses come from in a world."""

    world: World

    def complete(self, request: Request, deadline: Deadline) -> Request:
        """What the test says of the Subnet."""
        subnet = self.world.subnet if request.network.subnet else None
        return complete_request(request, subnet, "/leases", shared=False) if subnet else request

    def as_leased(self, request: Request, lease: Lease | None = None) -> Request:
        return as_leased(request, "/leases", lease.configuration if lease else None) if request.network.subnet else request

    def require_delegate(self, request: Request) -> None: ...

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        """Lease, and answer what the test said."""
        self.world.fault("before lease", step)
        self.world.true.add("lease")
        self.world.fault("after lease", step)
        return self.world.answer

    def forward(self, verb: Verb, request: Request, deadline: Deadline) -> None:
        self.world.forwarded.append(verb)
        self.world.given.append(request.stdin)


@dataclass(frozen=True)
class MemoryPods:
    """The pods of a world."""

    world: World
    consumers = CONSUMERS

    def read_options(self, request: Request, warn: Callable[[str], object]) -> Options:
        return read_options(request, self.consumers, warn)

    def begin_gathering(self, request: Request, options: Options, consumer: Consumer, deadline: Deadline) -> MemoryGathering:
        """A pod with its own directory, or with a kernel link, without an API server."""
        return MemoryGathering(self.world, request, options)

    def require_mirrors(self, environment: Environment, mirrors: Iterable[str], outputs: Iterable[str]) -> None:
        """The rules allow everything."""

    def read_changeable_options(self, record: Record) -> ChangeableOptions | None:
        return self.world.said.get(record.pod_name)

    def is_gone(self, uid: str) -> bool:
        return uid in self.world.gone

    def tell(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        self.world.told += [(recipient, notice) for notice in notices]


@dataclass(frozen=True)
class MemorySwitch:
    """The switch of a world."""

    world: World

    @property
    def ports(self) -> MemoryPorts:
        return self.world.ports

    def watch_life(self, ended: Callable[[], None]) -> MemoryLifeline:
        return MemoryLifeline()

    def free_sources(self) -> int:
        return 0

    def of_node(self, deadline: Deadline) -> dict[str, Mapping[str, str]]:
        """The node itself has none here."""
        return {}

    def specs_in_rows(self, deadline: Deadline) -> frozenset[tuple[str, str]]:
        """The node itself has no rows here."""
        return frozenset()

    def left_of(self, kind: str, name: str, deadline: Deadline) -> tuple[Step, ...]:
        """Nor has a spec."""
        return ()

    def left_of_runs(self, deadline: Deadline) -> dict[RunId, tuple[str, tuple[Step, ...]]]:
        """None here."""
        return {}

    def list_owned(self, deadline: Deadline) -> dict[str, Mapping[str, str]]:
        """The ports that records made, as far as they exist, and those that the test put there."""
        if self.world.unreachable:
            raise self.world.unreachable
        made = [step.ref for record in self.world.journal.records() for step in record.steps if isinstance(step, OvsPort)]
        return {port.name: port.marks for port in [*made, *self.world.marked] if name_of(port) in self.world.true}

    def list_counted(self) -> None:
        """Nothing is known."""

    def read_statistics(self, ports: Collection[str]) -> dict[str, Mapping[str, int]]:
        """Nothing is known."""
        return {}

    def list_limited(self, records: Iterable[Record]) -> list[LimitedDirection]:
        """None here."""
        return []

    def count_guarded(self) -> tuple[int, int]:
        """None needed."""
        return 0, 0

    def sweep(self) -> int:
        return 0

    def list_marked(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """Rows as the test put them there."""
        return [port for port in self.world.marked if network is None or port.marks["network"] == network]

    def require_serving(self, options: Options, deadline: Deadline) -> None:
        if self.world.serving_error:
            raise self.world.serving_error


@dataclass
class World:
    """A node in memory; `true` is what exists, `fault` may raise at any step."""

    directory: Path
    true: set[str] = field(default_factory=set)
    fault: Fault = no_fault
    boot: str = "boot-1"
    made_again: list[str] = field(default_factory=list)
    """The kinds of the steps that were made again, without a long wait."""
    links: set[tuple[str, str]] = field(default_factory=set)
    place: SocketPlace | None = None
    answer: Any = field(default_factory=lambda: {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]})
    forwarded: list[Verb] = field(default_factory=list)
    given: list[bytes] = field(default_factory=list)
    """The stdin that the IPAM plugin got at each of these."""
    marked: list[PortRef] = field(default_factory=list)
    log_level: str = "error"
    deadline_s: float = 10.0
    serving_error: UserspaceError | None = None
    resident: bool = False
    subnet: Placement | None = None
    """What the Subnet that networks name gives."""
    now: int = 1
    unreachable: UserspaceError | None = None
    """The switch's answer when its ports are listed."""
    closed: set[str] = field(default_factory=set)
    """Names of ports that the switch could not open."""
    dead: set[str] = field(default_factory=set)
    """Names of sockets that a dead application left; freed by `apply`."""
    mounted: set[str] = field(default_factory=set)
    """Names of placed sockets that are mounts; removed by `undo`."""
    gone: set[str] = field(default_factory=set)
    """Paths of namespaces and UIDs of pods that are proven gone."""
    told: list[tuple[Recipient, Finding]] = field(default_factory=list)
    """What was written to pods."""
    said: dict[str, ChangeableOptions] = field(default_factory=dict)
    """What pods say of their interfaces, by name."""

    ports: MemoryPorts = field(init=False, repr=False)
    switch: MemorySwitch = field(init=False, repr=False)
    pods: MemoryPods = field(init=False, repr=False)
    sandboxes: MemorySandboxes = field(init=False, repr=False)
    addresses: MemoryAddresses = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ports = MemoryPorts(self)
        self.switch = MemorySwitch(self)
        self.pods = MemoryPods(self)
        self.sandboxes = MemorySandboxes(self)
        self.addresses = MemoryAddresses(self)

    @property
    def journal(self) -> Journal:
        """A store below the test's directory."""
        return Journal(f"{self.directory}/state", str(self.directory), print, self.boot_id)

    @property
    def store(self) -> AttachmentStore:
        """The journal, and a spool beside it."""
        spool = Spool(f"{self.directory}/state/spool", f"{self.directory}/state/quarantine")
        return AttachmentStore(self.journal, spool, self.boot_id, lambda: self.now)

    @property
    def service(self) -> ServeOptions:
        return ServeOptions(self.log_level, self.deadline_s, self.resident)

    def driver(self, step: Step) -> Driver[Any]:
        return MemoryDriver(self)

    def boot_id(self) -> str:
        return self.boot

    def facts(self, request: Request, options: Options, netns_inode: int) -> Facts:
        if options.link:
            return LinkFacts(
                boot_id=self.boot,
                store=self.journal.identity(),
                netns_inode=netns_inode,
                pod=Pod(),
                switch_netns="",
                opened_as="system",
                mtu=1500,
                limits=resolve(options.bandwidth, UNLIMITED),
            )
        place = self.place or SocketPlace(f"/pods/{request.environment.container_id[:12]}", "/pods", create=True, own=True)
        return SocketFacts(
            boot_id=self.boot,
            store=self.journal.identity(),
            netns_inode=netns_inode,
            pod=Pod(),
            place=place,
            mapped_dir="/var/lib/cni/usrspcni/",
            short_dir="/short",
            mount_always=True,
            ovs_sockdir="/ovs",
            noted=False,
            device_info_file=options.asked.device_info_file,
            device_info_dir="/run",
        )
