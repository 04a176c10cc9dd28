"""The store against kill -9 at every system call and at random moments, and against disks that are really full or read-only."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from localdb import Store

if TYPE_CHECKING:
    from pathlib import Path

LONG = 60.0  # seconds: the bound on every wait

# Runs one operation again and again, each time in a fork and in a directory of its own that dies before its next system call:
# the first before call 0, the second before call 1, until one of them gets through. Prints how many died.
KILLER = """
import fcntl, os, signal, sys
from localdb import Store
base, operation = sys.argv[1:]
NAMES = "open close read write fsync replace link unlink mkdir rename listdir fstat stat ftruncate pwrite"
CALLS = [(os, name) for name in NAMES.split()]
CALLS += [(fcntl, "flock"), (fcntl, "fcntl")]

def arm(countdown):
    def wrap(real):
        def call(*args, **kwargs):
            nonlocal countdown
            if countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            countdown -= 1
            return real(*args, **kwargs)
        return call
    for module, name in CALLS:
        setattr(module, name, wrap(getattr(module, name)))

for number in range(1000):
    place = f"{base}/{number}"
    store = Store(place + "/root", place + "/locks", warn=lambda _: None)
    if operation not in ("first put", "identity"):
        store.put("c", "k", {"n": "old"})
        store.put("c", "neighbour", {"n": "untouched"})
    if operation == "quarantine":
        with open(place + "/root/c/k.json", "w") as file:
            file.write("{torn")
    pid = os.fork()
    if pid == 0:
        arm(number)
        match operation:
            case "put" | "first put": store.put("c", "k", {"n": "new"})
            case "drop": store.drop("c", "k")
            case "identity": store.identity()
            case "quarantine": store.get("c", "k")
            case "lock": store.lock("l", 0).release()
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        print(number)
        break
"""

# Puts a turning record and a new one per turn, drops the one of the turn before last, and says so on stdout after each turn.
WRITER = """
import os, sys
from localdb import Store
base, turn = sys.argv[1], int(sys.argv[2])
store = Store(base + "/root", base + "/locks")
while True:
    turn += 1
    store.put("c", "turning", {"n": turn, "text": f"{turn}," * (turn * 37 % 3000)})
    store.put("c", f"kept-{turn}", {"n": turn})
    store.drop("c", f"kept-{turn - 2}")
    os.write(1, b"%d\\n" % turn)
"""

# Holds the lock as often as it can; a record lock, which the kernel drops with its process, proves that it is the only one.
# Its descriptor is the lower one: a dying process closes in that order, and must not look like a holder after it let go.
CONTENDER = """
import fcntl, os, sys
from localdb import Store
base = sys.argv[1]
oracle = os.open(base + "/oracle", os.O_RDWR | os.O_CREAT)
store = Store(base + "/root", base + "/locks")
os.write(1, b"x")
while True:
    with store.lock("l", 30):
        fcntl.lockf(oracle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.sched_yield()
        fcntl.lockf(oracle, fcntl.LOCK_UN)
"""


def kill_everywhere(base: Path, operation: str) -> list[Path]:
    """Run `operation` dying before each of its system calls, then once to its end; return the directories in that order."""
    answer = subprocess.run(
        [sys.executable, "-c", KILLER, str(base), operation], capture_output=True, text=True, timeout=LONG, check=True
    )
    return [base / str(number) for number in range(int(answer.stdout) + 1)]


def open_store(place: Path) -> tuple[Store, list[str]]:
    """Return a store for what a killed process left, and the list its warnings go to."""
    warnings: list[str] = []
    return Store(place / "root", place / "locks", warn=warnings.append), warnings


def files(place: Path) -> list[str]:
    """Return all files below `place`, relative to it."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("operation", ["put", "first put", "drop"])
def test_a_change_killed_anywhere_happened_or_did_not(tmp_path: Path, operation: str) -> None:
    """Killed before any system call of put or drop, the record is the old or the new one whole, and the store goes on."""
    old = None if operation == "first put" else {"n": "old"}
    new = None if operation == "drop" else {"n": "new"}
    places = kill_everywhere(tmp_path, operation)
    assert len(places) > 4
    seen = []
    for place in places:
        store, warnings = open_store(place)
        seen.append(store.get("c", "k"))
        assert seen[-1] in (old, new)
        keys = [key for key, _ in store.items("c")]
        assert keys == [key for key in ("k", "neighbour") if store.get("c", key) is not None]
        assert [name for name in files(place) if "/." in name] == []
        assert warnings == []
        store.put("c", "k", {"n": "later"})
        assert store.get("c", "k") == {"n": "later"}
    assert seen[0] == old
    assert seen[-1] == new
    assert seen == sorted(seen, key=lambda value: value == new)


def test_an_identity_killed_anywhere_is_one_and_stable(tmp_path: Path) -> None:
    """Killed anywhere while making the identity: the next user gets one, later users get the same, no file is left."""
    for place in kill_everywhere(tmp_path, "identity"):
        path = place / "root" / "identity"
        left = path.read_text().strip() if path.exists() else None
        store, warnings = open_store(place)
        made = store.identity()
        assert left in (None, made)
        assert open_store(place)[0].identity() == made
        assert files(place) == ["root/identity"]
        assert warnings == []


def test_a_quarantine_killed_anywhere_loses_nothing(tmp_path: Path) -> None:
    """Killed anywhere while a torn file is moved aside, its content exists exactly once and the record is absent."""
    for place in kill_everywhere(tmp_path, "quarantine"):
        store, _ = open_store(place)
        assert store.get("c", "k") is None
        assert store.items("c") == [("neighbour", {"n": "untouched"})]
        assert files(place) == ["root/c/neighbour.json", "root/quarantine/c-k.json.1"]
        assert (place / "root/quarantine/c-k.json.1").read_text() == "{torn"


def test_a_lock_killed_anywhere_is_free(tmp_path: Path) -> None:
    """Killed anywhere between asking for a lock and having released it, the lock is free."""
    for place in kill_everywhere(tmp_path, "lock"):
        store, _ = open_store(place)
        with store.lock("l", 0):
            assert store.try_lock("l") is None


def test_a_writer_killed_at_random_loses_nothing_it_reported(tmp_path: Path) -> None:
    """Whenever a writer is killed, every change it reported is there, the next one is there or not, and nothing is torn."""
    store, warnings = open_store(tmp_path)
    chance = random.Random(20)
    turn = 0
    for _ in range(15):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(turn)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randint(1, 6)):
                turn = int(writer.stdout.readline())
            for _ in range(chance.randint(0, 100_000)):
                pass  # a moment that is not tied to the writer's reports
            writer.kill()
            for line in writer.stdout:
                turn = int(line)
        found = dict(store.items("c"))
        now = found["turning"]["n"]
        assert now in (turn, turn + 1)
        assert found["turning"]["text"] == f"{now}," * (now * 37 % 3000)
        assert found[f"kept-{turn}"] == {"n": turn}
        assert set(found) <= {"turning", *(f"kept-{turn + step}" for step in (-1, 0, 1))}
        assert [name for name in files(tmp_path) if "/." in name] == []
        turn = now
        for key in set(found) - {"turning"}:  # the next writer finds what it would have left itself
            store.drop("c", key)
        store.put("c", f"kept-{turn}", {"n": turn})
    assert warnings == []


def test_holders_killed_at_random_never_let_two_in(tmp_path: Path) -> None:
    """While holders and waiters are killed and replaced, no two processes ever hold the lock together."""
    chance = random.Random(20)
    command = [sys.executable, "-c", CONTENDER, str(tmp_path)]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        return process

    running = [start() for _ in range(4)]
    try:
        for _ in range(16):
            victim = running.pop(chance.randrange(len(running)))
            assert victim.poll() is None
            victim.kill()
            assert victim.communicate(timeout=LONG)[1] == b""
            running.append(start())
    finally:
        for process in running:
            process.kill()
            complaint = process.communicate(timeout=LONG)[1]
    assert complaint == b""
    with open_store(tmp_path)[0].lock("l", LONG):
        pass


def run_on_tmpfs(base: Path, options: str, script: str) -> list[Any]:
    """Run `script` in its own mount namespace with a fresh tmpfs at argv[1]; return the JSON it prints."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o {options} tmpfs "$1"'
    answer = subprocess.run(
        [*unshare, "sh", "-c", f'{mount} && exec "$2" -c "$3" "$1"', "sh", str(base), sys.executable, script],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    printed: list[Any] = json.loads(answer.stdout)
    return printed


TRY = """
import json, os, subprocess, sys
from localdb import Store, StoreError
base = sys.argv[1]
warnings = []
store = Store(base + "/root", base + "/locks", warn=warnings.append)
def attempt(function, *args):
    try:
        return function(*args)
    except StoreError as error:
        return str(error)
store.put("c", "k", {"n": "old"})
identity = store.identity()
"""


@pytest.mark.parametrize("shortage", ["blocks", "inodes"])
def test_a_full_disk_keeps_the_old_value(tmp_path: Path, shortage: str) -> None:
    """On a full filesystem put says so, leaves the old record and no temporary file, and works again once there is space."""
    fill = """
fd = os.open(base + "/ballast", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(fd, bytes(4096))
except OSError:
    os.close(fd)
"""
    fill_inodes = """
count = 0
try:
    while True:
        os.close(os.open(f"{base}/ballast{count}", os.O_WRONLY | os.O_CREAT)); count += 1
except OSError:
    os.rename(base + "/ballast0", base + "/ballast")
"""
    rest = """
replaced = attempt(store.put, "c", "k", {"n": "new"})
added = attempt(store.put, "c", "other", {})
listed = store.items("c")
names = os.listdir(base + "/root/c")
lock = attempt(store.lock, "l", 0)
os.unlink(base + "/ballast")
store.put("c", "k", {"n": "new"})
print(json.dumps([replaced, added, listed, names, store.get("c", "k"), identity == store.identity(), warnings]))
"""
    script = TRY + (fill if shortage == "blocks" else fill_inodes) + rest
    replaced, added, listed, names, after, same, warnings = run_on_tmpfs(tmp_path, "size=128k,nr_inodes=40", script)
    assert "No space left on device" in replaced
    assert "/root/c/k.json" in replaced
    assert "No space left on device" in added
    assert listed == [["k", {"n": "old"}]]
    assert names == ["k.json"]
    assert after == {"n": "new"}
    assert same
    assert warnings == []


def test_a_read_only_disk_can_be_read(tmp_path: Path) -> None:
    """On a read-only filesystem records and identity are readable, torn files are ignored in place, and changes are refused."""
    script = (
        TRY
        + """
with open(base + "/root/c/torn.json", "w") as file:
    file.write("{")
subprocess.run(["mount", "-o", "remount,bind,ro", base], check=True)
print(json.dumps([
    store.items("c"), store.get("c", "torn"), store.identity() == identity, warnings,
    attempt(store.put, "c", "k", {}), attempt(store.drop, "c", "k"), attempt(store.lock, "l", 0), store.get("c", "k"),
]))
"""
    )
    listed, torn, same, warnings, *refused, after = run_on_tmpfs(tmp_path, "size=1m", script)
    assert listed == [["k", {"n": "old"}]]
    assert torn is None
    assert same
    assert len(warnings) == 2
    assert all("torn.json" in warning for warning in warnings)
    assert all("Read-only file system" in message for message in refused)
    assert after == {"n": "old"}
