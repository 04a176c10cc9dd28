"""What of a VM's interface is not as ADD made it: one finding for each fault, with what puts it right. Pure.

`userspace-cni gc` makes again what is gone, a port or a mount, and leaves alone what is there and different. So it is the remedy
of the first only.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubevirt.findings import Severity
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OWNER, Directory, Port, SocketFile
from userspace_cni.pod import launcher

Drift = Mapping[str, str]
"""As `check` has it: step (its kind), what, expected, found."""
Fault = tuple[str, Severity, str, str]
"""Name of the trap, severity, message, remedy."""
ANEW: Final = "restart or migrate the VM: its next pod has its own"
_DEAD: Final = ("socket-file", "a dead socket")
"""The drift of a socket that no process has: who looks at QEMU's connection knows more about it, and tells it."""
_TRAFFIC: Final = ("tag", "trunks", "vlan_mode", "Interface.type", "options:vhost-server-path")
"""Columns without which there are no packets."""


@dataclass(frozen=True)
class Access:
    """Owner, group and mode of a directory."""

    uid: int
    gid: int
    mode: int

    @property
    def is_qemu_s(self) -> bool:
        """Whether QEMU can make a socket in it: the class of users that it is in decides, and no other."""
        shift = 6 if self.uid == launcher.QEMU_ID else 3 if self.gid == launcher.QEMU_ID else 0
        return self.mode >> shift & 0o3 == 0o3

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}, mode {stat.S_IMODE(self.mode):04o}"


def judge_drifts(record: Record, drifts: Sequence[Drift], access: Access | None) -> Iterator[Fault]:
    """A finding for each fault, however many drifts it made. `access`: the directory's, None when it was not seen."""
    drifts = [each for each in drifts if not _is_dead(each)]
    found = {kind: [each for each in drifts if each["step"] == kind] for kind in dict.fromkeys(each["step"] for each in drifts)}
    for kind, mine in found.items():
        if kind == "pod-mount" and any(_is_gone(each) for each in found.get("directory", ())):
            continue  # the mount is bound to differ: it shows what is gone
        if kind:  # "" is the state of the record
            yield from _JUDGES.get(kind, _of_rest)(record, mine, access)


def cuts_off(drift: Drift) -> bool:
    """Whether it is bound to keep the switch from QEMU's socket, about which nothing more is said then."""
    column = _column(drift)
    if _is_dead(drift):
        return False
    return drift["step"] in ("directory", "pod-mount", "socket-file") or (
        drift["step"] == "port" and column in ("", "state", "bridge", "Interface.type", "options:vhost-server-path")
    )


def _of_port(record: Record, drifts: Sequence[Drift], _: Access | None) -> Iterator[Fault]:
    step = next(each for each in record.steps if isinstance(each, Port))
    columns = {_column(each): each for each in drifts}
    if "" in columns:
        again = "run userspace-cni gc, which makes a lost port again"
        remedy = f"make bridge {step.bridge}, and {again}" if step.foreign_bridge else again
        yield "port-down", "error", _told(columns[""]), remedy
        return
    if "bridge" in columns:  # it was made anew by somebody: whatever else differs goes with it
        yield (
            "port-changed",
            "error",
            _told(columns["bridge"]),
            (f"ovs-vsctl del-port {step.name}, and run userspace-cni gc, which makes it again on {step.bridge}"),
        )
        return
    if "mtu_request" in columns:
        yield "mtu-mismatch", "error", _told(columns["mtu_request"]), _commands(step, ["mtu_request"])
    elif "MTU" in columns:
        yield "mtu-mismatch", "error", _told(columns["MTU"]), "see the log of ovs-vswitchd: is there memory for such frames?"
    changed = [each for each in columns if each not in ("MTU", "mtu_request", "state")]
    if changed:
        is_server = "Interface.type" in changed and columns["Interface.type"]["found"] == "dpdkvhostuser"
        severity: Severity = "error" if any(each in _TRAFFIC for each in changed) else "warning"
        facts = "; ".join(_told(columns[each], each) for each in changed)
        yield "server-mode" if is_server else "port-changed", severity, f"port {step.name}: {facts}", _commands(step, changed)
    if "state" in columns and not any(cuts_off(columns[each]) for each in changed):
        yield "port-down", "error", _told(columns["state"]), "see the log of ovs-vswitchd; a VM that is started meanwhile waits"


def _of_directory(record: Record, drifts: Sequence[Drift], access: Access | None) -> Iterator[Fault]:
    if any(map(_is_gone, drifts)):
        yield "no-vhost-directory", "error", _told(drifts[0]), ANEW
        return
    step = next(each for each in record.steps if isinstance(each, Directory))
    place = shlex.quote(step.path)
    what = {each["what"].rpartition(": ")[2] for each in drifts}
    commands = []
    if what & {"uid", "gid"}:
        commands.append(f"chown {step.user}:{step.group} {place}")
    if step.mode is not None and what & {"uid", "gid", "mode"}:
        commands.append(f"chmod {step.mode:05o} {place}")  # five digits: with four, a directory keeps its set-group-ID
    if "SELinux label" in what:
        commands.append(f"chcon {shlex.quote(step.selinux_label)} {place}")
    facts = ", ".join(_told(each, each["what"].rpartition(": ")[2]) for each in drifts)
    message, remedy = f"directory {step.path}: {facts}", " && ".join(commands) or ANEW
    if access is None or access.is_qemu_s:
        yield "directory-changed", "warning", message, remedy
    else:
        yield "no-vhost-directory", "error", f"{message}: QEMU, user {launcher.QEMU_ID}, can not make its socket there", remedy


def _of_mount(_: Record, drifts: Sequence[Drift], __: Access | None) -> Iterator[Fault]:
    told = "; ".join(map(_told, drifts))
    target = shlex.quote(drifts[0]["what"].removeprefix("mount "))
    remedy = f"umount -l {target}, and run userspace-cni gc, which mounts it anew"
    if any(each["found"] == "another directory" for each in drifts):
        remedy += "; then restart or migrate the VM if QEMU's socket is not in the directory"
    elif any(each["found"].startswith("no ") for each in drifts):
        remedy = "run userspace-cni gc, which mounts it again"
    yield "short-mount", "error", told, remedy


def _of_socket_file(record: Record, drifts: Sequence[Drift], _: Access | None) -> Iterator[Fault]:
    files = [f"{each.directory}/{each.name}" for each in record.steps if isinstance(each, SocketFile)]
    remedy = f"look who put it there, remove {shlex.quote(files[0])}, and restart the VM" if files else ANEW
    yield "no-listener", "error", _told(drifts[0]), remedy


def _of_rest(_: Record, drifts: Sequence[Drift], __: Access | None) -> Iterator[Fault]:
    """Files and annotations that only a pod's start reads."""
    name = "no-device-info" if drifts[0]["step"] == "device-info" else "bad-input"
    yield name, "warning", "; ".join(map(_told, drifts)), ANEW


def _of_placed(_: Record, drifts: Sequence[Drift], __: Access | None) -> Iterator[Fault]:
    yield "server-mode", "error", "; ".join(map(_told, drifts)), 'write `"consumer": "kubevirt"` in the network; restart the VM'


_JUDGES: Final[Mapping[str, Callable[[Record, Sequence[Drift], Access | None], Iterator[Fault]]]] = {
    "port": _of_port,
    "directory": _of_directory,
    "pod-mount": _of_mount,
    "socket-file": _of_socket_file,
    "placed-socket": _of_placed,
}


def _is_dead(drift: Drift) -> bool:
    return (drift["step"], drift["found"]) == _DEAD


def _is_gone(drift: Drift) -> bool:
    return drift["expected"] == "a directory"


def _column(drift: Drift) -> str:
    """What of a port differs: `tag`, `Interface external_ids:owner`, `state`, ...; "" when there is none."""
    return drift["what"].partition(", ")[2]


def _told(drift: Drift, what: str = "") -> str:
    facts = f": expected {drift['expected']}, found {drift['found']}" if drift["expected"] or drift["found"] else ""
    return (what or drift["what"]) + facts


def _commands(step: Port, columns: Sequence[str]) -> str:
    """The one call of ovs-vsctl that puts them back."""
    done = dict.fromkeys(_command(step, column) for column in columns)
    return "ovs-vsctl " + " -- ".join(done)


def _command(step: Port, column: str) -> str:
    table, _, mark = column.partition(" external_ids:")
    if mark:
        return _of_map(table, step.name, ("external_ids", mark), ({"owner": OWNER} | dict(step.marks))[mark])
    name, _, key = column.partition(":")
    if key:
        return _of_map("Interface", step.name, (name, key), step.mac if name == "external_ids" else step.server_path)
    values: dict[str, tuple[str, object]] = {
        "Interface.type": ("Interface", step.interface_type),
        "tag": ("Port", step.tag),
        "trunks": ("Port", ",".join(map(str, sorted(step.trunks)))),
        "vlan_mode": ("Port", step.vlan_mode),
        "mtu_request": ("Interface", step.mtu),
    }
    table, value = values[column]
    name = column.rpartition(".")[2]
    return f"clear {table} {step.name} {name}" if value in (None, "") else f"set {table} {step.name} {name}={value}"


def _of_map(table: str, row: str, column: tuple[str, str], value: str) -> str:
    """A key of a map put back, or taken out for ""; ovs-vsctl takes the value as a quoted string of OVSDB, through a shell."""
    name, key = column
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    given = shlex.quote(f'{name}:{key}="{escaped}"')
    return f"set {table} {row} {given}" if value else f"remove {table} {row} {name} {key}"
