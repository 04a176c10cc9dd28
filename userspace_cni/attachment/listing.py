"""Describes one attachment for people and programs, and finds attachments by the names that they give. Pure.

The command line and the agent's `/api/v1/attachments` both answer with what `describe` makes: keys are added, never renamed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, Protocol

from userspace_cni.attachment.drift import Drift, sentence
from userspace_cni.attachment.port_now import PortNow, change_finding, count_frames, find_changes
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import JoinedPort, OvsPort, VhostUserClient
from userspace_cni.base.findings import Finding
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.vlans import Vlan

_UNFINISHED: Final[Mapping[str, str]] = {
    "pending": "state pending: its addresses are being leased, or ADD died in it",
    "applying": "state applying: it is being attached, or ADD died in it",
    "deleting": "state deleting: it is being detached, or something of it could not be undone yet",
}
_REMEDIES: Final[Mapping[str, str]] = {
    "unfinished": "userspace-cni gc --dry-run says whether its call has died; a running agent finishes it then",
    "rebooted": "a running agent removes it, and so does userspace-cni gc",
    "port-missing": "a running agent makes it again, and so does userspace-cni gc",
    "port-refused": "ovs-vsctl get Interface {port} error; the log of ovs-vswitchd says more",
    "logical-port-not-installed": "userspace-cni ovn status; the log of ovn-controller",
}
"""What to do, by the name of the finding."""
_OF_FINDINGS: Final = ("name", "severity", "message", "remedy", "path", "expected", "found")
_PEERS: Final = {"client": "server", "server": "client", "": ""}
"""The application's role, by OVS's."""
NOT_SERVING: Final = frozenset({"dead", "silent"})
"""States of ovs-vswitchd in which it may move no frames, and what OVSDB says is out of date."""
_SHOWN: Final = re.compile(
    r"mode|status|socket|features|num_of_vrings|numa|vring_[0-9]{1,4}_size"
    r"|driver_name|driver_version|firmware_version|xdp-mode(?:-in-use)?|port_no|numa_id|if_type|link_speed"
)
"""Keys of Interface.status: of vhost-user ports, of kernel links, and of those that DPDK or XDP opens."""
_NEAR: Final = 3
"""How many names are suggested for a name that no attachment has."""
_ALIKE: Final = 0.6
"""How alike two names are, from 0 to 1, from which on one may be meant by the other."""


class SwitchPort(Protocol):
    """What the switch says of a port: Interface.link_state ("" for unknown), status and error, and its bridge."""

    @property
    def name(self) -> str: ...

    @property
    def bridge(self) -> str: ...

    @property
    def interface_type(self) -> str: ...

    @property
    def link_state(self) -> str:
        """`up`, `down`, or "" when ovs-vswitchd has not said."""
        ...

    @property
    def status(self) -> Mapping[str, str]:
        """Interface.status; of vhost-user ports `status` is `connected` or `disconnected`, `mode` OVS's own role."""
        ...

    @property
    def error(self) -> str:
        """Interface.error; "" for none."""
        ...

    @property
    def installed(self) -> str:
        """The logical port that OVN has installed here; "" for none."""
        ...

    @property
    def now(self) -> PortNow:
        """Its VLANs, MTU and limits."""
        ...


class CountedPort(Protocol):
    """The switch's counters of one port of ours: Interface.external_ids and Interface.statistics."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> Mapping[str, str]:
        """Our marks; a port without `container-id` is no attachment's."""
        ...

    @property
    def statistics(self) -> Mapping[str, int]:
        """Counters by OVS's names, as rx_packets; those that this kind of port lacks are absent."""
        ...


@dataclass(frozen=True)
class LimitedDirection:
    """A limited direction of an attachment's port. `rate`: bit/s, None for a worse line without a rate; `drops`: frames that the
    limit has dropped, None while that is not known."""

    key: str
    port: OvsPort
    direction: Literal["to_pod", "from_pod"]
    rate: int | None
    drops: int | None


class Unresolved(Exception):
    """A name of no attachment, or of attachments of several pods or containers. `candidates`: the names that may be meant."""

    def __init__(self, name: str, candidates: Sequence[str], *, ambiguous: bool) -> None:
        super().__init__(f"{name!r} can be any of: {', '.join(candidates)}" if ambiguous else f"no attachment is named {name!r}")
        self.name = name
        self.candidates = tuple(candidates)
        self.ambiguous = ambiguous


def describe(
    record: Record,
    ports: Mapping[str, SwitchPort] | None,
    *,
    boot_id: str = "",
    vswitchd: str = "unknown",
    dead: Drift | None = None,
    counted: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Describe an attachment as JSON values.

    `ports`: what the switch says, by name of port; None when it could not be asked. `boot_id`: the present boot, to recognise
    attachments of an earlier one; "" leaves that out. `vswitchd`: `alive`, `dead`, `silent` or `unknown`; while it is dead or
    silent, what OVSDB has of links and applications is out of date and left out. `dead`: of its socket, see `sockets`.
    `counted`: the statistics of its port, None while they are not known.
    """
    step, joined, ref = record.port, record.joined, record.port_ref
    behind = step.interface if step else VhostUserClient if joined else None
    port = ports.get(ref.name) if ports is not None and ref else None
    live = port if vswitchd not in NOT_SERVING else None
    findings = problems_of(record, port, asked=ports is not None, boot_id=boot_id, dead=dead)
    frames, dropped = count_frames(counted)
    return {
        "name": name_of(record),
        "container": record.container_id,
        "ifname": record.ifname,
        "network": record.network,
        "state": record.state,
        "problems": [each.message for each in findings if each.severity != "note"],
        "findings": [{key: getattr(each, key) for key in _OF_FINDINGS} for each in findings],
        "pod": _pod(record),
        "netns": record.netns,
        "bridge": ref.bridge if ref else "",
        "port": ref.name if ref else "",
        "interface_type": behind.opened_as if behind else "",
        "role": _PEERS[behind.role] if behind else "",
        "socket": _socket(record),
        "socket_dead": dead is not None,
        "mac": step.mac if step else joined.mac if joined else "",
        "addresses": addresses(record),
        "vlan": _vlan(step or joined),
        "mtu": step.interface.mtu if step else joined.mtu if joined else None,
        "now": describe_now(port.now) if port else None,
        "frames": frames,
        "dropped": dropped,
        "link": _link(record),
        "limits": asdict(limits_of(record)),
        "limits_by": "ovn" if step and step.terms.by_ovn else "node",
        "mirrors": [asdict(each) for each in step.mirrors] if step else [],
        "mirror_output": ", ".join(step.mirror_outputs) if step else "",
        "logical_port": _logical(step, live),
        "vm": ref.marks.get("vm-name", "") if ref else "",
        "vswitchd": vswitchd,
        "link_state": (live.link_state if live else "") or "unknown",
        "vhost": _vhost(live),
        "error": port.error if port else "",
        "created": {"boot": record.boot_id, "boottime_ns": record.boottime_ns},
        "steps": [each.kind for each in record.steps],
    }


def describe_all(
    records: Iterable[Record],
    ports: Iterable[SwitchPort] | None,
    *,
    boot_id: str = "",
    vswitchd: str = "unknown",
    dead: Mapping[str, Drift] | None = None,
    counters: Iterable[CountedPort] | None = None,
) -> list[dict[str, Any]]:
    """All of them, by pod, container and interface; see `describe`. `dead`: of their sockets, by key of record.

    `counters`: of ports of ours, None while they are not known.
    """
    known = None if ports is None else {port.name: port for port in ports}
    ordered = sorted(records, key=lambda record: (record.pod_namespace, record.pod_name, record.container_id, record.ifname))
    drifts = dead or {}
    counted = {each.name: each.statistics for each in counters or ()}
    return [
        describe(
            record,
            known,
            boot_id=boot_id,
            vswitchd=vswitchd,
            dead=drifts.get(record.key),
            counted=counted.get(record.port_ref.name) if record.port_ref else None,
        )
        for record in ordered
    ]


def name_of(record: Record) -> str:
    """How people call it: NAMESPACE/POD/ifname, or by the first 12 characters of its container's ID when no pod is known.

    A device of a claim goes by the claim's name in the pod's place, what the node itself has by its spec, what a command makes by
    its process.
    """
    if record.owner == "node":
        return record.subject["spec"]
    if record.run:
        return f"{record.subject['process']}/{record.run.number}"
    if record.owner == "claim":
        return f"{record.pod_namespace}/{record.network}/{record.ifname}"
    owner = [record.pod_namespace, record.pod_name] if record.pod_name else [record.container_id[:12]]
    return "/".join([*filter(None, owner), record.ifname])


def select(records: Iterable[Record], names: Sequence[str]) -> list[Record]:
    """Those that the names mean, each once; all for no name. Raises Unresolved for a name that means none, or several.

    A name is POD/ifname, NAMESPACE/POD/ifname or CONTAINERID-PREFIX/ifname; without the interface, all of that pod or
    container. A pod takes precedence over a container whose ID begins with the same text, and a whole ID over longer ones.
    """
    every = list(records)
    if not names:
        return every
    chosen = {record.key for name in names for record in _named(every, name)}
    return [record for record in every if record.key in chosen]


def addresses(record: Record) -> list[str]:
    """The addresses that ADD answered for this interface, in CIDR; those of other interfaces of the chain are left out."""
    result = record.result or {}
    mine = [number for number, each in enumerate(objects(result.get("interfaces"))) if _is_mine(each, record)]
    ips = [ip for ip in objects(result.get("ips")) if ip.get("interface") is None or ip["interface"] in mine]
    return [ip["address"] for ip in ips if isinstance(ip.get("address"), str)]


def objects(value: object) -> list[Mapping[str, Any]]:
    """A list of objects, also of a record that was edited by hand: one damaged record must not keep others from being shown."""
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else []


def limits_of(record: Record) -> Limits:
    """What the attachment is limited to, at the port or at the pod's own end of its link."""
    return reduce(or_, (step.limits for step in record.steps), UNLIMITED)


def _link(record: Record) -> dict[str, str] | None:
    """A kernel link's ends; None for a vhost-user interface."""
    link = record.link
    if link is None:
        return None
    guard = "the node's stack drops its frames" if record.guard else ""
    return {"host": link.host, "host_mac": link.host_mac, "guard": guard}


def _is_mine(interface: Mapping[str, Any], record: Record) -> bool:
    return interface.get("name") == record.ifname and interface.get("sandbox") == record.netns


def problems_of(
    record: Record, port: SwitchPort | None, *, asked: bool, boot_id: str = "", dead: Drift | None = None
) -> list[Finding]:
    """What is wrong with an attachment as far as its record, the switch's port and its socket say.

    `asked`: whether the switch could be asked; else as of `describe`.
    """
    step, name = record.port, name_of(record)
    found: list[tuple[str, str]] = []
    if record.state != "ready":
        found.append(("unfinished", _UNFINISHED[record.state]))
    if boot_id and record.boot_id and record.boot_id != boot_id:
        found.append(("rebooted", "made in an earlier boot: its sandbox is gone"))
    needed = step.name if step else record.joined.port if record.joined else ""
    if needed and port is None and asked and record.state == "ready":
        found.append(("port-missing", f"the switch has no port {needed}"))
    if port and port.error:
        found.append(("port-refused", f"the switch says: {port.error}"))
    if step and step.logical and step.logical.waits and port and record.state == "ready" and port.installed != step.logical.name:
        found.append(("logical-port-not-installed", f"OVN has not installed logical port {step.logical.name}"))
    if dead:
        found.append(("socket-dead", sentence(dead)))
    remedies = {kind: text.format(port=shlex.quote(port.name) if port else "") for kind, text in _REMEDIES.items()}
    remedies["socket-dead"] = dead.details if dead else ""
    problems = [Finding(kind, "warning" if kind == "unfinished" else "error", name, text, remedies[kind]) for kind, text in found]
    changes = find_changes(step, port.now) if step and port and record.state == "ready" else []
    return problems + [change_finding(each, name) for each in changes]


def describe_now(now: PortNow) -> dict[str, Any]:
    """What the switch has of a port, as JSON values under the keys of the record's own."""
    return {
        "vlan": _of_vlan(now.vlan),
        "mtu": now.mtu_request,
        "mtu_open": now.mtu or None,
        "limits": asdict(now.limits),
        "qos": now.qos,
    }


def _vlan(step: OvsPort | JoinedPort | None) -> dict[str, Any]:
    if step is None:
        return {"tag": None, "trunks": [], "mode": ""}
    return _of_vlan(step.vlan)


def _of_vlan(vlan: Vlan) -> dict[str, Any]:
    return {"tag": vlan.tag, "trunks": list(vlan.trunks), "mode": vlan.mode}


def select_status(port: SwitchPort) -> dict[str, str]:
    """What people are shown of Interface.status: keys that they know. Others come and go with the version of Open vSwitch."""
    return {key: value for key, value in port.status.items() if _SHOWN.fullmatch(key)}


def _logical(step: OvsPort | None, live: SwitchPort | None) -> dict[str, Any] | None:
    """The logical port of OVN that it is, None for none; `installed` is None while that is not known."""
    if step is None or step.logical is None:
        return None
    name = step.logical.name
    return {"name": name, "installed": live.installed == name if live else None}


def _pod(record: Record) -> dict[str, str] | None:
    if not record.pod_name:
        return None
    return {"namespace": record.pod_namespace, "name": record.pod_name, "uid": record.pod_uid}


def _socket(record: Record) -> dict[str, str]:
    """Its path: `host` in the pod's directory, `ovs` as OVS has it, `pod` where the pod sees it; each "" while unknown."""
    step, at, note, joined = record.port, record.socket, record.note, record.joined
    if joined:
        host, pod = (f"{each}/{joined.socket_name}" for each in (joined.directory, joined.mapped))
        return {"host": host, "ovs": joined.server_path, "pod": pod}
    return {
        "host": at.path if at else "",
        "ovs": (at.switch_path if at else "") or (step.server_path if step else ""),
        "pod": f"{note.mapped_dir}{at.name}" if note and at else "",
    }


def _vhost(port: SwitchPort | None) -> dict[str, str]:
    status = port.status if port else {}
    state = status.get("status", "")
    return {"state": state if state in ("connected", "disconnected") else "unknown", "mode": status.get("mode", "")}


def _is_pod(record: Record, name: str) -> bool:
    """Whether the name is its pod's or, for a device of a claim, its claim's, with or without namespace and interface."""
    called = (record.pod_name, record.network if record.owner == "claim" else "")
    parts = name.split("/")
    return any(
        parts in ([each], [record.pod_namespace, each], [each, record.ifname], [record.pod_namespace, each, record.ifname])
        for each in called
        if each
    )


def _is_container(record: Record, name: str) -> bool:
    prefix, slash, ifname = name.partition("/")
    return bool(prefix) and record.container_id.startswith(prefix) and (not slash or ifname == record.ifname)


def _named(records: Sequence[Record], name: str) -> list[Record]:
    pods = [record for record in records if _is_pod(record, name)]
    if pods:
        return _one(name, pods, lambda record: (record.pod_namespace, record.pod_name), name_of)
    containers = [record for record in records if _is_container(record, name)]
    whole = [record for record in containers if record.container_id == name.partition("/")[0]]
    if not containers:
        raise Unresolved(name, _near(name, records), ambiguous=False)
    return _one(name, whole or containers, lambda record: record.container_id, _by_container)


def _by_container(record: Record) -> str:
    return f"{record.container_id}/{record.ifname}"


def _one(name: str, found: list[Record], owner: Callable[[Record], object], called: Callable[[Record], str]) -> list[Record]:
    """The records found. Raises Unresolved unless all of them belong to one pod or container."""
    if len({owner(record) for record in found}) > 1:
        raise Unresolved(name, sorted({called(record) for record in found}), ambiguous=True)
    return found


def _near(name: str, records: Iterable[Record]) -> list[str]:
    """Names whose pod or container is spelled similarly, the nearest first: the namespace and the interface are of many."""
    nearness: dict[str, float] = {}
    parts = [each for each in name.split("/") if each]
    for record in records:
        asked = [each for each in parts if each not in (record.pod_namespace, record.ifname)] or parts
        forms = filter(None, (record.pod_name, record.container_id[:12]))
        nearness[name_of(record)] = max((_likeness(part, form) for form in forms for part in asked), default=0)
    near = [each for each in nearness if nearness[each] >= _ALIKE]
    return sorted(near, key=lambda each: -nearness[each])[:_NEAR]


def _likeness(part: str, form: str) -> float:
    """From 0 to 1, for the same; one that holds the other is alike."""
    from difflib import SequenceMatcher

    return max(SequenceMatcher(None, part, form).ratio(), _ALIKE if part in form else 0)
