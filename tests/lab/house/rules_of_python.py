"""The house rules for all Python of the project, and for the words in it, in our C and in our pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, get_args

from tests.lab.house.tree import LINES_MAX, PACKAGES, Finding, Rule, Tree
from userspace_cni.attachment import steps

VAGUE: Final = re.compile(r"\b([Cc]an not|[Ss]omebody|[Ww]hoever|[Aa]nybody|[Ee]verybody)\b|(?<!user )(?<!-of-)\b[Nn]obody\b")

SAYS_NOTHING: Final = frozenset(("utils", "util", "common", "helpers", "helper", "manager", "misc"))
"""Names under which anything could be put, so that they help a reader to find nothing."""

SAID_BY_THE_ROOM: Final = frozenset(("__init__", "__main__"))
"""Files that Python requires under these names: each stands for its package."""

STEPS: Final = steps.__name__
STEP_TYPES: Final = frozenset(
    each.__name__ for each in (*steps.STEP_TYPES.values(), steps.Socket, *get_args(steps.PortInterface))
)
OF_DRIVERS: Final = tuple(f"userspace_cni/{room}/" for room in ("attachment/steps", "switch", "host"))
"""Where steps are defined, and where drivers and rows are."""


def called(call: ast.Call) -> str:
    """The last part of a called name: `sleep` for `time.sleep(…)` and for `sleep(…)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def size_of_a_module(tree: Tree) -> Iterator[Finding]:
    """A module has 500 lines at most: a longer one has two subjects."""
    for file in tree.sources:
        if len(file.lines) > LINES_MAX:
            yield file.wrong(LINES_MAX + 1, f"{len(file.lines)} lines, {LINES_MAX} at most: split the module by subject")


def names_say_what_is_in_it(tree: Tree) -> Iterator[Finding]:
    """A module or package is named after its subject; so is a file of C."""
    for file in (*tree.python, *tree.c):
        path = PurePosixPath(file.name)
        for name in dict.fromkeys((*path.parent.parts, path.stem)):
            if name.strip("_").lower() in SAYS_NOTHING:
                yield file.wrong(1, f"'{name}' says nothing of what is in it: name it by its subject")


def class_names_are_unique(tree: Tree) -> Iterator[Finding]:
    """A name stands for one class of the product, so that a search finds that one. A leading underscore makes no difference."""
    first: dict[str, str] = {}
    for file in tree.sources:
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                here = f"{file.name}:{node.lineno}"
                if (there := first.setdefault(node.name.lstrip("_"), here)) != here:
                    yield file.wrong(node.lineno, f"class {node.name}: {there} has one of that name: say which one it is")


def file_names_are_unique(tree: Tree) -> Iterator[Finding]:
    """A file's name identifies it even without its room, as a fuzzy finder shows it."""
    first: dict[str, str] = {}
    for file in (*tree.sources, *(each for each in tree.c_sources if each.name.startswith(PACKAGES))):
        if file.path.stem not in SAID_BY_THE_ROOM and (there := first.setdefault(file.path.name, file.name)) != file.name:
            yield file.wrong(1, f"{there} has the same name: say which one it is")


def plain_words(tree: Tree) -> Iterator[Finding]:
    """ "cannot" is one word, and a sentence names who acts."""
    for file in (*tree.python, *tree.c, *tree.prose):
        for number, line in enumerate(file.lines, 1):
            if found := VAGUE.search(line):
                yield file.wrong(number, f"'{found[0]}': write 'cannot' as one word, and name who acts")


def executed_commands_check_for_errors(tree: Tree) -> Iterator[Finding]:
    """ovsdbapp's `execute` has check_error=True, without which a failure passes unnoticed."""
    for file in (each for each in tree.python if "execute(" in each.text):
        for node in file.nodes:
            if isinstance(node, ast.Call) and called(node) == "execute" and not any(map(_checks, node.keywords)):
                yield file.wrong(node.lineno, "execute() without check_error=True hides that nothing was done: pass it")


def steps_describe_themselves(tree: Tree) -> Iterator[Finding]:
    """Only drivers and rows ask which type a step or port is; other code asks a trait, which a new type has, too."""
    for file in (each for each in tree.sources if not each.name.startswith(OF_DRIVERS)):
        imports = (node for node in file.nodes if isinstance(node, ast.ImportFrom) and node.module == STEPS)
        types = {name.name for node in imports for name in node.names} & STEP_TYPES
        for node in file.nodes if types else ():
            asked = _asked_types(node)
            if found := sorted(types & {each.id for part in asked for each in ast.walk(part) if isinstance(each, ast.Name)}):
                yield file.wrong(
                    asked[0].lineno, f"asks for the type {found[0]}: ask a trait of the step, or a part of what has steps"
                )


def _asked_types(node: ast.AST) -> list[ast.expr]:
    """The types by which a value is distinguished here."""
    if isinstance(node, ast.Call) and called(node) in ("isinstance", "issubclass"):
        return node.args[1:]
    return [node.cls] if isinstance(node, ast.MatchClass) else []


def _checks(keyword: ast.keyword) -> bool:
    return keyword.arg == "check_error" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True


RULES: Final[tuple[Rule, ...]] = (
    size_of_a_module,
    names_say_what_is_in_it,
    class_names_are_unique,
    file_names_are_unique,
    plain_words,
    executed_commands_check_for_errors,
    steps_describe_themselves,
)
