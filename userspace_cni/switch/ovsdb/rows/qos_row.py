"""A port's limits as columns: what each kind of port can do, in the units of its columns, and what the switch says it does.

Open vSwitch names directions from the switch: what goes to the pod is its egress (QoS of the Port), what comes from the pod its
ingress (policing columns of the Interface). It silently ignores rows that it cannot apply. So a limit that the port's kind
cannot have is refused here, and the limits in force are read back (`why_not_in_force`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.limits import Limits, Netem, Rate
from userspace_cni.ovsdb.columns import Columns
from userspace_cni.switch.ovsdb.rows.interface_row import interface_row

POLICER: Final = "egress-policer"
HTB: Final = "linux-htb"
NETEM: Final = "linux-netem"
_REMEDY: Final = {
    POLICER: "the log of ovs-vswitchd says why",
    HTB: "the kernel needs sch_htb (modprobe sch_htb); a host end that is opened as af_packet or af_xdp needs none",
    NETEM: "the kernel needs sch_netem (modprobe sch_netem), and jitter an Open vSwitch after 3.1; leave them out of 'netem'",
}
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_BYTE: Final = 8
_KBIT: Final = 1000


@dataclass(frozen=True)
class QosRow:
    """A row of QoS: its type and other_config, and other_config of its Queue 0, empty for none."""

    type: str
    other_config: Mapping[str, str]
    queue: Mapping[str, str] = field(default_factory=dict)


def qos_row(step: OvsPort) -> QosRow | None:
    """The row that limits what goes to the pod; None for no limit. Raises SwitchRefused for what the port's kind cannot have."""
    limits, kind = step.limits, interface_row(step)
    where = f"port {step.name}"
    if limits and not kind.enforcer:
        raise SwitchRefused(f"{where}: {kind.called} takes no limits of the switch", "open it as system, af_packet or af_xdp")
    if limits.netem and kind.enforcer == "policers":
        raise SwitchRefused(f"{where}: {kind.called} does not pass the kernel, and 'netem' is the kernel's", "open it as system")
    if limits.from_pod and kind.enforcer == "qdisc":
        raise SwitchRefused(
            f"{where}: {kind.called} has no limit for what comes from the pod: OVS reads frames before the kernel could drop any",
            "it is set at the pod's end of the link; or open it as af_packet or af_xdp",
        )
    if limits.netem and limits.to_pod:
        raise SwitchRefused(f"{where}: a rate to the pod and 'netem' exclude each other: a link has one qdisc", "leave out one")
    if limits.netem:
        return QosRow(NETEM, _netem(limits.netem))
    if limits.to_pod is None:
        return None
    return _policer(limits.to_pod) if kind.enforcer == "policers" else _htb(limits.to_pod)


def policing_columns(step: OvsPort) -> Columns:
    """Columns of Interface that limit what comes from the pod, in kbit/s and kbit; 0 for no limit."""
    limit = step.limits.from_pod
    return {
        "ingress_policing_rate": _kbit(limit.rate) if limit else 0,
        "ingress_policing_burst": _kbit(limit.burst) if limit else 0,
    }


def read_limits(row: QosRow | None, policing_rate: int, policing_burst: int) -> Limits:
    """What these columns limit a port to, in the units of `Limits`; of a type of QoS that is not ours nothing is known."""
    from_pod = Rate(policing_rate * _KBIT, policing_burst * _KBIT) if policing_rate else None
    if row is None:
        return Limits(from_pod=from_pod)
    if row.type == NETEM:
        milliseconds = (_number(row.other_config, key) // 1000 for key in ("latency", "jitter"))
        return Limits(None, from_pod, Netem(*milliseconds, *(_number(row.other_config, key) for key in ("loss", "limit"))))
    if row.type == POLICER:
        to_pod = Rate(*(_number(row.other_config, key) * _BYTE for key in ("cir", "cbs")))
    else:
        rate = _number(row.queue, "max-rate") or _number(row.other_config, "max-rate")
        to_pod = Rate(rate, _number(row.queue, "burst"))
    return Limits(to_pod if row.type in (POLICER, HTB) and to_pod.rate else None, from_pod)


def _number(values: Mapping[str, str], key: str) -> int:
    """The number, which anyone may have written; 0 for none."""
    text = values.get(key, "")
    return int(text) if _DIGITS.fullmatch(text) else 0


def why_not_in_force(row: QosRow, shown: str) -> tuple[str, str] | None:
    """What `ovs-appctl qos/show PORT` has instead of the row, and what would help; None if the row is in force.

    OVS computes some values anew (of netem all), so only rates must be the same.
    """
    first, *lines = shown.split("\n\n", maxsplit=1)[0].splitlines() or [""]
    kind = first.rpartition(" ")[2] if first.startswith("QoS: ") else ""
    if kind != row.type:
        return kind or "none", _REMEDY[row.type]
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    for key, wanted in row.other_config.items():
        if key not in found or (row.type != NETEM and abs(int(found[key]) - int(wanted)) >= _BYTE):
            return f"{kind} with {key} {found.get(key, 'unset')}", _REMEDY[row.type]
    return None


def describe_limit(row: QosRow | None) -> str:
    if row is None:
        return "none"
    values = [f"{key} {value}" for key, value in sorted(row.other_config.items())]
    return f"{row.type} with {', '.join(values + [f'queue {key} {value}' for key, value in sorted(row.queue.items())])}"


def _kbit(bits: int) -> int:
    """ovs-vswitchd reads 32 bits of it."""
    return min(max(1, bits // _KBIT), (1 << 32) - 1)


def _policer(limit: Rate) -> QosRow:
    """It counts bytes of IP packets, and drops what is too much."""
    return QosRow(POLICER, {"cir": str(max(1, limit.rate // _BYTE)), "cbs": str(max(1, limit.burst // _BYTE))})


def _htb(limit: Rate) -> QosRow:
    """Rates in bit/s and bursts in bits. The queue has the whole rate of its own: what it borrows knows no burst."""
    rate = str(limit.rate)
    return QosRow(HTB, {"max-rate": rate}, {"min-rate": rate, "max-rate": rate, "burst": str(limit.burst)})


def _netem(netem: Netem) -> dict[str, str]:
    """Microseconds, packets and whole percent."""
    microseconds = {"latency": netem.latency_ms * 1000, "jitter": netem.jitter_ms * 1000}
    values = microseconds | {"loss": netem.loss, "limit": netem.queue}
    return {key: str(value) for key, value in values.items() if value}
