"""`status`: whether this node can attach pods, and what on it has to be finished. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.attachment.cleanup import is_unfinished
from userspace_cni.attachment.listing import NOT_SERVING, SwitchPort
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import NoAgent, SlowAgent
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.node.installed import DirectoryName, directories, plugins
from userspace_cni.cli.site import SWITCH_S, NodeCommand, Site, open_site, patient
from userspace_cni.cli.view import Cell
from userspace_cni.diagnosis.node_status import findings_of
from userspace_cni.diagnosis.rendering import in_words
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.node.surroundings import unwritable
from userspace_cni.pod.program_build import recorded_build

_COLUMNS: Final = ("WHAT", "STATE", "DETAILS")
_STATES: Final[Mapping[Severity, Cell]] = {
    "good": Cell("ok", "green"),
    "error": Cell("finding", "red"),
    "note": Cell("-", "dim"),
}
_DIRECTORIES: Final = ("state_dir", "run_dir", "short_dir")


@click.command("status", cls=NodeCommand, examples=("userspace-cni status",))
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
    """Report the state of this node: the agent, the installed plugin, the switch, its directories, the records, and unfinished
    work.

    An agent that does not answer is a finding if the installed plugin needs it, and an agent that died always is. If the plugin
    was installed with --standalone, or none is found, an absent agent is only mentioned. A plugin that was installed for
    another agent than that of the settings is a finding.

    Exit code: 0 when all is well, 1 for a finding, 3 when neither agent nor switch can be reached.
    """
    site = open_site(ctx)
    where = directories((str(Path(each).absolute()) for each in bin_dirs), site.environ.get("CNI_PATH", ""))
    with view.progress("asking agent and switch"):
        found = look(site, where)
    looked = findings_of(found, where)
    findings = [f"{each.subject}: {in_words(each)}" for each in looked if each.severity == "error"]
    if as_json:
        view.show_json({**found, "findings": findings})
    else:
        view.show_table(_COLUMNS, [_row(each) for each in looked])
    if not found["agent"]["reachable"] and not found["switch"]["reachable"]:
        ctx.exit(UNREACHABLE)
    if findings:
        ctx.exit(FOUND)


def look(site: Site, where: Sequence[str]) -> dict[str, Any]:
    """Everything that `status` shows, as JSON values. `where`: directories in which a runtime looks for plugins."""
    node = site.node
    records = node.store.journal.records()
    boot_id = node.store.boot_id()
    unfinished = [record for record in records if is_unfinished(record, boot_id)]
    states = Counter(record.state for record in records)
    installed = plugins(site, where)
    agent = _agent(site)
    switch = _switch(site)
    build = recorded_build()
    return {
        "program": {"version": build.version, "commit": build.commit},
        "agent": {**agent, "needed": any(each.meant for each in installed)},
        "plugins": [each.to_json() for each in installed],
        "switch": switch,
        "applications": None if switch["vswitchd"] in NOT_SERVING else _applications(site, records),
        "guards": _guards(site),
        "directories": [_directory(name, site) for name in _DIRECTORIES],
        "records": {state: states[state] for state in ("pending", "applying", "ready", "deleting")},
        "unfinished": sum(_is_abandoned(record.key, site) for record in unfinished),
        "spool": len(node.store.spool),
        "quarantine": _count(Path(node.store.journal.directory) / "quarantine"),
        "hugepages": _hugepages(site),
        "network": _network(site, slow=agent["slow"]),
        "rules": [list(rule.namespaces) for rule in site.settings.rules],
    }


def _agent(site: Site) -> dict[str, Any]:
    """`reachable`, and without that `absent` (there is no socket), `slow` (it lives, on a busy node) or neither;
    `version`, `commit`, `ready` and `problems`."""
    client = site.client
    silent: dict[str, Any] = {
        "socket": site.settings.agent_socket,
        "reachable": False,
        "absent": False,
        "slow": False,
        "version": "",
        "commit": "",
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
    liveness = site.liveness()  # first: without it `require_serving` takes the silence of a moment for a fault
    if problem is None:
        found["reachable"] = True
        try:
            site.node.switch.ports.require_serving("", patient(SWITCH_S))
        except UserspaceError as error:
            problem = error
    version = liveness.reason if liveness.state == "alive" else ""
    return {**found, "vswitchd": liveness.state, "version": version, "problem": str(problem or "")}


def _applications(site: Site, records: Sequence[Record]) -> dict[str, int] | None:
    """How many of the attachments' ports have an application (`connected`), have none, which is normal (`waiting`), or cannot be
    opened by ovs-vswitchd (`broken`, host ends of kernel links, too). OVSDB says so, nothing is tried; None when OVSDB cannot be
    asked. Not for an ovs-vswitchd that is dead or silent: what it said before is out of date."""
    try:
        ports = {port.name: port for port in site.node.switch.ports.list_ports()}
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
        there, needed = site.node.switch.count_guarded()
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
        recorded = site.node.store.journal.node_records()
        holding = sum(record.state == "ready" and record.boot_id == site.node.store.boot_id() for record in recorded)
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
    return {"setting": name, "path": path, "problem": unwritable(site.map_path(path))}


def _hugepages(site: Site) -> dict[str, Any]:
    """The pools of each NUMA node, and the mounts of hugetlbfs. None is a finding: only the switch knows what it needs."""
    elsewhere = site.settings.host_root.rstrip("/")
    found = hugepages.read_hugepages(mountinfo=f"{elsewhere}/proc/1/mountinfo" if elsewhere else "/proc/self/mountinfo")
    return {
        "pools": [asdict(pool) for pool in found.list_pools()],
        "reserved": {str(pool.page_bytes): pool.reserved for pool in found.machine},
        "mounts": [asdict(mount) for mount in found.mounts],
    }


def _is_abandoned(key: str, site: Site) -> bool:
    """Whether no call works on the attachment now."""
    lock = site.node.store.journal.try_turn_lock(key)
    if lock is None:
        return False
    lock.release()
    return True


def _count(directory: Path) -> int:
    try:
        return sum(not path.name.startswith(".") for path in directory.iterdir())
    except OSError:
        return 0


def _row(found: Finding) -> list[Cell | str]:
    return [found.subject, _STATES[found.severity], in_words(found)]
