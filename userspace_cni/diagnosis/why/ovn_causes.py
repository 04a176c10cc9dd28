"""What of a logical port of OVN can be the cause: not made, not installed, bound elsewhere, isolated by policies. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import LogicalPort
from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, ChassisSight, Findings, known

if TYPE_CHECKING:
    from userspace_cni.ovn.seen_logical_port import NorthboundPort, PortBinding

_OF_THE_NODE: Final = ("ovn-controller-dead", "ovn-southbound-away")
"""Faults that matter of a port that is installed, too: it goes on, and no change reaches it."""
_LEFT: Final = "logical-port-unknown"
_SHOWN: Final = 5
_WHOLE: Final = "`userspace-cni ovn status` and `userspace-cni ovn check`"


def judge_ovn(sight: AttachmentSight) -> Findings:
    """The logical port: on this chassis, in the northbound database, and where it is bound."""
    step, switch, chassis = sight.record.port, known(sight.switch), known(sight.chassis)
    if step is None or step.logical is None or switch is None or switch.away:
        return
    logical, row, binding = step.logical, known(sight.logical), known(sight.binding)
    installed = bool(sight.port and sight.port.installed == logical.name and switch.serves)
    wrong = [*_of_databases(sight, logical, row, binding, chassis)]
    if chassis:
        wrong += _of_chassis(sight, chassis, installed=installed, is_explained=bool(wrong))
    if not installed and sight.port and not wrong:
        message = f"OVN has not installed logical port {logical.name} on this chassis"
        wrong.append(sight.found("logical-port-not-installed", message, _WHOLE, "the switch drops the pod's frames"))
    yield from wrong
    yield from _policies(sight, logical, row)
    if installed and not wrong:
        yield sight.well("logical-port", f"logical port {logical.name}, which OVN has installed")


def _of_chassis(sight: AttachmentSight, chassis: ChassisSight, *, installed: bool, is_explained: bool) -> Iterator[Finding]:
    """What the chassis lacks. A port that is installed goes on without ovn-controller; one that a database explains is not told
    again in the words of the chassis."""
    for each in chassis.faults:
        found = replace(each, subject=sight.name)
        if installed and each.name in _OF_THE_NODE:
            why = "what is installed goes on; changes of policies, Services and other pods do not reach it"
            yield replace(found, severity="warning", why=why)
        elif not installed and not (is_explained and each.name.startswith("logical-port-")):
            yield replace(found, why="the switch drops the pod's frames")


def _of_databases(
    sight: AttachmentSight,
    logical: LogicalPort,
    row: NorthboundPort | None,
    binding: PortBinding | None,
    chassis: ChassisSight | None,
) -> Iterator[Finding]:
    if row and not row.is_there:
        message = f"OVN's northbound database has no logical port {logical.name}: no controller has made it, or it was deleted"
        remedy = (
            "see whether a controller acts, and what it says of the pod (`userspace-cni ovn status`, `kubectl describe pod`, its "
            "log); it makes the port again at its next round"
        )
        yield sight.found("logical-port-missing", message, remedy, "ovn-controller installs no port that it does not know")
        return
    if row and not row.enabled:
        message = f"logical port {logical.name} is disabled in the northbound database (enabled=false)"
        remedy = f"`ovn-nbctl lsp-set-enabled {quote(logical.name)} enabled`"
        yield sight.found("logical-port-disabled", message, remedy, "OVN drops what comes from it and goes to it")
    if row and row.version and logical.version and row.version != logical.version:
        message = (
            f"logical port {logical.name} is that of another pod of this name: its options:iface-id-ver is {row.version}, and "
            f"this pod's UID is {logical.version}"
        )
        yield sight.found("logical-port-version", message, _WHOLE, "ovn-controller installs it for that pod alone")
    own = chassis.name if chassis else ""
    if row and own and chassis and row.requested and not {*row.requested.split(",")} & {*chassis.names}:
        message = (
            f"logical port {logical.name} is asked for on chassis {row.requested} (options:requested-chassis), and this is {own}"
        )
        options = f"`ovn-nbctl get Logical_Switch_Port {quote(logical.name)} options`"
        remedy = f"see which node the pod is on (`kubectl get pod -o wide`), and {options}"
        yield sight.found("logical-port-requested-elsewhere", message, remedy, "ovn-controller does not install it here")
    elif binding and own and binding.chassis and binding.chassis != own:
        host = f" ({binding.hostname})" if binding.hostname else ""
        message = f"logical port {logical.name} is bound to chassis {binding.chassis}{host}, and this is {own}"
        remedy = (
            "that node has a port with the same iface-id: `userspace-cni gc` there removes what is left of an ended sandbox; "
            f"`ovs-vsctl find Interface {quote(f'external_ids:iface-id={logical.name}')}` shows it"
        )
        yield sight.found("logical-port-elsewhere", message, remedy, "one chassis alone has a logical port")


def _policies(sight: AttachmentSight, logical: LogicalPort, row: NorthboundPort | None) -> Iterator[Finding]:
    for direction, policies in (row.isolating if row else {}).items():
        way = "to" if direction == "ingress" else "from"
        more = f" and {len(policies) - _SHOWN} more" if policies[_SHOWN:] else ""
        named = f"{', '.join(policies[:_SHOWN])}{more}" if policies else "policies that let nothing through"
        message = f"policies isolate the pod for {direction}: what goes {way} it is dropped unless it is let through by {named}"
        trace = f"`userspace-cni ovn trace OTHER {quote(logical.name)} --port PORT`"
        remedy = f"{trace} says what becomes of a packet, and by which policy"
        yield sight.found("policies-isolate", message, remedy, severity="note")
