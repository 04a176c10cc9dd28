"""`routes check` and `routes explain`: a look into pods, which changes nothing there."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Final

import click

from userspace_cni.base.errors import BadEnvironment, HostNamespace, quote
from userspace_cni.base.findings import Finding
from userspace_cni.base.routing import Address, Network
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import pod_names
from userspace_cni.cli.routes.asking import inspector, is_kept, pod_name, require_on, tell_problems
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.routes.explanation import ROUTE_MISSING, ROUTE_TOO_MANY
from userspace_cni.routes.inspection import POD_UNKNOWN, Inspection, PodExplanation, describe_pods

_COLUMNS: Final = ("POD", "STATE", "ROUTE", "DETAILS")
_STATES: Final[Mapping[str, Cell]] = {
    POD_UNKNOWN: Cell("unknown", "red"),
    ROUTE_MISSING: Cell("missing", "red"),
    ROUTE_TOO_MANY: Cell("too many", "yellow"),
}
_NAMED_MAX: Final = 10


@click.command("check", cls=NodeCommand, examples=("userspace-cni routes check",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, as_json: bool) -> None:
    """Look into each pod of this node, and report which of our routes are missing and which are too many. It repairs nothing.

    It works with and without an agent, from the Routes that the agent has stored. Work that the agent has not done yet counts
    as missing. Exit code: 0 when each pod has the desired routes, 1 when a pod differs, or cannot be found or checked, 2 when
    routes are off, 3 when the Routes are not known, or for a user who is not root.
    """
    site = open_site(ctx)
    require_on(site)
    with view.progress("looking into the pods of this node"):
        found = inspector(site, "looking into the network namespaces of pods").inspect()
        kept = is_kept(site)
    wrong = [each.findings for each in found.pods if each.findings]
    sound = not found.findings
    if as_json:
        view.show_json(
            {
                "sound": sound,
                "pods": describe_pods(found.pods),
                "unfound": list(found.unfound),
                "problems": dict(found.problems),
                "agent": kept,
            }
        )
    else:
        if wrong:
            view.show_table(_COLUMNS, [_row(each) for findings in wrong for each in findings])
        view.note(_summed(found, len(wrong)))
        behind = sum(len(each.drift.behind) for each in found.pods if each.drift)
        if behind:
            verb = "stands" if behind == 1 else "stand"
            view.note(
                f"{view.format_count(behind, 'route')} of other programs {verb} behind ours, "
                "which is not a fault: --json has each"
            )
        if found.unfound:
            named, more = found.unfound[:_NAMED_MAX], len(found.unfound) - _NAMED_MAX
            others = f" and {more} more" if more > 0 else ""
            view.note(f"no network namespace is found of {view.join(named)}{others}, for which Routes ask")
        tell_problems(dict(found.problems))
        if not kept and site.drivers.installation.has_account:
            view.note("no agent keeps routes here now: the pods and Routes are those that one knew last")
    if not sound:
        ctx.exit(FOUND)


def _summed(found: Inspection, wrong: int) -> str:
    if not found.pods:
        return "no pod with a network namespace of its own is found on this node"
    wanted = sum(len(each.visited.resolved.wanted) for each in found.pods)
    state = f"{view.format_count(wrong, 'pod')} differ" if wrong else "all as desired"
    return f"{view.format_count(wanted, 'route')} desired in {view.format_count(len(found.pods), 'pod')}: {state}"


@click.command("explain", cls=NodeCommand, examples=("userspace-cni routes explain default/web-0 172.16.10.7",))
@click.argument("pod", callback=pod_name, shell_complete=pod_names, metavar="NAMESPACE/POD")
@click.argument("dst")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def explain_command(ctx: click.Context, pod: str, dst: str, as_json: bool) -> None:
    """Explain where packets of NAMESPACE/POD to DST go: which Route asks for it, by which next hop and why; now, and after
    everything is applied; and the kernel's own answer. DST is an address, a network such as 10.0.0.0/8, or `default`.

    Exit code: 0, 1 when the pod has no network namespace of its own on this node, 2 for wrong arguments or when routes are off,
    3 when the Routes are not known, or for a user who is not root.
    """
    target = _destination(dst)
    site = open_site(ctx)
    require_on(site)
    with view.progress(f"looking into {pod}"):
        try:
            found = inspector(site, "looking into the network namespace of a pod").explain(pod, target)
        except (HostNamespace, BadEnvironment) as error:
            raise CommandRefused(f"{pod}: {error}", FOUND) from error
    if as_json:
        view.show_json({"pod": pod, **_as_json(found)})
        return
    for line in found.explanation.lines():
        click.echo(view.plain(line))
    if found.way:
        click.echo(view.plain(f"the kernel: {_said(found)}"))
    for each in found.notes[len(found.explanation.notes) :]:
        click.echo(view.plain(f"note: {each}"))


def _destination(text: str) -> Address | Network:
    """The address or network. Raises UsageError."""
    if text == "default":
        return ip_network("0.0.0.0/0")
    if "%" in text:
        raise click.UsageError(f"DST is {quote(text)}: leave out what stands after the %: the pod's routes name the device")
    try:
        found = ip_network(text, strict=False) if "/" in text else ip_address(text)
    except ValueError as error:
        what = "it must be an address as 10.0.0.1, a network as 10.0.0.0/8, or 'default'"
        raise click.UsageError(f"DST is {quote(text)}: {what}") from error
    if not isinstance(found, Address) and found.network_address != ip_address(text.partition("/")[0]):
        raise click.UsageError(f"DST is {quote(text)}, an address in a network: it must be one of them, such as {found}")
    return found


def _said(found: PodExplanation) -> str:
    way = found.way
    if way is None or way.problem:
        return f"no way: {way.problem if way else ''}"
    return "".join(["by ", way.dev or "?", f" via {way.via}" if way.via else "", f" from {way.source}" if way.source else ""])


def _as_json(found: PodExplanation) -> dict[str, Any]:
    explanation, way = found.explanation, found.way
    reasoned = explanation.reasoned
    return {
        "dst": str(explanation.dst),
        "route": reasoned.asked_by if reasoned else "",
        "why": reasoned.why if reasoned else "",
        **{
            key: None if each is None else {"route": str(each), "ours": each.is_ours}
            for key, each in (("now", explanation.now), ("then", explanation.then))
        },
        "notes": list(found.notes),
        "kernel": way and {"dev": way.dev, "via": str(way.via or ""), "source": str(way.source or ""), "problem": way.problem},
    }


def _row(found: Finding) -> list[Cell | str]:
    return [found.subject, _STATES[found.name], found.path, found.message]
