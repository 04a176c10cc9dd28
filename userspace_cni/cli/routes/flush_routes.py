"""`routes flush`: takes our routes out of pods. Routes of other programs are neither read nor touched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.name_completion import pod_names
from userspace_cni.cli.routes.asking import inspector, is_kept, pod_name, tell_problems
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.routes.inspection import Holding

_COLUMNS: Final = ("POD", "STATE", "DETAILS")
_SHOWN_MAX: Final = 20
"""So many routes are named one by one; --json has all."""


@click.command(
    "flush",
    cls=NodeCommand,
    examples=(
        "userspace-cni routes flush --pod default/web-0",
        "userspace-cni routes flush --yes",
    ),
)
@click.option("--pod", callback=pod_name, shell_complete=pod_names, metavar="NAMESPACE/NAME", help="Of this pod alone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object; only with --yes.")
@click.pass_context
def flush_command(ctx: click.Context, pod: str, yes: bool, as_json: bool) -> None:
    """Remove all routes of ours, known by their number (setting route_protocol), from the pods of this node, or from one.

    A running agent with routes makes them again: turn its setting off first, or delete the Routes instead. It asks first. Exit
    code: 0 when none of ours is left, 1 when one is, when a source of pods cannot be read, when the answer was no, or when the
    pod has no network namespace of its own here, 2 for arguments that are wrong, 3 for anyone but root.
    """
    if as_json and not yes:
        raise click.UsageError("--json does not ask: give --yes, too")
    site = open_site(ctx)
    into = inspector(site, "removing routes in the network namespaces of pods")
    with view.progress("looking into the pods of this node"):
        holdings = list(into.ours(pod))
        kept = is_kept(site)
    unread = {} if pod and holdings else dict(into.problems)
    if pod and not holdings:
        tell_problems(unread)
        raise CommandRefused(f"pod {pod}: no network namespace of its own is found on this node", FOUND)
    full = [each for each in holdings if each.routes]
    if full and not yes:
        _ask(full, kept=kept)
    with view.progress(f"removing routes in {view.format_count(len(full), 'pod')}"):
        left = into.take_out(full)
    failed = [(each.pod, why) for each in holdings if (why := each.problem or left.get(each.located.place.sandbox, ""))]
    removed = [each for each in full if each.located.place.sandbox not in left]
    if as_json:
        view.show_json(
            {
                "removed": [{"pod": each.pod, "routes": [str(route) for route in each.routes]} for each in removed],
                "left": [{"pod": name, "problem": problem} for name, problem in failed],
                "problems": unread,
                "kept_by_agent": kept,
            }
        )
    else:
        _show(removed, failed, kept=kept)
        tell_problems(unread)
    if failed or unread:
        ctx.exit(FOUND)


def _ask(full: Sequence[Holding], *, kept: bool) -> None:
    """Have it confirmed. Raises Refused where it is not, or where no answer can be read."""
    if kept:
        view.note(_PUTS_BACK)
    count = sum(len(each.routes) for each in full)
    question = f"Remove {view.format_count(count, 'route')} of ours from {view.format_count(len(full), 'pod')}?"
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        raise CommandRefused("nothing was removed: no answer can be read here; --yes does not ask", USAGE) from None
    if not agreed:
        raise CommandRefused("nothing was removed", FOUND)


_PUTS_BACK: Final = (
    "an agent with routes runs here, and puts back what Routes ask for with its next look at the pod: turn its setting routes "
    "off first, or delete the Routes"
)


def _show(removed: Sequence[Holding], failed: Sequence[tuple[str, str]], *, kept: bool) -> None:
    many = sum(len(each.routes) for each in removed) > _SHOWN_MAX
    rows: list[list[Cell | str]] = [[each.pod, Cell("removed", "green"), _routes(each, many=many)] for each in removed]
    rows += [[name, Cell("failed", "red"), problem] for name, problem in failed]
    if rows:
        view.show_table(_COLUMNS, rows)
    else:
        view.note("no pod of this node that is known has a route of ours")
    if removed and kept:
        view.note(_PUTS_BACK)


def _routes(holding: Holding, *, many: bool) -> str:
    """The routes of a pod; of many pods with many routes how many."""
    return view.format_count(len(holding.routes), "route") if many else ", ".join(map(str, holding.routes))
