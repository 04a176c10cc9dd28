"""The run of the suite itself: what failed is rerun alone, what passes then is reported and counted, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.suite import lines
from tests.lab.suite.beds import Making
from tests.lab.suite.calls import Call, Result, again
from tests.lab.suite.exercised import ROOT
from tests.lab.suite.groups import QUICK, Group, files, groups, kinds
from tests.lab.suite.table import MOST_FLAKY, Row, summary

TESTS = """
import os
from pathlib import Path

import pytest

def first_time(name):
    path = Path(__file__).with_name(name)
    return not path.exists() and path.write_text("") == 0

@pytest.mark.parametrize("what", ["a::b[1]", "with space", "two\\nlines", "ünï"])
def test_passes(what):
    pass

def test_fails_once():
    print("what it printed")
    assert not first_time("failed")

def test_fails():
    assert False

@pytest.fixture
def unsettled():
    yield
    assert not first_time("torn down")

def test_teardown_fails_once(unsettled):
    pass

@pytest.mark.timeout(0.5)
def test_is_late_once():
    late = first_time("late")
    while late:
        pass

def test_dies_once():
    if first_time("died"):
        os._exit(3)

def test_after():
    pass
"""
BY_CHANCE = {"test_fails_once", "test_teardown_fails_once", "test_is_late_once", "test_dies_once"}


@pytest.fixture(autouse=True)
def _found_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in other directories find the plugin that writes reports; they do without hypothesis, a third of a start."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


def run(place: Path, *options: str) -> Row:
    """The tests above, and a file that cannot be imported, in files of this directory."""
    (place / "test_written.py").write_text(TESTS)
    (place / "test_broken.py").write_text("import a_module_that_is_nowhere\n")
    result = Call(("test_written.py", "test_broken.py"), options, place=place).result()
    row = Row("written", result)
    row.judge(again([*result.failures, *result.missed], place))
    return row


def judged(place: Path, tree: dict[str, str], *options: str) -> Row:
    """The tests of these files, by name, once and what failed once more."""
    for name, text in tree.items():
        (place / name).write_text(text)
    result = Call([name for name in tree if name != "conftest.py"], options, place=place).result()
    row = Row("judged", result)
    row.judge(again([*result.failures, *result.missed], place))
    return row


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "workers"])
def test_what_failed_runs_once_more(options: tuple[str, ...], tmp_path: Path) -> None:
    """Failure, teardown, time-out and death by chance are reported; a repeated failure, and a broken file, fail the run."""
    row = run(tmp_path, *options)
    assert row.flaky.keys() == {f"test_written.py::{name}" for name in BY_CHANCE}
    assert set(row.failed) == {"test_written.py::test_fails", "test_broken.py"}
    assert "what it printed" in row.flaky["test_written.py::test_fails_once"]
    assert row.result.tests == len(BY_CHANCE) + 6
    text, passed = summary([row])
    assert not passed
    assert f"flaky: test_written.py::{min(BY_CHANCE)}" in text
    assert "failed: test_broken.py" in text
    assert text.splitlines()[-1].split() == ["written", "10", f"{row.result.seconds:.0f}", "2", "4"]


def test_a_test_that_is_gone_at_its_second_run(tmp_path: Path) -> None:
    """A failed test that is missing in the rerun is a failure, and so is a file that has no test any more."""
    (tmp_path / "test_gone.py").write_text("def test_gone():\n    assert False\n")
    result = Call(("test_gone.py",), place=tmp_path).result()
    for text in ("", "def test_other():\n    pass\n"):
        (tmp_path / "test_gone.py").write_text(text)
        row = Row("gone", result)
        row.judge(again(result.failures, tmp_path))
        assert (row.failed, row.flaky) == (("test_gone.py::test_gone",), {})


def test_a_call_that_tells_nothing(tmp_path: Path) -> None:
    """pytest that dies before it has found a test is a failure, which no rerun removes."""
    result = Call(("test_absent.py",), place=tmp_path).result()
    row = Row("absent", result)
    row.judge(again(result.failures, tmp_path))
    assert (row.failed, row.flaky) == (("pytest",), {})


def test_a_file_without_a_test(tmp_path: Path) -> None:
    """A call in which nothing ran has not passed."""
    (tmp_path / "test_empty.py").write_text("")
    assert Call(("test_empty.py",), place=tmp_path).result().failures.keys() == {"pytest"}


PASSES = "def test_passes():\n    pass\n"
FIRST_TIME = f"import os\n{TESTS[TESTS.index('from pathlib') : TESTS.index('@pytest')]}"
BY_CHANCE_ONCE = f"{FIRST_TIME}\ndef test_fails_once():\n    assert not first_time('failed')\n"
PYTEST_FAILS = {
    "ends while it collects": {"test_a.py": "import os\nos._exit(0)\n"},
    "ends between two tests": {
        "conftest.py": f"{FIRST_TIME}\ndef pytest_runtest_logfinish():\n    first_time('over') and os._exit(0)\n",
        "test_a.py": f"{PASSES}\ndef test_other():\n    pass\n",
    },
    "fails at its end": {
        "conftest.py": "def pytest_sessionfinish():\n    raise OSError('at the end')\n",
        "test_a.py": f"{BY_CHANCE_ONCE}{PASSES}",
    },
    "is killed at its end": {
        "conftest.py": "import os\ndef pytest_unconfigure():\n    os.kill(os.getpid(), 9)\n",
        "test_a.py": f"{BY_CHANCE_ONCE}{PASSES}",
    },
}


@pytest.mark.parametrize("tree", PYTEST_FAILS.values(), ids=PYTEST_FAILS)
def test_pytest_itself_fails(tree: dict[str, str], tmp_path: Path) -> None:
    """It is a failure, whatever its exit code says, beside a failure by chance, and where all tests pass a second time."""
    assert "pytest" in judged(tmp_path, tree).failed


NOT_RUN = {
    "empty": ("", "test_a.py"),
    "hidden": ("test_passes = None\n", "test_a.py"),
    "skipped": ("import pytest\n@pytest.mark.skip\ndef test_it():\n    pass\n", "test_a.py::test_it"),
    "skips itself": ("import pytest\ndef test_it():\n    pytest.skip()\n", "test_a.py::test_it"),
    "fails as expected": ("import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n", "test_a.py::test_it"),
    "file skipped": ("import pytest\npytest.importorskip('a_module_that_is_nowhere')\n", "test_a.py"),
    "no parameters": (
        "import pytest\n@pytest.mark.parametrize('it', [])\ndef test_it(it):\n    pass\n",
        "test_a.py::test_it[NOTSET]",
    ),
}


@pytest.mark.parametrize(("text", "failed"), NOT_RUN.values(), ids=NOT_RUN)
def test_what_does_not_run_fails(text: str, failed: str, tmp_path: Path) -> None:
    """A test that is skipped has not passed, nor has a file in which nothing is found beside others in which something is."""
    row = judged(tmp_path, {"test_a.py": text, "test_b.py": PASSES})
    assert (row.failed, row.flaky) == ((failed,), {})


def test_a_second_run_that_does_not_end_well(tmp_path: Path) -> None:
    """Its tests have not passed, although each of them has."""
    end = f"{FIRST_TIME}\ndef pytest_unconfigure():\n    assert first_time('ended')\n"
    row = judged(tmp_path, {"conftest.py": end, "test_a.py": BY_CHANCE_ONCE})
    assert row.failed == ("test_a.py::test_fails_once",)


def test_a_file_that_one_of_several_workers_cannot_read(tmp_path: Path) -> None:
    """It is the failure, and not the worker, which has collected other tests than the others for that reason."""
    text = f"{FIRST_TIME}\nif first_time('read'):\n    raise ImportError('by chance')\n{PASSES}"
    row = judged(tmp_path, {"test_a.py": text, "test_b.py": PASSES}, "-n", "2", "--dist", "loadfile")
    assert (row.failed, list(row.flaky)) == ((), ["test_a.py"])
    assert "by chance" in row.flaky["test_a.py"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_group_that_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has failed, and so has each that was to run after it."""

    def full_disk(*_: object) -> Call:
        raise OSError("no room")

    monkeypatch.setattr(lines, "Call", full_disk)
    rows = lines.Line((Group("one", ("test_one.py",)), Group("two", ("test_two.py",))), Making(())).rows()
    assert [(row.group, row.failed) for row in rows] == [("one", ("pytest",)), ("two", ("pytest",))]


def test_what_is_printed_may_be_any_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What runs beside others and prints no text is shown all the same, and so is a failure's text that no encoding has."""
    path = tmp_path / "test_bytes.py"
    path.write_text("import os\n\ndef test_bytes(capfd):\n    with capfd.disabled():\n        os.write(1, b'by\\xfftes')\n")
    [row] = lines.Line((Group("bytes", (str(path),)),), Making(())).rows()
    assert row.result.tests == 1
    assert "by\ufffdtes" in capfd.readouterr().out
    program = "from tests.lab.suite.__main__ import print_anything; print_anything(); print('a\\udcffb')"
    done = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "a\\udcffb\n"


@pytest.mark.parametrize(("count", "passed"), [(0, True), (MOST_FLAKY, True), (MOST_FLAKY + 1, False)])
def test_few_failures_by_chance_refuse_nothing(count: int, *, passed: bool) -> None:
    """A few of them pass; more are a failure, which says so."""
    names = [f"test_few.py::test_{number}" for number in range(count)]
    row = Row("few", Result(10, 1.0, {name: f"text of it {name}" for name in names}))
    row.judge({"test_few.py": Result(count)})
    text, verdict = summary([row])
    assert verdict == passed
    assert text.count("text of it") == count
    assert ("more than 3" in text) == (not passed)


def test_what_many_tests_share_fails_once() -> None:
    """What a session makes for all its tests fails them all with one text: that counts as one failure by chance."""
    names = [f"test_few.py::test_{number}" for number in range(MOST_FLAKY + 1)]
    row = Row("few", Result(10, 1.0, dict.fromkeys(names, "what they share")))
    row.judge({"test_few.py": Result(len(names))})
    text, passed = summary([row])
    assert passed
    assert [text.count(f"flaky: {name}\n") for name in names] == [1] * len(names)
    assert text.count("what they share") == 1


def test_each_test_file_is_in_one_group() -> None:
    """Together the groups have all test files of the tree, each once, and each kind has some."""
    every = files()
    grouped = [file for group in groups(every) for file in group.files]
    assert sorted(grouped) == list(every)
    assert all(group.files for group in groups(every))
    assert kinds(every) >= {"unit", "ovs", "cluster", "kubevirt"}
    assert set(files(*QUICK)) < set(every)
