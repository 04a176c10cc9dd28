"""The test files that a change can reach, the closest first, each with the reason.

    python -m tests.lab.suite.changed [BASE]           since BASE (where the branch left main), uncommitted and new files included
    python -m tests.lab.suite.changed --json [BASE]    the same for a program: file and reason

What a test file exercises was recorded (recording.py), by function: a change of a function reaches the test files that called it,
one outside of functions those that called a function which mentions the changed name. What is in no record, as a new module, is
found by imports, and what is no module by the texts that name it.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Final

from tests.lab.suite import exercised
from tests.lab.suite.changes import Change, changes, difference, functions_of
from tests.lab.suite.tree import Tree, is_above, is_test

ITSELF: Final = "is changed itself"
"""The reason for a test file that comes before all others."""
ALL: Final = frozenset({"pyproject.toml", "constraints.txt", "tests/conftest.py"})
"""The files with which every test runs."""
CLUSTER: Final = "tests/cluster/"
IN_THE_CLUSTER: Final = (
    "deploy/cluster/",
    "deploy/examples/",
    "deploy/images/",
    "tests/lab/cluster/",
    "tests/lab/kube/",
    "tests/lab/runtimes/",
    "userspace_cni/agent/agent_service.py",
    "userspace_cni/cli/cluster/",
    "userspace_cni/cli/node/",
    "userspace_cni/controller/",
    "userspace_cni/deviceplugin/",
    "userspace_cni/kube/",
)
"""Changes for which the cluster's tests are chosen: they run nearly all of the product."""
IN_THE_GUEST: Final = (
    "userspace_cni/switch/polled_uplinks.py",
    "userspace_cni/switch/uplinks.py",
    "userspace_cni/host/node_net/address_moves.py",
    "userspace_cni/host/node_net/address_watch.py",
    "userspace_cni/host/node_net/network_managers.py",
    "userspace_cni/host/node_net/nics.py",
    "userspace_cni/host/node_net/numa.py",
    "userspace_cni/host/node_net/pci.py",
    "userspace_cni/network/provider_specs.py",
    "userspace_cni/node/devices.py",
    "userspace_cni/node/uplink_look.py",
)
"""Changes for which the tests of the guest with a full kernel are chosen: code about NICs, bonds, devices and NUMA nodes."""
COPIES: Final = {
    "tests/lab/hardware/snapshot.py": IN_THE_GUEST,
    "tests/lab/guests/sidecar_image.py": ("kubevirt/", "userspace_cni/pod/"),
    "tests/lab/runtimes/agent_image.py": IN_THE_CLUSTER,
    "tests/lab/runtimes/ovn_image.py": ("deploy/images/ovn.Dockerfile", "deploy/cluster/overlays/ovn"),
}
"""Module of the lab that makes an image -> changes for which its users are
chosen: a copy that runs in an image records nothing.
"""
_NATIVE: Final = "_native.pyi"
"""Files that declare a compiled extension, beside the Python of its room."""
_CALLED: Final = re.compile(r"\b(\w+)\s*\(")
_TEXTS: Final = (".sh", ".yaml", ".toml", "Dockerfile")


@dataclass(frozen=True)
class Selected:
    """A test file that a change can reach, and why."""

    file: str
    reason: str


class Reach:
    """Answers which test files a change can reach, in one tree with one map."""

    def __init__(self, tree: Tree, known: Mapping[str, frozenset[str]]) -> None:
        self._tree = tree
        self._known = {test: marks for test, marks in known.items() if test in tree.paths}
        self._unknown = tuple(test for test in tree.tests if test not in self._known and not test.startswith(CLUSTER))
        self._callers: defaultdict[str, set[str]] = defaultdict(set)
        self._exercising: defaultdict[str, set[str]] = defaultdict(set)
        for test, marks in self._known.items():
            for mark in marks:
                self._callers[mark].add(test)
                self._exercising[mark.partition(":")[0]].add(test)

    def select(self, changed: Iterable[Change]) -> list[Selected]:
        """The test files, the closest first."""
        reasons: dict[str, str] = {}
        rooms: set[str] = set()
        for change in changed:
            rooms.add(_unit_room(change.path))
            for test, reason in self._of(change):
                if reason == ITSELF or test not in reasons:
                    reasons[test] = reason
        chosen = sorted(reasons, key=lambda test: (reasons[test] != ITSELF, *self._distance(test, rooms)))
        return [Selected(test, reasons[test]) for test in chosen]

    def _distance(self, test: str, rooms: set[str]) -> tuple[int, float, str]:
        """Unit tests of a changed room first, then other unit tests.

        Among equals those that exercise little, because they end soon.
        """
        near = 0 if test.rpartition("/")[0] in rooms else 1 if test.startswith("tests/unit/") else 2
        return near, len(self._known[test]) if test in self._known else math.inf, test

    def _of(self, change: Change) -> Iterator[tuple[str, str]]:
        path = change.path
        if path in ALL:
            yield from ((test, f"every test runs with {path}") for test in self._tree.tests)
        elif path.endswith("/conftest.py"):
            yield from ((test, f"{path} is for it") for test in self._tree.tests if is_above(path, test))
        elif is_test(path):
            if path in self._tree.tests:
                yield path, ITSELF
            yield from ((test, f"imports {path}") for test in self._tests_in(self._tree.importers(path)))
        elif path.endswith(".py"):
            yield from self._of_module(change)
        elif path.endswith((".c", ".h", ".cdef")):
            yield from self._of_c(change)
        else:
            yield from ((test, f"reads {path}") for test in self._readers(path, set()))

    def _of_module(self, change: Change) -> Iterator[tuple[str, str]]:
        path = change.path
        functions, names = difference(change)
        if not functions and not names:
            return
        found = {test: f"calls {name} of {path}" for name in sorted(functions) for test in self._calling(path, name)}
        for module, name in sorted(self._tree.users(path, names)):
            for test in self._calling(module, name):
                found.setdefault(test, f"calls {name} of {module}, which uses what is changed in {path}")
        if not found or any(f"{path}:{name}" not in self._callers for name in functions & functions_of(change.before)):
            for test in self._near(path, set()):
                found.setdefault(test, f"calls other functions of {path}, or a module that imports it")
        for test in self._exercising.get(path, ()):
            if test.startswith(f"{_unit_room(path)}/"):
                found.setdefault(test, f"calls other functions of {path}")
        for test in self._unknown:
            if path in self._tree.reached(test):
                found.setdefault(test, f"imports {path}, and is in no record")
        for test in self._with_copies(path):
            found.setdefault(test, f"runs a copy of {path}")
        yield from found.items()

    def _of_c(self, change: Change) -> Iterator[tuple[str, str]]:
        path = change.path
        name = path.rpartition("/")[2]
        native = [test for test in self._tree.tests if test.startswith("tests/native/")]
        if not path.startswith("userspace_cni/"):
            named = self._mentioning(name) or self._mentioning(name.partition(".")[0], exactly=True) or native
            yield from ((test, f"compiles {path}") for test in sorted(named))
            return
        shim = path.startswith("userspace_cni/shim/")
        yield from ((test, f"compiles {path}") for test in native if shim == test.startswith("tests/native/test_shim"))
        users = self._shims() if shim else self._calling_c((change.before or "") + (change.after or ""))
        for module, function in sorted(users):
            for test in sorted(self._calling(module, function)):
                yield test, f"calls {function} of {module}, which needs {path}"

    def _shims(self) -> set[tuple[str, str]]:
        """The Python functions that find, read or install the shim."""
        modules = [path for path in self._tree.modules.values() if path.startswith("userspace_cni/shim/")]
        importers = {path for module in modules for path in self._tree.importers(module)}
        pieces = ((path, piece) for path in {*modules, *importers} for piece in self._tree.source(path).pieces if piece.function)
        return {(path, piece.function) for path, piece in pieces if path in modules or "shim" in piece.uses}

    def _calling_c(self, text: str) -> set[tuple[str, str]]:
        """The Python functions that call one of the C functions named in `text`.

        If none is named, all of the modules that may.
        """
        extensions = [path for path in self._tree.paths if path.endswith(f"/{_NATIVE}")]
        importers = sorted({module for path in extensions for module in self._tree.importers(path)})
        modules = [module for module in importers if not module.startswith("tests/")]
        pieces = [(module, piece) for module in modules for piece in self._tree.source(module).pieces if piece.function]
        declared = {
            name for path in self._tree.paths if path.endswith(".cdef") for name in _CALLED.findall(self._tree.read(path))
        }
        named = declared & set(_CALLED.findall(text))
        found = {(module, piece.function) for module, piece in pieces if piece.uses & named}
        return found or {(module, piece.function) for module, piece in pieces}

    def _calling(self, path: str, function: str, steps: int = 2) -> frozenset[str]:
        """The test files that call a function: recorded, or, where it is in no record, those of the functions that mention it.

        After `steps` of such functions without a record no test file is found: names alone would soon lead to all.
        """
        if is_test(path) or path.endswith("/conftest.py"):
            return self._tests_in([path])
        if own := self._callers.get(f"{path}:{function}"):
            return frozenset(own)
        if not steps or path not in self._tree.paths:
            return frozenset()
        users = self._tree.users(path, {function.rpartition(".")[2]})
        return frozenset(test for user in users for test in self._calling(*user, steps - 1))

    def _near(self, path: str, seen: set[str]) -> frozenset[str]:
        """The test files that exercise a module, or, if none is recorded, the modules that import it."""
        if path in seen:
            return frozenset()
        seen.add(path)
        if own := self._tests_in([path]) | self._exercising.get(path, set()):
            return own
        importers = self._tree.importers(path) if path in self._tree.paths else ()
        return frozenset(test for importer in importers for test in self._near(importer, seen))

    def _tests_in(self, paths: Iterable[str]) -> frozenset[str]:
        """The test files among modules, and those that a conftest.py among them is for."""
        found: set[str] = set()
        for path in paths:
            if is_test(path):
                found.add(path)
            elif path.endswith("conftest.py"):
                found.update(test for test in self._tree.tests if is_above(path, test))
        return frozenset(found)

    def _mentioning(self, text: str, *, exactly: bool = False) -> frozenset[str]:
        """The test files with a text that contains `text`, and those that call a function with one."""
        found: set[str] = set()
        for path, whole in self._tree.texts.items():
            if text not in whole:
                continue
            for piece in self._tree.source(path).pieces:
                if not any(each == text if exactly else text in each for each in piece.texts):
                    continue
                if is_test(path):
                    found.add(path)
                elif piece.function:
                    found |= self._calling(path, piece.function)
                else:
                    found.update(test for user in self._tree.users(path, piece.binds) for test in self._calling(*user))
        return frozenset(found)

    def _readers(self, path: str, seen: set[str]) -> frozenset[str]:
        """The test files that name a file, or the files that name it; if there are none, its directory."""
        if path in seen:
            return frozenset()
        seen.add(path)
        at = PurePath(path)
        found = set(self._mentioning(at.name))
        for other in sorted(self._tree.paths - ALL):
            if other.endswith(_TEXTS) and at.name in self._tree.read(other):
                found |= self._readers(other, seen)
        for directory in at.parents:
            if found or not directory.name:
                break
            for text in (directory.name, str(directory), f"{directory}/"):
                found |= self._mentioning(text, exactly=True)
        if path.startswith("deploy/"):
            found.update(test for test in self._tree.tests if test.startswith("tests/unit/deploy/"))
        return frozenset(found | self._with_copies(path))

    def _with_copies(self, path: str) -> frozenset[str]:
        """The test files that run a copy of this file in an image."""
        makers = (maker for maker, copied in COPIES.items() if path.startswith(copied) and maker in self._tree.paths)
        return frozenset(test for maker in makers for test in self._users_of(maker, set()))

    def _users_of(self, lab: str, seen: set[str]) -> frozenset[str]:
        """The test files that import a module of the lab, themselves or by others."""
        if lab in seen:
            return frozenset()
        seen.add(lab)
        importers = self._tree.importers(lab)
        return self._tests_in(importers).union(*(self._users_of(each, seen) for each in importers))


def _unit_room(path: str) -> str:
    room = path.removeprefix("userspace_cni/").partition("/")[0]
    return f"tests/unit/{room}"


def select(base: str | None = None, root: Path = exercised.ROOT) -> list[Selected]:
    """The test files that the change since `base` can reach, the closest first. Raises ValueError as `changes` does."""
    return Reach(Tree.at(root), exercised.read()).select(changes(root, base))


def told(found: Sequence[Selected]) -> str:
    """The test files with their reasons and their number, for people."""
    return "\n".join([*(f"{each.file}: {each.reason}" for each in found), f"{len(found)} test files"])


def main() -> int:
    bases = [each for each in sys.argv[1:] if each != "--json"]
    try:
        found = select(bases[0] if bases else None, Path.cwd())
    except ValueError as error:
        print(f"changed: {error}", file=sys.stderr)
        return 2
    print(json.dumps([asdict(each) for each in found], indent=1) if "--json" in sys.argv[1:] else told(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
