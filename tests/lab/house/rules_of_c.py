"""The house rules of our C: how long a file may be, and what the comment before each function must say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.lab.house.tree import LINES_MAX, Finding, Rule, Tree

LONG_FILE: Final = "shim.c"
"""The file that may be longer, so that it can be built and read alone."""
_DEFINITION: Final = re.compile(r"^(?P<head>[A-Za-z_][^;{}=#/]*\))\s*\{", re.MULTILINE)
_SIGNATURE: Final = re.compile(r"(?P<name>\w+)\s*\((?P<parameters>(?:[^()]|\([^()]*\))*)\)\s*$")
_PARAMETER: Final = re.compile(r"\(\*(?P<pointer>\w+)\)|(?P<plain>\w+)(?:\s*\[[^\]]*\])*\s*$")
_CONTENT: Final = re.compile(r"^ \*   (\w+(?: \w+)*)  +\w", re.MULTILINE)
_SECTION: Final = re.compile(r"^/\* -- (.+?) -+ \*/$", re.MULTILINE)


def size_of_a_file(tree: Tree) -> Iterator[Finding]:
    """A file of C has 500 lines at most, as a module has: a longer one has two subjects."""
    for file in tree.c:
        if file.path.name != LONG_FILE and len(file.lines) > LINES_MAX:
            yield file.wrong(LINES_MAX + 1, f"{len(file.lines)} lines, {LINES_MAX} at most: split the file by subject")


def every_function_is_found(tree: Tree) -> Iterator[Finding]:
    """The rules about functions see every one: they find as many as there are lines that end one."""
    for file in tree.c:
        found, ends = len(list(_defined(file.text))), len(re.findall(r"^\}$", file.text, re.MULTILINE))
        if found != ends:
            yield file.wrong(
                1, f"{found} functions are found but {ends} lines end one: write each head so that rules_of_c reads it"
            )


def every_function_has_a_header(tree: Tree) -> Iterator[Finding]:
    """Each function's comment, also a static one's, says what it does, takes and returns."""
    for file in tree.c_sources:
        for line, lack in _lacks(file.text):
            yield file.wrong(line, f"the comment before the function lacks {lack}")


def every_function_of_a_test_has_a_comment(tree: Tree) -> Iterator[Finding]:
    for file in tree.c_tests:
        for line, _, name, _, comment in _defined(file.text):
            if not comment:
                yield file.wrong(line, f"{name}: say what it does in a comment right before it")


def contents_of_the_long_file(tree: Tree) -> Iterator[Finding]:
    """The table of contents at the head of the long file names its sections, in their order."""
    for file in tree.c_sources:
        if file.path.name != LONG_FILE:
            continue
        head = file.text[max(file.text.find(" * CONTENTS"), 0) : file.text.find(" */\n")]
        contents, sections = _CONTENT.findall(head), _SECTION.findall(file.text)
        if not contents or contents != sections:
            line = file.line_of(" * CONTENTS")
            yield file.wrong(line, f"the contents are {contents}, but the sections {sections}: make them the same")


def _defined(text: str) -> Iterator[tuple[int, str, str, str, str]]:
    """Of each function that C `text` defines: its line, what is before its name, its name, parameters, and comment."""
    for definition in _DEFINITION.finditer(text):
        signature = _SIGNATURE.search(definition["head"])
        if not signature:
            continue  # every_function_is_found reports it
        before = text[: definition.start()]
        comment = before[before.rfind("/*") :] if before.endswith("*/\n") else ""
        head = definition["head"][: signature.start()]
        yield before.count("\n") + 1, head, signature["name"], signature["parameters"], comment


def _lacks(text: str) -> Iterator[tuple[int, str]]:
    """What the comments right before the functions of C `text` lack, with the functions' lines.

    A comment begins with `name() - `, has @name for each parameter, and "Return:" for a function that returns something.
    """
    for line, before, name, parameters, comment in _defined(text):
        if not re.match(rf"/\*\*\s+(?:\* )?{name}\(\) - \S", comment):
            yield line, f"'{name}() - ' at its beginning"
        named = [_PARAMETER.search(each) for each in re.split(r",(?![^(]*\))", parameters)]
        wanted = [f"@{each['pointer'] or each['plain']}" for each in named if each and each[0] != "void"]
        if not re.search(r"\bvoid\s*$", before):
            wanted.append("Return:")
        for word in wanted:
            if not re.search(rf"{word}(?!\w)", comment):
                yield line, f"'{word}'"


RULES: Final[tuple[Rule, ...]] = (
    size_of_a_file,
    every_function_is_found,
    every_function_has_a_header,
    every_function_of_a_test_has_a_comment,
    contents_of_the_long_file,
)
