"""Records which functions of the project each test file executes, in its own process and in those that it starts.

    python -m tests.lab.suite.recording start                       until `write`, the tree records what is executed
    PYTEST_ADDOPTS='-p tests.lab.suite.recording' tests/run.sh      a run of any tests
    python -m tests.lab.suite.recording write                       exercised.json has what these test files executed

`write` also leaves out what is gone, test files and functions; it needs no records for that.

`start` writes no source: it puts bytecode beside the sources in which each function says, the first time, that it was called. So
a process records however it was started (plugins run without site packages and with an environment of their own), and one that
is killed has recorded by then. A file that is edited meanwhile is compiled as always, and records nothing. What runs from a copy
of the tree, as in an image, records nothing either. A fixture of a session is recorded with the first test file that has it.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import marshal
import os
import shutil
import sys
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from struct import Struct
from types import CodeType
from typing import Any, Final, TypeVar

import pytest

from tests.lab.suite.exercised import MAP, ROOT, read, recorded, write
from tests.lab.suite.tree import Source

PLACE: Final = ROOT / ".venv" / "exercised"
"""The records: a file for each test file. They are beside the interpreter, so that processes in containers see them, too."""
_STAMP: Final = Struct("<III")
"""What is before the code of a module: flags, and the time and the size of its source (PEP 552)."""
_NOW: Final = "now"
_NOWHERE: Final = "unknown"
_TESTS: Final = "tests"
_RECORDER: Final = '''
import builtins
import posix

seen = set()
state = {"places": None}

def read(path):
    file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(file, 4096).decode()
    finally:
        posix.close(file)

def places():
    """The test file that this process runs for, as the environment or an ancestor says; else those that run now."""
    test = posix.environ.get(b"PYTEST_CURRENT_TEST")
    if test:
        return {test.decode().partition("::")[0]}
    pid = posix.getpid()
    while pid > 1:
        try:
            return {read(f"{PLACE}/now/{pid}")}
        except FileNotFoundError:
            pid = int(read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
    return {read(f"{PLACE}/now/{name}") for name in posix.listdir(f"{PLACE}/now")}

def saw(mark):
    if mark in seen or state["places"] == set():
        return
    try:
        if state["places"] is None:
            state["places"] = places()
        for place in state["places"]:
            path = PLACE + "/" + place.replace("/", "%")
            file = posix.open(path, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC, 0o666)
            try:
                posix.write(file, f"{mark}\\n".encode())
            finally:
                posix.close(file)
    except (FileNotFoundError, PermissionError):
        state["places"] = set()  # another root, another user
    except OSError:
        return  # something is missing: tried again at the next call
    seen.add(mark)

def forget():
    """A forked process may run for another test file than the one in which its parent was started: it is asked anew."""
    seen.clear()
    state["places"] = None
    posix.environ.pop(b"PYTEST_CURRENT_TEST", None)

posix.register_at_fork(after_in_child=forget)
saw.seen, saw.state = seen, state
builtins._saw_ = saw
'''
"""Executed by the first module that is imported, wherever that is: it imports what is part of the interpreter, and no more."""


_Function = TypeVar("_Function", ast.FunctionDef, ast.AsyncFunctionDef)
_Named = TypeVar("_Named", ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Marking(ast.NodeTransformer):
    """Adds to the beginning of each function a call that records its name."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._inside: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._within(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._marked(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._marked(node)

    def _within(self, node: _Named) -> _Named:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()
        return node

    def _marked(self, node: _Function) -> _Function:
        self._within(node)
        mark = f"{self._module}:{'.'.join([*self._inside, node.name])}"
        node.body[_first(node) : _first(node)] = ast.parse(f"_saw_({mark!r})").body
        return node


def _first(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The index of the first statement after a docstring and `from __future__` imports."""
    at = int(ast.get_docstring(node, clean=False) is not None)
    while at < len(node.body):
        statement = node.body[at]
        if not isinstance(statement, ast.ImportFrom) or statement.module != "__future__":
            break
        at += 1
    return at


def compiled(source: bytes, path: Path, root: Path = ROOT, place: Path = PLACE) -> CodeType:
    """The code of a module in which each function records below `place` that it was called."""
    tree = ast.parse(source, str(path))
    _Marking(str(path.relative_to(root))).visit(tree)
    program = f"PLACE = {str(place)!r}\n{_RECORDER}"
    prelude = f"import builtins\nif not hasattr(builtins, '_saw_'):\n    exec({program!r}, {{}})\ndel builtins\n"
    own = ast.parse(prelude).body
    for statement in own:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr):
                node.lineno = node.end_lineno = 1
    tree.body[_first(tree) : _first(tree)] = own
    code: CodeType = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    return code


def start(root: Path = ROOT, place: Path = PLACE) -> int:
    """Forget former records, and make the modules of `root` record; how many do."""
    shutil.rmtree(place, ignore_errors=True)
    for each in (_NOW, _TESTS):
        (place / each).mkdir(parents=True)
    place.chmod(0o777)
    found = recorded(root)
    for path in found:
        source, status = path.read_bytes(), path.stat()
        code = compiled(source, path, root, place)
        cached = Path(importlib.util.cache_from_source(str(path)))
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(
            importlib.util.MAGIC_NUMBER + _STAMP.pack(0, int(status.st_mtime), status.st_size) + marshal.dumps(code)
        )
    return len(found)


def stop(root: Path = ROOT) -> None:
    """Compile the modules normally again."""
    for path in recorded(root):
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def collected(place: Path = PLACE) -> dict[str, frozenset[str]]:
    """Per test file what was recorded of it: `PATH:FUNCTION`."""
    found = (path for path in place.glob("*") if path.is_file())
    return {path.name.replace("%", "/"): frozenset(path.read_text().split()) for path in found}


def is_whole(test_file: str, place: Path = PLACE) -> bool:
    """Whether all of its tests ran: otherwise it is unknown what the other ones call."""
    ended = place / _TESTS / test_file.replace("/", "%")
    number = ended.with_suffix(".number")
    return ended.exists() and number.exists() and len(set(ended.read_text().splitlines())) >= int(number.read_text())


def present(known: Mapping[str, frozenset[str]], root: Path = ROOT) -> dict[str, frozenset[str]]:
    """What is known, without test files and functions that the tree at `root` has no longer."""
    sources = {str(path.relative_to(root)): Source(path.read_text()) for path in recorded(root)}
    there = {f"{path}:{piece.function}" for path, source in sources.items() for piece in source.pieces}
    return {test: seen & there for test, seen in known.items() if (root / test).is_file()}


def _now(test_file: str) -> None:
    """From now on, what this process and those it starts execute is recorded for this test file."""
    here = PLACE / _NOW / str(os.getpid())
    if here.exists() and here.read_text() == test_file:
        return
    here.write_text(test_file)
    file = PLACE / test_file.replace("/", "%")
    file.touch()
    file.chmod(0o666)
    saw: Any = getattr(builtins, "_saw_", None)
    if saw is not None:
        saw.state["places"] = {test_file}
        saw.seen.clear()


def pytest_configure() -> None:
    """Refuse to run without `start`, because nothing would be recorded."""
    if not (PLACE / _NOW).is_dir():
        raise pytest.UsageError("nothing records here: run `python -m tests.lab.suite.recording start` first")


def pytest_unconfigure() -> None:
    """This process runs no test file any more."""
    (PLACE / _NOW / str(os.getpid())).unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """What is called while a test file is imported counts as its own."""
    if isinstance(collector, pytest.Module):
        _now(collector.nodeid)
    result = yield
    if isinstance(collector, pytest.Module):
        _now(_NOWHERE)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of each file, before some are left out."""
    for file, number in Counter(_file_of(item.nodeid) for item in items).items():
        (PLACE / _TESTS / file.replace("/", "%")).with_suffix(".number").write_text(str(number))


def pytest_runtest_logfinish(nodeid: str) -> None:
    with (PLACE / _TESTS / _file_of(nodeid).replace("/", "%")).open("a") as ended:
        ended.write(f"{nodeid!r}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _now(_file_of(nodeid))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def main() -> int:
    match sys.argv[1:]:
        case ["start"]:
            print(f"{start()} modules record what is executed")
        case ["write"]:
            found = {test: seen for test, seen in collected().items() if is_whole(test)}
            known = present(read(MAP) | found)
            write(MAP, known)
            stop()
            print(f"{len(found)} test files recorded, {len(known.keys() - found.keys())} as before")
        case _:
            print("usage: python -m tests.lab.suite.recording start|write", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
