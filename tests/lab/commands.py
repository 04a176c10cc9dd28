"""The commands of the command line as tests need them: the command itself, not its placeholder in the group."""

from __future__ import annotations

import click

from userspace_cni.cli.deferred import DeferredCommand


def loaded(command: click.Command) -> click.Command:
    """The command, which is imported first if necessary."""
    return command.load() if isinstance(command, DeferredCommand) else command
