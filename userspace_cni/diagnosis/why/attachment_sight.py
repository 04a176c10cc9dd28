"""What is known of one attachment and its node for the question why it does not work. Data only.

A fact is the thing itself, None where this attachment has no such thing, or `Unasked` where the question could not be asked: that
is told as such, and is neither good nor a fault of the thing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, TypeVar

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.listing import NOT_SERVING, SwitchPort, name_of
from userspace_cni.attachment.records import Record
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.diagnosis.why.traffic_sight import TrafficSight
from userspace_cni.node.pod_processes import PodProcesses
from userspace_cni.node.seen_pod import SeenPod

if TYPE_CHECKING:
    from userspace_cni.node.seen_annotations import SeenAnnotations
    from userspace_cni.node.seen_definition import SeenDefinition
    from userspace_cni.node.seen_link import SeenLink
    from userspace_cni.node.seen_specs import SeenSpec
    from userspace_cni.ovn.seen_logical_port import NorthboundPort, PortBinding
    from userspace_cni.routes.seen_routes import SeenRoutes

T = TypeVar("T")
Findings = Iterator[Finding]
Drifts = Mapping[str, Sequence[Drift]]
"""By kind of step."""
Party = Literal["connected", "listening", "none", ""]
"""Who is at a socket, as `consumers.kubevirt.guests` has it."""


@dataclass(frozen=True)
class Unasked:
    """A question that could not be asked."""

    because: str


Fact: TypeAlias = T | Unasked | None


@dataclass(frozen=True)
class AgentSight:
    """The node's agent. `dead`: its socket is there and no process listens; `slow`: it lives and has not answered; `troubled`: it
    answers that no pod could be attached, `problems` say why. `plugin`: of the installed plugin that calls it, "" for none.
    `stopped`: its process, if a signal has stopped that. `pid`: its process where it has answered, 0 where that is not known."""

    socket: str
    state: Literal["ready", "troubled", "absent", "dead", "slow"]
    plugin: str = ""
    problems: tuple[str, ...] = ()
    stopped: int = 0
    pid: int = 0


@dataclass(frozen=True)
class StoreSight:
    """The store of records. `unwritable`: setting and path of each directory that cannot be written, with the reason; `spooled`:
    container and interface of each DEL that no agent has received; `quarantined`: files that could not be read and mention this
    attachment's container or pod."""

    unwritable: Mapping[tuple[str, str], str] = field(default_factory=dict)
    spooled: tuple[tuple[str, str], ...] = ()
    quarantined: tuple[str, ...] = ()


@dataclass(frozen=True)
class SwitchSight:
    """The switch. `daemon`: the state of ovs-vswitchd, with its `reason`, and its process where that is known; `stopped`: by a
    signal; `log`: its log file. `away`: why OVSDB cannot be asked, "" if it can; then `database_pid` is its server's, 0 where
    none is seen, and `database_stopped`: by a signal. `unserving`: why no port could be added, "" if one could. `bridges`: the
    datapath of each."""

    daemon: str = "unknown"
    reason: str = ""
    pid: int | None = None
    stopped: bool = False
    log: str = "/var/log/openvswitch/ovs-vswitchd.log"
    away: str = ""
    database_pid: int = 0
    database_stopped: bool = False
    unserving: str = ""
    ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    bridges: Mapping[str, str] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        """Whether what it says of ports and applications is of now."""
        return not self.away and self.daemon not in NOT_SERVING


@dataclass(frozen=True)
class SocketSight:
    """The name of the attachment's socket in the pod's directory. `kind`: "socket", "other", "" for nothing; `party`: who is
    there, "" where that is not known. `others`: sockets in this directory at which processes listen, and of no attachment.
    `in_switch`: what is at the name where the switch makes it, "" also where the application does."""

    kind: Literal["socket", "other", ""]
    party: Party = ""
    others: tuple[str, ...] = ()
    in_switch: Literal["socket", "other", ""] = ""


@dataclass(frozen=True)
class ChassisSight:
    """This node as a chassis of OVN. `names`: its own first, then others by which OVN may ask for it; `faults`: what a logical
    port lacks here, as the switch's room judges it."""

    names: tuple[str, ...] = ("",)
    faults: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, kw_only=True)
class Sight(ABC):
    """What is known of the node, whatever was asked about."""

    agent: Fact[AgentSight] = None
    store: Fact[StoreSight] = None
    switch: Fact[SwitchSight] = None

    QUESTIONS: ClassVar[Mapping[str, str]] = {
        "agent": "the agent",
        "store": "the store of records",
        "switch": "the switch",
        "socket": "the socket",
        "processes": "the pod's processes",
        "pod": "the API server",
        "link": "the kernel link",
        "specs": "the node's own network",
        "routes": "the agent about routes",
        "annotations": "the pod's annotations",
        "definition": "the network's definition",
        "chassis": "OVN on this node",
        "logical": "OVN's northbound database",
        "binding": "OVN's southbound database",
        "traffic": "its bridge",
        "missing": "the networks for which it asks",
        "refusals": "the agent's refused calls",
        "sandboxes": "the runtime's cache of sandboxes",
    }
    """What is asked for each fact, for people."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What was asked about."""

    @property
    def unasked(self) -> list[tuple[str, str]]:
        """Each question that could not be asked, with the reason."""
        facts = [(what, getattr(self, name, None)) for name, what in self.QUESTIONS.items()]
        return [(what, fact.because) for what, fact in facts if isinstance(fact, Unasked)]

    def found(self, name: str, message: str, remedy: str = "", why: str = "", severity: Severity = "error") -> Finding:
        """A finding about it: what is wrong, what to do, and why it matters."""
        return Finding(name, severity, self.name, message, remedy, why=why)

    def well(self, name: str, what: str) -> Finding:
        """That this was looked at, and is as it has to be."""
        return Finding(name, "good", self.name, what)


@dataclass(frozen=True)
class AttachmentSight(Sight):
    """One attachment, and the node that has it. `unchecked`: steps that could not be compared, with the reasons; `complaint`:
    what the log of ovs-vswitchd said last of its port, where that is not open."""

    record: Record
    boot_id: str = ""
    drifts: Drifts = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    complaint: str = ""
    socket: Fact[SocketSight] = None
    processes: Fact[PodProcesses] = None
    pod: Fact[SeenPod] = None
    link: Fact[SeenLink] = None
    specs: Fact[tuple[SeenSpec, ...]] = None
    routes: Fact[SeenRoutes] = None
    annotations: Fact[SeenAnnotations] = None
    definition: Fact[SeenDefinition] = None
    chassis: Fact[ChassisSight] = None
    logical: Fact[NorthboundPort] = None
    binding: Fact[PortBinding] = None
    traffic: Fact[TrafficSight] = None

    @property
    def name(self) -> str:
        return name_of(self.record)

    @property
    def port(self) -> SwitchPort | None:
        """Its port as the switch has it; None where there is none, or the switch cannot be asked."""
        ref, switch = self.record.port_ref, known(self.switch)
        return switch.ports.get(ref.name) if ref and switch else None

    @property
    def was_connected(self) -> bool:
        """Whether an application was connected to the port since ovs-vswitchd opened it: its MTU is 0 until then."""
        return bool(self.port and self.port.now.mtu)

    @property
    def is_connected(self) -> bool:
        """Whether an application is connected now. OVS may say `disconnected` of one that is there; the link is up then."""
        port, switch = self.port, known(self.switch)
        serves = switch is not None and switch.serves
        return bool(port and serves and (port.link_state == "up" or port.status.get("status") == "connected"))

    @property
    def unasked(self) -> list[tuple[str, str]]:
        steps = [(f"step '{step}'", reason) for step, reason in self.unchecked.items()]
        traffic = known(self.traffic)
        return [*super().unasked, *steps, *(traffic.unasked if traffic else ())]


@dataclass(frozen=True)
class RefusalSight:
    """An ADD that the agent has refused, `count` times in a row, the last time `ago_s` seconds ago."""

    ifname: str
    code: int
    message: str
    details: str
    ago_s: float
    count: int


@dataclass(frozen=True)
class AbsentSight(Sight):
    """A name of no attachment, `asked`. `near`: names of attachments that are spelled alike. `node`: what the API calls this one.

    `refusals`: of this pod; `pod`: as the API has it; `sandboxes`: the pods of that name of which the runtime keeps a sandbox
    here. `missing`: the network definitions that its annotation names and the API does not have. `has_account`: whether the API
    server was asked at all.
    """

    asked: str
    near: tuple[str, ...] = ()
    node: str = ""
    has_account: bool = False
    refusals: Fact[tuple[RefusalSight, ...]] = None
    pod: Fact[SeenPod] = None
    sandboxes: Fact[tuple[str, ...]] = None
    missing: Fact[tuple[str, ...]] = None

    @property
    def name(self) -> str:
        return self.asked


def known(fact: Fact[T]) -> T | None:
    """The fact, None where it is not known or there is none."""
    return None if isinstance(fact, Unasked) else fact
