"""`status`: whether this node can attach pods, and what on it waits for somebody. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.client import NoAgent
from userspace_cni.cli.site import FOUND, SWITCH_S, UNREACHABLE, NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.deadline import Deadline
from userspace_cni.errors import Unavailable, UserspaceError
from userspace_cni.leftovers import is_unfinished

_COLUMNS: Final = (Column("WHAT"), Column("STATE"), Column("DETAILS"))
_DIRECTORIES: Final = ("state_dir", "run_dir", "short_dir")


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. `ok` is None for what is neither good nor bad."""

    what: str
    ok: bool | None
    text: str


@click.command("status", cls=NodeCommand, short_help="Tell how agent, switch and records of this node are.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Tell how this node is: the agent, the switch, its directories, the records, and what waits to be finished.

    Without an agent, as where the plugin was installed with --standalone, the node is judged all the same. Exit code: 0 when all
    is well, 1 for a finding, 3 when neither agent nor switch can be reached.
    """
    site = open_site(ctx)
    with view.progress("asking agent and switch"):
        found = look(site)
    lines = [_agent_line(found["agent"]), *_switch_lines(found["switch"]), *map(_directory_line, found["directories"])]
    lines += _store_lines(found)
    findings = [f"{line.what}: {line.text}" for line in lines if line.ok is False]
    if as_json:
        view.show_json({**found, "findings": findings})
    else:
        view.show_table(_COLUMNS, [_row(line) for line in lines])
    if not found["agent"]["reachable"] and not found["switch"]["reachable"]:
        ctx.exit(UNREACHABLE)
    if findings:
        ctx.exit(FOUND)


def look(site: Site) -> dict[str, Any]:
    """Everything that `status` tells, as JSON values."""
    node = site.node
    records = node.journal.records()
    boot_id = node.boot_id()
    unfinished = [record for record in records if is_unfinished(record, boot_id)]
    states = Counter(record.state for record in records)
    return {
        "agent": _agent(site),
        "switch": _switch(site),
        "directories": [_directory(name, site) for name in _DIRECTORIES],
        "records": {state: states[state] for state in ("pending", "applying", "ready", "deleting")},
        "unfinished": sum(_is_abandoned(record.container_id, site) for record in unfinished),
        "spool": len(node.spool),
        "quarantine": _count(Path(node.journal.directory) / "quarantine"),
    }


def _agent(site: Site) -> dict[str, Any]:
    """`reachable`, and without that `absent` (nobody has made its socket) or not; `version`, `ready` and its `problems`."""
    client = site.client
    told: dict[str, Any] = {"socket": client.path, "reachable": False, "absent": False, "version": "", "ready": False}
    try:
        about = client.about()
    except NoAgent:
        return {**told, "absent": True, "problems": []}
    except Unavailable as error:
        return {**told, "problems": [str(error)]}
    return {**told, "reachable": True, "ready": not about["problems"], **about}


def _switch(site: Site) -> dict[str, Any]:
    """`reachable`: OVSDB answers; `vswitchd`: alive, dead, silent or unknown; `problem`: why no port could be added, or ""."""
    settings = site.settings
    told = {"ovsdb": settings.ovsdb, "reachable": False, "vswitchd": "unknown", "version": "", "problem": ""}
    problem: UserspaceError | None = site.switch_problem()
    if problem is None:
        told["reachable"] = True
        try:
            site.node.ports.serving("", Deadline.after(SWITCH_S))
        except UserspaceError as error:
            problem = error
    liveness = site.node.ports.watch_liveness()
    version = liveness.reason if liveness.state == "alive" else ""
    return {**told, "vswitchd": liveness.state, "version": version, "problem": str(problem or "")}


def _directory(name: str, site: Site) -> dict[str, str]:
    """`problem`: why nothing can be written there, "" when it can; what is missing counts by its nearest parent."""
    path = str(getattr(site.settings, name))
    return {"setting": name, "path": path, "problem": site.node.unwritable(path)}


def _is_abandoned(container_id: str, site: Site) -> bool:
    """Whether nobody is working on the container now."""
    lock = site.node.journal.try_container_lock(container_id)
    if lock is None:
        return False
    lock.release()
    return True


def _count(directory: Path) -> int:
    try:
        return sum(not path.name.startswith(".") for path in directory.iterdir())
    except OSError:
        return 0


def _agent_line(agent: Mapping[str, Any]) -> Line:
    if agent["absent"]:
        return Line("agent", None, f"none on this node (no socket {agent['socket']}): only a plugin in-process can attach pods")
    if not agent["reachable"]:
        return Line("agent", False, view.joined(agent["problems"]))
    version = f" {agent['version']}" if agent["version"] else ""
    if not agent["ready"]:
        return Line("agent", False, f"{agent['socket']}{version}: not ready: {view.joined(agent['problems'])}")
    return Line("agent", True, f"{agent['socket']}{version}, ready")


def _switch_lines(switch: Mapping[str, Any]) -> list[Line]:
    if not switch["reachable"]:
        return [Line("switch", False, switch["problem"])]
    lines = [Line("switch", True, f"{switch['ovsdb']} answers")]
    if switch["problem"]:
        return [*lines, Line("datapath", False, switch["problem"])]
    alive = switch["vswitchd"] == "alive"
    text = f"{switch['version']} with DPDK" if alive else "DPDK is on; whether ovs-vswitchd lives can not be known from here"
    return [*lines, Line("datapath", True if alive else None, text)]


def _directory_line(directory: Mapping[str, str]) -> Line:
    problem = directory["problem"]
    return Line(directory["setting"], not problem, directory["path"] + (f": {problem}" if problem else ""))


def _store_lines(found: Mapping[str, Any]) -> list[Line]:
    states = [f"{count} {state}" for state, count in found["records"].items() if count]
    lines = [Line("attachments", None, view.joined(states, "none"))]
    waiting = (
        ("unfinished", "userspace-cni gc finishes them"),
        ("spool", "DELs that no agent has heard; userspace-cni gc does them"),
        ("quarantine", "files that could not be read, below state_dir; look at them, then remove them"),
    )
    for key, hint in waiting:
        count = found[key]
        lines.append(Line(key, count == 0, f"{count}: {hint}" if count else "none"))
    return lines


def _row(line: Line) -> list[Cell | str]:
    return [line.what, {True: Cell("ok", "green"), False: Cell("finding", "red"), None: Cell("-", "dim")}[line.ok], line.text]
