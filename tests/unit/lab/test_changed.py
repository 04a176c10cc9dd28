"""Which test files a change reaches, in a small tree with a map of its own and in git."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab.suite import __main__ as suite
from tests.lab.suite import exercised
from tests.lab.suite.changed import ITSELF, Reach, Selected
from tests.lab.suite.changes import Change, changes, difference
from tests.lab.suite.tree import Tree

DISK = """
import os
from userspace_cni.host.modes import MODE

RETRIES = 3

class Disk:
    def __init__(self):
        self.path = ""

    def flush(self):
        os.fsync(3)

    def open(self):
        for _ in range(RETRIES):
            os.open(self.path, MODE)

def unused():
    return unrecorded()

def unrecorded():
    return 1
"""
RING = """
from userspace_cni.fastpath._native import lib

def take():
    lib.queue_take()

def put():
    lib.queue_put()
"""
CLASS = """
class A:
    x = 1
    def f(self):
        if self:
            def g():
                return 1
        return g

@one
def h(): ...
"""
FILES = {
    "pyproject.toml": "",
    "deploy/settings.toml": "",
    "deploy/run.sh": "cat deploy/settings.toml",
    "docs/page.md": "",
    "userspace_cni/host/disk.py": DISK,
    "userspace_cni/host/modes.py": "MODE = 0o600\n",
    "userspace_cni/node/store.py": "from userspace_cni.host import disk\n\ndef keep():\n    disk.unrecorded()\n",
    "userspace_cni/fastpath/_native.pyi": "",
    "userspace_cni/fastpath/rings/queue.cdef": "int queue_take(void);\nint queue_put(void);\n",
    "userspace_cni/fastpath/rings/queue.c": "int queue_take(void) { return 0; }\n",
    "userspace_cni/fastpath/ring.py": RING,
    "tests/conftest.py": "",
    "tests/agent/conftest.py": "",
    "tests/agent/test_keep.py": "from userspace_cni.node import store\n",
    "tests/cluster/conftest.py": "def cluster():\n    from tests.lab.runtimes import agent_image\n",
    "tests/cluster/test_pods.py": "",
    "tests/lab/runtimes/agent_image.py": "",
    "deploy/cluster/base/agent.yaml": "",
    "tests/native/test_queue.py": "",
    "tests/ovs/test_all.py": "from pathlib import Path\n\nSCRIPT = Path('deploy/run.sh')\n",
    "tests/unit/host/test_disk.py": "from userspace_cni.host.disk import Disk\n",
    "tests/unit/host/test_modes.py": "",
    "tests/unit/node/test_store.py": "PAGES = 'docs'\n",
}
FLUSH, OPEN, NEW = (f"userspace_cni/host/disk.py:Disk.{name}" for name in ("flush", "open", "__init__"))
KEEP = "userspace_cni/node/store.py:keep"
TAKE, PUT = (f"userspace_cni/fastpath/ring.py:{name}" for name in ("take", "put"))
KNOWN = {
    "tests/agent/test_keep.py": frozenset({FLUSH, NEW, KEEP}),
    "tests/native/test_queue.py": frozenset({PUT}),
    "tests/ovs/test_all.py": frozenset({FLUSH, OPEN, NEW, KEEP, TAKE}),
    "tests/unit/host/test_disk.py": frozenset({FLUSH, NEW}),
    "tests/unit/host/test_modes.py": frozenset({OPEN, NEW}),
    "tests/unit/node/test_store.py": frozenset({KEEP, NEW}),
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The files, without git."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Tree(tmp_path, FILES)


def reached(tree: Tree, path: str, was: str = "", now: str = "", known: Mapping[str, frozenset[str]] = KNOWN) -> list[str]:
    """The test files that are chosen when `was` in a file becomes `now`."""
    before = FILES.get(path, "")
    after = before.replace(was, now)
    (tree.root / path).write_text(after)
    changed = Tree(tree.root, {*tree.paths, path})
    return [each.file for each in Reach(changed, known).select([Change(path, before if path in FILES else None, after)])]


def test_a_function_reaches_what_called_it(tree: Tree) -> None:
    """Its room's unit tests come first, also one that calls another function.

    Then other unit tests, then tests that call little.
    """
    found = reached(tree, "userspace_cni/host/disk.py", "os.fsync(3)", "pass")
    assert found == [
        "tests/unit/host/test_disk.py",
        "tests/unit/host/test_modes.py",
        "tests/agent/test_keep.py",
        "tests/ovs/test_all.py",
    ]


def test_a_constant_reaches_what_called_its_users(tree: Tree) -> None:
    """A constant's users in its own module, and in one that imports it, count."""
    for path, was, now in (("disk", "RETRIES = 3", "RETRIES = 1"), ("modes", "0o600", "0o666")):
        found = reached(tree, f"userspace_cni/host/{path}.py", was, now)
        assert [each for each in found if "unit/host" not in each] == ["tests/ovs/test_all.py"], path
        assert "tests/unit/host/test_modes.py" in found


def test_a_function_in_no_record_reaches_what_called_its_users(tree: Tree) -> None:
    """And what exercises its module."""
    everything = {test for test, marks in KNOWN.items() if NEW in marks}
    assert set(reached(tree, "userspace_cni/host/disk.py", "return 1", "return 2")) == everything
    assert set(reached(tree, "userspace_cni/host/disk.py", "return unrecorded()", "return 5")) == everything


def test_a_new_function_reaches_what_called_its_users(tree: Tree) -> None:
    """And nothing that calls only other functions of its module."""
    now = "\ndef helper():\n    return 3\n\nRETRIES = 3"
    found = reached(tree, "userspace_cni/host/disk.py", "\nRETRIES = 3", now)
    assert "tests/agent/test_keep.py" in found  # nothing uses it: all of the module's
    found = reached(
        tree,
        "userspace_cni/host/disk.py",
        "def flush(self):\n        os.fsync(3)\n\n    def open(self):",
        "def flush(self):\n        os.fsync(3)\n\n    def new(self): ...\n\n    def open(self):\n        self.new()",
    )
    assert [each for each in found if "unit/host" not in each] == ["tests/ovs/test_all.py"]


def test_a_new_module_reaches_what_exercises_its_importers(tree: Tree) -> None:
    """Imports inside functions count."""
    (tree.root / "userspace_cni/host/disk.py").write_text(
        DISK.replace("import os\n", "", 1).replace("os.fsync", "from userspace_cni.host import new; os.fsync")
    )
    found = reached(tree, "userspace_cni/host/new.py")
    assert found == []  # nothing is in it
    (tree.root / "userspace_cni/host/new.py").write_text("X = 1\n")
    select = Reach(Tree(tree.root, {*FILES, "userspace_cni/host/new.py"}), KNOWN).select
    found = [each.file for each in select([Change("userspace_cni/host/new.py", None, "X = 1\n")])]
    assert {test for test, marks in KNOWN.items() if NEW in marks} == set(found)


def test_what_runs_in_images(tree: Tree) -> None:
    """Tests that make an image are chosen by rooms, because nothing in an image is recorded."""
    assert "tests/cluster/test_pods.py" not in reached(tree, "userspace_cni/host/disk.py", "os.fsync(3)", "pass")
    watch = tree.root / "userspace_cni/kube/watch.py"
    watch.parent.mkdir()
    watch.write_text("def watch(): ...\n")
    found = Reach(Tree(tree.root, {*FILES, "userspace_cni/kube/watch.py"}), KNOWN).select
    assert [each.file for each in found([Change("userspace_cni/kube/watch.py", None, watch.read_text())])] == [
        "tests/cluster/test_pods.py"
    ]


def test_comments_and_layout_reach_nothing(tree: Tree) -> None:
    """A change of comments or layout reaches no test; the style's checks look at it."""
    assert reached(tree, "userspace_cni/host/disk.py", "os.fsync(3)", "os.fsync(\n            3)  # why") == []


def test_a_test_file_in_no_record_is_reached_by_imports(tree: Tree) -> None:
    """Also over other modules; the cluster's, which import little, are chosen by rooms."""
    known = {test: marks for test, marks in KNOWN.items() if test != "tests/agent/test_keep.py"}
    assert "tests/agent/test_keep.py" in reached(tree, "userspace_cni/host/disk.py", "range(RETRIES)", "()", known)
    assert "tests/agent/test_keep.py" not in reached(tree, "userspace_cni/fastpath/ring.py", "queue_put()", "queue_put(1)", known)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pyproject.toml", {test for test in FILES if "/test_" in test}),
        ("tests/conftest.py", {test for test in FILES if "/test_" in test}),
        ("tests/agent/conftest.py", {"tests/agent/test_keep.py"}),
        ("tests/cluster/test_pods.py", {"tests/cluster/test_pods.py"}),
        ("deploy/settings.toml", {"tests/ovs/test_all.py"}),
        ("deploy/cluster/base/agent.yaml", {"tests/cluster/test_pods.py"}),
        ("docs/page.md", {"tests/unit/node/test_store.py"}),
        ("LICENSE", set()),
    ],
)
def test_what_is_no_module(tree: Tree, path: str, expected: set[str]) -> None:
    """The suite's settings reach all tests, a test file itself, another file
    those that name it, a script that does, or its directory.
    """
    assert set(reached(tree, path)) == expected


def test_c_reaches_what_called_its_functions(tree: Tree) -> None:
    """And the tests that compile C."""
    found = reached(tree, "userspace_cni/fastpath/rings/queue.c", "return 0", "return 1")
    assert found == ["tests/native/test_queue.py", "tests/ovs/test_all.py"]


def test_a_module_that_cannot_be_parsed(tree: Tree) -> None:
    """All of its functions differ."""
    assert set(reached(tree, "userspace_cni/host/disk.py", "import os", "import")) >= {
        test for test, marks in KNOWN.items() if NEW in marks
    }


def test_differences_of_a_module() -> None:
    """By qualified name; a class's own statements by the class's name, too; a decorator is part of its function."""
    before = CLASS
    after = before.replace("return 1", "return 2").replace("x = 1", "x = 2").replace("@one", "@two")
    functions, names = difference(Change("a.py", before, after))
    assert (set(functions), set(names)) == ({"A.f", "A.f.g", "h"}, {"A", "x"})


def test_a_changed_test_file_is_the_first(tree: Tree) -> None:
    """A changed test file comes before the unit tests of a changed room, whatever it exercises."""
    product = Change("userspace_cni/host/disk.py", DISK, DISK.replace("RETRIES = 3", "RETRIES = 4"))
    own = Change("tests/ovs/test_all.py", FILES["tests/ovs/test_all.py"], "changed = True\n")
    chosen = [each.file for each in Reach(tree, KNOWN).select([product, own])]
    assert chosen[0] == "tests/ovs/test_all.py"
    assert "tests/unit/host/test_modes.py" in chosen


@pytest.mark.parametrize("arguments", [["--list"], ["--list", "HEAD"], ["HEAD", "--list"]], ids=str)
def test_what_is_only_listed_does_not_run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files and their reasons are printed; nothing is installed and nothing runs."""
    asked: list[str | None] = []

    def select(base: str | None) -> list[Selected]:
        asked.append(base)
        return [Selected("tests/unit/test_it.py", ITSELF)]

    monkeypatch.setattr(suite, "select", select)
    monkeypatch.setattr(suite, "run", lambda _: pytest.fail("it was to be listed"))
    assert suite.main(["changed", *arguments]) == 0
    assert asked == [next((each for each in arguments if each != "--list"), None)]
    assert capsys.readouterr().out == f"tests/unit/test_it.py: {ITSELF}\n1 test files\n"


def test_what_git_says_is_changed(tmp_path: Path) -> None:
    """Changes are those committed since the branch left main, uncommitted, new and deleted.

    Without a main the error says what to do.
    """
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for name in ("kept", "committed", "edited", "gone"):
        (tmp_path / name).write_text("before\n")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "first"], ["checkout", "-qb", "branch"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "committed").write_text("after\n")
    subprocess.run([*git, "commit", "-qam", "second"], check=True)
    (tmp_path / "edited").write_text("after\n")
    (tmp_path / "gone").unlink()
    (tmp_path / "new ü").write_text("after\n")
    found = {change.path: (change.before, change.after) for change in changes(tmp_path)}
    assert found == {
        "committed": ("before\n", "after\n"),
        "edited": ("before\n", "after\n"),
        "gone": ("before\n", None),
        "new ü": (None, "after\n"),
    }
    assert [change.path for change in changes(tmp_path, "HEAD")] == ["edited", "gone", "new ü"]
    subprocess.run([*git, "branch", "-qD", "main"], check=True)
    with pytest.raises(ValueError, match=r"tests/run\.sh changed HEAD~1"):
        changes(tmp_path)
    for base in ("no-such-commit", "--cached", "--quiet", "HEAD~1..HEAD"):
        with pytest.raises(ValueError, match=rf"git rev-parse .*{base}"):
            changes(tmp_path, base)
    (tmp_path / "below").mkdir()
    with pytest.raises(ValueError, match="is none itself"):
        changes(tmp_path / "below")


def test_what_is_committed_on_main_is_changed(tmp_path: Path) -> None:
    """Since the main that was fetched: main itself has not left main."""
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / "one").write_text("before\n")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    assert changes(tmp_path) == []
    subprocess.run([*git, "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
    (tmp_path / "one").write_text("after\n")
    subprocess.run([*git, "commit", "-qam", "second"], check=True)
    assert changes(tmp_path) == [Change("one", "before\n", "after\n")]


@pytest.mark.parametrize("path", [FLUSH.partition(":")[0], "userspace_cni/node/store.py"])
def test_a_module_that_is_gone(path: str, tree: Tree) -> None:
    """As one that was given another name: it reaches the test files that are recorded for it."""
    left = Tree(tree.root, tree.paths - {path})
    found = {each.file for each in Reach(left, KNOWN).select([Change(path, FILES[path], None)])}
    assert found >= {test for test, marks in KNOWN.items() if any(mark.startswith(f"{path}:") for mark in marks)}


def test_a_module_with_its_types_beside_it(tree: Tree) -> None:
    """A change of either is one of a module, although both have one dotted name."""
    path = "userspace_cni/host/disk.py"
    (tree.root / path).with_suffix(".pyi").write_text("class Disk: ...\n")
    both = Tree(tree.root, {*tree.paths, f"{path}i"})
    assert Reach(both, KNOWN).select([Change(path, FILES[path], FILES[path].replace("RETRIES = 3", "RETRIES = 4"))])


def test_a_scratch_file_is_no_test_of_the_tree(tree: Tree) -> None:
    """Only what is below tests/ is run by the suite, and has a kind."""
    (tree.root / "test_scratch.py").write_text("x = 1\n")
    both = Tree(tree.root, {*tree.paths, "test_scratch.py"})
    assert Reach(both, KNOWN).select([Change("test_scratch.py", None, "x = 1\n")]) == []


def test_the_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Bits of a number per function, and back."""
    exercised.write(tmp_path / "map.json", KNOWN)
    assert exercised.read(tmp_path / "map.json") == KNOWN
    assert exercised.read(tmp_path / "no-such-file") == {}


def test_the_map_is_of_this_tree() -> None:
    """Nine in ten of its test files and modules exist; otherwise it has to be made anew, as recording.py says."""
    known = exercised.read()
    modules = {mark.partition(":")[0] for marks in known.values() for mark in marks}
    for named in (known.keys(), modules):
        gone = {path for path in named if not (exercised.ROOT / path).is_file()}
        assert len(gone) * 10 <= len(named), f"make it anew: {sorted(gone)}"
