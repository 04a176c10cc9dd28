"""The house rules that no tool checks: what the source and the tests must and must not contain."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PACKAGES = ("userspace_cni", "localdb", "kubevirt")
TESTS = ROOT / "tests"
LINES_MAX = 500
SLEEPERS = frozenset({"wait_until", "eventually", "test_an_idle_polling_thread_sleeps"})
"""Functions that may sleep: they wait for a condition with a limit, or measure what happens in that time."""
CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time"})
CPU_CLOCKS = frozenset({"thread_time", "thread_time_ns", "process_time", "process_time_ns"})
TIMED = ("tests/unit/test_linear_time.py",)
"""The one file that asserts on time: on the processor time of a thread, by which a quadratic reader is told from a linear one."""


def name_of(path: Path) -> str:
    """The path as messages and test IDs show it."""
    return str(path.relative_to(ROOT))


SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if not path.stem.endswith("_pb2"))
TEST_SOURCES = sorted(TESTS.rglob("*.py"))
C_SOURCES = sorted(path for room in (ROOT / "userspace_cni", TESTS) for path in room.rglob("*.[ch]"))
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *C_SOURCES])
VAGUE = re.compile(r"\b([Cc]an not|[Ss]omebody|[Ww]hoever|[Aa]nybody|[Ee]verybody)\b|(?<!user )(?<!-of-)\b[Nn]obody\b")
TEST_FILES = [path for path in TEST_SOURCES if path.name.startswith("test_")]


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), str(path))


def called(call: ast.Call) -> str:
    """The last part of the called name: `sleep` for `time.sleep(…)` and for `sleep(…)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function, wherever it is defined."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_house_is_found() -> None:
    """The rules below look at something."""
    assert len(SOURCES) > 30
    assert len(TEST_FILES) > 10


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_size_of_a_module(path: Path) -> None:
    """A module has 500 lines at most: a longer one has two subjects."""
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", [each for each in (*SOURCES, *TEST_SOURCES, *PROSE) if each != HERE], ids=name_of)
def test_plain_words(path: Path) -> None:
    """ "cannot" is one word, and a sentence names who acts."""
    lines = enumerate(path.read_text().splitlines(), 1)
    assert [f"{number}: {line.strip()}" for number, line in lines if VAGUE.search(line)] == []


def test_vague_words_are_found() -> None:
    """The pattern finds what it is for, and leaves the Unix user alone."""
    assert all(VAGUE.search(line) for line in ("it can not be", "Somebody else's", "told nobody", "for whoever asks"))
    assert not any(VAGUE.search(line) for line in ("it cannot be", "the user nobody", "root-of-nobody", "NOBODY = 65534"))


@pytest.mark.parametrize("path", [*SOURCES, *TEST_SOURCES], ids=name_of)
def test_executed_commands_check_for_errors(path: Path) -> None:
    """ovsdbapp's `execute` without check_error=True hides that nothing was done."""
    unchecked = [
        node.lineno
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and called(node) == "execute"
        and not any(
            keyword.arg == "check_error" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            for keyword in node.keywords
        )
    ]
    assert unchecked == []


@pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """A test function has a docstring that begins with one sentence, which names the behaviour."""
    silent = [
        function.name
        for function in functions(parsed(path))
        if function.name.startswith("test_") and not (ast.get_docstring(function) or "").partition("\n\n")[0].endswith(".")
    ]
    assert silent == []


@pytest.mark.parametrize("path", TEST_SOURCES, ids=name_of)
def test_no_test_sleeps(path: Path) -> None:
    """Tests wait for a condition with a bound, in a helper made for it, and never for time to pass."""
    tree = parsed(path)
    allowed = {id(node) for function in functions(tree) if function.name in SLEEPERS for node in ast.walk(function)}
    asleep = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == "sleep" and id(node) not in allowed
    ]
    assert asleep == []


def is_clock(node: ast.AST) -> bool:
    """Whether a clock is read in it."""
    return any(isinstance(each, ast.Call) and called(each) in CLOCKS | CPU_CLOCKS for each in ast.walk(node))


def upper_bounds(test: ast.expr) -> Iterator[ast.expr]:
    """What is asserted to be less than something, sides of all comparisons in the expression."""
    for compare in (node for node in ast.walk(test) if isinstance(node, ast.Compare)):
        sides = [compare.left, *compare.comparators]
        for left, comparison, right in zip(sides, compare.ops, sides[1:], strict=False):
            if isinstance(comparison, ast.Lt | ast.LtE):
                yield left
            elif isinstance(comparison, ast.Gt | ast.GtE):
                yield right


@pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
def test_no_test_is_in_a_hurry(path: Path) -> None:
    """No assertion says how soon something is over: a busy machine makes it untrue. What hangs outlasts a test.

    In a loop it is the bound of a wait.
    """
    tree = parsed(path)
    waits = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    hurried = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and id(node) not in waits and any(map(is_clock, upper_bounds(node.test)))
    ]
    assert hurried == []


def test_one_file_asserts_on_time() -> None:
    """No other test looks at the time that the processor has worked."""
    looking = {
        name_of(path)
        for path in TEST_FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and called(node) in CPU_CLOCKS
    }
    assert looking == set(TIMED)


def test_file_names_are_unique() -> None:
    """No two test files have one name: a failure's name says where to look."""
    assert [name for name, times in Counter(path.name for path in TEST_FILES).items() if times > 1] == []


def test_test_names_are_unique_in_a_file() -> None:
    """No test is hidden by a later one of the same name."""
    hidden = {
        name_of(path): twice
        for path in TEST_FILES
        if (
            twice := [
                name
                for name, times in Counter(node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef)).items()
                if times > 1
            ]
        )
    }
    assert hidden == {}
