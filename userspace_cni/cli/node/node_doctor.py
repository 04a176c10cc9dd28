"""`doctor`: what on this node disturbs or will disturb the switch, and the command that mends each. It changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.findings import Finding
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.node.installed import DirectoryName, directories, plugins
from userspace_cni.cli.node.status import look
from userspace_cni.cli.site import SWITCH_S, NodeCommand, Site, open_site, patient
from userspace_cni.diagnosis.node_health import judge_node, judge_versions, sort_findings
from userspace_cni.diagnosis.node_status import findings_of
from userspace_cni.diagnosis.rendering import OF_NODE, as_json, counts_text
from userspace_cni.node.node_facts import NodeFacts, SwitchReport, gather_node_facts

WATCH_S: Final = 1.0
_OF_STATUS: Final = frozenset({"agent", "plugin", "applications", "host ends", "network", "unfinished", "spool", "quarantine"})
"""Subjects of `status` whose faults are reported here, too; the others are looked at more closely here."""
_WRONG: Final = ("error", "warning")


@click.command("doctor", cls=NodeCommand, examples=("userspace-cni doctor --json --seconds 10", "userspace-cni doctor"))
@click.option(
    "--bin-dir",
    "bin_dirs",
    multiple=True,
    metavar="DIR",
    type=DirectoryName(file_okay=False),
    help="The runtime's directory of CNI plugins; repeatable. Default: those of CNI_PATH, else the usual ones, as /opt/cni/bin.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 60),
    default=WATCH_S,
    show_default=True,
    help="How long to watch who runs on the CPUs of polling threads.",
)
@click.option("--json", "in_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def node_doctor_command(ctx: click.Context, bin_dirs: tuple[str, ...], seconds: float, in_json: bool) -> None:
    """Report what on this node disturbs the switch, or will after a restart or boot, each with the command or setting that mends
    it: huge pages, DPDK's options, the CPUs of polling threads and who else runs there, ovs-vswitchd's user and limits, what it
    sees of the host, directories and mounts, kernel, memory, versions; and what `status` finds. It changes nothing.

    Exit code: 0 when nothing is wrong (there may be notes), 1 for errors and warnings, 3 when neither agent nor switch can be
    reached, and when nothing is wrong and something could not be asked.
    """
    site = open_site(ctx)
    where = directories((str(Path(each).absolute()) for each in bin_dirs), site.environ.get("CNI_PATH", ""))
    with view.progress("looking at the node") as tell:
        status = look(site, where)
        tell("watching the CPUs of polling threads")
        installed = sorted({each.path.rpartition("/")[0] for each in plugins(site, where) if each.kind != "other"})
        facts = gather_node_facts(site.drivers, site.liveness(), installed, seconds, lambda: patient(SWITCH_S))
    of_status = [each for each in findings_of(status, where) if each.subject in _OF_STATUS and each.severity in _WRONG]
    findings = sort_findings([*of_status, *judge_node(facts, site.settings.short_dir), _judge_versions(site, facts)])
    if in_json:
        found = [as_json(each, OF_NODE) for each in findings]
        view.show_json({"findings": found, "unknown": list(facts.unknown), "facts": _as_values(facts)})
    else:
        _show(findings, facts.unknown)
    if facts.away and not status["agent"]["reachable"]:
        ctx.exit(UNREACHABLE)
    if any(each.severity in _WRONG for each in findings):
        ctx.exit(FOUND)
    if facts.unknown:
        ctx.exit(UNREACHABLE)


def _judge_versions(site: Site, facts: NodeFacts) -> Finding:
    try:
        agent = site.client.about()["version"]
    except Unavailable:  # told by what `status` finds
        agent = ""
    kernel = [f"kernel {facts.kernel.release}"] if facts.kernel else []
    switch = facts.switch or SwitchReport()
    others = [each for each in (switch.version, switch.dpdk_version) if each]
    own = ""
    with suppress(PackageNotFoundError):  # run from sources that were copied
        own = version("userspace-cni")
    return judge_versions(agent, own, [*others, *facts.others, *kernel])


def _show(findings: Sequence[Finding], unknown: Sequence[str]) -> None:
    told = [each for each in findings if each.severity != "good"]
    good = [each for each in findings if each.severity == "good"]
    view.show_findings(told, reasons=True)
    if told and good:
        view.say("")
    if good:
        view.show_facts([(f"good  {each.subject}", each.message) for each in good])
    for line in unknown:
        view.note(f"not known: {line}")
    view.note(f"checked this node: {counts_text(told)}")


def _as_values(facts: NodeFacts) -> Any:
    """The facts as JSON values."""
    return _plain(dataclasses.asdict(dataclasses.replace(facts, unknown=())))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return sorted(value) if isinstance(value, (set, frozenset)) else value
