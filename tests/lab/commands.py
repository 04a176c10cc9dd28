"""The commands of the command line as tests need them: the commands themselves, not their placeholders in their groups."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from userspace_cni.cli.command_line import ProgramCommand, load_command
from userspace_cni.cli.main import userspace_cni

PROGRAM = "userspace-cni"
REFERENCE = Path(__file__).parents[2] / "docs" / "commands.md"
_FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OPERATORS = frozenset("|&;<>()")
_OF_OTHERS = "kubectl"


def walk(
    command: click.Command = userspace_cni, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command, click.Command]]:
    """Every command and group: its words, its placeholder in the group, and the command itself."""
    itself = load_command(command)
    if words:
        yield " ".join(words), command, itself
    for name, below in itself.commands.items() if isinstance(itself, click.Group) else ():
        yield from walk(below, (*words, name))


def runnable() -> dict[str, ProgramCommand]:
    """Every command that does something, by its words: all but those that are groups alone."""
    found = {}
    for words, _, command in walk():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            assert isinstance(command, ProgramCommand), f"{words}: it lacks the habits of the others: give it cls=ProgramCommand"
            found[words] = command
    return found


def arguments(example: str) -> list[str]:
    """The program's arguments in a line of a shell."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    ours = words[words.index(PROGRAM) + 1 :]
    return ours[: next((place for place, word in enumerate(ours) if _OPERATORS.issuperset(word)), len(ours))]


def documented_examples() -> dict[str, tuple[str, ...]]:
    """The lines of docs/commands.md that call the program, by the words of the command whose section they are in."""
    _, *sections = re.split(r"^## ", REFERENCE.read_text(), flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: tuple(
            filter(_is_example, (line for fence in _FENCE.findall(section) for line in fence.splitlines()))
        )
        for section in sections
    }


def _is_example(line: str) -> bool:
    return PROGRAM in line and not line.startswith(_OF_OTHERS)
