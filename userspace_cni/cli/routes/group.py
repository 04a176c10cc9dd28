"""`userspace-cni routes` and its commands."""

from __future__ import annotations

import click

from userspace_cni.cli.routes.applied import apply_command
from userspace_cni.cli.routes.checked import check_command, explain_command
from userspace_cni.cli.routes.flushed import flush_command
from userspace_cni.cli.routes.listed import list_command
from userspace_cni.cli.routes.manifests import manifests_command
from userspace_cni.cli.site import NodeCommand


class RoutesGroup(click.Group, NodeCommand):
    """A group whose commands are about routes in pods."""


@click.group("routes", cls=RoutesGroup, short_help="Work with the routes that are kept in running pods.")
def routes_command() -> None:
    """Work with the routes that Route objects and files make in the pods of this node."""


for command in (list_command, check_command, explain_command, flush_command, apply_command, manifests_command):
    routes_command.add_command(command)
