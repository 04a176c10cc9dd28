"""The house rules that keep pages and program consistent: commands, options, keys of a network and codes of errors."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final

import click

from tests.lab.house.rules_of_pages import readable
from tests.lab.house.tree import File, Finding, Rule, Tree
from tests.lab.pages import COMMANDS, ROOT, blocks, headings, section, spans
from userspace_cni.base.errors import UNEXPECTED, UserspaceError
from userspace_cni.cli.command_line import HELP, load_command
from userspace_cni.cli.former_tools import gateway_helper, overlay, util, watcher
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cni import keys

REFERENCE: Final = "docs/commands.md"
NETWORK: Final = "docs/network.md"
OPERATIONS: Final = "docs/operations.md"
PROGRAMS: Final = ("userspace_cni.pod", "kubevirt", "tests.crash.storm", "deploy.kubectl.kubectl_userspace")
"""Modules with options of their own that the pages name, too."""
OTHERS: Final = {
    *("--huge-dir", "--in-memory", "--no-huge", "--no-pci", "--no-telemetry", "--single-file-segments"),
    *("--total-num-mbufs", "--as"),
}
"""Options of other programs that pages name: DPDK's, its testpmd's, and kubectl's."""
_STATUS_NOT_READY: Final = 51
"""A code that only STATUS gives, for the same errors for which other verbs give theirs."""
_OPTION: Final = re.compile(r"--?[a-z][a-z-]*")
_PLACEHOLDER: Final = re.compile(r"[A-Z]+")
_CALL: Final = re.compile(r"(^|[ /(])userspace-cni( |$)")


def commands_and_options_exist(tree: Tree) -> Iterator[Finding]:
    """Each `userspace-cni` command that a page names exists, with the options that follow it; so does each option alone."""
    for page in (*readable(tree), *tree.templates):
        for words in _calls(page):
            for word in _unknown(words):
                called = " ".join(words)
                yield page.wrong(page.line_of(word), f"'userspace-cni {called}': there is no command or option {word}")
        alone = {match[0] for span in spans(page.path) if (match := _OPTION.match(span)) and span.startswith("--")}
        for option in sorted(alone):
            if option not in _options_of_commands() and option not in _options_of_programs():
                yield page.wrong(page.line_of(f"`{option}"), f"no program of the project has the option {option}")


def every_option_is_in_the_reference(tree: Tree) -> Iterator[Finding]:
    """docs/commands.md has a section for each command, whose table has its options and no other."""
    for page in (each for each in readable(tree) if each.name == REFERENCE):
        for name, command in _leaves(userspace_cni).items():
            if name not in headings(page.path).values():
                yield page.wrong(1, f"there is no section '{name}' for userspace-cni {name}: write it")
                continue
            line = page.line_of(f"## {name}")
            rows = _rows(page, name, r"`-.*?")
            written = {word for row in rows for word in re.findall(r"`(--?[a-z-]+)`", row)}
            options = _options_of(command) - {"--help"}
            if written - options:
                yield page.wrong(
                    line, f"userspace-cni {name} has no {', '.join(sorted(written - options))}: remove it from the table"
                )
            if options - written:
                yield page.wrong(line, f"the table lacks {', '.join(sorted(options - written))} of userspace-cni {name}: add it")


def every_key_of_a_network_is_documented(tree: Tree) -> Iterator[Finding]:
    """The table of docs/network.md has each key that the plugin knows of a network, at the top and in its blocks."""
    for page in (each for each in readable(tree) if each.name == NETWORK):
        rows = _rows(page, "Keys", r"`.*?")
        written = {part for row in rows for span in re.findall(r"`([\w.]+)`", row) for part in span.split(".")}
        for key in sorted(
            {key for place in ("host", "host.vhost", "host.bridge") for key in keys.PLACES[place]}.union(keys.TOP) - written
        ):
            yield page.wrong(page.line_of("## Keys"), f"the table lacks the key {key}: add it")


def every_code_is_documented(tree: Tree) -> Iterator[Finding]:
    """The table of docs/operations.md has the code of each error, and no other code."""
    for page in (each for each in readable(tree) if each.name == OPERATIONS):
        rows = _rows(page, "How a call fails", r"[\d, ]+")
        written = {int(code) for row in rows for code in row.split(",")}
        _leaves(userspace_cni)  # imports the commands, and with them the errors
        ours = _codes(UserspaceError) | {UNEXPECTED, _STATUS_NOT_READY}
        for code in sorted(written ^ ours):
            line = page.line_of("## How a call fails")
            yield page.wrong(
                line, f"code {code}: " + ("no error has it, remove it" if code in written else "the table lacks it, add it")
            )


def _rows(page: File, heading: str, first: str) -> list[str]:
    """The first cells of the form `first` in the tables of the section `heading`; none if the page has no such section."""
    if heading not in headings(page.path).values():
        return []
    return re.findall(rf"^\| ({first}) \|", section(page.path, heading), re.MULTILINE)


def _leaves(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Every command that is not only a group, by its words after `userspace-cni`."""
    found = {}
    command = load_command(command)
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        found[" ".join(path)] = command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        found |= _leaves(inner, (*path, name))
    return found


def _options_of(command: click.Command) -> set[str]:
    """Every name of every option of a command."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


@cache
def _options_of_commands() -> frozenset[str]:
    """Every option of a command, and of the programs with former names; and what needs no program of ours."""
    former = (*overlay.commands.values(), *util.commands.values(), watcher, gateway_helper)
    ours = {name for command in (*_leaves(userspace_cni).values(), *former) for name in _options_of(command)}
    return frozenset(ours | OTHERS | {"--help", "--version"})


@cache
def _options_of_programs() -> frozenset[str]:
    """Every option of the programs beside the command, from their own help texts."""
    calls = [[sys.executable, "-m", module, "--help"] for module in PROGRAMS]
    asked = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT) for call in calls]
    texts = [each.communicate()[0] for each in asked]
    assert [each.returncode for each in asked] == [0] * len(asked), f"one of {', '.join(PROGRAMS)} does not know --help"
    return frozenset(option for text in texts for option in _OPTION.findall(text))


def _codes(error: type[UserspaceError]) -> set[int]:
    return {error.default_code}.union(*(_codes(below) for below in error.__subclasses__()))


def _calls(page: File) -> list[list[str]]:
    """The words after each `userspace-cni` in blocks of commands and in spans, up to the end of that command."""
    commands = [block.text.replace("\\\n", " ") for block in blocks(page.path) if block.language == COMMANDS]
    found = []
    for line in [*(line for text in commands for line in text.splitlines()), *spans(page.path)]:
        if not _CALL.search(line):
            continue
        lexer = shlex.shlex(line.replace("…", ""), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        pairs = zip(["", *words], words, strict=False)
        named = [word.rpartition("/")[2] == "userspace-cni" and before != "-n" for before, word in pairs]
        starts = [at for at, word in enumerate(words) if named[at] and not word.startswith("ds/")]
        for start in starts:
            rest = words[start + 1 :]
            ends = [at for at, word in enumerate(rest) if set(word) <= set("|&;<>()") or word.startswith("2>")]
            found.append(rest[: ends[0]] if ends else rest)
    short = [span.split() for span in spans(page.path) if span.split()[0] in userspace_cni.commands and " -" in span]
    return found + short


def _unknown(words: list[str]) -> list[str]:
    """The words of a call that are not a command where one is expected, or not an option of their command."""
    command: click.Command = userspace_cni
    wrong, below = [], False
    for word in words:
        if word.startswith("-") and len(word) > 1:
            if word.partition("=")[0] not in _options_of(command) | {"-h", "--help"}:
                wrong.append(word)
        elif isinstance(command, click.Group):
            if word in command.commands:
                command, below = load_command(command.commands[word]), True
            elif word != HELP and not _PLACEHOLDER.fullmatch(word) and not (below and command.invoke_without_command):
                wrong.append(word)
    return wrong


RULES: Final[tuple[Rule, ...]] = (
    commands_and_options_exist,
    every_option_is_in_the_reference,
    every_key_of_a_network_is_documented,
    every_code_is_documented,
)
