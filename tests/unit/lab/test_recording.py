"""What is recorded of a run: functions called in processes that are started and end in any way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.suite.exercised import ROOT
from tests.lab.suite.recording import collected, is_whole, present, start, stop

MODULE = '''"""A docstring."""
from __future__ import annotations
import os, signal

class Disk:
    def __kept(self) -> int:
        """Another."""
        return 1

    def size(self) -> int:
        def doubled() -> int: return 2 * self.__kept()
        return doubled()

def die() -> None:
    assert die.__doc__ is None and Disk().size() == 2 and Disk.size.__code__.co_firstlineno == 10
    os.kill(os.getpid(), signal.SIGKILL)

def uncalled() -> None: ...
'''
CALLED = {f"userspace_cni/disk.py:{name}" for name in ("Disk.__kept", "Disk.size", "Disk.size.doubled", "die")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A tree of one module that records, and where it does."""
    (tmp_path / "userspace_cni").mkdir()
    (tmp_path / "userspace_cni" / "disk.py").write_text(MODULE)
    assert start(tmp_path, tmp_path / "recorded") == 1
    return tmp_path / "recorded"


def killed(place: Path, *options: str, environ: dict[str, str]) -> None:
    """A process without site packages that calls `die`."""
    program = f"import sys; sys.path.append({str(place.parent)!r}); from userspace_cni.disk import die; die()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", *options, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr


def test_functions_of_a_process_that_is_killed(place: Path) -> None:
    """They are recorded for the test file that the environment names, each once; others are not."""
    killed(place, environ={"PYTEST_CURRENT_TEST": "tests/a/test_b.py::test_c (call)"})
    assert collected(place) == {"tests/a/test_b.py": CALLED}
    assert len((place / "tests%a%test_b.py").read_text().splitlines()) == len(CALLED)


def test_a_process_without_an_environment(place: Path) -> None:
    """It counts for the test file of an ancestor's process."""
    (place / "now" / str(os.getpid())).write_text("tests/a/test_d.py")
    killed(place, environ={})
    assert set(collected(place)) == {"tests/a/test_d.py"}


def test_a_forked_process(place: Path) -> None:
    """Counts for the test file that runs by then, not for the one in which its parent was started."""
    (place / "now" / str(os.getpid())).write_text("tests/a/test_d.py")
    program = f"import os, sys; sys.path.append({str(place.parent)!r}); from userspace_cni.disk import Disk; Disk().size()"
    program += "; os.fork() and os.wait(); Disk().size()"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env={"PYTEST_CURRENT_TEST": "tests/a/test_b.py::test_c"}, check=True
    )
    assert collected(place) == dict.fromkeys(("tests/a/test_b.py", "tests/a/test_d.py"), CALLED - {"userspace_cni/disk.py:die"})


def test_a_process_whose_ancestors_are_not_seen(place: Path) -> None:
    """In a PID namespace, for example, it counts for all test files that run then."""
    for number, test in ((2**22, "tests/a/test_d.py"), (2**22 + 1, "tests/a/test_e.py")):
        (place / "now" / str(number)).write_text(test)
    killed(place, environ={})
    assert collected(place) == {"tests/a/test_d.py": CALLED, "tests/a/test_e.py": CALLED}


def test_where_nothing_can_be_written(place: Path) -> None:
    """The process works without a record."""
    shutil.rmtree(place)
    killed(place, environ={})


def test_a_source_that_is_edited_records_nothing(place: Path) -> None:
    """Nor does one after the end."""
    source = place.parent / "userspace_cni" / "disk.py"
    source.write_text(MODULE.replace("uncalled", "edited"))
    os.utime(source, (1, 1))
    killed(place, environ={})
    start(place.parent, place)
    stop(place.parent)
    killed(place, environ={})
    assert collected(place) == {}


def test_a_file_whose_tests_did_not_all_run(tmp_path: Path) -> None:
    """Is not whole; it is once all have ended, in one run or more; one test twice is one."""
    (tmp_path / "tests").mkdir()
    ended = tmp_path / "tests" / "tests%test_a.py"
    assert not is_whole("tests/test_a.py", tmp_path)
    ended.with_suffix(".number").write_text("2")
    assert not is_whole("tests/test_a.py", tmp_path)
    ended.write_text("'a'\n'a'\n")
    assert not is_whole("tests/test_a.py", tmp_path)
    ended.write_text("'a'\n'b'\n'a'\n")
    assert is_whole("tests/test_a.py", tmp_path)


def test_a_run_of_pytest(place: Path) -> None:
    """The plugin tells processes which test file they run for, in each of its workers, and which files are whole."""
    root = place.parent
    for name in "ab":
        text = f"from userspace_cni.disk import uncalled\ndef test_{name}(): uncalled()\ndef test_other(): pass\n"
        (root / f"test_{name}.py").write_text(text)
    program = f"from pathlib import Path; from tests.lab.suite import recording; recording.PLACE = Path({str(place)!r})"
    (root / "userspace_cni" / "__init__.py").touch()
    (root / "recorder.py").write_text(f"{program}\nfrom tests.lab.suite.recording import *\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    environ = {**os.environ, "PYTHONPATH": f"{root}:{ROOT}", "PYTEST_ADDOPTS": ""}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "-n", "2", "--rootdir", str(root), "test_a.py"]
    done = subprocess.run(argv, cwd=root, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    argv[argv.index("-n") : argv.index("-n") + 2] = ["--deselect", "test_b.py::test_other"]
    done = subprocess.run([*argv, "test_b.py"], cwd=root, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {test for test, seen in collected(place).items() if "userspace_cni/disk.py:uncalled" in seen} == {
        "test_a.py",
        "test_b.py",
    }
    assert [is_whole(test, place) for test in ("test_a.py", "test_b.py")] == [True, False]
    assert list((place / "now").iterdir()) == []


def test_what_is_gone(place: Path) -> None:
    """A test file and a function that the tree has no longer are left out of the map; methods and functions in functions stay."""
    (place.parent / "test_a.py").touch()
    known = {
        "test_a.py": frozenset({*CALLED, "userspace_cni/disk.py:was", "userspace_cni/gone.py:f"}),
        "test_b.py": frozenset(CALLED),
    }
    assert present(known, place.parent) == {"test_a.py": CALLED}
