"""The house rules of our C: how long a file may be, and what the comment before each function must say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = next(place for place in Path(__file__).resolve().parents if (place / "pyproject.toml").exists())
PRODUCT = ("userspace_cni", "localdb", "kubevirt", "deploy")
TESTS = "tests"
LINES_MAX = 500
ONE_FILE = "shim.c"
"""The file that may be longer: it can be built and read alone."""
DEFINITION = re.compile(r"^(?P<head>[A-Za-z_][^;{}=#/]*\))\s*\{", re.MULTILINE)
SIGNATURE = re.compile(r"(?P<name>\w+)\s*\((?P<parameters>(?:[^()]|\([^()]*\))*)\)\s*$")
PARAMETER = re.compile(r"\(\*(?P<pointer>\w+)\)|(?P<plain>\w+)(?:\s*\[[^\]]*\])*\s*$")


def name_of(path: Path) -> str:
    """The path as test IDs show it."""
    return str(path.relative_to(ROOT))


def files(place: str) -> list[Path]:
    """The C below a directory of the project."""
    return sorted(path for kind in ("c", "h") for path in (ROOT / place).rglob(f"*.{kind}"))


OURS = [path for place in PRODUCT for path in files(place)]
TRIALS = files(TESTS)


def defined(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each function that C `text` defines: what is before its name, its name, its parameters, the comment right before it."""
    for definition in DEFINITION.finditer(text):
        signature = SIGNATURE.search(definition["head"])
        assert signature, definition["head"]
        before = text[: definition.start()]
        comment = before[before.rfind("/*") :] if before.endswith("*/\n") else ""
        yield definition["head"][: signature.start()], signature["name"], signature["parameters"], comment


def untold(text: str) -> list[str]:
    """What the comments right before the functions of C `text` lack, each with the function's name.

    A comment begins with `name() - `, has @name for each parameter, and "Return:" for a function that returns something.
    """
    lacks = []
    for before, name, parameters, comment in defined(text):
        named = [PARAMETER.search(each) for each in re.split(r",(?![^(]*\))", parameters)]
        wanted = [f"@{each['pointer'] or each['plain']}" for each in named if each and each[0] != "void"]
        if not re.search(r"\bvoid\s*$", before):
            wanted.append("Return:")
        if not re.match(rf"/\*\*\s+(?:\* )?{name}\(\) - \S", comment):
            lacks.append(f"{name}: a comment that begins with '{name}() - '")
        lacks += [f"{name}: {word}" for word in wanted if not re.search(rf"{word}(?!\w)", comment)]
    return lacks


def silent(text: str) -> list[str]:
    """The functions of C `text` without any comment right before them."""
    return [name for _, name, _, comment in defined(text) if not comment]


def test_the_house_is_found() -> None:
    """The rules below look at something."""
    assert {ONE_FILE, "driver.c", "device.c", "guard.c", "paths.c", "queue.h"} <= {path.name for path in OURS}
    assert {"device_trial.c", "ring_end.h"} <= {path.name for path in TRIALS}


@pytest.mark.parametrize("path", [*OURS, *TRIALS], ids=name_of)
def test_size_of_a_file(path: Path) -> None:
    """A file of C has 500 lines at most, as a module has: a longer one has two subjects."""
    assert path.name == ONE_FILE or len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", [*OURS, *TRIALS], ids=name_of)
def test_every_function_is_found(path: Path) -> None:
    """The rules about functions miss none: as many are found as lines end one."""
    text = path.read_text()
    assert len(list(defined(text))) == len(re.findall(r"^\}$", text, re.MULTILINE))


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_every_function_has_a_header(path: Path) -> None:
    """A function says what it does, what it takes and what it returns, a static one too."""
    assert untold(path.read_text()) == []


@pytest.mark.parametrize("path", TRIALS, ids=name_of)
def test_every_function_of_a_trial_has_a_comment(path: Path) -> None:
    """A function of the tests says what it does."""
    assert silent(path.read_text()) == []


def test_the_contents_of_the_long_file() -> None:
    """The table of contents in the long file's head names its sections, in their order."""
    text = next(path for path in OURS if path.name == ONE_FILE).read_text()
    contents = re.findall(r"^ \*   (\w+(?: \w+)*)  +\w", text[text.index(" * CONTENTS") : text.index(" */\n")], re.MULTILINE)
    assert contents == re.findall(r"^/\* -- (.+?) -+ \*/$", text, re.MULTILINE)
    assert len(contents) > 5


TOLD = """
/**
 * told() - Do it
 * @one:	How often
 * @two, @three: Where
 *
 * Return: 0
 */
static inline int told(int one, const char *two,
		struct thing *const three[2])
{
	return 0;
}

/** silent() - Do nothing */
static void silent(void)
{
}

/**
 * called() - Call
 * @function:	What to call
 */
__attribute__((noinline)) void called(void (*function)(int, int)) {
	if (function)
		function(1, 2);
}
"""


def test_a_function_with_a_header_passes() -> None:
    """Definitions over several lines, of pointers to functions, and with an attribute are read."""
    assert untold(TOLD) == []
    assert [name for _, name, _, _ in defined(TOLD)] == ["told", "silent", "called"]


@pytest.mark.parametrize(
    ("good", "bad", "lack"),
    [
        ("/** silent() - Do nothing */\n", "", "silent: a comment that begins with 'silent() - '"),
        ("/** silent() - Do nothing */\n", "/** other() - Do nothing */\n", "silent: a comment that begins with 'silent() - '"),
        (
            "/** silent() - Do nothing */\n",
            "/** silent() - Do nothing */\n\n",
            "silent: a comment that begins with 'silent() - '",
        ),
        ("/** silent() - Do nothing */\n", "/* Do nothing */\n", "silent: a comment that begins with 'silent() - '"),
        ("@one:", "@once:", "told: @one"),
        ("@two, @three:", "@two:", "told: @three"),
        ("Return: 0", "It returns 0", "told: Return:"),
        ("@function:", "function:", "called: @function"),
    ],
)
def test_what_a_header_lacks_is_found(good: str, bad: str, lack: str) -> None:
    """A header that is missing, another function's, detached from its function or incomplete is named."""
    assert good in TOLD
    assert untold(TOLD.replace(good, bad)) == [lack]


def test_a_function_without_a_comment_is_found() -> None:
    """A trial needs a comment of any form."""
    assert silent(TOLD) == []
    assert silent(TOLD.replace("/** silent() - Do nothing */\n", "")) == ["silent"]
