"""`userspace-cni routes` and its commands."""

from __future__ import annotations

import click

from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.deferred import defer


@click.group("routes", cls=ProgramGroup)
def routes_command() -> None:
    """Work with the routes that Route objects and files make in the pods of this node."""


@defer(routes_command, "list", "List Routes, and what they make in pods.")
def _list() -> click.Command:
    from userspace_cni.cli.routes.list_routes import list_command

    return list_command


@defer(routes_command, "check", "Compare pods' routes with the desired ones.")
def _check() -> click.Command:
    from userspace_cni.cli.routes.check_routes import check_command

    return check_command


@defer(routes_command, "explain", "Explain where a pod's packets go, and why.")
def _explain() -> click.Command:
    from userspace_cni.cli.routes.check_routes import explain_command

    return explain_command


@defer(routes_command, "flush", "Remove our routes from pods.")
def _flush() -> click.Command:
    from userspace_cni.cli.routes.flush_routes import flush_command

    return flush_command


@defer(routes_command, "apply", "Check a file of routes, and apply it.")
def _apply() -> click.Command:
    from userspace_cni.cli.routes.apply_routes import apply_command

    return apply_command


@defer(routes_command, "manifests", "Print the definition of Route, and the agents' rights.")
def _manifests() -> click.Command:
    from userspace_cni.cli.routes.routes_manifests import manifests_command

    return manifests_command
