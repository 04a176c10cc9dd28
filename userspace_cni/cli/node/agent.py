"""`agent`, the process that serves the node, and `agent probe`, by which a kubelet asks whether it works."""

from __future__ import annotations

import os

import click

from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.site import NodeCommand, open_site


class AgentGroup(ProgramGroup, NodeCommand):
    """A group that is a command itself."""


@click.group("agent", cls=AgentGroup, invoke_without_command=True, examples=("userspace-cni agent",))
@click.pass_context
def agent_command(ctx: click.Context) -> None:
    """Serve the node: the verbs behind a socket, and reconciliation, until SIGTERM.

    The socket and everything else is in the settings (docs/settings.md).
    """
    if ctx.invoked_subcommand is not None:
        return
    site = open_site(ctx)
    site.require_root("serving this node, with records, locks and mounts")
    from userspace_cni.agent.agent_service import serve

    ctx.exit(serve(site.settings, os.environ))


@agent_command.command(
    "probe",
    cls=NodeCommand,
    examples=(
        "userspace-cni agent probe healthz",
        "userspace-cni agent probe readyz",
    ),
)
@click.argument("probe", type=click.Choice(["healthz", "readyz"]))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def probe_command(ctx: click.Context, probe: str, as_json: bool) -> None:
    """Ask the running agent: healthz, whether it works, or readyz, whether it could attach a pod now.

    Exit code: 0 when all is well, 1 with its problems on stdout, 3 when it does not answer within 3 seconds. On a busy node it
    waits up to ten times as long; an agent that lives but has not answered by then is reported as slow, with the node's load.
    """
    with view.progress("asking the agent"):
        problems = open_site(ctx).client.problems(probe)
    if as_json:
        view.show_json({"problems": problems})
    else:
        for problem in problems:
            click.echo(view.plain(problem))
    if problems:
        ctx.exit(FOUND)
