"""What the switch has of a port now, where that differs from the record, and what it has counted there. Pure.

Ports of all kinds are described in the units of the record, whatever columns their rows say it in.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from userspace_cni.attachment.column_commands import command_for
from userspace_cni.attachment.drift import Absent, Condition, Drift, Value
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.base.limits import UNLIMITED, Limits, Netem, Rate
from userspace_cni.base.vlans import Vlan

_UNIT: Final = 1000
"""Bits: Open vSwitch has rates in kbit/s or in bytes per second, so that what it has is less than what was asked for."""
_PUT_BACK: Final = "a running agent puts it back, and so does userspace-cni gc"
_TAG, _TRUNKS, _MODE, _ASKED, _OPEN = "tag", "trunks", "vlan_mode", "mtu_request", "mtu"
_TO_POD, _FROM_POD, _NETEM = "limit to the pod", "limit from the pod", "netem"
_SPOKEN: Final = {
    _TAG: ("VLAN tag", "Port.tag"),
    _TRUNKS: ("VLAN trunks", "Port.trunks"),
    _MODE: ("VLAN mode", "Port.vlan_mode"),
    _ASKED: ("MTU", "Interface.mtu_request"),
    _OPEN: ("MTU", "Interface.mtu"),
    _TO_POD: (_TO_POD, "Port.qos"),
    _FROM_POD: (_FROM_POD, "Interface.ingress_policing_rate"),
    _NETEM: (_NETEM, "Port.qos"),
}
"""What people call a field, and the table and column that have it."""
_LOOKS: Final = {
    _TO_POD: "ovs-vsctl list Port {port} names its row of QoS; ovs-vsctl list QoS; ovs-vsctl list Queue",
    _NETEM: "ovs-vsctl list Port {port} names its row of QoS; ovs-vsctl list QoS",
    _FROM_POD: "ovs-vsctl get Interface {port} ingress_policing_rate ingress_policing_burst",
}
_NOT_SET: Final = "ovs-vswitchd has not set it, and its log says why: is there memory (hugepages) for such frames?"


@dataclass(frozen=True)
class PortNow:
    """A port's properties as the switch's rows have them now.

    `mtu_request`: what is asked for, None for nothing; `mtu`: that of the open interface, 0 while ovs-vswitchd has not said it,
    as before the first application of a vhost-user port. `qos`: the type of the port's QoS, "" for none; `limits` has what is
    known of it, and what polices frames from the pod.
    """

    vlan: Vlan = field(default_factory=Vlan)
    mtu_request: int | None = None
    mtu: int = 0
    limits: Limits = UNLIMITED
    qos: str = ""


NOTHING: Final = PortNow()


@dataclass(frozen=True)
class DropCauses:
    """Frames that the switch has dropped at a vhost-user port, by cause, as Interface.statistics says; None where it does not.

    `unread`: to the pod, because the queue of the application was full. `too_long`: to the pod, longer than its MTU.
    """

    unread: int | None = None
    too_long: int | None = None
    limit_to_pod: int | None = None
    limit_from_pod: int | None = None


_CAUSES: Final = {
    "unread": "ovs_tx_failure_drops",
    "too_long": "ovs_tx_mtu_exceeded_drops",
    "limit_to_pod": "ovs_tx_qos_drops",
    "limit_from_pod": "ovs_rx_qos_drops",
}
"""Keys of Interface.statistics of ports of DPDK."""


def read_causes(statistics: Mapping[str, int]) -> DropCauses:
    """The causes in a port's Interface.statistics."""
    return DropCauses(**{name: statistics.get(key) for name, key in _CAUSES.items()})


def count_frames(statistics: Mapping[str, int] | None) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    """The frames that the switch has counted from the pod and to it, and of each the dropped ones; None for what is unknown.

    `statistics`: by the names of Interface.statistics, where rx is what the switch received.
    """
    if statistics is None or "rx_packets" not in statistics:
        return None, None
    ways = {"from_pod": "rx", "to_pod": "tx"}
    frames, dropped = ({way: statistics.get(f"{key}_{what}", 0) for way, key in ways.items()} for what in ("packets", "dropped"))
    return frames, dropped


def find_changes(step: OvsPort, now: PortNow) -> list[Drift]:
    """Where the switch has something else than the record. Limits are OVN's own where it sets them."""
    subject = f"port {step.name}"
    wanted, has, mtu = step.vlan, now.vlan, step.interface.mtu
    compared: list[tuple[str, Value | None, Value | None]] = [
        (_TAG, wanted.tag, has.tag),
        (_TRUNKS, tuple(sorted(wanted.trunks)), tuple(sorted(has.trunks))),
        (_MODE, wanted.mode, has.mode),
        (_ASKED, mtu, now.mtu_request),
    ]
    if mtu and now.mtu and now.mtu_request == mtu:
        compared.append((_OPEN, mtu, now.mtu))
    if not step.terms.by_ovn:
        compared += _limits_compared(step.limits, now)
    found = [Drift(subject, name, _value(one), _value(other), joint=", ") for name, one, other in compared if one != other]
    return [Drift(each.subject, each.field, each.expected, each.found, _remedy(each), each.joint) for each in found]


def change_finding(change: Drift, attachment: str) -> Finding:
    """The change as a finding about an attachment: both values, and what to do."""
    severity: Severity = "note" if _is_added(change) else "error"
    place = f"{_SPOKEN[change.field][1]} of {change.subject}"
    found = Finding("port-changed", severity, attachment, describe_change(change), change.details, place)
    return replace(found, expected=_words(change.expected), found=_words(change.found))


def describe_change(change: Drift) -> str:
    """Both values in one sentence; of a drift that CHECK has found, too, where `is_spoken` says so."""
    spoken = _SPOKEN[change.field][0]
    had = f"no {spoken}" if isinstance(change.expected, Absent) else f"{spoken} {_words(change.expected)}"
    has = "none" if isinstance(change.found, Absent) else _words(change.found)
    return f"{change.subject}: the record has {had}, the switch has {has}"


def is_spoken(change: Drift) -> bool:
    return change.field in _SPOKEN


def _is_added(change: Drift) -> bool:
    """Whether it is a limit of which the record has none: an administrator may limit a port, and we leave that alone."""
    return change.field in _LOOKS and isinstance(change.expected, Absent)


def _limits_compared(wanted: Limits, now: PortNow) -> list[tuple[str, Value | None, Value | None]]:
    has, found = now.limits, list[tuple[str, Value | None, Value | None]]()
    of_netem = wanted.netem or has.netem
    for name, one, other in ((_TO_POD, wanted.to_pod, has.to_pod), (_FROM_POD, wanted.from_pod, has.from_pod)):
        unknown = now.qos if name == _TO_POD and not other and not of_netem else ""
        if unknown or not _same(one, other):
            found.append((name, _rate(one), unknown or _rate(other)))
    if wanted.netem != has.netem:
        found.append((_NETEM, _netem(wanted.netem), _netem(has.netem)))
    return found


def _same(one: Rate | None, other: Rate | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one.rate - other.rate) < _UNIT and abs(one.burst - other.burst) < _UNIT


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.rate} bit/s" + (f" (burst {rate.burst} bit)" if rate.burst else "")


def _netem(netem: Netem | None) -> str:
    if netem is None:
        return ""
    return f"latency {netem.latency_ms} ms, jitter {netem.jitter_ms} ms, loss {netem.loss} %, queue {netem.queue}"


def _remedy(change: Drift) -> str:
    """What to do: who puts it back by himself, and the command that does it by hand or shows it."""
    if change.field == _OPEN:
        return _NOT_SET
    port = shlex.quote(change.subject.removeprefix("port "))
    if _is_added(change):
        removes = f"set Interface {port} ingress_policing_rate=0" if change.field == _FROM_POD else f"clear Port {port} qos"
        return f"another program has set it, and we leave it alone: ovs-vsctl {removes} removes it"
    if look := _LOOKS.get(change.field):
        return f"{_PUT_BACK}; {look.format(port=port)}"
    return f"{_PUT_BACK}; by hand: ovs-vsctl {command_for(change)}"


def _value(value: Value | None) -> Value:
    return Absent("none") if value in (None, "", ()) else value


def _words(value: Value) -> str:
    if isinstance(value, Condition):
        return value.words
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
