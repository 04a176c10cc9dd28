"""README and docs: their links have targets, the commands and options that they name exist, and unrun blocks say why."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from tests.lab.pages import COMMANDS, PAGES, ROOT, blocks, headings, links, marks, named, prose, section, spans
from userspace_cni.base.errors import UNEXPECTED, UserspaceError
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cni import keys

LANGUAGES = {COMMANDS, "yaml", "toml", "python", ""}
"""What a block of code can be; without a name it is a picture, a message or a form."""
INDEX = ROOT / "docs" / "README.md"
REFERENCE = ROOT / "docs" / "commands.md"
NETWORK = ROOT / "docs" / "network.md"
OPERATIONS = ROOT / "docs" / "operations.md"
PROGRAMS = ("userspace_cni.pod", "kubevirt", "tests.crash.storm")
"""Modules with options of their own, which the pages name too."""
OTHERS = {
    *("--huge-dir", "--in-memory", "--no-huge", "--no-pci", "--no-telemetry", "--single-file-segments"),
    "--total-num-mbufs",
}
"""Options of other programs that pages name: DPDK's, and its testpmd's."""
_OPTION = re.compile(r"--?[a-z][a-z-]*")
_PLACEHOLDER = re.compile(r"[A-Z]+")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Every command that does something by itself, by its words after `userspace-cni`."""
    found = {}
    if not isinstance(command, click.Group) or command.invoke_without_command:
        found[" ".join(path)] = command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        found |= leaves(inner, (*path, name))
    return found


def options_of(command: click.Command) -> set[str]:
    """Every name of every option of a command."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


@cache
def known_options() -> frozenset[str]:
    """Every option that a page may name without a command."""
    ours = {name for command in leaves(userspace_cni).values() for name in options_of(command)}
    for module in PROGRAMS:
        help_text = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT)
        ours |= set(_OPTION.findall(help_text.stdout))
    return frozenset(ours | OTHERS | {"--help", "--version"})


def codes(error: type[UserspaceError]) -> set[int]:
    """The codes of this error and of those below it."""
    return {error.default_code}.union(*(codes(below) for below in error.__subclasses__()))


def calls(page: Path) -> list[list[str]]:
    """The words after each `userspace-cni` in blocks of commands and in spans, up to the end of that command."""
    lines = [
        line for block in blocks(page) if block.language == COMMANDS for line in block.text.replace("\\\n", " ").splitlines()
    ]
    found = []
    for line in [*lines, *spans(page)]:
        if not re.search(r"(^|[ /(])userspace-cni( |$)", line):
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
    short = [span.split() for span in spans(page) if span.split()[0] in userspace_cni.commands and " -" in span]
    return found + short


def unknown(words: list[str]) -> list[str]:
    """The words of a call that should be a command and are none, or that are no option of their command."""
    command: click.Command = userspace_cni
    wrong = []
    for word in words:
        if word.startswith("-") and len(word) > 1:
            if word.partition("=")[0] not in options_of(command) | {"--help"}:
                wrong.append(word)
        elif isinstance(command, click.Group):
            if word in command.commands:
                command = command.commands[word]
            elif not _PLACEHOLDER.fullmatch(word) and not command.invoke_without_command:
                wrong.append(word)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_of_code(page: Path) -> None:
    """Every block is of a known kind; only blocks of commands are marked as not run, directly above and with a reason."""
    assert [block.place for block in blocks(page) if block.language not in LANGUAGES] == []
    marked = [block for block in blocks(page) if block.reason]
    assert [block.place for block in marked if block.language != COMMANDS] == []
    assert len(marked) == marks(page)
    assert re.findall(r"^\s+```.*", prose(page), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_that_are_no_commands(page: Path) -> None:
    """YAML and TOML can be read, and so can the JSON within a network; Python compiles, and what it imports is there."""
    for block in blocks(page):
        if block.language == "toml":
            assert tomllib.loads(block.text), block.place
        if block.language == "python":
            imports = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom)]
            names = [(node.module or "", alias.name) for node in imports for alias in node.names]
            assert [name for module, name in names if not hasattr(import_module(module), name)] == [], block.place
        if block.language == "yaml":
            for document in yaml.safe_load_all(block.text):
                assert document, block.place
                config = document.get("spec", {}).get("config")
                assert config is None or json.loads(config), block.place


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the project names an existing file, and its anchor, if any, a heading of that page."""
    lost = []
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_exist(page: Path) -> None:
    """Each `userspace-cni` command that a page names is one, with the options that it is given; so is each option by itself."""
    assert {" ".join(words): wrong for words in calls(page) if (wrong := unknown(words))} == {}
    alone = {match[0] for span in spans(page) if (match := _OPTION.match(span)) and span.startswith("--")}
    assert alone - known_options() == set()


def test_every_page_is_in_the_index() -> None:
    """docs/README.md lists every page, and is itself where the README sends readers."""
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    assert set(PAGES) - {INDEX} <= listed
    assert "docs/README.md" in links(PAGES[0])


def test_every_key_of_a_network_is_documented() -> None:
    """The table of docs/network.md has each key that the plugin knows of a network, at the top and in its blocks."""
    rows = re.findall(r"^\| (`.*?) \|", section(NETWORK, "Keys"), re.MULTILINE)
    written = {part for row in rows for span in re.findall(r"`([\w.]+)`", row) for part in span.split(".")}
    assert {*keys.TOP, *keys.BLOCK, *keys.VHOST, *keys.BRIDGE} - written == set()


def test_every_code_is_documented() -> None:
    """The table of docs/operations.md has the code of each error, and no other code."""
    rows = re.findall(r"^\| ([\d, ]+) \|", section(OPERATIONS, "How a call fails"), re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == codes(UserspaceError) | {UNEXPECTED, 51}


@pytest.mark.parametrize("name", leaves(userspace_cni))
def test_every_option_is_in_the_reference(name: str) -> None:
    """docs/commands.md has a section for each command, whose table has its options and no other."""
    rows = re.findall(r"^\| (`-.*?) \|", section(REFERENCE, name), re.MULTILINE)
    written = {word for row in rows for word in re.findall(r"`(--?[a-z-]+)`", row)}
    assert written == options_of(leaves(userspace_cni)[name]) - {"--help"}
