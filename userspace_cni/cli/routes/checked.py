"""`routes check` and `routes explain`: a look into pods, which changes nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any, Final

import click

from userspace_cni.base.errors import HostNamespace, quoted
from userspace_cni.base.routing import Address, Network
from userspace_cni.cli import view
from userspace_cni.cli.routes.asking import inspector, pod_name, require_on, tell_problems
from userspace_cni.cli.site import FOUND, NodeCommand, Refused, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.routes.inspection import Explained, Inspected, described, shown

_COLUMNS: Final = (Column("POD"), Column("STATE"), Column("ROUTE", rank=1), Column("DETAILS"))


@click.command("check", cls=NodeCommand, short_help="Compare pods' routes with what is asked for.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, as_json: bool) -> None:
    """Look into each pod of this node, and tell which routes of ours are missing and which are too many. It repairs nothing.

    With and without an agent: what Routes ask for is read where the agent keeps it. What an agent is about to do counts as
    missing. Exit code: 0 when each pod has what it is to have, 1 when one has not or cannot be looked at, 2 when
    routes are off, 3 when what Routes ask for is not known, or for a user who is not root.
    """
    site = open_site(ctx)
    require_on(site)
    with view.progress("looking into the pods of this node"):
        found = inspector(site, "looking into the network namespaces of pods").inspected()
    wrong = [each for each in found.pods if not each.is_sound]
    if as_json:
        view.show_json(
            {"sound": not wrong, "pods": described(found.pods), "unfound": list(found.unfound), "problems": dict(found.problems)}
        )
    else:
        if wrong:
            view.show_table(_COLUMNS, [row for each in wrong for row in _rows(each)])
        wanted = sum(len(each.visited.resolved.wanted) for each in found.pods)
        summary = f"{view.counted(wanted, 'route')} wanted in {view.counted(len(found.pods), 'pod')}"
        view.note(f"{summary}: " + (f"{view.counted(len(wrong), 'pod')} not as it is to be" if wrong else "all as it is to be"))
        behind = sum(len(each.drift.behind) for each in found.pods if each.drift)
        if behind:
            view.note(
                f"{view.counted(behind, 'route')} of other programs stand behind ours, which is no fault: --json names them"
            )
        if found.unfound:
            view.note(f"no network namespace is found of {view.joined(found.unfound)}")
        tell_problems(dict(found.problems))
    if wrong:
        ctx.exit(FOUND)


@click.command("explain", cls=NodeCommand, short_help="Tell where a pod's packets go, and why.")
@click.argument("pod", callback=pod_name, metavar="NAMESPACE/POD")
@click.argument("dst")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def explain_command(ctx: click.Context, pod: str, dst: str, as_json: bool) -> None:
    """Tell where packets of NAMESPACE/POD to DST go: which Route asks for it, by which next hop and why; now, and when all is
    applied; and what the kernel itself answers. DST is an address, a network as 10.0.0.0/8, or `default`.

    Exit code: 0, 1 when the pod has no network namespace of its own on this node, 2 for arguments that are wrong or when routes
    are off, 3 when what Routes ask for is not known, or for a user who is not root.
    """
    target = _destination(dst)
    site = open_site(ctx)
    require_on(site)
    with view.progress(f"looking into {pod}"):
        try:
            found = inspector(site, "looking into the network namespace of a pod").explained(pod, target)
        except HostNamespace as error:
            raise Refused(f"{pod}: {error}", FOUND) from error
    if as_json:
        view.show_json({"pod": pod, **_as_json(found)})
        return
    for line in found.explanation.lines():
        click.echo(view.plain(line))
    if found.way:
        click.echo(view.plain(f"the kernel: {_said(found)}"))


def _destination(text: str) -> Address | Network:
    """The address or network. Raises UsageError."""
    if text == "default":
        return ip_network("0.0.0.0/0")
    try:
        return ip_network(text) if "/" in text else ip_address(text)
    except ValueError as error:
        raise click.UsageError(f"DST is {quoted(text)}: {error}; it must be an address, a network or 'default'") from error


def _said(found: Explained) -> str:
    """The kernel's own answer."""
    way = found.way
    if way is None or way.problem:
        return f"no way: {way.problem if way else ''}"
    return "".join(["by ", way.dev or "?", f" via {way.via}" if way.via else "", f" from {way.source}" if way.source else ""])


def _as_json(found: Explained) -> dict[str, Any]:
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
        "notes": list(explanation.notes),
        "kernel": way and {"dev": way.dev, "via": str(way.via or ""), "source": str(way.source or ""), "problem": way.problem},
    }


def _rows(inspected: Inspected) -> Iterator[list[Cell | str]]:
    """A row for each difference."""
    if inspected.drift is None:
        yield [inspected.pod, Cell("unknown", "red"), "", inspected.visited.problem]
        return
    asked = {each.wanted: each for each in inspected.visited.resolved.wanted}
    for wanted in inspected.drift.missing:
        yield [inspected.pod, Cell("missing", "red"), asked[wanted].asked_by, f"{wanted} ({asked[wanted].why})"]
    for route in inspected.drift.extra:
        yield [inspected.pod, Cell("too many", "yellow"), "", f"{shown(route)}: no Route asks for it"]
