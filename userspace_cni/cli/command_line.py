"""What all commands have in common: `-h`, `help`, examples, "did you mean", and how a failure is told.

A failure is one line on stderr, after the usage where the call was wrong, and the exit code says of which kind it is. Where the
arguments ask for JSON it is an object on stdout, too, in one line: `error`, what was tried and what happened; `details`, what to
look at, or ""; `code`, the exit code. No command writes that itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from userspace_cni.base.errors import BadRequest, RecordRefused, Unavailable, UserspaceError
from userspace_cni.base.misspelt import did_you_mean
from userspace_cni.cli.deferred import DeferredCommand
from userspace_cni.cli.exit_codes import FOUND, INTERRUPTED, UNREACHABLE, USAGE
from userspace_cni.cli.view import plain

HELP: Final = "help"
_JSON: Final = frozenset({"--json", "-ojson", "--output=json"})
_JSON_PAIRS: Final = frozenset({("-o", "json"), ("--output", "json")})
_OTHERS: Final = "Other commands"


@dataclass(frozen=True)
class CommandFailure:
    """Why a command ended without what it was asked for, as it is told."""

    error: str
    details: str
    code: int


class ProgramCommand(click.Command):
    """A command with examples. `examples`: whole lines of a shell."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs["context_settings"] = {"help_option_names": ["-h", "--help"], **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, as they are, and what else the command has at the end of its help."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{line}\n")
        super().format_epilog(ctx, formatter)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run it as the program: the exit code, with which the process ends in standalone mode. It tells each failure."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            code = INTERRUPTED
        except (click.ClickException, UserspaceError, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:  # of stdout, which `run_program` tells
                raise
            code = _tell(error, as_json=_asks_json(self, words))
        code = code if isinstance(code, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code


class ProgramGroup(ProgramCommand, click.Group):
    """A group of commands with `help`. `purposes`: its commands by what they are for, in the order of the list of commands."""

    command_class = ProgramCommand

    def __init__(self, *args: Any, purposes: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.purposes = dict(purposes or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names that a shell completes."""
        return [*super().list_commands(ctx), HELP]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or `help`, which each group has."""
        found = super().get_command(ctx, cmd_name)
        return HelpCommand(self) if found is None and cmd_name == HELP else found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word. Raises UsageError, which names the command that may be meant."""
        if not ctx.resilient_parsing and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UnknownWord(f"No such command {args[0]!r}.", ctx, did_you_mean(args[0], [*self.commands, HELP]))
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by purpose; each without one is among the others."""
        listed = {name: command for name, command in self.commands.items() if not command.hidden}
        named = {name for names in self.purposes.values() for name in names}
        others = [name for name in listed if name not in named]
        room = formatter.width - 6 - max(map(len, listed), default=0)
        for purpose, names in {**self.purposes, (_OTHERS if self.purposes else "Commands"): others}.items():
            rows = [(name, listed[name].get_short_help_str(room)) for name in names if name in listed]
            if purpose in self.purposes and HELP in names:
                rows.append((HELP, HelpCommand(self).get_short_help_str(room)))
            if rows:
                with formatter.section(purpose):
                    formatter.write_dl(rows)


class HelpCommand(ProgramCommand):
    """`help` of a group: the same as `--help` of what is named."""

    def __init__(self, group: ProgramGroup) -> None:
        named = click.Argument(["words"], nargs=-1, metavar="[COMMAND]...", shell_complete=self._complete)
        super().__init__(HELP, params=[named], callback=self._show, help="Show the help of a command.")
        self._group = group

    def _show(self, words: tuple[str, ...]) -> None:
        here = click.get_current_context().parent
        command: click.Command = self._group
        for word in words:
            found = command.get_command(here, word) if isinstance(command, click.Group) and here else None
            if found is None:
                known = list(command.commands) if isinstance(command, click.Group) else []
                raise UnknownWord(f"No such command {word!r}.", here, did_you_mean(word, known))
            command = load_command(found)
            here = command.context_class(command, info_name=word, parent=here)
        if here is not None:
            click.echo(command.get_help(here))

    def _complete(self, ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        command: click.Command = self._group
        for word in ctx.params.get("words") or ():
            below = command.commands.get(word) if isinstance(command, click.Group) else None
            if below is None:
                return []
            command = load_command(below)
        listed = command.commands.items() if isinstance(command, click.Group) else ()
        return [CompletionItem(name, help=each.get_short_help_str()) for name, each in listed if name.startswith(incomplete)]


class UnknownWord(click.UsageError):
    """A word of the call that nothing has. `near`: the question whether another one is meant, or ""."""

    def __init__(self, message: str, ctx: click.Context | None, near: str) -> None:
        super().__init__(message, ctx)
        self.near = near


def load_command(command: click.Command) -> click.Command:
    """The command itself, which is imported first if only its name is known yet."""
    return command.load() if isinstance(command, DeferredCommand) else command


def _tell(error: click.ClickException | UserspaceError | OSError, *, as_json: bool) -> int:
    failure = _describe(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        details = f"; {failure.details}" if failure.details else ""
        click.echo(f"Error: {plain(failure.error)}{plain(details)}", err=True)
    if as_json:
        click.echo(json.dumps(asdict(failure)))
    return failure.code


def _describe(error: click.ClickException | UserspaceError | OSError) -> CommandFailure:
    if isinstance(error, UserspaceError):
        return CommandFailure(error.message, error.details, code_of(error))
    if isinstance(error, OSError):
        return CommandFailure(str(error), "", FOUND)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return CommandFailure("Missing command", _see_help(error.ctx), error.exit_code)
    if isinstance(error, click.NoSuchOption):
        message, near = error.message, did_you_mean(error.option_name, _options(error.ctx))
    else:
        message = " ".join(error.format_message().split())
        near = error.near if isinstance(error, UnknownWord) else _near_choice(error)
    details = near or (_see_help(error.ctx) if isinstance(error, click.UsageError) else "")
    return CommandFailure(message.rstrip("."), details, error.exit_code)


def code_of(error: UserspaceError) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, BadRequest):
        return USAGE
    return UNREACHABLE if isinstance(error, (Unavailable, RecordRefused)) else FOUND


def _see_help(ctx: click.Context | None) -> str:
    return f"see {ctx.command_path} --help" if ctx is not None else ""


def _options(ctx: click.Context | None) -> Iterable[str]:
    params = ctx.command.get_params(ctx) if ctx is not None else ()
    return [
        name
        for each in params
        if isinstance(each, click.Option) and not each.hidden
        for name in (*each.opts, *each.secondary_opts)
    ]


def _near_choice(error: click.ClickException) -> str:
    """The value that is like the one given, where that had to be one of several; "" otherwise."""
    if not isinstance(error, click.BadParameter) or error.param is None or not isinstance(error.param.type, click.Choice):
        return ""
    value = error.message.partition(" ")[0].strip("'\"")  # click quotes it first
    return did_you_mean(value, map(str, error.param.type.choices))


def _asks_json(command: click.Command, words: Sequence[str]) -> bool:
    """Whether a call asks for JSON, also one that cannot be parsed. What follows `--`, or is another program's, does not."""
    ours = list(words[: words.index("--")] if "--" in words else words)
    for number, word in enumerate(ours):
        if isinstance(command, click.Group) and word in command.commands:
            command = load_command(command.commands[word])
        elif not word.startswith("-") and command.context_settings.get("allow_interspersed_args") is False:
            ours = ours[:number]
            break
    return bool(_JSON & {*ours} or _JSON_PAIRS & {*pairwise(ours)})
