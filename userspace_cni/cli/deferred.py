"""A command that is imported when it is called: until then its group knows its name and its line in the list of commands.

Most starts of the program want one command, and all of them together cost 0.6 s of CPU. The import is a statement in a function,
not a name in a string, so that type checker, import contracts and whatever else follows imports see it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import click

from userspace_cni.base.signals import Signals


class DeferredCommand(click.Command):
    """What stands in a group for the command that `load` imports and gives."""

    def __init__(self, name: str, load: Callable[[], click.Command], *, short_help: str | None, help_text: str | None) -> None:
        super().__init__(name, short_help=short_help, help=help_text)
        self._load = load

    def load(self) -> click.Command:
        """The command. For the main thread. SIGINT ends the process meanwhile, as imports do not expect KeyboardInterrupt."""
        with Signals(signal.SIG_DFL, (signal.SIGINT,)):
            return self._load()

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """The context of the command itself, which reads the arguments and is what runs."""
        return self.load().make_context(info_name, args, parent, **extra)


def defer(
    group: click.Group, name: str, short_help: str | None = None, *, help_text: str | None = None
) -> Callable[[Callable[[], click.Command]], Callable[[], click.Command]]:
    """Add a command to `group`; the decorated function imports it.

    Its line in the list of commands is `short_help`, else `help_text`, the first sentence of its help, as far as there is room.
    """

    def add(load: Callable[[], click.Command]) -> Callable[[], click.Command]:
        group.add_command(DeferredCommand(name, load, short_help=short_help, help_text=help_text))
        return load

    return add
