"""The order in which test files begin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.lab.suite.calls import Result
from tests.lab.suite.groups import SHARED, files, groups
from tests.lab.suite.seconds import longest_first, note, read, renew

FILES = {"test_many.py": (4, 0.1), "test_few.py": (2, 0.5), "test_one.py": (1, 0.9), "test_new.py": (3, 0.0)}
"""How many tests a file has, and the seconds that each is said to take."""


def test_what_is_not_known_and_then_the_longest() -> None:
    """Each file is there once."""
    assert longest_first(("a", "b", "c", "d"), {"a": 1.0, "b": 3.0, "d": 2.0, "gone": 9.0}) == ("c", "b", "d", "a")


def test_what_reports_tell(tmp_path: Path) -> None:
    """All parts of all tests of a file count, and nothing else in the reports; files that are not there are left out."""
    here, gone = "tests/unit/lab/test_seconds.py", "tests/gone.py"
    parts = [{"id": f"{name}::test_{number}", "when": "call", "seconds": 1.5} for name in (here, gone) for number in (1, 2)]
    lines = [{"collected": [f"{here}::test_1"]}, *parts, {"id": f"{here}::test_1", "when": "teardown", "seconds": 1.0}]
    taken = Result.read(map(json.dumps, lines), (), "").spent
    assert taken == {here: 4.0, gone: 3.0}
    kept, noted = tmp_path / "kept", tmp_path / "noted"
    kept.write_text('{"tests/conftest.py": 5}')
    note(taken, noted)
    assert renew(noted, kept) == 2
    assert read(kept) == {"tests/conftest.py": 5, here: 4}


def test_the_tree_s_longest_begin() -> None:
    """Files that take long are known, and the group begins with them."""
    known = read()
    shared = groups(files()).shared.files
    long = [file for file in shared if known.get(file, 0.0) > 30]
    assert len(long) > 5
    unknown = [file for file in shared if file not in known]
    assert list(shared[len(unknown) : len(unknown) + len(long)]) == sorted(long, key=lambda each: -known[each])


def test_pytest_keeps_the_order(tmp_path: Path) -> None:
    """It gives files to its processes in the order in which they are named, however many tests they have."""
    for name, (count, _) in FILES.items():
        (tmp_path / name).write_text("\n".join(f"def test_{number}(): pass" for number in range(count)))
    order = longest_first(FILES, {name: count * each for name, (count, each) in FILES.items() if each})
    assert order == ("test_new.py", "test_few.py", "test_one.py", "test_many.py")
    options = ["-n", "1", *SHARED[2:]]
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, *order]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    ran = [line.split()[-1].partition("::")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    assert list(dict.fromkeys(ran)) == list(order)
