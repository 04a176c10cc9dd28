"""What of an attachment's port and bridge can be the cause: gone, refused by the switch, or changed by others. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from userspace_cni.attachment.drift import Absent, Dead, Drift, sentence
from userspace_cni.attachment.port_now import describe_change, is_spoken
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.findings import Finding
from userspace_cni.consumers.kubevirt.drifts import command_back
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

_STATE: Final = "state"
_INSTALLED: Final = "external_ids:ovn-installed"
"""What OVN writes: `ovn_causes` says why it is missing, and setting it by hand would hide that."""
_AGAIN: Final = "`userspace-cni gc`"
_NAMES: Final = (
    (("tag", "trunks", "vlan_mode"), "vlan-changed", "its frames are in another VLAN than its peers'"),
    (("MTU", "mtu_request"), "mtu-changed", "larger frames than that are dropped"),
    (("qos", "ingress_policing"), "limit-changed", "the limit that was asked for is not in force"),
    (("frames for mirror", "source of mirror", "output of mirror"), "mirror-changed", "the mirror shows other frames"),
    (
        ("external_ids:iface-id", "external_ids:ovn-installed"),
        "logical-port-changed",
        "OVN does not know the port, and drops its frames",
    ),
    (("link",), "link-replaced", "the switch has a link open that is gone"),
)
"""How the fields of a drift begin, the finding's name, and why it matters."""
_OTHER: Final = ("port-changed", "the port is not what the network asks for")
_CLOSED: Final = "the port carries no frame"


def judge_port(sight: AttachmentSight) -> Findings:
    """The port and its bridge, as they differ from the record."""
    step, switch = sight.record.port, known(sight.switch)
    if step is None or switch is None or switch.away:
        return
    bridge = switch.bridges.get(step.bridge)
    if bridge is None:
        yield _bridge_missing(sight, step)
    elif bridge != step.datapath:
        message = f"bridge {step.bridge} has the datapath {bridge}, and the port needs {step.datapath}"
        remedy = (
            f"set it back, which recreates its ports: `ovs-vsctl set Bridge {step.bridge} datapath_type={step.datapath}`; "
            f"or name another bridge in network {sight.record.network}, and recreate the pod"
        )
        why = f"a port of type {step.interface.opened_as} cannot be opened there"
        yield sight.found("bridge-datapath", message, remedy, why)
    drifts = [each for each in sight.drifts.get(step.kind, ()) if not isinstance(each.found, Dead)]
    yield from _of_drifts(sight, step, drifts)
    if bridge == step.datapath and not drifts and switch.serves:
        yield sight.well("port", f"port {step.name} on bridge {step.bridge}")


def _bridge_missing(sight: AttachmentSight, step: OvsPort) -> Finding:
    message = f"bridge {step.bridge} is gone from the switch, and the attachment's port {step.name} with it"
    made = f"`ovs-vsctl add-br {step.bridge} -- set Bridge {step.bridge} datapath_type={step.datapath}`"
    again = f"{_AGAIN} makes the port again"
    remedy = f"it was an administrator's: make it again as it was, for instance {made}; then {again}"
    if not step.foreign_bridge:
        remedy = f"{_AGAIN} makes bridge and port again"
    return sight.found("bridge-missing", message, remedy, why="the pod is connected to nothing")


def _of_drifts(sight: AttachmentSight, step: OvsPort, drifts: Sequence[Drift]) -> Findings:
    fields = {each.field: each for each in drifts}
    if isinstance(fields.get("", Drift("", "", "", "")).found, Absent):
        message = f"the switch has no port {step.name}: another program deleted it from bridge {step.bridge}"
        yield sight.found("port-missing", message, f"{_AGAIN} makes it again", why="the pod is connected to nothing")
        return
    if "bridge" in fields:
        message = f"port {step.name} is on bridge {fields['bridge'].found}, and belongs on {step.bridge}"
        remedy = f"`ovs-vsctl del-port {shlex.quote(step.name)}`; then {_AGAIN} makes it again on {step.bridge}"
        yield sight.found("port-elsewhere", message, remedy, why="the pod reaches another network")
    if _STATE in fields:
        yield _refused(sight, step, fields[_STATE])
    for name, (why, found) in _by_name(drifts).items():
        message = "; ".join(describe_change(each) if is_spoken(each) else sentence(each) for each in found)
        if name == "mtu-changed" and _STATE in fields:
            continue  # a port that is not open has none
        yield sight.found(name, message, _set_back(sight, step, found), why=why)


def _refused(sight: AttachmentSight, step: OvsPort, drift: Drift) -> Finding:
    port = sight.port
    said = port.error if port and port.error else sentence(drift, "its state")
    complaint = f" (its log: {sight.complaint})" if sight.complaint else ""
    message = f"the switch has port {step.name} and cannot open it: {said}{complaint}"
    socket, at = known(sight.socket), sight.record.socket
    restart = "restart ovs-vswitchd (`systemctl restart openvswitch-switch`), which makes that socket only at its start"
    look = f"`grep -F -e {shlex.quote(step.name)} {_log(sight)}`"
    if socket and socket.in_switch and at:
        taken = "a dead socket" if socket.in_switch == "socket" else "a file"
        message += f"; {taken} has the name at which it makes the port's socket, {at.switch_path}"
        remedy = f"`rm {shlex.quote(at.switch_path)}`; then {restart}"
    elif at and at.switch_path:
        remedy = f"see what ovs-vswitchd says of it ({look}); when the cause is gone, {restart}"
    else:
        remedy = f"see what ovs-vswitchd says of it ({look}); when the cause is gone, {_AGAIN} makes the port again"
    return sight.found("port-refused", message, remedy, why=_CLOSED)


def _log(sight: AttachmentSight) -> str:
    switch = known(sight.switch)
    return shlex.quote(switch.log) if switch else ""


def _set_back(sight: AttachmentSight, step: OvsPort, changed: Sequence[Drift]) -> str:
    written = [each for each in changed if each.field != "MTU"]
    if not written:
        return f"the log of ovs-vswitchd says why it has not set it (`grep -F -e {shlex.quote(step.name)} {_log(sight)}`)"
    command = command_back(written)
    if command:
        return f"set it back: `{command}`"
    return f"`ovs-vsctl del-port {shlex.quote(step.name)}`; then {_AGAIN} makes it again"


def _by_name(drifts: Sequence[Drift]) -> Mapping[str, tuple[str, list[Drift]]]:
    """The drifts of single columns, by the name of their finding, each name with why it matters."""
    found: dict[str, tuple[str, list[Drift]]] = {}
    for each in drifts:
        if each.field in ("", "bridge", _STATE, _INSTALLED):
            continue
        name, why = next(((name, why) for begins, name, why in _NAMES if each.field.startswith(begins)), _OTHER)
        found.setdefault(name, (why, []))[1].append(each)
    return found
