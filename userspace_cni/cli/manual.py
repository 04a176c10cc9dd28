"""The manual pages, made of the commands' own help and of the table of settings: `python -m userspace_cni.cli.manual DIR`.

userspace-cni(1), a page for each command, as userspace-cni-list(1), and userspace-cni-settings(5). They are made when the program
is packaged (`make man`), and kept nowhere: what a page says is in the help, which is tested.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.settings import TABLE, variables_of
from userspace_cni.base.settings_schema import settings_schema
from userspace_cni.base.whereabouts import CLUSTER_FILE, CONFIG_FILE, PREFIX
from userspace_cni.cli.command_line import ProgramCommand, ProgramGroup, load_command
from userspace_cni.cli.main import userspace_cni
from userspace_cni.pod.program_build import recorded_build

PROGRAM: Final = "userspace-cni"
SETTINGS: Final = f"{PROGRAM}-settings"
_SIGNS: Final = str.maketrans({"\\": r"\e", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", "-": r"\-"})
"""Signs that would be shown as others than were written, or that the shell takes for others when they are copied."""
_UNCUT: Final = (".nh", ".ad l")
"""No word is broken at the end of a line: names and options are to be found and copied."""
_UNBROKEN: Final = "\b"
"""Click's mark of a paragraph whose lines stay as they are."""
_EXIT_CODES: Final = (
    ("0", "good"),
    ("1", "a finding or a failure"),
    ("2", "a mistake in the call or in the settings"),
    ("3", "agent, switch or server cannot be reached, or the user may not"),
    ("130", "ended with Ctrl-C"),
)


def write_pages(directory: Path) -> list[Path]:
    """Write all pages below the directory, as man(1) looks for them; their paths."""
    pages = {f"man1/{name}.1": page for name, page in _command_pages()} | {f"man5/{SETTINGS}.5": settings_page()}
    for place, page in pages.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="ascii")
    return [directory / place for place in pages]


def _command_pages() -> Iterator[tuple[str, str]]:
    root = click.Context(userspace_cni, info_name=PROGRAM, help_option_names=["-h", "--help"])
    yield from _pages_of(userspace_cni, root, PROGRAM)


def _pages_of(command: click.Command, ctx: click.Context, summary: str) -> Iterator[tuple[str, str]]:
    """The page of the command, and those of the commands below it, each with its name."""
    yield ctx.command_path.replace(" ", "-"), command_page(command, ctx, summary)
    for name, listed in command.commands.items() if isinstance(command, click.Group) else ():
        below = load_command(listed)
        made = click.Context(below, info_name=name, parent=ctx)
        yield from _pages_of(below, made, listed.get_short_help_str(200))


def command_page(command: click.Command, ctx: click.Context, summary: str) -> str:
    """A page of section 1."""
    name = ctx.command_path.replace(" ", "-")
    short = "CNI plugin for vhost-user interfaces on Open vSwitch" if command is userspace_cni else summary
    lines = [*_head(name, "1", "User Commands", short), ".SH SYNOPSIS", _bold(ctx.command_path)]
    lines[-1] += "".join(f" {_italic(piece)}" for piece in command.collect_usage_pieces(ctx))
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    lines += [".SH OPTIONS", *(line for each in command.get_params(ctx) for line in _option(each, ctx))]
    if isinstance(command, click.Group):
        lines += _commands(command, ctx)
    if isinstance(command, ProgramCommand) and command.examples:
        lines += [".SH EXAMPLES", ".nf", *map(_text, command.examples), ".fi"]
    if command is userspace_cni:
        lines += [".SH EXIT STATUS", *(line for code, what in _EXIT_CODES for line in (".TP", _bold(code), _text(what)))]
        lines += [
            ".SH FILES",
            *(line for path in (CONFIG_FILE, CLUSTER_FILE) for line in (".TP", _italic(path), f"See {SETTINGS}(5).")),
        ]
    others = [*_relatives(command, ctx), f"{SETTINGS}(5)"]
    return "\n".join([*lines, ".SH SEE ALSO", ",\n".join(map(_reference, others)), ""])


def settings_page() -> str:
    """The page of section 5."""
    lines = [*_head(SETTINGS, "5", "File Formats", "the settings of a node"), ".SH DESCRIPTION"]
    lines += _paragraphs(
        f"For each key the first of these that has it wins: the variable of the environment, the node's file {CONFIG_FILE}, the "
        f"file for all nodes {CLUSTER_FILE}, the default. Both are TOML and optional. The file that {PREFIX}CONFIG "
        "names replaces both. An unknown key or an invalid value is an error.\n\n"
        "userspace-cni settings show prints the settings in force, userspace-cni settings check the faults of a file."
    )
    lines.append(".SH SETTINGS")
    for key, (default, setting) in TABLE.items():
        value = json.dumps(list(default) if isinstance(default, tuple) else default)
        variables = " or ".join(variables_of(key))
        lines += [".TP", f"{_bold(key)} = {_text(value)}", f"{_text(setting.help)}. Variable: {_text(variables)}."]
    lines.append(".SH TABLES")
    schema: dict[str, Any] = settings_schema()["properties"]
    for key, of in schema.items():
        if key not in TABLE:
            names = [name + ("" if name in of["items"]["required"] else "?") for name in of["items"]["properties"]]
            lines += [".TP", _bold(f"[[{key}]]"), f"Keys, those with ? may be left out: {_text(', '.join(names))}."]
    return "\n".join([*lines, ".SH SEE ALSO", _reference(f"{PROGRAM}(1)") + ",", _reference(f"{PROGRAM}-settings-show(1)"), ""])


def _head(name: str, section: str, kind: str, short: str) -> list[str]:
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    day, program = time.strftime("%Y-%m-%d", moment), f"{PROGRAM} {recorded_build().version}"
    title = f'.TH "{_text(name.upper())}" {section} {day} "{program}" "{kind}"'
    return [title, *_UNCUT, ".SH NAME", f"{_text(name)} \\- {_text(short[:1].lower() + short[1:].rstrip('.'))}"]


def _option(parameter: click.Parameter, ctx: click.Context) -> list[str]:
    record = parameter.get_help_record(ctx)
    if record is None or not isinstance(parameter, click.Option):
        return []
    names = [*parameter.opts, *parameter.secondary_opts]
    takes = "" if parameter.is_flag or parameter.count else f" {_italic(parameter.make_metavar(ctx))}"
    return [".TP", ", ".join(map(_bold, names)) + takes, _text(" ".join(record[1].split()) or "Takes a value.")]


def _commands(group: click.Group, ctx: click.Context) -> list[str]:
    """The commands of a group, of the program itself by purpose."""
    purposes = group.purposes if isinstance(group, ProgramGroup) else {}
    rest = [name for name in group.commands if not any(name in names for names in purposes.values())]
    lines = [".SH COMMANDS"]
    for purpose, names in {**purposes, "": rest}.items():
        listed = [name for name in names if name in group.commands]
        if purpose and listed:
            lines.append(f".SS {_text(purpose)}")
        for name in listed:
            page = f"{ctx.command_path.replace(' ', '-')}-{name}(1)"
            lines += [".TP", _reference(page), _text(group.commands[name].get_short_help_str(200))]
    return lines


def _relatives(command: click.Command, ctx: click.Context) -> list[str]:
    """The pages above and below this one."""
    name = ctx.command_path.replace(" ", "-")
    above = [f"{ctx.parent.command_path.replace(' ', '-')}(1)"] if ctx.parent else []
    return above + [f"{name}-{each}(1)" for each in (command.commands if isinstance(command, click.Group) else ())]


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        kept = [line for line in paragraph.splitlines() if line.strip() != _UNBROKEN]
        if lines:
            lines.append(".PP")
        if kept == paragraph.splitlines():
            lines.append(_text(" ".join(paragraph.split())))
        else:
            lines += [".nf", *map(_text, kept), ".fi"]
    return lines


def _text(text: str) -> str:
    """The text as roff has it: each sign as it is written, and nothing taken for a request."""
    plain = "".join(sign if ord(sign) < 128 else f"\\[u{ord(sign):04X}]" for sign in text.translate(_SIGNS))
    return f"\\&{plain}" if plain.startswith((".", "\\(aq")) else plain


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _italic(text: str) -> str:
    return f"\\fI{_text(text)}\\fR"


def _reference(page: str) -> str:
    name, _, section = page.partition("(")
    return f"{_bold(name)}({section}"


def main(arguments: Sequence[str]) -> int:
    """Write the pages into the directory that is named, and say how many."""
    if len(arguments) != 1:
        sys.stderr.write("manual: name the directory for the pages, such as build/man\n")
        return 2
    pages = write_pages(Path(arguments[0]))
    sys.stdout.write(f"{len(pages)} pages are in {arguments[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
