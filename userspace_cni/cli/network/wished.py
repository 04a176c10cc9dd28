"""`network` and `gateway status`: what the node itself is to have, what of it holds, and what does not and why.

A running agent is asked, for it knows all sources. Without one, the settings and the records are compared with the node here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from userspace_cni.attachment.wishes import Standing, compare, key_of
from userspace_cni.base.errors import BadRequest, Unavailable
from userspace_cni.base.whereabouts import likely_socket
from userspace_cni.cli import view
from userspace_cni.cli.client import Client, NoAgent
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.site import NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.network.concerns import concerns
from userspace_cni.network.node_annotations import SCOPE
from userspace_cni.network.service import described
from userspace_cni.network.sources import Sources
from userspace_cni.network.wish_list import ANNOTATIONS, GATEWAY, TRANSLATION

_COLUMNS: Final = (Column("WISH"), Column("NAME"), Column("SOURCE", rank=1), Column("STATE"), Column("DETAILS"))


@click.command("network", cls=NodeCommand)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def network_command(ctx: click.Context, as_json: bool) -> None:
    """Tell what the node itself is to have: uplinks, gateways, address translation, mirrors; which of it holds, and why the rest
    does not.

    The agent is asked. Where none answers, settings and records are compared with the node; objects of the API are not read then.
    Exit code: 0 when all holds, 1 when something does not, 2 for settings that are wrong: a running agent is asked all the same.
    """
    with view.progress("looking at the node's network"):
        found = told(ctx)
    finish(ctx, found, as_json)


@click.group("gateway")
def gateway_command() -> None:
    """Tell of the gateways of the node: ports of its own on bridges."""


@gateway_command.command("status", cls=NodeCommand, short_help="Tell which gateways hold, and what they lack.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Tell of each gateway whether the node has it, and what it needs of the node's settings and does not find.

    Exit code: 0 when all gateways hold, 1 when one does not. What one lacks is told on stderr, and is no failure.
    """
    with view.progress("looking at the gateways"):
        found = told(ctx)
    finish(ctx, of_kinds(found, (GATEWAY, TRANSLATION)), as_json)


def told(ctx: click.Context) -> dict[str, Any]:
    """What `look` finds; with settings that are wrong, what the agent keeps of what it read before, and `settings` says why.

    Raises BadRequest for such settings where no agent answers.
    """
    try:
        site = open_site(ctx)
    except BadRequest as error:
        try:
            return {**Client(likely_socket(os.environ)).network(), "settings": str(error)}
        except Unavailable:
            raise error from None
    return look(site)


def look(site: Site) -> dict[str, Any]:
    """`wishes`, `concerns`, `mirrors`, `objects` as the agent has them; else as a look at the node shows, with a note of that."""
    try:
        return site.client.network()
    except NoAgent:
        view.note("no agent runs here: settings and records are compared with the node")
    except Unavailable as error:
        view.note(f"{error}; settings and records are compared with the node")
    sources = Sources(site.drivers, site.environ)
    return {
        "wishes": [described(each) for each in compared(sources, site)],
        "concerns": [each.sentence for each in concerns(sources.gateways, site.drivers)],
        "mirrors": {},
        "objects": "",
    }


def compared(sources: Sources, site: Site) -> Sequence[Standing]:
    """How each wish stands, and each attachment without one."""
    wishes, complete = sources.wished()
    wanted = {wish.key for wish in wishes}
    standings = [compare(wish, site.node) for wish in wishes]
    for record in site.node.journal.node_records():
        if key_of(record) not in wanted:
            gone = record.network in complete
            problem = "it is not wished any more, and is undone by the agent" if gone else ""
            standings.append(Standing(*key_of(record), record.network, "", problem, record.steps, wished=not gone))
    return standings


def of_kinds(found: Mapping[str, Any], kinds: Iterable[str], named: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    """What is about wishes of these kinds and names."""
    wishes = [each for each in found["wishes"] if each["kind"] in kinds and named(each["name"])]
    return {**found, "wishes": wishes, "mirrors": {}, "concerns": found["concerns"] if GATEWAY in kinds else []}


def finish(ctx: click.Context, found: Mapping[str, Any], as_json: bool) -> None:
    """Show it, and end the command."""
    if as_json:
        view.show_json(found)
    else:
        show(found)
    if found.get("settings"):
        ctx.exit(USAGE)
    if found["mirrors"] or any(not each["ready"] for each in found["wishes"]):
        ctx.exit(FOUND)


def show(found: Mapping[str, Any]) -> None:
    """A line for each wish on stdout; what else there is to say on stderr."""
    rows = [_row(each) for each in found["wishes"]]
    rows += [["mirror", name, "settings", Cell("not met", "red"), problem] for name, problem in found["mirrors"].items()]
    if rows:
        view.show_table(_COLUMNS, rows)
    else:
        view.note("nothing is wished of the node itself")
    if problem := found.get("settings"):
        view.note(f"the settings are wrong, and this is what the agent keeps of what it read before: {problem}")
    for sentence in [*found["concerns"], *([found["objects"]] if found["objects"] else []), *_scopes(found["wishes"])]:
        view.note(sentence)


def _scopes(wishes: Iterable[Mapping[str, Any]]) -> list[str]:
    """What gateways of annotations are not."""
    return [f"gateway {each['name']}: {SCOPE}" for each in wishes if (each["kind"], each["source"]) == (GATEWAY, ANNOTATIONS)]


def _row(wish: Mapping[str, Any]) -> list[Cell | str]:
    if not wish["wished"]:
        state = Cell("being undone", "yellow")
    elif wish["ready"]:
        state = Cell("holds", "green")
    else:
        state = Cell("not met", "red")
    unknown = "kept: whether it is wished is not known now; " if wish["wished"] and not wish["said_by"] and wish["ready"] else ""
    return [wish["kind"], wish["name"], wish["source"], state, unknown + (wish["problem"] or "; ".join(wish["steps"]))]
