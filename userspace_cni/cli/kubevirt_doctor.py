"""`kubevirt doctor`: what on this node would keep VMs from their vhost-user network. It only looks: nothing is connected to."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from kubevirt.findings import Finding
from kubevirt.quantity import amount
from userspace_cni.cli import view
from userspace_cni.cli.check import check_one
from userspace_cni.cli.kubevirt_lint import counts_text, show_findings
from userspace_cni.cli.kubevirt_node import (
    SWITCH,
    Guest,
    Socket,
    Switch,
    is_guest,
    judge_guest,
    judge_hugepages,
    judge_switch,
    read_user,
    row_of,
    unlooked,
)
from userspace_cni.cli.site import FOUND, SWITCH_S, UNREACHABLE, NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.deadline import Deadline
from userspace_cni.errors import UserspaceError
from userspace_cni.fastpath import hugepages
from userspace_cni.listing import SwitchPort, name_of, port_step
from userspace_cni.records import Record

_COLUMNS: Final = (
    Column("VM"),
    Column("IFNAME"),
    Column("NETWORK", rank=2),
    Column("BRIDGE", rank=1),
    Column("PORT", rank=3),
    Column("LINK", rank=4),
    Column("VHOST"),
    Column("VERDICT"),
)
_STYLES: Final = {"good": "green", "note": "green", "warning": "yellow", "error": "red"}
_VSWITCHD: Final = "ovs-vswitchd"
_SELINUX: Final = "/sys/fs/selinux/enforce"


@click.command("doctor", cls=NodeCommand, short_help="Tell what on this node would fail.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--guest", metavar="SIZE", help="Memory of a VM that is to be started, as 4Gi: are there huge pages for it?")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, names: tuple[str, ...], guest: str | None, as_json: bool) -> None:
    """Tell what on this node would keep VMs from their vhost-user network: the switch, huge pages, and of each VM's interface the
    port, the directory, the mount through which the switch sees it, the socket, and who may open it.

    A NAME is that of a launcher pod, or its interface, as in `userspace-cni list`; without one all are looked at. Exit code: 0
    when nothing is wrong (there may be notes), 1 for errors or warnings, 3 when nothing is wrong as far as could be looked.
    """
    wanted = amount(guest) if guest else None
    if guest and not wanted:
        raise click.UsageError(f"--guest {guest}: it must be an amount of memory, as 4Gi")
    site = open_site(ctx)
    records = [record for record in site.records(names) if is_guest(record)]
    with view.progress("asking the switch") as tell:
        view_of_switch = _ask(site)
        guests = []
        for number, record in enumerate(records, 1):
            tell(f"looking at {number} of {len(records)}: {name_of(record)}")
            guests.append(_look(record, site, view_of_switch))
    switch = view_of_switch.switch
    pools = _hugepages(site).pools()
    needed = switch.other_config.get("dpdk-socket-mem", "")
    of_node = [*judge_switch(switch, guests=bool(guests)), *judge_hugepages(pools, needed, wanted)]
    judged = [(each, judge_guest(each)) for each in guests]
    findings = [*of_node, *(finding for _, found in judged for finding in found)]
    unseen = list(dict.fromkeys(line for each in guests for line in unlooked(each)))
    rows = [row_of(each, found) for each, found in judged]
    if as_json:
        found = [asdict(each) for each in findings]
        view.show_json({"checked": len(rows), "interfaces": rows, "findings": found, "unchecked": unseen})
    else:
        _show(rows, findings, unseen)
    wrong = [finding for finding in findings if finding.severity != "note"]
    if unseen or view_of_switch.away:
        wrong = [finding for finding in wrong if finding.where != SWITCH or not view_of_switch.away]
        ctx.exit(FOUND if wrong else UNREACHABLE)
    if wrong:
        ctx.exit(FOUND)


@dataclass(frozen=True)
class _Seen:
    """What the switch answered: its ports by name, and their MTUs. `away`: why it did not; `process`: where its own is seen."""

    switch: Switch
    ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    mtus: Mapping[str, int] = field(default_factory=dict)
    away: UserspaceError | None = None
    process: str = ""


def _ask(site: Site) -> _Seen:
    settings = site.settings
    switch = Switch(
        enforcing=_text(site.seen(_SELINUX)).strip() == "1",
        short_dir=settings.short_dir,
        mounts_always=settings.mount_pod_dirs == "always",
    )
    try:
        site.node.ports.connect(Deadline.after(SWITCH_S))
        facts = site.node.ports.facts(Deadline.after(SWITCH_S))
        ports = {port.name: port for port in site.node.ports.known()}
    except UserspaceError as error:
        return _Seen(replace(switch, problem=str(error)), away=error)
    liveness = site.node.ports.watch_liveness()
    problem = f"{_VSWITCHD} is {liveness.state}: {liveness.reason}" if liveness.state in ("dead", "silent") else ""
    process = _process(site, liveness.pid)
    user = read_user(_text(f"{process}/status")) if process else None
    return _Seen(replace(switch, problem=problem, other_config=facts.other_config, user=user), ports, facts.mtus, None, process)


def _process(site: Site, pid: int | None) -> str:
    """Where ovs-vswitchd's process is seen; "" when the number is of another one, as it is for a switch in a container."""
    path = site.seen(f"/proc/{pid}") if pid else ""
    return path if path and _text(f"{path}/comm").strip() == _VSWITCHD else ""


def _look(record: Record, site: Site, seen: _Seen) -> Guest:
    step = port_step(record)
    outcome = check_one(record, site, seen.away)
    name = step.name if step else ""
    return Guest(
        record=record,
        port=seen.ports.get(name),
        socket=_socket(step.server_path, site, seen.process) if step and step.server_path else Socket(),
        drifts=outcome.drifts,
        unchecked=outcome.unchecked,
        mtu=seen.mtus.get(name),
        age_s=max(0.0, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - record.boottime_ns) / 1e9),
    )


def _socket(path: str, site: Site, process: str) -> Socket:
    """What is at the path that the switch is given: below a mount of ours, in which no link is followed."""
    directory, _, name = path.rpartition("/")
    try:
        here = Path(site.seen(directory))
        mine = here.stat()
    except (OSError, UserspaceError):
        return Socket()
    is_seen = _is_same(mine, f"{process}/root{directory}") if process else None
    try:
        facts = (here / name).lstat()
    except FileNotFoundError:
        return Socket("", is_seen=is_seen)
    except OSError:
        return Socket(is_seen=is_seen)
    return Socket("socket" if stat.S_ISSOCK(facts.st_mode) else "other", facts.st_uid, is_seen)


def _is_same(mine: os.stat_result, path: str) -> bool | None:
    """Whether another process finds the same there; None when that can not be seen."""
    try:
        theirs = Path(path).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)


def _hugepages(site: Site) -> hugepages.HugePages:
    elsewhere = site.settings.host_root.rstrip("/")
    return hugepages.look(mountinfo=f"{elsewhere}/proc/1/mountinfo" if elsewhere else "/proc/self/mountinfo")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _show(rows: Sequence[dict[str, Any]], findings: Sequence[Finding], unseen: Sequence[str]) -> None:
    if rows:
        view.show_table(_COLUMNS, [_row(each) for each in rows])
        if findings:
            view.say("")
    show_findings(findings)
    for line in unseen:
        view.note(line)
    told = f"{view.counted(len(rows), 'interface')} of VMs checked" if rows else "no interface of a VM on this node"
    view.note(f"{told}: {counts_text(findings)}")


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
