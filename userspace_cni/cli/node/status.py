"""`status`: whether this node can attach pods, and what on it has to be finished. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.attachment.cleanup import is_unfinished
from userspace_cni.attachment.listing import SwitchPort
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.client import NoAgent, SlowAgent
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.node.installed import DirectoryName, directories, plugins
from userspace_cni.cli.site import SWITCH_S, NodeCommand, Site, open_site, patient
from userspace_cni.cli.view import Cell, Column
from userspace_cni.fastpath.memory import hugepages

_COLUMNS: Final = (Column("WHAT"), Column("STATE"), Column("DETAILS"))
_DIRECTORIES: Final = ("state_dir", "run_dir", "short_dir")


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. `ok` is None for a thing that is neither good nor bad."""

    what: str
    ok: bool | None
    text: str


@click.command("status", cls=NodeCommand)
@click.option(
    "--bin-dir",
    "bin_dirs",
    multiple=True,
    metavar="DIR",
    type=DirectoryName(file_okay=False),
    help="The runtime's directory of CNI plugins; repeatable. Default: those of CNI_PATH, else the usual ones, as /opt/cni/bin.",
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, bin_dirs: tuple[str, ...], as_json: bool) -> None:
    """Tell how this node is: the agent, the installed plugin, the switch, its directories, the records, and what waits to be
    finished.

    An agent that does not answer is a finding where the installed plugin needs it, and an agent that died always is. Where the
    plugin was installed with --standalone, or none is found, an absent agent is only mentioned. A plugin that was installed for
    another agent than that of the settings is a finding.

    Exit code: 0 when all is well, 1 for a finding, 3 when neither agent nor switch can be reached.
    """
    site = open_site(ctx)
    where = directories((str(Path(each).absolute()) for each in bin_dirs), site.environ.get("CNI_PATH", ""))
    with view.progress("asking agent and switch"):
        found = look(site, where)
    lines = [_agent_line(found), *_plugin_lines(found["plugins"], where)]
    lines += [*_switch_lines(found["switch"]), *_application_lines(found["applications"])]
    lines += _guard_lines(found["guards"])
    lines += _network_lines(found["network"])
    lines += [*map(_directory_line, found["directories"])]
    lines += [*_store_lines(found), *_hugepage_lines(found["hugepages"]), _rules_line(found["rules"])]
    findings = [f"{line.what}: {line.text}" for line in lines if line.ok is False]
    if as_json:
        view.show_json({**found, "findings": findings})
    else:
        view.show_table(_COLUMNS, [_row(line) for line in lines])
    if not found["agent"]["reachable"] and not found["switch"]["reachable"]:
        ctx.exit(UNREACHABLE)
    if findings:
        ctx.exit(FOUND)


def look(site: Site, where: Sequence[str]) -> dict[str, Any]:
    """Everything that `status` shows, as JSON values. `where`: directories in which a runtime looks for plugins."""
    node = site.node
    records = node.journal.records()
    boot_id = node.boot_id()
    unfinished = [record for record in records if is_unfinished(record, boot_id)]
    states = Counter(record.state for record in records)
    installed = plugins(site, where)
    agent = _agent(site)
    return {
        "agent": {**agent, "needed": any(each.meant for each in installed)},
        "plugins": [each.to_json() for each in installed],
        "switch": _switch(site),
        "applications": _applications(site, records),
        "guards": _guards(site),
        "directories": [_directory(name, site) for name in _DIRECTORIES],
        "records": {state: states[state] for state in ("pending", "applying", "ready", "deleting")},
        "unfinished": sum(_is_abandoned(record.container_id, site) for record in unfinished),
        "spool": len(node.spool),
        "quarantine": _count(Path(node.journal.directory) / "quarantine"),
        "hugepages": _hugepages(site),
        "network": _network(site, slow=agent["slow"]),
        "rules": [list(rule.namespaces) for rule in site.settings.rules],
    }


def _agent(site: Site) -> dict[str, Any]:
    """`reachable`, and without that `absent` (there is no socket), `slow` (it lives, on a busy node) or neither;
    `version`, `ready` and `problems`."""
    client = site.client
    silent: dict[str, Any] = {
        "socket": site.settings.agent_socket,
        "reachable": False,
        "absent": False,
        "slow": False,
        "version": "",
        "ready": False,
    }
    try:
        about = client.about()
    except NoAgent:
        return {**silent, "absent": True, "problems": []}
    except SlowAgent as error:
        return {**silent, "slow": error.busy, "problems": [str(error)]}
    except Unavailable as error:
        return {**silent, "problems": [str(error)]}
    return {**silent, "reachable": True, "ready": not about["problems"], **about}


def _switch(site: Site) -> dict[str, Any]:
    """`reachable`: OVSDB answers; `vswitchd`: alive, dead, silent or unknown; `problem`: why no port could be added, or ""."""
    settings = site.settings
    found = {"ovsdb": settings.ovsdb, "reachable": False, "vswitchd": "unknown", "version": "", "problem": ""}
    problem: UserspaceError | None = site.switch_problem()
    liveness = site.liveness()  # first: without it `serving` takes the silence of a moment for a fault
    if problem is None:
        found["reachable"] = True
        try:
            site.node.ports.serving("", patient(SWITCH_S))
        except UserspaceError as error:
            problem = error
    version = liveness.reason if liveness.state == "alive" else ""
    return {**found, "vswitchd": liveness.state, "version": version, "problem": str(problem or "")}


def _applications(site: Site, records: Sequence[Record]) -> dict[str, int] | None:
    """How many of the attachments' ports have an application (`connected`), have none, which is normal (`waiting`), or cannot be
    opened by ovs-vswitchd (`broken`, host ends of kernel links, too). OVSDB says so, nothing is tried; None when OVSDB cannot be
    asked."""
    try:
        ports = {port.name: port for port in site.node.ports.known()}
    except UserspaceError:
        return None
    steps = [step for record in records if record.state == "ready" and (step := record.port)]
    found = [(step, ports[step.name]) for step in steps if step.name in ports]
    broken = sum(bool(port.error) for _, port in found)
    asked = [_is_connected(port) for step, port in found if not port.error and step.interface.role]
    return {"connected": sum(asked), "waiting": len(asked) - sum(asked), "broken": broken}


def _is_connected(port: SwitchPort) -> bool:
    """Whether a peer is connected. OVS may say `disconnected` of a peer that is there; the link is up then."""
    return port.link_state == "up" or port.status.get("status") == "connected"


def _guards(site: Site) -> dict[str, Any]:
    """How many host ends of kernel links need the guard against the node's own stack, and how many have it."""
    try:
        there, needed = site.node.guarded()
    except UserspaceError as error:
        return {"there": 0, "needed": 0, "problem": str(error)}
    return {"there": there, "needed": needed, "problem": ""}


def _network(site: Site, *, slow: bool) -> dict[str, Any]:
    """What the node itself is to have: how many specs `hold` of `all`, and the others' problems. `kept`: an agent says so.

    `unkept`: why none does, else "". `slow`: the node is busy, and the agent has not answered; it is not asked again.
    """
    try:
        if slow:
            raise SlowAgent("it is slow", "", busy=True)
        specs = site.client.network()["specs"]
    except Unavailable as error:
        unkept = "no agent keeps them" if isinstance(error, NoAgent) else f"the agent does not say: {error}"
        slow = slow or (isinstance(error, SlowAgent) and error.busy)
        recorded = site.node.journal.node_records()
        holding = sum(record.state == "ready" and record.boot_id == site.node.boot_id() for record in recorded)
        return {"hold": holding, "all": len(recorded), "problems": [], "kept": False, "unkept": unkept, "slow": slow}
    problems = [f"{each['kind']} {each['name']}: {each['problem']}" for each in specs if not each["ready"]]
    return {
        "hold": len(specs) - len(problems),
        "all": len(specs),
        "problems": problems,
        "kept": True,
        "unkept": "",
        "slow": False,
    }


def _directory(name: str, site: Site) -> dict[str, str]:
    """`problem`: why nothing can be written there, "" when something can; for a missing directory its nearest parent counts."""
    path = str(getattr(site.settings, name))
    return {"setting": name, "path": path, "problem": site.node.unwritable(path)}


def _hugepages(site: Site) -> dict[str, Any]:
    """The pools of each NUMA node, and the mounts of hugetlbfs. None is a finding: only the switch knows what it needs."""
    elsewhere = site.settings.host_root.rstrip("/")
    found = hugepages.look(mountinfo=f"{elsewhere}/proc/1/mountinfo" if elsewhere else "/proc/self/mountinfo")
    return {
        "pools": [asdict(pool) for pool in found.pools()],
        "reserved": {str(pool.page_bytes): pool.reserved for pool in found.machine},
        "mounts": [asdict(mount) for mount in found.mounts],
    }


def _is_abandoned(container_id: str, site: Site) -> bool:
    """Whether no call works on the container now."""
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


def _agent_line(found: Mapping[str, Any]) -> Line:
    agent = found["agent"]
    problems = view.joined(agent["problems"])
    if agent["slow"]:
        return Line("agent", None, problems)
    if not agent["reachable"]:
        none = f"none on this node (no socket {agent['socket']})"
        if agent["needed"]:
            [path, *_] = [each["path"] for each in found["plugins"] if each["meant"]]
            return Line(
                "agent",
                False,
                f"{problems or none}. The installed plugin {path} hands each call to it: no pod is attached until it answers; "
                "start it (`userspace-cni agent`, or the service or DaemonSet that runs it) and look at its log; "
                "`userspace-cni install --standalone` installs a plugin that needs none",
            )
        if agent["absent"]:
            return Line("agent", None, f"{none}: only a plugin in-process can attach pods")
        return Line("agent", False, problems)
    version = f" {agent['version']}" if agent["version"] else ""
    if not agent["ready"]:
        return Line("agent", False, f"{agent['socket']}{version}: not ready: {problems}")
    return Line("agent", True, f"{agent['socket']}{version}, ready")


def _plugin_lines(found: Sequence[Mapping[str, Any]], where: Sequence[str]) -> list[Line]:
    """Lines about the installed plugins; that none is found is no finding, because one may be in another directory."""
    if not found:
        return [Line("plugin", None, f"none in {view.joined(where)}; --bin-dir names the runtime's directory")]
    return [_plugin_line(each) for each in found]


def _plugin_line(plugin: Mapping[str, Any]) -> Line:
    path, problem = plugin["path"], plugin["problem"]
    if plugin["kind"] == "in-process":
        return Line("plugin", None, f"{path} runs in-process: it needs no agent")
    if plugin["kind"] == "other":
        return Line("plugin", None, f"{path} is not of this program" + (f": {problem}" if problem else ""))
    if not plugin["socket"]:
        return Line("plugin", False, f"{path}: {problem}")
    calls = f"{path} hands calls to the agent at {plugin['socket']}"
    return Line("plugin", plugin["meant"], f"{calls}, {problem}" if problem else calls)


def _switch_lines(switch: Mapping[str, Any]) -> list[Line]:
    if not switch["reachable"]:
        return [Line("switch", False, switch["problem"])]
    lines = [Line("switch", True, f"{switch['ovsdb']} answers")]
    if switch["problem"]:
        return [*lines, Line("datapath", False, switch["problem"])]
    alive = switch["vswitchd"] == "alive"
    text = f"{switch['version']} with DPDK" if alive else "DPDK is on; whether ovs-vswitchd lives cannot be known from here"
    return [*lines, Line("datapath", True if alive else None, text)]


def _application_lines(counts: Mapping[str, int] | None) -> list[Line]:
    if counts is None:
        return []
    text = f"{counts['connected']} connected, {counts['waiting']} not" if any(counts.values()) else "none attached"
    if counts["broken"]:
        text += f", {view.counted(counts['broken'], 'port')} that ovs-vswitchd cannot open; see userspace-cni list"
    return [Line("applications", False if counts["broken"] else None, text)]


def _guard_lines(found: Mapping[str, Any]) -> list[Line]:
    """None where no host end needs a guard."""
    if found["problem"]:
        return [Line("host ends", False, found["problem"])]
    there, needed = found["there"], found["needed"]
    text = f"{there} of {needed} guarded: the node's own stack does not see their pods' frames"
    hint = "" if there == needed else "; userspace-cni check names those without, and a running agent makes them again"
    return [Line("host ends", there == needed, text + hint)] if needed else []


def _network_lines(found: Mapping[str, Any]) -> list[Line]:
    """None where nothing is asked of the node itself."""
    if not found["all"]:
        return []
    text = f"{found['hold']} of {found['all']} that are desired hold"
    if not found["kept"]:
        return [
            Line(
                "network",
                None if found["slow"] else False,
                f"{text}, by the records: {found['unkept']}; see userspace-cni network",
            )
        ]
    text += f": {found['problems'][0]}; see userspace-cni network" if found["problems"] else ""
    return [Line("network", not found["problems"], text)]


def _directory_line(directory: Mapping[str, str]) -> Line:
    problem = directory["problem"]
    return Line(directory["setting"], not problem, directory["path"] + (f": {problem}" if problem else ""))


def _store_lines(found: Mapping[str, Any]) -> list[Line]:
    states = [f"{count} {state}" for state, count in found["records"].items() if count]
    lines = [Line("attachments", None, view.joined(states, "none"))]
    waiting = (
        ("unfinished", "userspace-cni gc finishes them"),
        ("spool", "DELs that no agent received; userspace-cni gc carries them out"),
        ("quarantine", "files that could not be read, below state_dir; look at them, then remove them"),
    )
    for key, hint in waiting:
        count = found[key]
        lines.append(Line(key, count == 0, f"{count}: {hint}" if count else "none"))
    return lines


def _hugepage_lines(found: Mapping[str, Any]) -> list[Line]:
    """A line for each page size and node that has pages; one line when there are none."""
    lines = []
    for pool in (pool for pool in found["pools"] if pool["total"]):
        size = pool["page_bytes"]
        mounts = [mount["path"] for mount in found["mounts"] if mount["page_bytes"] == size]
        where = "" if pool["node"] is None else f" on node {pool['node']}"
        promised = found["reserved"].get(str(size)) or 0
        text = f"{pool['total']} of {hugepages.size_text(size)}{where}, {pool['free']} free"
        text += f" ({promised} of the machine's promised)" if promised else ""
        lines.append(Line("huge pages", None, f"{text}, mounted at {view.joined(mounts)}" if mounts else f"{text}, not mounted"))
    return lines or [Line("huge pages", None, "none reserved: OVS-DPDK needs some, unless it was started with --no-huge")]


def _rules_line(rules: Sequence[Sequence[str]]) -> Line:
    """The namespaces of each rule of the settings file, in its order."""
    parts = [f"{number} for {view.joined(namespaces)}" for number, namespaces in enumerate(rules, 1)]
    return Line("rules", None, "; ".join(parts) or "none: pods of every namespace may use any bridge and VLAN")


def _row(line: Line) -> list[Cell | str]:
    return [line.what, {True: Cell("ok", "green"), False: Cell("finding", "red"), None: Cell("-", "dim")}[line.ok], line.text]
