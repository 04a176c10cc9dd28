"""`uplink`: applies a provider network that is desired, undoes one, and tells how they are.

Where an agent runs, it does the work: it knows all sources, and would undo or repeat what is done behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from userspace_cni.attachment.records import Record, as_recorded, node_container
from userspace_cni.attachment.specs import Spec, meet, undo
from userspace_cni.attachment.steps import Step
from userspace_cni.base.errors import BadRequest, Unavailable, shorten
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import DeadAgent, NoAgent
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.name_completion import file_names, uplink_names
from userspace_cni.cli.network import network_status
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.network import commanded
from userspace_cni.network.dry_run import would_do
from userspace_cni.network.spec_list import COMMANDS, PROVIDER_NETWORK
from userspace_cni.network.spec_sources import SpecSources


class CommandUnanswered(CommandRefused):
    """There is an agent, and it does not answer: it may be doing what it was asked for."""

    def __init__(self, text: str) -> None:
        super().__init__(text, UNREACHABLE)


@click.group("uplink", cls=ProgramGroup)
def uplink_command() -> None:
    """Work with the provider networks of this node: bridges with an uplink."""


@uplink_command.command(
    "status", cls=NodeCommand, short_help="Show the state of the node's uplinks.", examples=("userspace-cni uplink status net1",)
)
@click.argument("name", required=False, metavar="[NAME]", shell_complete=uplink_names)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Show for each provider network, or the one named, whether the node has it, and why not.

    Exit code: 0 when all hold, 1 when one does not or none has that name, 2 for settings or arguments that are wrong, 3 when
    records cannot be read.
    """
    with view.progress("looking at the uplinks"):
        found = network_status.of_kinds(network_status.describe(ctx), (PROVIDER_NETWORK,), lambda each: name in (None, each))
    if name and not found["specs"]:
        raise CommandRefused(f"no provider network {shorten(name)} is desired or there; see userspace-cni network", FOUND)
    network_status.finish(ctx, found, as_json)


@uplink_command.command(
    "add",
    cls=NodeCommand,
    short_help="Apply a provider network now.",
    examples=(
        "userspace-cni uplink add net1 --dry-run",
        "userspace-cni uplink add net1",
    ),
)
@click.argument("name", shell_complete=uplink_names)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and how it is undone, and do nothing.")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    shell_complete=file_names,
    help="Objects to be tried with --dry-run; - is stdin.",
)
@click.pass_context
def add_command(ctx: click.Context, name: str, dry_run: bool, files: tuple[str, ...]) -> None:
    """Apply the provider network NAME of the settings now.

    A running agent reads the settings again and does it, also for an object of the API.

    With --dry-run the steps are printed, with the changes of addresses and routes as commands of ip(8), and the same for the
    way back; a spec that would be refused is refused. ProviderNetworks, Vlans and Subnets of FILE count as if they were
    applied, beside those of the API. Exit code: 0 when the node has it or could have it, 1 when it cannot have it, 2 for
    settings or arguments that are wrong, 3 when agent, switch or API server does not answer, or a NIC is not there yet.
    """
    site = open_site(ctx)
    site.require_root("changing the node's network")
    if files and not dry_run:
        raise click.UsageError("--filename is for --dry-run: objects are applied with kubectl")
    if dry_run:
        with view.progress("looking at the node"):
            former, steps = _plans_of(name, site, files)
        print_plan(former, steps, site)
        return
    status = apply(name, site)
    network_status.show({"specs": [status], "concerns": [], "objects": ""})
    if not status["ready"]:
        ctx.exit(FOUND)


@uplink_command.command(
    "remove", cls=NodeCommand, short_help="Undo a provider network now.", examples=("userspace-cni uplink remove net1",)
)
@click.argument("name", shell_complete=uplink_names)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--force", is_flag=True, help="Give up moved addresses whose NIC is absent.")
@click.pass_context
def remove_command(ctx: click.Context, name: str, dry_run: bool, force: bool) -> None:
    """Undo the provider network NAME: moved addresses go back to the NIC first, then port and bridge go.

    While the NIC is absent the bridge stays, because only the bridge has the addresses; with --force both go. It is refused
    while settings or objects ask for it and an agent runs, because the agent would make it again; so is its --dry-run. Exit
    code: 0 when nothing of it is left, 1 when something is or it is refused, 2 for settings or arguments that are wrong, 3 when
    the agent does not answer, or when something is left that can go later.
    """
    site = open_site(ctx)
    site.require_root("changing the node's network")
    record = _record(name, site)
    served, status = _status(name, site)
    _require_undesired(name, served, status)
    run_dir = site.map_path(site.settings.run_dir)
    if record is None and all(each.name != name for each in commanded.read_command_specs(run_dir).provider_networks):
        raise CommandRefused(f"the node has no provider network {shorten(name)}; see userspace-cni network", FOUND)
    if dry_run:
        print_plan(record.steps if record else (), (), site)
        return
    commanded.remove(run_dir, name)
    with view.progress(f"undoing {name}"):
        undo(PROVIDER_NETWORK, name, site.node, force=force)
        if served:
            with suppress(Unavailable):  # it learns of it at its next look
                site.client.network(reconcile=True)
    if _record(name, site):
        raise CommandRefused(f"the agent had begun to make provider network {name} again; try it once more", FOUND)
    view.note(f"nothing of provider network {name} is left")


def apply(name: str, site: Site) -> Mapping[str, Any]:
    """Have the provider network of that name applied by the agent, or here where there is none; what became of it, as JSON.

    Raises Refused for one that is not desired, Unanswered, UserspaceError when it cannot be had.
    """
    with view.progress(f"making {name}; ovs-vswitchd may need some seconds"):
        try:
            found = site.client.network(reconcile=True)
        except (NoAgent, DeadAgent):
            try:
                meet(of_settings(name, site), site.node)
            except BadRequest as error:  # the settings are well formed; this node cannot have what they ask for
                raise CommandRefused(str(error), FOUND) from error
            found = network_status.look(site)
        except Unavailable as error:
            raise CommandUnanswered(f"{error}; its spec stays: see userspace-cni network") from error
    status = _of(found, name)
    if status is None:
        raise CommandRefused(f"no provider network {shorten(name)} is desired; see userspace-cni network", FOUND)
    return status


def of_settings(name: str, site: Site) -> Spec:
    """The spec of that name, of settings and commands. Raises Refused where there is none."""
    return _spec(name, SpecSources(site.drivers, site.environ), "is in the settings")


def _spec(name: str, sources: SpecSources, where: str) -> Spec:
    specs, _ = sources.specs()
    found = {spec.name: spec for spec in specs if spec.kind == PROVIDER_NETWORK}
    if name not in found:
        known = f"; there are {view.join(sorted(found))}" if found else ""
        raise CommandRefused(f"no provider network {shorten(name)} {where}{known}", FOUND)
    return found[name]


def _plans_of(name: str, site: Site, files: Sequence[str]) -> tuple[Sequence[Step], Sequence[Step]]:
    """The steps that the node has of it, and the desired ones by settings, commands and objects."""
    from userspace_cni.cli.network.dry_run_objects import objects_for
    from userspace_cni.network.object_specs import read_desired

    seen = objects_for(site, files)
    if seen is None:
        spec = of_settings(name, site)
    else:
        own = seen.own.addresses if seen.own else ()
        sources = SpecSources(site.drivers, site.environ, [lambda: read_desired(seen)], lambda: own)
        if name in (seen.provider_networks or {}):
            where = f"is for this node: ProviderNetwork '{name}' leaves out {seen.node}"
        else:
            where = "is in the settings or among the objects; --filename takes one that is not applied yet"
        spec = _spec(name, sources, where)
    record = _record(name, site)
    try:
        return record.steps if record else (), tuple(map(as_recorded, spec.plan(record)))
    except BadRequest as error:  # what is asked for is well formed, and this node cannot have it
        raise CommandRefused(str(error), FOUND) from error


def print_plan(former: Sequence[Step], steps: Sequence[Step], site: Site) -> None:
    for heading, lines in would_do(former, steps, site.node.driver):
        click.echo(heading)
        for line in lines:
            click.echo(view.plain(f"  {line}"))


def _status(name: str, site: Site) -> tuple[bool, Mapping[str, Any] | None]:
    """Whether an agent runs, and what it says of the provider network; without one, what is in the settings."""
    try:
        return True, _of(site.client.network(), name)
    except (NoAgent, DeadAgent):
        return False, _of(network_status.look(site), name)
    except Unavailable as error:
        raise CommandUnanswered(f"{error}; it may be changing the node's network now") from error


def _record(name: str, site: Site) -> Record | None:
    return site.node.store.journal.read(node_container(PROVIDER_NETWORK), name)


def _of(found: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((each for each in found["specs"] if (each["kind"], each["name"]) == (PROVIDER_NETWORK, name)), None)


def _require_undesired(name: str, served: bool, status: Mapping[str, Any] | None) -> None:
    if status is None or not status["said_by"] or status["source"] == COMMANDS:
        return
    if served:
        raise CommandRefused(
            f"provider network {name} is desired by {status['said_by']}, and the agent would make it again: remove it there "
            "(after a change of settings, send the agent SIGHUP), and it is undone",
            FOUND,
        )
    view.note(f"{status['said_by']} asks for it: an agent that starts makes it again")
