"""What attachments ask of their node, in small objects. `node.local_node` makes them.

Only types are here. A process of one verb and an agent that runs for years use the same protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from userspace_cni.attachment.steps import Driver, Step

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.consumer import Consumer
    from userspace_cni.attachment.facts import ChangeableOptions, Facts
    from userspace_cni.attachment.listing import CountedPort, LimitedDirection, SwitchPort
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.run_ids import RunId
    from userspace_cni.attachment.steps import Lease, LegacyRecord, PortRef
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.findings import Finding
    from userspace_cni.base.notices import Recipient
    from userspace_cni.base.polling import PollingReading
    from userspace_cni.cni.call import Awaited
    from userspace_cni.cni.options import Options
    from userspace_cni.cni.request import Environment, Request, Verb

DriverOf = Callable[[Step], Driver[Any]]
Marks = Mapping[str, str]
"""The owner marks of a port."""


class Gathering(Protocol):
    """What one ADD asks of node and pod."""

    def find_awaited(self) -> Awaited | None:
        """What the ADD has to wait for before it begins, None for nothing; after the rules allowed the port.

        Raises UserspaceError for what could never come.
        """
        ...

    @property
    def chooses(self) -> bool:
        """Whether the facts depend on what other interfaces of the container have, as the first free of its devices does."""
        ...

    def facts(self, netns_inode: int) -> Facts:
        """What has to be known of node and pod to plan the attachment. `netns_inode`: what `Sandboxes.inode` returned."""
        ...


class Node(Protocol):
    """What verbs and reconciliation are given: five objects, the way from a step to its driver, and how this process serves.

    A fold gets only what it needs.
    """

    @property
    def store(self) -> AttachmentStore:
        """Records and spool."""
        ...

    @property
    def switch(self) -> Switch: ...

    @property
    def sandboxes(self) -> Sandboxes:
        """The network namespaces of containers, and what is left of attachments without a record."""
        ...

    @property
    def pods(self) -> Pods: ...

    @property
    def addresses(self) -> Addresses: ...

    @property
    def driver(self) -> DriverOf: ...

    @property
    def service(self) -> ServeOptions:
        """How this process serves."""
        ...


@dataclass(frozen=True)
class ServeOptions:
    """How a process serves. `log_level`: a key of log.LEVELS, for networks without one of their own. `deadline_s`: seconds that
    one verb may take. `resident`: it lives on and reconciles on a tick; if not, each verb does a part of that at its end."""

    log_level: str
    deadline_s: float
    resident: bool


class Pods(Protocol):
    """The pods of the node: what they say of their interfaces, what they are told, and whether they are gone."""

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The kinds of consumers, by their names in a network's key `consumer`."""
        ...

    def read_options(self, request: Request, warn: Callable[[str], object]) -> Options:
        """What an ADD's configuration asks for; `warn` is called for what is ignored. Raises as `cni.options.read_options`."""
        ...

    def begin_gathering(self, request: Request, options: Options, consumer: Consumer, deadline: Deadline) -> Gathering:
        """What this ADD asks of node and pod; nothing is asked yet."""
        ...

    def require_mirrors(self, environment: Environment, mirrors: Iterable[str], outputs: Iterable[str]) -> None:
        """Raise MirrorRefused unless the call's pod may be a source of these mirrors, and the output of those."""
        ...

    def read_changeable_options(self, record: Record) -> ChangeableOptions | None:
        """What the attachment's pod says of its interface now; None where the pod is not known. Raises BadRequest for what cannot
        be read of it, and for what the interface cannot do."""
        ...

    def is_gone(self, uid: str) -> bool:
        """Whether the pod is missing in a successful listing of the API or of the kubelet's directory."""
        ...

    def tell(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        """Have the pod told, if this process lives on and there is a pod and an API server. Never waits and never fails."""
        ...


class Sandboxes(Protocol):
    """The network namespaces of containers, and what is left on the node of attachments without a record."""

    def inode(self, environment: Environment) -> int:
        """Inode of the network namespace CNI_NETNS. Raises BadEnvironment unless it is one, HostNamespace when it is our own."""
        ...

    def has_link(self, environment: Environment) -> bool:
        """Whether a kernel interface of the name CNI_IFNAME exists in CNI_NETNS."""
        ...

    def is_gone(self, path: str) -> bool:
        """Whether nothing is at `path` while another namespace is visible in the same directory."""
        ...

    def legacy(self, container_id: str, ifname: str) -> LegacyRecord | None:
        """The record of this attachment that the plugin which this one replaces left."""
        ...

    def link_traces(self, container_id: str, ifname: str) -> tuple[Step, ...]:
        """What an attachment with a kernel link has in the kernel, to be undone by its names; () where it has no host end."""
        ...


class Addresses(Protocol):
    """Where addresses come from: the IPAM plugin that a network names, and the Subnet that it may name."""

    def complete(self, request: Request, deadline: Deadline) -> Request:
        """The request with all that the Subnet which its network names gives on this node; as it was where that names none.

        Raises Unavailable while the Subnet, or what it gives here, is not known, and BadRequest for what cannot be.
        """
        ...

    def as_leased(self, request: Request, lease: Lease | None = None) -> Request:
        """The request as the IPAM plugin is to have it for another verb than ADD; `lease`: the one that it is about, if known.

        Only one that names a Subnet is changed, of which nothing has to be known for that.
        """
        ...

    def require_delegate(self, request: Request) -> None:
        """Raise BadEnvironment or InvalidConfig unless the network's IPAM plugin can be run."""
        ...

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        """Call ADD of the IPAM plugin; returns its decoded answer. The child keeps the descriptor `lock` open while it lives."""
        ...

    def forward(self, verb: Verb, request: Request, deadline: Deadline) -> None:
        """Call CHECK, GC or STATUS of the configuration's IPAM plugin, if there is one that knows the verb."""
        ...


class Switch(Protocol):
    """The switch, with the records, the kernel and the files of the node beside it."""

    @property
    def ports(self) -> Ports: ...

    def require_serving(self, options: Options, deadline: Deadline) -> None:
        """Raise NotServing unless an ADD of this configuration could be served now."""
        ...

    def list_marked(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """All ports with our owner mark for this network (None: for any), whatever their store. Raises Unavailable."""
        ...

    def list_owned(self, deadline: Deadline) -> Mapping[str, Marks]:
        """Name and marks of every port that is marked as ours. Raises Unavailable."""
        ...

    def of_node(self, deadline: Deadline) -> Mapping[str, Marks]:
        """Name and marks of every port that is marked as the node's own, of this installation. Raises Unavailable."""
        ...

    def specs_in_rows(self, deadline: Deadline) -> frozenset[tuple[str, str]]:
        """Kind and name of the specs that rows of this installation name. Raises Unavailable."""
        ...

    def left_of(self, kind: str, name: str, deadline: Deadline) -> tuple[Step, ...]:
        """The steps of that spec as far as the node shows them; () unless rows name it. Raises UserspaceError."""
        ...

    def left_of_runs(self, deadline: Deadline) -> Mapping[RunId, tuple[str, tuple[Step, ...]]]:
        """Each run of which rows or a directory of this installation are there, with its purpose, "" where that is not known, and
        the steps that undo it. Raises Unavailable."""
        ...

    def sweep(self) -> int:
        """Remove what no record names and nothing uses, of this installation: guards of host ends that are gone, rows of limits
        without a port. Returns how many. Never fails."""
        ...

    def count_guarded(self) -> tuple[int, int]:
        """How many recorded host ends have the guard that they need, and how many need one. Raises UserspaceError."""
        ...

    def list_counted(self) -> Sequence[CountedPort] | None:
        """The switch's counters of our ports, of this moment; None where it does not answer."""
        ...

    def read_statistics(self, ports: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """Interface.statistics of these ports, by name and up to five seconds old; without those that are not known."""
        ...

    def list_limited(self, records: Iterable[Record]) -> list[LimitedDirection]:
        """Each limited direction of these attachments, with what its limit has dropped. Never fails."""
        ...


class Ports(Protocol):
    """The ports of the switch, and whether it lives: what commands and the watchdog ask of it."""

    @property
    def sessions(self) -> int:
        """The number of sessions opened so far."""
        ...

    def connect(self, deadline: Deadline) -> object:
        """Open the session with OVSDB unless one is open. Raises Unavailable."""
        ...

    def announce(self, name: str) -> AbstractContextManager[None]:
        """Within the block the port of that name is about to be applied, and others wait a moment to share its transaction."""
        ...

    def list_ports(self) -> Iterable[SwitchPort]:
        """Every port of the switch. Raises Unavailable without a session."""
        ...

    def list_bridges(self) -> Mapping[str, str]:
        """The datapath of each bridge. Raises Unavailable without a session."""
        ...

    def watch_liveness(self) -> Liveness:
        """Ask ovs-vswitchd whether it lives, and remember the answer for STATUS."""
        ...

    def read_settings(self, deadline: Deadline) -> SwitchFacts:
        """What the switch is set to. Raises Unavailable."""
        ...

    def read_polling_threads(self, deadline: Deadline, *, lately: bool = False) -> PollingReading:
        """What the threads that move the frames do. `lately`: shares of the last 5 s, else of the last minute.

        Raises Unavailable and SwitchRefused.
        """
        ...

    def require_serving(self, bridge: str, deadline: Deadline) -> None:
        """Raise NotServing unless ports could be added to the bridge."""
        ...

    def close(self) -> None: ...


class Liveness(Protocol):
    """Whether ovs-vswitchd lives: `alive`, `dead`, `silent` or `unknown`, and how that is known."""

    @property
    def state(self) -> str:
        """One of the four."""
        ...

    @property
    def reason(self) -> str:
        """The reason in words; the version while it is alive."""
        ...

    @property
    def process(self) -> str:
        """Names the process that lives: another one has another name. "" unless it is alive."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process id, as it says itself; None while that is not known."""
        ...


class SwitchFacts(Protocol):
    """The switch's settings, and the values that result."""

    @property
    def other_config(self) -> Mapping[str, str]: ...

    @property
    def mtus(self) -> Mapping[str, int]:
        """Interface.mtu, by name of the port."""
        ...


class Lifeline(Protocol):
    """A connection that shows the end of a daemon at once."""

    def hold(self) -> None:
        """Hold a connection unless one is held."""
        ...

    def let_go(self) -> None:
        """End the connection; `ended` is not called."""
        ...
