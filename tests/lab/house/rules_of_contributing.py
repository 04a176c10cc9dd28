"""The house rules for what contributors are told: what pages name exists,
hooks before a commit are the checks, forms are valid.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.house.rules_of_pages import readable
from tests.lab.house.tree import File, Finding, Rule, Tree
from tests.lab.lanes.table import LANES
from tests.lab.pages import COMMANDS, blocks, spans
from tests.lab.suite.checks import CHECKS

MAKEFILE: Final = "Makefile"
HOOKS: Final = ".pre-commit-config.yaml"
SUITE: Final = "tests/run.sh"
_LANE: Final = "lane"
_PARTS_OF_THE_SUITE: Final = frozenset({"all", "quick", "changed", "check", "judge", _LANE})
"""Groups that the suite runs beside the kinds, which are directories."""
_ENVIRONMENT: Final = ".venv/bin/"
_FILE: Final = re.compile(r"(docs|tests|deploy|userspace_cni|localdb|kubevirt|\.github|\.ci)/[\w./-]*")
_TARGET: Final = re.compile(r"([a-z]+):.*")
_ELEMENTS: Final = {
    "markdown": {"value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "input": {"label", "description", "placeholder", "value"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""The elements of a form for issues and their attributes, as GitHub documents them."""


def pages_name_what_exists(tree: Tree) -> Iterator[Finding]:
    """The files, tests, kinds of tests, modules and targets of make that pages and templates name exist."""
    for page in (*readable(tree), *tree.templates):
        lines = [
            line.partition(" #")[0] for block in blocks(page.path) if block.language == COMMANDS for line in _lines(block.text)
        ]
        for command in (*lines, *spans(page.path)):
            if lack := _lack(tree, command.split()):
                yield page.wrong(page.line_of(command.split()[0], lack.split()[-1]), f"'{command.strip()}': there is no {lack}")


def targets_run_what_exists(tree: Tree) -> Iterator[Finding]:
    for makefile in _named(tree, MAKEFILE):
        for number, line in enumerate(makefile.lines, 1):
            if line.startswith("\t") and (lack := _lack(tree, line.strip("\t@-").split())):
                yield makefile.wrong(number, f"there is no {lack}")


def hooks_are_the_checks(tree: Tree) -> Iterator[Finding]:
    """The hooks before a commit are the suite's checks, run from .venv; nothing is fetched."""
    for file in _named(tree, HOOKS):
        try:
            repositories = yaml.safe_load(file.text)["repos"]
            hooks = [hook for repository in repositories for hook in repository["hooks"]]
            called = {_tool(hook["entry"].split()) for hook in hooks}
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            yield file.wrong(1, f"the hooks cannot be read: {error!r}")
            continue
        for foreign in sorted({each["repo"] for each in repositories} - {"local"}):
            yield file.wrong(file.line_of(foreign), f"hooks of {foreign} are fetched: write them as local ones")
        for hook in hooks:
            if lack := _lack(tree, hook["entry"].split()):
                yield file.wrong(file.line_of(f"entry: {hook['entry']}"), f"there is no {lack}")
        for name, check in CHECKS.items():
            if _tool(check) not in called:
                yield file.wrong(1, f"no hook for the check '{name}': add one")


def forms_can_be_used(tree: Tree) -> Iterator[Finding]:
    """A form for issues is valid YAML, has what the site needs, and only keys that it knows."""
    for form in tree.templates:
        if form.path.suffix != ".yml":
            continue
        try:
            wrong = _wrong_in(yaml.safe_load(form.text), form.path.stem)
        except (yaml.YAMLError, AttributeError, TypeError) as error:
            wrong = str(error).replace("\n", " ")
        if wrong:
            yield form.wrong(1, f"the site refuses this form: {wrong}")


def _wrong_in(form: Any, name: str) -> str:
    """What is wrong with a form, or with the list of forms (`config`); "" for nothing."""
    if not isinstance(form, dict):
        return "it is no mapping"
    if name == "config":
        unknown = form.keys() - {"blank_issues_enabled", "contact_links"}
        return f"{', '.join(sorted(unknown))} is not known" if unknown else ""
    missing = [key for key in ("name", "description", "body") if not form.get(key)]
    if missing:
        return f"it has no {', '.join(missing)}"
    wrong = [f"element {number}: {told}" for number, each in enumerate(form["body"], 1) if (told := _wrong_element(each))]
    identified = [each["id"] for each in form["body"] if "id" in each]
    if len(set(identified)) < len(identified):
        wrong.append("an id is given twice")
    if not any(each.get("type") != "markdown" for each in form["body"]):
        wrong.append("it asks for nothing")
    return "; ".join(wrong)


def _wrong_element(element: dict[str, Any]) -> str:
    kind = element.get("type", "")
    if kind not in _ELEMENTS:
        return f"no type '{kind}'"
    attributes = element.get("attributes", {})
    if unknown := attributes.keys() - _ELEMENTS[kind] | element.keys() - {"type", "id", "attributes", "validations"}:
        return f"{', '.join(sorted(unknown))} is not known of {kind}"
    needed = {"markdown": ("value",), "dropdown": ("label", "options"), "checkboxes": ("label", "options")}.get(kind, ("label",))
    missing = [key for key in needed if not attributes.get(key)]
    return f"{kind} without {', '.join(missing)}" if missing else ""


def _lines(commands: str) -> list[str]:
    return [line for line in commands.replace("\\\n", " ").splitlines() if line.strip()]


def _named(tree: Tree, name: str) -> list[File]:
    """The file at the top of the project, if there is one."""
    path = tree.root / name
    return [File(tree.root, path)] if path.is_file() else []


def _tool(command: list[str] | tuple[str, ...]) -> str:
    """The name of what a command runs, without its arguments: `ruff check`, `mypy`, `tests.lab.house`."""
    program, *words = command
    if words[:1] == ["-m"]:
        return words[1]
    return " ".join([Path(program).name, *(word for word in words[:1] if word.isalpha())])


def _lack(tree: Tree, command: list[str]) -> str:
    """What is missing of a command's own parts, as a message; "" when nothing is, or when the command is not ours."""
    words = command[1:] if command[:1] in (["bash"], ["sudo"]) else command
    named = [tree.root / word for word in words if _FILE.fullmatch(word)]
    missing = [each.relative_to(tree.root) for each in named if not each.exists() and not each.with_suffix(".py").exists()]
    if missing:
        return f"file {missing[0]}"
    if words[0:1] == ["make"] and words[1:] and words[1] not in _targets(tree):
        return f"target {words[1]}"
    if words[0:1] == [SUITE] and words[1:] and words[1].islower() and words[1] not in _kinds(tree) | _PARTS_OF_THE_SUITE:
        return f"kind of tests {words[1]}"
    if words[0:2] == [SUITE, _LANE] and words[2:] and words[2].islower() and words[2] not in {lane.name for lane in LANES}:
        return f"lane {words[2]}"
    if words[0:1] and words[0].startswith(_ENVIRONMENT):
        if not (Path(sys.executable).parent / words[0].removeprefix(_ENVIRONMENT)).exists():
            return f"program {words[0]}"
        if words[1:2] == ["-m"] and words[2:] and not _has_module(words[2]):
            return f"module {words[2]}"
    if "-k" in words[:-1] and (SUITE in words or "pytest" in words) and not _has_test(tree, words):
        return f"test with the name {words[words.index('-k') + 1]}"
    return ""


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package does not exist
        return False


def _targets(tree: Tree) -> set[str]:
    return {match[1] for makefile in _named(tree, MAKEFILE) for line in makefile.lines if (match := _TARGET.fullmatch(line))}


def _kinds(tree: Tree) -> set[str]:
    return {Path(file.name).parts[1] for file in tree.test_files}


def _has_test(tree: Tree, words: list[str]) -> bool:
    """Whether the file or kind that is run has a test that -k selects; a name in capitals stands for any test."""
    wanted = words[words.index("-k") + 1]
    place = f"tests/{words[1]}/" if words[0] == SUITE else next((each for each in words if each.startswith("tests/")), "tests/")
    files = [file for file in tree.test_files if file.name.startswith(place)]
    tests = {name for file in files for name in (file.path.stem, *re.findall(r"^\s*def (test_\w+)", file.text, re.MULTILINE))}
    return wanted.isupper() or any(wanted in test for test in tests)


RULES: Final[tuple[Rule, ...]] = (pages_name_what_exists, targets_run_what_exists, hooks_are_the_checks, forms_can_be_used)
