"""The promises of the locks: one holder at a time, free when it dies, one file for all, and safe when that file is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from localdb import LockTimeout, Store, StoreError
from localdb.locks import byte_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = 60.0  # seconds: the bound on every wait; nothing here takes a fraction of it

HOLDER = """
import os, sys
from localdb import Store
lock = Store(sys.argv[1] + "/root", sys.argv[1] + "/locks").lock("l", 30)
print(os.getpid(), flush=True)
sys.stdin.read()
"""

FORKER = """
import os, sys
from localdb import Store
lock = Store(sys.argv[1] + "/root", sys.argv[1] + "/locks").lock("l", 30)
pid = os.fork()
if pid == 0:
    lock.release()
    os._exit(0)
os.waitpid(pid, 0)
print("forked", flush=True)
sys.stdin.read()
"""

# Every process adds to a counter that only the lock protects: a plain read, then a write in place.
CONTENDER = """
import os, sys
from localdb import Store
base, rounds = sys.argv[1], int(sys.argv[2])
store = Store(base + "/root", base + "/locks")
fd = os.open(base + "/counter", os.O_RDWR)
sys.stdin.read(1)
for _ in range(rounds):
    with store.lock("l", 30):
        before = int(os.pread(fd, 20, 0))
        os.sched_yield()
        os.pwrite(fd, b"%020d" % (before + 1), 0)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store whose locks are in the test's own directory."""
    return Store(tmp_path / "root", tmp_path / "locks")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock "l" until it is killed or its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        yield process
        process.kill()


@pytest.fixture
def another(tmp_path: Path) -> Store:
    """Return the same store as another process has it: with a queue of its own."""
    return Store(tmp_path / "root", tmp_path / "locks")


def lock_files(store: Store) -> list[str]:
    """Return what lies in the lock directory."""
    return sorted(path.name for path in (store.root.parent / "locks").iterdir())


def test_a_lock_is_held_until_released(store: Store) -> None:
    """While held no other taker gets it, not even in the same process; after release it is free. One empty file has all locks."""
    with store.lock("a/b", 0) as lock:
        assert lock.name == "a/b"
        assert store.try_lock("a/b") is None
        with store.lock("other", 0):
            assert store.try_lock("a/b") is None
            assert lock_files(store) == ["bytes"]
    again = store.try_lock("a/b")
    assert again is not None
    again.release()


def test_release_is_idempotent(store: Store) -> None:
    """A second release does nothing, even when the descriptor's number and the lock have a new owner."""
    first = store.lock("l", 0)
    first.release()
    second = store.lock("l", 0)
    first.release()
    assert os.fstat(second.fd)
    assert store.try_lock("l") is None
    second.release()
    assert first.fd == second.fd == -1
    with pytest.raises(ValueError, match="released"):
        first.share()


def test_the_lock_is_released_when_the_block_fails(store: Store) -> None:
    """An exception inside the block releases the lock."""
    with pytest.raises(KeyError), store.lock("l", 0):
        raise KeyError
    with store.lock("l", 0):
        pass


@pytest.mark.parametrize("name", ["", "..", "/", "x" * 1000, os.fsdecode(b"\xff"), "\0", ".hidden"])
def test_any_string_names_a_lock(store: Store, name: str) -> None:
    """Every string is a lock of its own, and none reaches outside the one file."""
    with store.lock(name, 0), store.lock(name + "'", 0):
        assert store.try_lock(name) is None
        assert lock_files(store) == ["bytes"]


def test_a_timeout_names_the_lock_and_its_holder(
    store: Store, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting in vain ends with the lock's name, its file and the pid of the holder."""
    monkeypatch.setattr("localdb.locks.SEARCH", LONG)
    with pytest.raises(LockTimeout, match=f"'l'.*bytes.*pid {holder.pid}") as caught:
        store.lock("l", 0.05)
    assert isinstance(caught.value, StoreError)
    assert store.try_lock("l") is None


def test_a_lock_dies_with_its_holder(store: Store, holder: subprocess.Popen[str]) -> None:
    """After kill -9 of the holder the lock is free at once."""
    assert store.try_lock("l") is None
    holder.kill()
    holder.wait(LONG)
    with store.lock("l", 0):
        pass


def test_a_waiter_gets_the_lock_when_it_is_released(store: Store, holder: subprocess.Popen[str]) -> None:
    """A thread that waits already takes the lock when its holder goes."""
    assert store.try_lock("l") is None
    got = threading.Event()

    def wait() -> None:
        with store.lock("l", LONG):
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not got.is_set()
    holder.kill()
    assert got.wait(LONG)
    waiter.join(LONG)


def test_a_shared_lock_lives_as_long_as_the_child(store: Store) -> None:
    """A child given the descriptor keeps this lock, and no other, after our release and until it ends."""
    lock, other = store.lock("l", 0), store.lock("other", 0)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[lock.share()]
    ) as child:
        other.release()
        lock.release()
        with store.lock("other", 0):
            pass
        assert store.try_lock("l") is None
        with pytest.raises(LockTimeout):
            store.lock("l", 0.03)
        child.kill()
        child.wait(LONG)
    with store.lock("l", 0):
        assert store.try_lock("l") is None


def test_a_child_that_was_not_given_the_lock_does_not_keep_it(store: Store) -> None:
    """The descriptor does not leak into programs started while the lock is held."""
    with store.lock("l", 0):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False)
    with child, store.lock("l", 0):
        child.kill()


def test_a_forked_copy_does_not_release_its_parents_lock(store: Store, tmp_path: Path) -> None:
    """A forked child that unwinds its copy of the lock leaves the parent's lock in place."""
    with subprocess.Popen([sys.executable, "-c", FORKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forker:
        assert forker.stdout is not None
        assert forker.stdout.readline() == b"forked\n"
        assert store.try_lock("l") is None
        forker.kill()


def test_a_cleaner_that_removed_the_file_costs_at_most_that_lock(store: Store, another: Store) -> None:
    """When the file of held locks was removed and another one made, our release leaves the other's lock alone."""
    first = store.lock("l", 0)
    (store.root.parent / "locks" / "bytes").unlink()
    with another.lock("l", 0):
        first.release()
        assert store.try_lock("l") is None


def test_a_lock_file_removed_between_open_and_lock_is_not_trusted(
    store: Store, another: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel lock on a file that was just removed is not the lock: the taker starts over."""
    first = another.lock("l", 0)
    real = os.open
    opened: list[int] = []

    def open_then_release(*args: object, **kwargs: object) -> int:
        fd = real(*args, **kwargs)  # type: ignore[arg-type]
        opened.append(fd)
        if len(opened) == 1:
            first.release()
            (store.root.parent / "locks" / "bytes").unlink()
        return fd

    monkeypatch.setattr(os, "open", open_then_release)
    with store.lock("l", 0) as second:
        monkeypatch.undo()
        assert len(opened) == 2
        assert store.try_lock("l") is None
        assert os.fstat(second.fd).st_nlink == 1


def test_threads_exclude_each_other(store: Store) -> None:
    """Threads of one process, with one Store, never hold a lock together."""
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(25):
            with store.lock("l", LONG):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert most == 1


def test_eight_processes_never_hold_a_lock_together(store: Store, tmp_path: Path) -> None:
    """Under contention no increment of an unprotected counter is lost."""
    (tmp_path / "counter").write_bytes(b"%020d" % 0)
    command = [sys.executable, "-c", CONTENDER, str(tmp_path), "40"]
    contenders = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(8)]
    for contender in contenders:
        assert contender.stdin is not None
        contender.stdin.write(b"x")
        contender.stdin.flush()
    for contender in contenders:
        contender.communicate(timeout=LONG)
        assert contender.returncode == 0
    assert int((tmp_path / "counter").read_bytes()) == 8 * 40


def test_a_lock_directory_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    """When the lock directory cannot exist the error names the lock and its path."""
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "root", tmp_path / "file" / "locks")
    with pytest.raises(StoreError, match=r"'l'.*file/locks/bytes"):
        store.lock("l", 0)
    with pytest.raises(StoreError):
        store.try_lock("l")


def test_a_holder_that_cannot_be_seen(store: Store, another: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc does not show the holder (another user, another pid namespace), a vain wait says that it is not known."""

    def hidden(_: str) -> list[str]:
        return []

    with store.lock("l", 0):
        monkeypatch.setattr(os, "listdir", hidden)
        with pytest.raises(LockTimeout, match="unknown process"):
            another.lock("l", 0.05)


def test_a_look_at_a_lock_looks_at_no_process(store: Store, another: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a lock is free is one question to the kernel, because a node has
    a hundred thousand descriptors, some of which hang.
    """

    def forbidden(path: str) -> list[str]:
        raise AssertionError(path)

    with store.lock("l", 0):
        monkeypatch.setattr(os, "listdir", forbidden)
        assert another.try_lock("l") is None
        with pytest.raises(LockTimeout, match="it is held"):
            another.lock("l", 0)


def test_naming_the_holder_ends(
    store: Store, another: Store, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many descriptors there are, the search for the holder's name ends, and no file behind them is touched."""
    monkeypatch.setattr("localdb.locks.SEARCH", -1.0)
    with pytest.raises(LockTimeout, match="unknown process"):
        another.lock("l", 0.05)
    assert holder.poll() is None
    assert store.try_lock("l") is None


def test_the_byte_of_a_name_is_for_ever() -> None:
    """Processes of different versions have to use the same byte: FNV-1a of the name, folded to 62 bits."""
    assert byte_of("") == (0xCBF29CE484222325 ^ 0xCBF29CE484222325 >> 62) & (1 << 62) - 1
    assert byte_of("container:c0ffee") == 2260377917507942494
    names = [f"container:{number:064x}" for number in range(5000)] + [f"place:/{number}" for number in range(5000)]
    assert len({byte_of(name) for name in names}) == len(names)


def test_a_crowd_of_threads_all_get_their_turn(store: Store) -> None:
    """Sixty threads that want one lock all get it within a limited time, one after the other."""
    turns: list[int] = []

    def work(number: int) -> None:
        with store.lock("l", 30):
            turns.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(turns) == list(range(60))


def test_a_link_in_a_locks_place_is_not_followed(store: Store, tmp_path: Path) -> None:
    """A symbolic link where the lock file belongs is refused, so that no file elsewhere is used."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "locks" / "bytes").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="symbolic link"):
        store.lock("l", 0)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_release_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot unlock (ENOLCK of a file server) makes no release fail: closing the file releases the lock."""
    store = Store(tmp_path / "root", tmp_path / "locks")
    call = fcntl.fcntl

    def unable(fd: int, command: int, argument: bytes) -> object:
        if struct.unpack("hhqqi", argument)[0] == fcntl.F_UNLCK:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return call(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", unable)
    for _ in range(2):
        with store.lock("l", 0):
            pass


def test_no_locks_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has no locks the error says so, and carries its cause."""

    def none(fd: int, command: int, argument: bytes) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", none)
    store = Store(tmp_path / "root", tmp_path / "locks")
    with pytest.raises(StoreError, match=r"No locks available.*try again later") as caught:
        store.lock("l", 0)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOLCK
