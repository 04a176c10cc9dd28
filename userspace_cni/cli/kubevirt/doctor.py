"""`kubevirt doctor`: shows what on this node would keep VMs from their vhost-user network. It only looks, and never connects."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.attachment.drift import Dead
from userspace_cni.attachment.listing import SwitchPort, name_of, objects
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.process_users import read_user
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE, USAGE
from userspace_cni.cli.kubevirt.plugins import judge_plugins
from userspace_cni.cli.name_completion import vm_names
from userspace_cni.cli.node.socket_parties import UnixSockets, look
from userspace_cni.cli.site import (
    SWITCH_S,
    CommandRefused,
    NodeCommand,
    Site,
    attachment_limit,
    look_at_silence,
    open_site,
    patient,
)
from userspace_cni.cli.view import Cell
from userspace_cni.consumers.kubevirt.drifts import DirectoryAccess
from userspace_cni.consumers.kubevirt.guests import (
    Guest,
    SeenSocket,
    is_guest,
    is_named,
    machine_of,
    not_looked_at,
    rivals,
    verdict_on,
)
from userspace_cni.consumers.kubevirt.node_faults import SWITCH, SeenSwitch
from userspace_cni.diagnosis.attachment_findings import check_one
from userspace_cni.diagnosis.machines import judge_machines
from userspace_cni.diagnosis.rendering import OF_TRAPS, as_json, counts_text
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.pod.quantity import amount

_COLUMNS: Final = ("VM", "IFNAME", "NETWORK", "BRIDGE", "PORT", "LINK", "VHOST", "VERDICT")
_STYLES: Final = {"good": "green", "note": "green", "unknown": "yellow", "warning": "yellow", "error": "red"}
_SETTINGS: Final = ("post-copy", "iommu")
"""Traps of the switch's settings, which are reported whether a VM needs these or not."""
_VSWITCHD: Final = "ovs-vswitchd"
_SELINUX: Final = "/sys/fs/selinux/enforce"


@click.command(
    "doctor",
    cls=NodeCommand,
    examples=(
        "userspace-cni kubevirt doctor",
        "userspace-cni kubevirt doctor --notes --json",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=vm_names)
@click.option("--guest", metavar="SIZE", help="Memory of a VM that is to be started, as 4Gi: are there huge pages for it?")
@click.option("--notes", "with_notes", is_flag=True, help="Also show notes that are not faults of the node.")
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, names: tuple[str, ...], guest: str | None, with_notes: bool, in_json: bool) -> None:
    """Report what on this node would keep VMs from their vhost-user network: the switch, huge pages, and for each VM's
    interface the port, the directory, the mount through which the switch sees it, the socket and its access rights. If the node
    has an account for the API server, KubeVirt's Plugins are checked, too: for lost hooks and another version.

    A NAME is a VM, VM or NAMESPACE/VM, or with /IFNAME one of its interfaces; IFNAME alone is that interface of every VM here;
    a launcher pod is named as in `userspace-cni list`. Without a name all VMs are checked.

    Exit code: 0 when nothing is wrong (there may be notes), 1 for errors and warnings, and for a name that no VM has, 2 for one
    that several VMs have, 3 when something could not be checked (the switch is away, for instance), and nothing else is wrong.
    """
    wanted = amount(guest) if guest else None
    if guest and not wanted:
        raise click.UsageError(f"--guest {guest}: it must be an amount of memory, such as 4Gi")
    site = open_site(ctx)
    every = [(record, _guest_of(record)) for record in site.records() if is_guest(record.steps)]
    chosen = _chosen(site, every, names)
    with view.progress("asking the switch") as tell:
        view_of_switch = _ask(site)
        guests = []
        namespaces = [site.map_path(record.netns) for record, _ in chosen if record.netns]
        parties = look(Path(site.map_path("/proc")), namespaces) if chosen else UnixSockets()
        for number, (record, each) in enumerate(chosen, 1):
            tell(f"looking at {number} of {len(chosen)}: {name_of(record)}")
            seen = _look(record, each, site, view_of_switch, parties)
            guests.append(replace(seen, rivals=rivals(each, [other for _, other in every])))
        tell("asking the API server")
        of_plugins, unasked = judge_plugins(site) if every else ((), "")
    switch = view_of_switch.switch
    pools = _hugepages(site).list_pools()
    of_node, of_guests = judge_machines(switch, guests, pools, wanted)
    findings = [*of_node, *of_plugins, *(finding for found in of_guests for finding in found)]
    away = [f"ports and settings of the switch could not be looked at: {view_of_switch.away}"] if view_of_switch.away else []
    away += [unasked] if unasked else []
    unseen = list(dict.fromkeys((*away, *(line for each in guests for line in not_looked_at(each)))))
    ports = view_of_switch.ports
    seen_of = zip(chosen, guests, of_guests, strict=True)
    rows = [_describe(record, ports, each, found) for (record, _), each, found in seen_of]
    if in_json:
        found = [as_json(each, OF_TRAPS) for each in findings]
        view.show_json({"checked": len(rows), "interfaces": rows, "findings": found, "unchecked": unseen})
    else:
        shown = findings if with_notes else _without_settings(findings, unchecked=bool(unseen))
        _show(rows, shown, unseen, named=bool(names), hidden=len(findings) - len(shown))
    wrong = [finding for finding in findings if finding.severity != "note"]
    if unseen:
        wrong = [finding for finding in wrong if finding.subject != SWITCH or not view_of_switch.away]
        ctx.exit(FOUND if wrong else UNREACHABLE)
    if wrong:
        ctx.exit(FOUND)


def _guest_of(record: Record) -> Guest:
    machine = machine_of(record.steps, record.pod_namespace, record.pod_name)
    return Guest(machine, record.ifname, record.state, record.steps, _mac_of(record))


def _mac_of(record: Record) -> str:
    step = record.port
    interfaces = objects((record.result or {}).get("interfaces"))
    macs = (each.get("mac") for each in interfaces if (each.get("name"), each.get("sandbox")) == (record.ifname, record.netns))
    return str((step.mac if step else "") or next(macs, "") or "").lower()


def _chosen(site: Site, every: Sequence[tuple[Record, Guest]], names: Sequence[str]) -> list[tuple[Record, Guest]]:
    """The VMs' interfaces with these names, all without names. Raises Refused for a name that no VM has, or several VMs have."""
    keys = {record.key for name in names for record in _named(site, every, name)}
    return [(record, guest) for record, guest in every if record.key in keys or not names]


def _named(site: Site, every: Sequence[tuple[Record, Guest]], name: str) -> Sequence[Record]:
    found = [(record, guest) for record, guest in every if is_named(guest, name)]
    machines = sorted({guest.machine for _, guest in found})
    if len(machines) > 1 and any(guest.ifname != name for _, guest in found):
        raise CommandRefused(f"{name!r} can be any of: {', '.join(machines)}", USAGE)
    return [record for record, _ in found] or site.records((name,))


@dataclass(frozen=True)
class _SwitchPorts:
    """The switch's answer: its ports by name, and their MTUs. `away`: why there is none; `process`: its directory in proc(5)."""

    switch: SeenSwitch
    ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    mtus: Mapping[str, int] = field(default_factory=dict)
    away: UserspaceError | None = None
    process: str = ""


def _ask(site: Site) -> _SwitchPorts:
    settings = site.settings
    switch = SeenSwitch(
        enforcing=_text(site.map_path(_SELINUX)).strip() == "1",
        short_dir=settings.short_dir,
        mounts_always=settings.mount_pod_dirs == "always",
    )
    try:
        site.node.switch.ports.connect(patient(SWITCH_S))
        facts = site.node.switch.ports.read_settings(patient(SWITCH_S))
        ports = {port.name: port for port in site.node.switch.ports.list_ports()}
    except UserspaceError as error:
        return _SwitchPorts(replace(switch, problem=str(error)), away=error)
    liveness = site.liveness()
    problem = f"{_VSWITCHD} is {liveness.state}: {liveness.reason}" if liveness.state in ("dead", "silent") else ""
    problem += f"; {look_at_silence()}" if liveness.state == "silent" else ""
    process = "" if liveness.state == "dead" else _process(site, liveness.pid)  # a zombie sees nothing
    user = read_user(_text(f"{process}/status")) if process else None
    known = {} if problem else ports  # a dead switch leaves old states
    return _SwitchPorts(
        replace(switch, problem=problem, other_config=facts.other_config, user=user), known, facts.mtus, None, process
    )


def _process(site: Site, pid: int | None) -> str:
    """The directory of ovs-vswitchd in proc(5); "" when the PID is another process's, as for a switch in a container."""
    path = site.map_path(f"/proc/{pid}") if pid else ""
    return path if path and _text(f"{path}/comm").startswith(_VSWITCHD) else ""  # Debian's is ovs-vswitchd-dpdk


def _look(record: Record, guest: Guest, site: Site, seen: _SwitchPorts, parties: UnixSockets) -> Guest:
    """Check one interface; a problem of the switch itself is reported once, not for each interface."""
    step = guest.port
    outcome = check_one(record, site.node, attachment_limit, seen.away)
    ports = [each for each in outcome.drifts.get("port", ()) if not isinstance(each.found, Dead)]
    port = seen.ports.get(step.name) if step else None
    return replace(
        guest,
        vhost=(port.status.get("status") if port else "") or "unknown",
        error=port.error if port else None,
        socket=_socket(step.server_path, site, seen.process, parties) if step and step.server_path else SeenSocket(),
        drifts={**outcome.drifts, "port": ports} if seen.switch.problem else outcome.drifts,
        unchecked=[each for each in outcome.unchecked if each["error"] != str(seen.away)],
        mtu=seen.mtus.get(step.name) if step else None,
        age_s=max(0.0, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - record.boottime_ns) / 1e9),
    )


def _describe(record: Record, ports: Mapping[str, SwitchPort], guest: Guest, findings: Sequence[Finding]) -> dict[str, Any]:
    step = guest.port
    port = ports.get(step.name) if step else None
    file = record.socket
    return {
        "name": name_of(record),
        "vm": guest.machine,
        "ifname": record.ifname,
        "network": record.network,
        "bridge": step.bridge if step else "",
        "port": step.name if step else "",
        "socket": file.path if file and not file.switch_path else "",
        "mtu": guest.mtu,
        "link_state": (port.link_state if port else "") or "unknown",
        "vhost": guest.vhost,
        "verdict": verdict_on(guest, findings),
    }


def _socket(path: str, site: Site, process: str, parties: UnixSockets) -> SeenSocket:
    """Look at the socket's path in the switch's configuration: below a mount of ours, in which no link is followed."""
    directory, _, name = path.rpartition("/")
    try:
        here = Path(site.map_path(directory))
        mine = here.stat()
        access = DirectoryAccess(mine.st_uid, mine.st_gid, mine.st_mode)
    except (OSError, UserspaceError):
        return SeenSocket()
    is_seen = _is_same(mine, f"{process}/root{directory}") if process else None
    try:
        facts = (here / name).lstat()
    except FileNotFoundError:
        return SeenSocket("", is_seen=is_seen, access=access)
    except OSError:
        return SeenSocket(is_seen=is_seen, access=access)
    if not stat.S_ISSOCK(facts.st_mode):
        return SeenSocket("other", facts.st_uid, is_seen, access=access)
    return SeenSocket("socket", facts.st_uid, is_seen, parties.at(here / name, facts), access)


def _is_same(mine: os.stat_result, path: str) -> bool | None:
    """Whether another process finds the same file at `path`; None when that cannot be seen."""
    try:
        theirs = Path(path).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)


def _hugepages(site: Site) -> hugepages.HugePages:
    elsewhere = site.settings.host_root.rstrip("/")
    return hugepages.read_hugepages(mountinfo=f"{elsewhere}/proc/1/mountinfo" if elsewhere else "/proc/self/mountinfo")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _without_settings(findings: Sequence[Finding], *, unchecked: bool) -> list[Finding]:
    """Leave out notes on the node's settings, and the node's other notes while nothing is wrong.

    `unchecked`: something could not be checked, which counts as wrong.
    """
    is_wrong = unchecked or any(finding.severity != "note" for finding in findings)
    of_node = [each for each in findings if each.severity == "note" and not each.subject.startswith("VM ")]
    return [each for each in findings if each not in of_node or (is_wrong and each.name not in _SETTINGS)]


def _show(
    rows: Sequence[dict[str, Any]], findings: Sequence[Finding], unseen: Sequence[str], *, named: bool, hidden: int
) -> None:
    if rows:
        view.show_table(_COLUMNS, [_row(each) for each in rows])
        if findings:
            view.say("")
    view.show_findings(findings)
    for line in unseen:
        view.note(line)
    nothing = "no interface of a VM has that name" if named else "no interface of a VM on this node"
    checked = f"{view.format_count(len(rows), 'interface')} of VMs checked" if rows else nothing
    more = f" ({view.format_count(hidden, 'note')} about the node: --notes)" if hidden else ""
    view.note(f"{checked}: {counts_text(findings)}{more}")


def _row(row: dict[str, Any]) -> list[Cell | str]:
    return [
        row["vm"],
        row["ifname"],
        row["network"],
        row["bridge"],
        row["port"],
        row["link_state"],
        row["vhost"],
        Cell(row["verdict"], _STYLES[row["verdict"]]),
    ]
