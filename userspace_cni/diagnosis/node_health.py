"""What disturbs the switch of a node, by what was seen of it: all judges of the machine, the gravest findings first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from userspace_cni.base.cpu_sets import as_list
from userspace_cni.base.findings import SEVERITIES, Finding
from userspace_cni.diagnosis import daemon_findings, hugepage_findings, machine_findings, polling_findings
from userspace_cni.node.node_facts import NodeFacts

VERSIONS: Final = "versions"


def judge_node(facts: NodeFacts, short_dir: str) -> list[Finding]:
    """All that is wrong, and a good finding for each subject that was looked at and where nothing is."""
    found = [
        *daemon_findings.judge_daemon(facts, short_dir),
        *polling_findings.judge_dpdk(facts),
        *polling_findings.judge_polling(facts),
        *polling_findings.judge_load(facts),
        *hugepage_findings.judge_node_pages(facts),
        *machine_findings.judge_memory(facts),
        *machine_findings.judge_kernel(facts),
        *machine_findings.judge_directories(facts),
    ]
    if facts.database:
        told = f"ovs-vsctl --db={facts.database} "
        found = [replace(each, remedy=each.remedy.replace("ovs-vsctl ", told)) for each in found]
    wrong = {each.subject for each in found if each.severity in ("error", "warning")}
    return sort_findings([*found, *(each for each in _good(facts) if each.subject not in wrong)])


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The gravest first; those of one gravity stay in their order, by subject."""
    subjects = list(dict.fromkeys(each.subject for each in findings))
    return sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), subjects.index(each.subject)))


def judge_versions(agent: str, command: str, others: Sequence[str]) -> Finding:
    """Whether the agent is of this version.

    `agent`: its version, "" where none answers. `command`: this program's, "" where it is not known. `others`: other programs'.
    """
    told = ", ".join((*others, f"userspace-cni {command or 'of unknown version'}"))
    if agent and command and agent != command:
        message = f"the agent that runs is {agent}, and this program is {command}"
        remedy = "restart the agent (the service or DaemonSet that runs it)"
        why = "an upgrade takes effect when the agent is restarted"
        return Finding("agent-version", "warning", VERSIONS, message, remedy, "agent", why)
    return Finding("versions", "good", VERSIONS, told + (f", agent {agent}" if agent else ""))


def _good(facts: NodeFacts) -> Iterator[Finding]:
    daemon, switch, kernel = facts.daemon, facts.switch, facts.kernel
    if daemon:
        age = "" if daemon.age_s is None else f", since {daemon_findings.describe_age(daemon.age_s)}"
        files = "" if daemon.files is None else f", {daemon.files} of {daemon.files_max} files open"
        yield Finding("vswitchd", "good", daemon_findings.WHERE, f"process {daemon.pid}{age}{files}")
    if switch and switch.dpdk:
        yield Finding("dpdk", "good", polling_findings.DPDK, "initialised")
    if facts.use:
        yield Finding("polling", "good", polling_findings.WHERE, f"CPU {as_list(facts.polled)}, which no other program uses")
    if pages := hugepage_findings.describe_pages(facts):
        yield Finding("hugepages", "good", hugepage_findings.WHERE, pages)
    if kernel:
        yield Finding("memory", "good", machine_findings.MEMORY, f"transparent huge pages: {kernel.thp or 'none'}")
        yield Finding("kernel", "good", machine_findings.KERNEL, kernel.release)
    if facts.directories:
        yield Finding("directories", "good", machine_findings.DIRECTORIES, "can be written by their owner alone")
