"""What this node is like, from what `status` has looked at: whether it can attach pods, and what has to be finished. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from userspace_cni.attachment.listing import NOT_SERVING
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.pod.program_build import ProgramBuild, read_summary


def findings_of(found: Mapping[str, Any], where: Sequence[str]) -> list[Finding]:
    """A finding for each thing that was looked at, good ones too.

    `found`: as `status --json` has it; `where`: directories in which a runtime looks for plugins.
    """
    return [
        _agent(found),
        *_plugins(found["plugins"], where),
        *_builds(found),
        *_switch(found["switch"]),
        *_applications(found["applications"], found["switch"]["vswitchd"]),
        *_guards(found["guards"]),
        *_network(found["network"]),
        *map(_directory, found["directories"]),
        *_store(found),
        *_hugepages(found["hugepages"]),
        _rules(found["rules"]),
    ]


def _said(subject: str, ok: bool | None, message: str, remedy: str = "", why: str = "") -> Finding:
    """A finding, of which there is one kind for each subject. `ok`: None for what is neither good nor bad."""
    severity: Severity = "note" if ok is None else "good" if ok else "error"
    return Finding(subject, severity, subject, message, remedy, why=why)


def _agent(found: Mapping[str, Any]) -> Finding:
    agent = found["agent"]
    problems = ", ".join(agent["problems"])
    if agent["slow"]:
        return _said("agent", None, problems)
    if not agent["reachable"]:
        none = f"none on this node (no socket {agent['socket']})"
        if agent["needed"]:
            [path, *_] = [each["path"] for each in found["plugins"] if each["meant"]]
            return _said(
                "agent",
                False,
                problems or none,
                "start it (`userspace-cni agent`, or the service or DaemonSet that runs it) and look at its log; "
                "`userspace-cni install --standalone` installs a plugin that needs none",
                why=f"The installed plugin {path} hands each call to it: no pod is attached until it answers",
            )
        if agent["absent"]:
            return _said("agent", None, f"{none}: only a plugin that runs as a process can attach pods")
        return _said("agent", False, problems)
    version = f" {agent['version']}" if agent["version"] else ""
    version += f" (commit {agent['commit']})" if agent["commit"] else ""
    if not agent["ready"]:
        return _said("agent", False, f"{agent['socket']}{version}: not ready: {problems}")
    return _said("agent", True, f"{agent['socket']}{version}, ready")


def _plugins(found: Sequence[Mapping[str, Any]], where: Sequence[str]) -> list[Finding]:
    """Those that are installed; that none is found is no error, because one may be in another directory."""
    if not found:
        return [_said("plugin", None, f"none in {', '.join(where)}", "--bin-dir names the runtime's directory")]
    return [_plugin(each) for each in found]


def _plugin(plugin: Mapping[str, Any]) -> Finding:
    path, problem = plugin["path"], plugin["problem"]
    if plugin["kind"] == "in-process":
        return _said("plugin", None, f"{path} runs as a process per call: it needs no agent")
    if plugin["kind"] == "other":
        return _said("plugin", None, f"{path} is not of this program" + (f": {problem}" if problem else ""))
    if not plugin["socket"]:
        return _said("plugin", False, f"{path}: {problem}")
    calls = f"{path} hands calls to the agent at {plugin['socket']}"
    return _said("plugin", plugin["meant"], f"{calls}, {problem}" if problem else calls)


def _builds(found: Mapping[str, Any]) -> list[Finding]:
    """That the agent or an installed binary is of another build than this command, as for a while in an upgrade."""
    own, agent = _build_of(found["program"]), _build_of(found["agent"])
    lines = []
    if own.differs(agent):
        text = f"this command is {own.summary}, and the agent {agent.summary}"
        lines.append(_said("builds", None, text, "restart the agent with this program, or use the agent's own"))
    for plugin in found["plugins"]:
        if own.differs(read_summary(plugin["build"])):
            text = f"this command is {own.summary}, and {plugin['path']} {plugin['build']}"
            remedy = f"`userspace-cni install --bin-dir {plugin['path'].rpartition('/')[0]}` puts this build there"
            lines.append(_said("builds", None, text, remedy))
    return lines


def _build_of(told: Mapping[str, Any]) -> ProgramBuild:
    return ProgramBuild(told["version"], told["commit"])


def _switch(switch: Mapping[str, Any]) -> list[Finding]:
    if not switch["reachable"]:
        return [_said("switch", False, switch["problem"])]
    lines = [_said("switch", True, f"{switch['ovsdb']} answers")]
    if switch["problem"]:
        return [*lines, _said("datapath", False, switch["problem"])]
    alive = switch["vswitchd"] == "alive"
    text = f"{switch['version']} with DPDK" if alive else "DPDK is on; from here it cannot be seen whether ovs-vswitchd lives"
    return [*lines, _said("datapath", True if alive else None, text)]


def _applications(counts: Mapping[str, int] | None, vswitchd: str) -> list[Finding]:
    """None where the database, of which the switch's own finding tells, could not be asked."""
    if counts is None:
        return [_said("applications", None, f"unknown, because ovs-vswitchd is {vswitchd}")] if vswitchd in NOT_SERVING else []
    text = f"{counts['connected']} connected, {counts['waiting']} not" if any(counts.values()) else "none attached"
    if counts["broken"]:
        ports = f"{counts['broken']} port{'' if counts['broken'] == 1 else 's'}"
        return [_said("applications", False, f"{text}, {ports} that ovs-vswitchd cannot open", "see userspace-cni list")]
    return [_said("applications", None, text)]


def _guards(found: Mapping[str, Any]) -> list[Finding]:
    """None where no host end needs a guard."""
    if found["problem"]:
        return [_said("host ends", False, found["problem"])]
    there, needed = found["there"], found["needed"]
    text = f"{there} of {needed} guarded: the node's own stack does not see their pods' frames"
    remedy = "" if there == needed else "userspace-cni check names those without, and a running agent makes them again"
    return [_said("host ends", there == needed, text, remedy)] if needed else []


def _network(found: Mapping[str, Any]) -> list[Finding]:
    """None where there are no specs for the node itself."""
    if not found["all"]:
        return []
    text, remedy = f"{found['hold']} of {found['all']} that are desired hold", "see userspace-cni network"
    if not found["kept"]:
        return [_said("network", None if found["slow"] else False, f"{text}, by the records: {found['unkept']}", remedy)]
    if found["problems"]:
        return [_said("network", False, f"{text}: {found['problems'][0]}", remedy)]
    return [_said("network", True, text)]


def _directory(directory: Mapping[str, str]) -> Finding:
    problem = directory["problem"]
    return _said(directory["setting"], not problem, directory["path"] + (f": {problem}" if problem else ""))


def _store(found: Mapping[str, Any]) -> list[Finding]:
    states = [f"{count} {state}" for state, count in found["records"].items() if count]
    lines = [_said("attachments", None, ", ".join(states) or "none")]
    waiting = (
        ("unfinished", "userspace-cni gc finishes them", ""),
        ("spool", "DELs that no agent received", "userspace-cni gc carries them out"),
        ("quarantine", "files that could not be read, below state_dir", "look at them, then remove them"),
    )
    for key, text, remedy in waiting:
        count = found[key]
        lines.append(_said(key, False, f"{count}: {text}", remedy) if count else _said(key, True, "none"))
    return lines


def _hugepages(found: Mapping[str, Any]) -> list[Finding]:
    """A line for each page size and node that has pages; one line when there are none."""
    lines = []
    for pool in (pool for pool in found["pools"] if pool["total"]):
        size = pool["page_bytes"]
        mounts = [mount["path"] for mount in found["mounts"] if mount["page_bytes"] == size]
        where = "" if pool["node"] is None else f" on node {pool['node']}"
        promised = found["reserved"].get(str(size)) or 0
        text = f"{pool['total']} of {hugepages.format_size(size)}{where}, {pool['free']} free"
        text += f" ({promised} of the machine's promised)" if promised else ""
        lines.append(_said("huge pages", None, f"{text}, mounted at {', '.join(mounts)}" if mounts else f"{text}, not mounted"))
    return lines or [_said("huge pages", None, "none reserved: OVS-DPDK needs some, unless it was started with --no-huge")]


def _rules(rules: Sequence[Sequence[str]]) -> Finding:
    """The namespaces of each rule of the settings file, in its order."""
    parts = [f"{number} for {', '.join(namespaces)}" for number, namespaces in enumerate(rules, 1)]
    return _said("rules", None, "; ".join(parts) or "none: pods of every namespace may use any bridge and VLAN")
