"""Turns the drifts of a VM's interface into findings: one for each fault, with its remedy. Pure.

`userspace-cni gc` makes a missing port or mount again, and leaves alone one that exists and differs. So it is the remedy only of
the former.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.attachment.column_commands import command_for
from userspace_cni.attachment.drift import Absent, Dead, Drift, Other, sentence
from userspace_cni.attachment.steps import OvsPort, Step, Steps
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.pod import launcher

Drifts = Mapping[str, Sequence[Drift]]
"""As `check` gives them: by kind of step, "" for the record."""
NEXT_POD: Final = "restart or migrate the VM: its next pod has its own"
_DISCONNECTING: Final = ("", "state", "bridge", "Interface.type", "options:vhost-server-path")
"""Fields of a port on which the switch's connection to QEMU's socket depends; "" is the port itself."""
_INSTALLED: Final = "external_ids:ovn-installed"
"""What OVN alone writes: of a port that has not it, the logical port is at fault."""
_TRAFFIC: Final = (
    *("tag", "trunks", "vlan_mode", "Interface.type", "options:vhost-server-path"),
    *("external_ids:iface-id", "external_ids:iface-id-ver"),
)
"""Columns on which the traffic depends."""


@dataclass(frozen=True)
class DirectoryAccess:
    """Owner, group and mode of a directory."""

    uid: int
    gid: int
    mode: int

    @property
    def qemu_can_write(self) -> bool:
        """Whether QEMU can make a socket in the directory: only the bits of QEMU's class (user, group, others) count."""
        shift = 6 if self.uid == launcher.QEMU_ID else 3 if self.gid == launcher.QEMU_ID else 0
        return self.mode >> shift & 0o3 == 0o3

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}, mode {stat.S_IMODE(self.mode):04o}"


def judge_drifts(steps: Sequence[Step], drifts: Drifts, access: DirectoryAccess | None) -> Iterator[Finding]:
    """Find each fault once, however many drifts it caused; the VM is the subject, and not named.

    `access`: the directory's, None when it was not seen.
    """
    for kind, found in drifts.items():
        if kind == "pod-mount" and any(map(_is_absent, drifts.get("directory", ()))):
            continue  # the mount differs because it shows a directory that is gone
        if kind and found:  # "" is the state of the record
            yield from _JUDGES.get(kind, _of_rest)(Steps(steps), found, access)


def cuts_off(drifts: Drifts) -> bool:
    """Whether the drifts keep the switch from QEMU's socket, so that further findings about the socket say nothing new."""
    is_closed = any(each.field in _DISCONNECTING for each in drifts.get("port", ()))
    return is_closed or any(map(drifts.get, ("directory", "pod-mount"))) or bool(_in_place(drifts.get("socket-file", ())))


def _of_port(parts: Steps, drifts: Sequence[Drift], _: DirectoryAccess | None) -> Iterator[Finding]:
    step = parts.port
    assert step  # noqa: S101 - for the type checker: it has drifts
    columns = {each.field: each for each in drifts if each.subject != f"bridge {step.bridge}"}
    for each in drifts:
        if each.subject == f"bridge {step.bridge}":  # its own MTU, which its ports' follows
            yield Finding("port-changed", "warning", "", sentence(each), _remedy(step, [each]))
    if "" in columns:
        again = "run userspace-cni gc, which makes a lost port again"
        remedy = f"make bridge {step.bridge}, and {again}" if step.foreign_bridge else again
        yield Finding("port-down", "error", "", sentence(columns[""]), remedy)
        return
    if "bridge" in columns:  # the port was made again on another bridge, which explains other differences
        yield Finding(
            "port-changed",
            "error",
            "",
            sentence(columns["bridge"]),
            _remedy(step, [columns["bridge"]]),
        )
        return
    if "mtu_request" in columns:
        yield Finding("mtu-mismatch", "error", "", sentence(columns["mtu_request"]), _remedy(step, [columns["mtu_request"]]))
    elif "MTU" in columns:
        yield Finding(
            "mtu-mismatch", "error", "", sentence(columns["MTU"]), "see the log of ovs-vswitchd: is there memory for such frames?"
        )
    if _INSTALLED in columns:
        remedy = "is the VM's logical port there, and this node's? ovn-sbctl find Port_Binding; the log of ovn-controller"
        yield Finding("port-down", "error", "", sentence(columns.pop(_INSTALLED)), remedy)
    changed = [each for each in columns if each not in ("MTU", "mtu_request", "state")]
    if changed:
        is_server = "Interface.type" in changed and columns["Interface.type"].found == "dpdkvhostuser"
        severity: Severity = "error" if any(each in _TRAFFIC for each in changed) else "warning"
        facts = "; ".join(sentence(columns[each], each) for each in changed)
        yield Finding(
            "server-mode" if is_server else "port-changed",
            severity,
            "",
            f"port {step.name}: {facts}",
            _remedy(step, [columns[each] for each in changed]),
        )
    if "state" in columns and not any(each in _DISCONNECTING for each in changed):
        yield Finding(
            "port-down",
            "error",
            "",
            sentence(columns["state"]),
            "see the log of ovs-vswitchd; a VM that is started meanwhile waits",
        )


def _of_directory(parts: Steps, drifts: Sequence[Drift], access: DirectoryAccess | None) -> Iterator[Finding]:
    if any(map(_is_absent, drifts)):
        yield Finding("no-vhost-directory", "error", "", sentence(drifts[0]), NEXT_POD)
        return
    step = parts.directory
    assert step  # noqa: S101 - for the type checker: it has drifts
    place = shlex.quote(step.path)
    what = {each.field for each in drifts}
    commands = []
    if what & {"uid", "gid"}:
        commands.append(f"chown {step.user}:{step.group} {place}")
    if step.mode is not None and what & {"uid", "gid", "mode"}:
        commands.append(f"chmod {step.mode:05o} {place}")  # five digits: with four, a directory keeps its set-group-ID
    if "SELinux label" in what:
        commands.append(f"chcon {shlex.quote(step.selinux_label)} {place}")
    facts = ", ".join(sentence(each, each.field) for each in drifts)
    message, remedy = f"directory {step.path}: {facts}", " && ".join(commands) or NEXT_POD
    if access is None or access.qemu_can_write:
        yield Finding("directory-changed", "warning", "", message, remedy)
    else:
        yield Finding(
            "no-vhost-directory", "error", "", f"{message}: QEMU, user {launcher.QEMU_ID}, cannot make its socket there", remedy
        )


def _of_mount(parts: Steps, drifts: Sequence[Drift], _: DirectoryAccess | None) -> Iterator[Finding]:
    step = parts.mount
    assert step  # noqa: S101 - for the type checker: it has drifts
    remedy = f"umount -l {shlex.quote(step.target)}, and run userspace-cni gc, which mounts it again"
    if any(isinstance(each.found, Other) for each in drifts):
        remedy += "; then restart or migrate the VM if QEMU's socket is not in the directory"
    elif any(isinstance(each.found, Absent) for each in drifts):
        remedy = "run userspace-cni gc, which mounts it again"
    yield Finding("short-mount", "error", "", "; ".join(map(sentence, drifts)), remedy)


def _of_socket_file(parts: Steps, drifts: Sequence[Drift], _: DirectoryAccess | None) -> Iterator[Finding]:
    step = parts.socket
    remedy = f"find out what made it, remove {shlex.quote(step.path)}, and restart the VM" if step else NEXT_POD
    for each in _in_place(drifts)[:1]:
        yield Finding("no-listener", "error", "", sentence(each), remedy)


def _of_device_info(_: Steps, drifts: Sequence[Drift], __: DirectoryAccess | None) -> Iterator[Finding]:
    yield Finding("no-device-info", "warning", "", "; ".join(map(sentence, drifts)), NEXT_POD)


def _of_rest(_: Steps, drifts: Sequence[Drift], __: DirectoryAccess | None) -> Iterator[Finding]:
    """Findings about files and annotations, which are read only when a pod starts."""
    yield Finding("bad-input", "warning", "", "; ".join(map(sentence, drifts)), NEXT_POD)


def _of_placed(_: Steps, drifts: Sequence[Drift], __: DirectoryAccess | None) -> Iterator[Finding]:
    yield Finding(
        "server-mode",
        "error",
        "",
        "; ".join(map(sentence, drifts)),
        'write `"consumer": "kubevirt"` in the network; restart the VM',
    )


_JUDGES: Final[Mapping[str, Callable[[Steps, Sequence[Drift], DirectoryAccess | None], Iterator[Finding]]]] = {
    "port": _of_port,
    "directory": _of_directory,
    "pod-mount": _of_mount,
    "socket-file": _of_socket_file,
    "placed-socket": _of_placed,
    "device-info": _of_device_info,
}


def _is_absent(drift: Drift) -> bool:
    """Whether the directory itself differs, and not its owner, mode or label."""
    return not drift.field


def _in_place(drifts: Sequence[Drift]) -> list[Drift]:
    """The drifts about another thing in the place of QEMU's socket; a dead socket of QEMU is judged by its connection."""
    return [each for each in drifts if not isinstance(each.found, Dead)]


def command_back(changed: Sequence[Drift]) -> str:
    """One call of ovs-vsctl that sets the columns of a port back; "" where one of them is of rows beside the port's own."""
    commands = [command_for(each) for each in changed]
    return "" if None in commands else "ovs-vsctl " + " -- ".join(dict.fromkeys(each for each in commands if each))


def _remedy(step: OvsPort, changed: Sequence[Drift]) -> str:
    """As `command_back`, or for rows beside the port's own, as of QoS and mirrors, a new port."""
    again = f"run userspace-cni gc, which makes it again on {step.bridge}; the VM is cut off until then"
    return command_back(changed) or f"ovs-vsctl del-port {shlex.quote(step.name)}, and {again}"
