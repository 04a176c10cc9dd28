"""The commands of the command line as tests look at them: itself, not what stands for it in its group."""

from __future__ import annotations

import click

from userspace_cni.cli.deferred import DeferredCommand


def loaded(command: click.Command) -> click.Command:
    """The command, imported if it is not yet."""
    return command.load() if isinstance(command, DeferredCommand) else command
