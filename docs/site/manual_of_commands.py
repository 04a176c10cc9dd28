"""The hook that makes pages of the code: one for each command, of what `--help` says, and one of the codes with which calls end.

They are below manual/ on the site alone. In the repository docs/commands.md and docs/operations.md have the same for readers, and
house rules compare these with the code.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli import exit_codes
from userspace_cni.cli.command_line import ProgramCommand, load_command
from userspace_cni.cli.main import userspace_cni

PROGRAM: Final = "userspace-cni"
_ROOM: Final = "manual"
_CODES: Final = f"{_ROOM}/error-codes.md"
_CHAPTER: Final = "Reference"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The chapter of references ends with these pages."""
    made: list[Any] = [_CODES, {"Each command": [uri for uri, _ in _pages()]}]
    for chapter in config.nav or ():
        if _CHAPTER in chapter:
            chapter[_CHAPTER] += made
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for uri, text in (*_pages(), (_CODES, _codes())):
        files.append(File.generated(config, uri, content=text))
    return files


def _pages() -> Iterator[tuple[str, str]]:
    root = click.Context(userspace_cni, info_name=PROGRAM, help_option_names=["-h", "--help"])
    yield from _pages_of(userspace_cni, root)


def _pages_of(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """The page of the command, and those of the commands below it, each with its place on the site."""
    yield _place(ctx.command_path), "\n\n".join(_parts(command, ctx)) + "\n"
    for name, listed in command.commands.items() if isinstance(command, click.Group) else ():
        below = load_command(listed)
        yield from _pages_of(below, click.Context(below, info_name=name, parent=ctx))


def _place(path: str) -> str:
    return f"{_ROOM}/{path.replace(' ', '-')}.md"


def _parts(command: click.Command, ctx: click.Context) -> Iterator[str]:
    yield f"# {ctx.command_path}"
    yield f"```text\n{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}\n```"
    yield from (_plain(" ".join(each.replace("\b", "").split())) for each in (command.help or "").split("\n\n"))
    group = isinstance(command, click.Group)
    words = ctx.command_path.removeprefix(PROGRAM).strip().replace(" ", "-")
    if words and (not group or getattr(command, "invoke_without_command", False)):
        yield f"[Commands](../commands.md#{words}) has all that it does, what it prints, and when it ends with which code."
    if isinstance(command, ProgramCommand) and command.examples:
        yield "## Examples"
        yield "```bash\n" + "\n".join(command.examples) + "\n```"
    options = [row for each in command.get_params(ctx) if (row := _option(each, ctx))]
    yield "## Options"
    yield "| Option | |\n|---|---|\n" + "\n".join(options)
    if isinstance(command, click.Group):
        yield "## Commands"
        yield "| Command | |\n|---|---|\n" + "\n".join(
            f"| [{name}]({_place(f'{ctx.command_path} {name}').removeprefix(f'{_ROOM}/')}) "
            f"| {_plain(each.get_short_help_str(200))} |"
            for name, each in command.commands.items()
        )


def _option(parameter: click.Parameter, ctx: click.Context) -> str:
    record = parameter.get_help_record(ctx)
    if record is None or not isinstance(parameter, click.Option):
        return ""
    takes = "" if parameter.is_flag or parameter.count else f" {parameter.make_metavar(ctx)}"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"| {names}{_plain(takes)} | {_plain(' '.join(record[1].split()) or 'takes a value')} |"


def _codes() -> str:
    """The codes of errors of a CNI call, each with what its classes say, and those with which commands end."""
    said: dict[int, list[str]] = {}
    for kind in _below(UserspaceError):
        said.setdefault(kind.default_code, []).append(f"{_plain((kind.__doc__ or '').strip())} (`{kind.__name__}`)")
    rows = "\n".join(f"| {code} | {'<br>'.join(texts)} |" for code, texts in sorted(said.items()))
    ends = "\n".join(f"| {code} | {_plain(text)} |" for code, text in _ends())
    return f"""# Codes

## Error codes

The code of a failed CNI call, and the errors of the program that have it. What to do is in
[Operations](../operations.md#how-a-call-fails).

| Code | Errors |
|---|---|
{rows}

## Exit codes

The code with which a command ends. [Commands](../commands.md) has when each command ends with which.

| Code | Meaning |
|---|---|
{ends}
"""


def _ends() -> Iterator[tuple[int, str]]:
    """The exit codes of commands, each with what stands below its constant: that text is in the source alone."""
    yield 0, "All is well."
    parts = ast.parse(inspect.getsource(exit_codes)).body
    for constant, said in pairwise(parts):
        if isinstance(constant, ast.AnnAssign) and isinstance(said, ast.Expr):
            yield getattr(exit_codes, ast.unparse(constant.target)), ast.literal_eval(said.value)


def _below(kind: type[UserspaceError]) -> Iterator[type[UserspaceError]]:
    """The errors that the room of errors defines; others are of one room alone, and have one of these codes."""
    for each in kind.__subclasses__():
        if each.__module__ == UserspaceError.__module__:
            yield each
        yield from _below(each)


def _plain(text: str) -> str:
    """The text as Markdown and a cell of a table have it as it is."""
    for sign in ("<", ">", "|", "*", "_", "[", "]"):
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
