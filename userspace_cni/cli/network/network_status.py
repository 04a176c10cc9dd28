"""`network` and `gateway status`: what the node itself is to have, what of it holds, and what does not and why.

A running agent is asked, for it knows all sources. Without one, the settings and the records are compared with the node here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from userspace_cni.attachment.specs import SpecStatus, compare, key_of
from userspace_cni.base.errors import BadRequest, Unavailable
from userspace_cni.base.whereabouts import likely_socket
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import AgentClient, NoAgent
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.site import NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.network.concerns import GatewayLook, look_at, sentence
from userspace_cni.network.network_service import describe_spec, mirror_problems
from userspace_cni.network.node_annotations import SCOPE
from userspace_cni.network.spec_list import ANNOTATIONS, GATEWAY, TRANSLATION
from userspace_cni.network.spec_sources import SpecSources

_COLUMNS: Final = ("SPEC", "NAME", "SOURCE", "STATE", "DETAILS")


@click.command("network", cls=NodeCommand, examples=("userspace-cni network",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def network_command(ctx: click.Context, as_json: bool) -> None:
    """List the specs of the node itself: uplinks, gateways, address translation, mirrors; which of them hold, and why the
    others do not.

    It asks the agent. If none answers, it compares settings and records with the node, and reads no objects of the API. Exit
    code: 0 when all hold, 1 when one does not, 2 for wrong settings: a running agent is asked all the same.
    """
    with view.progress("looking at the node's network"):
        found = describe(ctx, forwarding=True)
    finish(ctx, found, as_json)


@click.group("gateway", cls=ProgramGroup)
def gateway_command() -> None:
    """Gateways of the node: ports of its own on bridges."""


@gateway_command.command(
    "status",
    cls=NodeCommand,
    short_help="Show which gateways hold, and what they lack.",
    examples=("userspace-cni gateway status",),
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Show for each gateway whether the node has it, whether the node forwards for it, and which settings of the node are
    missing. A datagram is sent each way; none leaves the node.

    Exit code: 0 when all gateways hold, 1 when one does not, or the node loses its packets. Other needs that the node lacks are
    on stderr and are not failures; neither is an unknown result of the test.
    """
    with view.progress("looking at the gateways"):
        found = describe(ctx, forwarding=True, now=True)
    finish(ctx, of_kinds(found, (GATEWAY, TRANSLATION)), as_json)


def describe(ctx: click.Context, *, forwarding: bool = False, now: bool = False) -> dict[str, Any]:
    """What `look` finds, as it is told; with wrong settings, the specs that the agent read before and keeps, and `settings`
    says why.

    Raises BadRequest for such settings where no agent answers.
    """
    try:
        site = open_site(ctx)
    except BadRequest as error:
        try:
            return {**_asked(AgentClient(likely_socket(os.environ)), now=now), "settings": str(error)}
        except Unavailable:
            raise error from None
    return look(site, forwarding=forwarding, now=now)


def look(site: Site, *, forwarding: bool = False, now: bool = False) -> dict[str, Any]:
    """`specs`, `concerns`, `passages`, `mirrors`, `objects` as the agent has them, which tries gateways before if that is to be
    `now`; else as a look at the node shows, with a note of that: with `forwarding`, gateways are tried here."""
    try:
        return _asked(site.client, now=now)
    except NoAgent:
        view.note("no agent runs here: settings and records are compared with the node")
    except Unavailable as error:
        view.note(f"{error}; settings and records are compared with the node")
    sources = SpecSources(site.drivers, site.environ)
    statuses = compare_specs(sources, site)
    found = look_at(sources.gateways, site.drivers.installation, site.drivers.switch) if forwarding else GatewayLook()
    return {
        "specs": [describe_spec(each) for each in statuses],
        "concerns": [sentence(each) for each in found.concerns],
        "passages": [asdict(each) for each in found.passages],
        "mirrors": mirror_problems(statuses),
        "objects": "",
    }


def _asked(client: AgentClient, *, now: bool) -> dict[str, Any]:
    return client.gateways() if now else client.network()


def compare_specs(sources: SpecSources, site: Site) -> Sequence[SpecStatus]:
    """How each spec stands, and each attachment without one."""
    specs, complete = sources.specs()
    wanted = {spec.key for spec in specs}
    statuses = [compare(spec, site.node) for spec in specs]
    for record in site.node.store.journal.node_records():
        if key_of(record) not in wanted:
            gone = record.network in complete
            problem = "it is no longer desired, and is undone by the agent" if gone else ""
            statuses.append(SpecStatus(*key_of(record), record.network, "", problem, record.steps, desired=not gone))
    return statuses


def of_kinds(found: Mapping[str, Any], kinds: Iterable[str], named: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    specs = [each for each in found["specs"] if each["kind"] in kinds and named(each["name"])]
    return {**found, "specs": specs, "concerns": found["concerns"] if GATEWAY in kinds else []}


def finish(ctx: click.Context, found: Mapping[str, Any], as_json: bool) -> None:
    """Show it, and end the command."""
    if as_json:
        view.show_json(found)
    else:
        show(found)
    if found.get("settings"):
        ctx.exit(USAGE)
    if any(not each["ready"] or _lost(each, found) for each in found["specs"]):
        ctx.exit(FOUND)


def show(found: Mapping[str, Any]) -> None:
    """A line for each spec on stdout; what else there is to say on stderr."""
    rows = [_row(each, found) for each in found["specs"]]
    if rows:
        view.show_table(_COLUMNS, rows)
    else:
        view.note("there are no specs for the node itself")
    if problem := found.get("settings"):
        view.note(f"the settings are wrong, and the agent keeps the specs that it read before: {problem}")
    for text in [*found["concerns"], *([found["objects"]] if found["objects"] else []), *_scopes(found["specs"])]:
        view.note(text)


def _scopes(specs: Iterable[Mapping[str, Any]]) -> list[str]:
    """What gateways of annotations are not."""
    return [f"gateway {each['name']}: {SCOPE}" for each in specs if (each["kind"], each["source"]) == (GATEWAY, ANNOTATIONS)]


def _versions(spec: Mapping[str, Any], found: Mapping[str, Any], state: str) -> list[str]:
    """The versions of IP that pass this spec's gateway, are lost there, or are unknown."""
    if spec["kind"] != GATEWAY:
        return []
    told = [each for each in found.get("passages", ()) if each["gateway"] == spec["name"]]
    return [f"IPv{each['version']}" for each in told if each["state"] == state]


def _lost(spec: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return _versions(spec, found, "lost")


def _row(spec: Mapping[str, Any], found: Mapping[str, Any]) -> list[Cell | str]:
    passing = _versions(spec, found, "passes")
    unknown_versions = _versions(spec, found, "unknown")
    if not spec["desired"]:
        state = Cell("being undone", "yellow")
    elif spec["ready"] and (lost := _lost(spec, found)):
        state = Cell(f"loses {', '.join(lost)}", "red")
    elif spec["ready"] and spec["kind"] == GATEWAY and (unknown_versions or not passing):
        state = Cell(" ".join(["unknown", ", ".join(unknown_versions)]).strip(), "yellow")
    elif spec["ready"]:
        state = Cell("holds", "green")
    else:
        state = Cell("not met", "red")
    is_open = spec["desired"] and not spec["said_by"] and spec["ready"]
    unknown = "kept: its spec is unknown now; " if is_open else ""
    return [spec["kind"], spec["name"], spec["source"], state, unknown + (spec["problem"] or "; ".join(spec["steps"]))]
