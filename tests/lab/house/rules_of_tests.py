"""The house rules for tests: each says what it shows, none sleeps, none asserts on time, none hides another."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.lab.house.rules_of_python import called
from tests.lab.house.tree import File, Finding, Rule, Tree

SLEEPERS: Final = frozenset({"wait_until", "eventually", "test_an_idle_polling_thread_sleeps"})
"""Functions that may sleep: they wait for a condition with a limit, or measure what happens in that time."""
CLOCKS: Final = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time"})
CPU_CLOCKS: Final = frozenset({"thread_time", "thread_time_ns", "process_time", "process_time_ns"})
TIMED: Final = "tests/unit/test_linear_time.py"
"""The one file that asserts on time: on a thread's processor time, which distinguishes a quadratic reader from a linear one."""
PROFILED: Final = "tests/conftest.py"
OF_THE_PROFILE: Final = frozenset({"database", "deadline", "derandomize", "print_blob"})
"""What the profile sets: a deadline would fail on a busy machine, and without the database a rerun draws other examples."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def every_test_says_what_it_shows(tree: Tree) -> Iterator[Finding]:
    """A test function has a docstring that begins with one sentence, which names the behaviour."""
    for file in tree.test_files:
        for function in _functions(file):
            said = (ast.get_docstring(function) or "").partition("\n\n")[0]
            if function.name.startswith("test_") and not said.endswith("."):
                yield file.wrong(
                    function.lineno, f"{function.name}: begin its docstring with a sentence that names the behaviour"
                )


def no_test_sleeps(tree: Tree) -> Iterator[Finding]:
    """Tests wait for a condition with a bound, in a function made for that, and never simply for time to pass."""
    for file in tree.tests:
        sleeping = [node for node in file.nodes if isinstance(node, ast.Call) and called(node) == "sleep"]
        if not sleeping:
            continue
        allowed = {id(node) for function in _functions(file) if function.name in SLEEPERS for node in ast.walk(function)}
        for node in sleeping:
            if id(node) not in allowed:
                yield file.wrong(node.lineno, "a test sleeps: wait for what is to happen, with a bound (wait_until, eventually)")


def no_test_is_in_a_hurry(tree: Tree) -> Iterator[Finding]:
    """No assertion limits how long something takes: it would fail on a busy machine. What hangs exceeds the test's own limit.

    In a loop such a comparison is the bound of a wait.
    """
    for file in tree.test_files:
        waits = {id(node) for loop in file.nodes if isinstance(loop, ast.While) for node in ast.walk(loop)}
        for node in file.nodes:
            if isinstance(node, ast.Assert) and id(node) not in waits and any(map(_is_clock, _upper_bounds(node.test))):
                yield file.wrong(
                    node.lineno, "an upper bound on time is asserted, which a busy machine makes untrue: leave it out"
                )


def _is_clock(node: ast.AST) -> bool:
    """Whether the expression reads a clock."""
    return any(isinstance(each, ast.Call) and called(each) in CLOCKS | CPU_CLOCKS for each in ast.walk(node))


def _upper_bounds(test: ast.expr) -> Iterator[ast.expr]:
    """What the expression asserts to be less than something, by the sides of its comparisons."""
    for compare in (node for node in ast.walk(test) if isinstance(node, ast.Compare)):
        sides = [compare.left, *compare.comparators]
        for left, comparison, right in zip(sides, compare.ops, sides[1:], strict=False):
            if isinstance(comparison, ast.Lt | ast.LtE):
                yield left
            elif isinstance(comparison, ast.Gt | ast.GtE):
                yield right


def one_file_asserts_on_time(tree: Tree) -> Iterator[Finding]:
    """No test but that file looks at processor time, and that file does."""
    for file in tree.test_files:
        looks = [node.lineno for node in file.nodes if isinstance(node, ast.Call) and called(node) in CPU_CLOCKS]
        if file.name == TIMED and not looks:
            yield file.wrong(1, "looks at no clock of the processor's time any more: end the exception for it in rules_of_tests")
        if file.name != TIMED and looks:
            yield file.wrong(looks[0], f"only {TIMED} may look at the processor's time: move what is measured there")


def one_profile_of_hypothesis(tree: Tree) -> Iterator[Finding]:
    """How examples are drawn and kept is set once for the suite; a test only says how many there are."""
    for file in tree.tests:
        if file.name == PROFILED or "hypothesis" not in file.text:
            continue
        for node in file.nodes:
            if not isinstance(node, ast.Call):
                continue
            own = {keyword.arg or "" for keyword in node.keywords} & OF_THE_PROFILE if called(node) == "settings" else set()
            if own or called(node) in {"register_profile", "load_profile"}:
                what = ", ".join(sorted(own)) or called(node)
                yield file.wrong(node.lineno, f"{what}: the suite's profile in {PROFILED} says it for every test, leave it out")


def file_names_are_unique(tree: Tree) -> Iterator[Finding]:
    """No two test files have the same name: the name in a failure says where to look."""
    first: dict[str, File] = {}
    for file in tree.test_files:
        if (other := first.setdefault(file.path.name, file)) is not file:
            yield file.wrong(1, f"has the name of {other.name}: give it one of its own")


def test_names_are_unique_in_a_file(tree: Tree) -> Iterator[Finding]:
    """No test is hidden by a later one of the same name."""
    for file in tree.test_files:
        functions = [node for node in file.syntax.body if isinstance(node, Function)]
        times = Counter(node.name for node in functions)
        last = {node.name: node for node in functions}
        for node in functions:
            if times[node.name] > 1 and node is not last[node.name]:
                hiding = last[node.name].lineno
                yield file.wrong(node.lineno, f"{node.name} is hidden by the one in line {hiding}: give one another name")


def _functions(file: File) -> Iterator[Function]:
    """Every function of the file, nested ones too."""
    return (node for node in file.nodes if isinstance(node, Function))


RULES: Final[tuple[Rule, ...]] = (
    every_test_says_what_it_shows,
    no_test_sleeps,
    no_test_is_in_a_hurry,
    one_file_asserts_on_time,
    one_profile_of_hypothesis,
    file_names_are_unique,
    test_names_are_unique_in_a_file,
)
