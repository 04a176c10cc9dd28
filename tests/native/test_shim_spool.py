"""The shim's spool: the entry of a DEL, its bound, its lock, and what happens when it cannot be written."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.node.agentless import NETWORK, Agent, Caller, answers, finish, give_stdin, refused, waits
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.spool import Spool
from userspace_cni.cni import protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
CALLED = rb"Called-Boot-Id: [0-9a-f-]{36}\r\nCalled-Boottime-Ns: [0-9]+\r\n"
NAME = re.compile(r"([0-9]{20})-([0-9]+)-[0-9a-f]{8}")


def in_python(caller: Caller) -> Spool:
    """The agent's view of the spool."""
    return Spool(str(caller.spool), str(caller.directory / "quarantine"))


def occupy(caller: Caller, count: int) -> None:
    """Put so many DELs of an earlier time into the spool."""
    caller.spool.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (caller.spool / f"{number:020}-1-00000000").touch()


def test_entry(caller: Caller) -> None:
    """An entry is the request as it would have been sent, with the boot and the time of the call; its name sorts by that time."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with caller.start("DEL", CNI_ARGS=b"A=\xff b") as process:
        done = finish(process)
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert (done.code, done.stdout) == (0, b"")
    (entry,) = caller.entries
    name = NAME.fullmatch(entry.name)
    assert name
    assert int(name[2]) == process.pid
    begun = int(name[1])
    assert before < begun < after
    with Agent(caller.socket, answers(200)) as agent:
        caller.run("DEL", CNI_ARGS=b"A=\xff b")
        mark = f"Called-Boot-Id: {BOOT_ID}\r\nCalled-Boottime-Ns: {begun}\r\n".encode()
        assert entry.read_bytes() == re.sub(CALLED, mark, agent.request, count=1)


def test_entry_is_read_by_the_agent(caller: Caller) -> None:
    """The agent's own reader gets variables, stdin, boot and time, oldest first."""
    for ifname in ("net1", "net2", "net3"):
        assert caller.run("DEL", b"{\0\xff" + ifname.encode() + b"}", CNI_IFNAME=ifname).code == 0
    entries = list(in_python(caller).entries())
    assert [entry.environ["CNI_IFNAME"] for entry in entries] == ["net1", "net2", "net3"]
    assert [entry.stdin for entry in entries] == [b"{\0\xffnet1}", b"{\0\xffnet2}", b"{\0\xffnet3}"]
    assert {entry.called.boot_id for entry in entries} == {BOOT_ID}
    assert [entry.called.boottime_ns for entry in entries] == sorted(entry.called.boottime_ns for entry in entries)
    assert {entry.environ["CNI_COMMAND"] for entry in entries} == {"DEL"}


def test_largest_entry(caller: Caller) -> None:
    """A DEL of the largest configuration and the longest variables is kept whole, and can be read."""
    stdin = b"{" + os.urandom(protocol.BODY_MAX - 2) + b"}"
    assert caller.run("DEL", stdin, CNI_ARGS="é" * 32_000).code == 0
    (entry,) = in_python(caller).entries()
    assert (entry.stdin, entry.environ["CNI_ARGS"]) == (stdin, "é" * 32_000)


def test_directories_are_made(caller: Caller) -> None:
    """State directory and spool are made when missing, with what is above them, for root alone; the entry is 0600."""
    state = caller.directory / "a" / "b" / "c"
    assert caller.run("DEL", USERSPACE_CNI_STATE_DIR=str(state)).code == 0
    made = [state / "spool", *(caller.directory / part for part in ("a/b/c", "a/b", "a"))]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    (entry,) = (state / "spool").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_modes_do_not_follow_umask(caller: Caller) -> None:
    """A runtime's umask makes nothing unreadable."""
    command = ["sh", "-c", 'umask 777; exec "$0"', caller.program]
    with subprocess.Popen(command, env=caller.environ("DEL"), stdin=-1, stdout=-1, stderr=-1) as process:
        assert finish(process).code == 0
    assert stat.S_IMODE(caller.entries[0].stat().st_mode) == 0o600


def test_full(caller: Caller) -> None:
    """A full spool takes nothing more: 11 naming socket, spool and bound, in words that no runtime takes for success."""
    occupy(caller, 3)
    for limit in ("3", "2"):
        error = refused(
            caller.run("DEL", USERSPACE_CNI_SPOOL_MAX=limit), 11, str(caller.socket), str(caller.spool), f"may hold {limit}"
        )
        text = f"{error}".lower()
        assert "not found" not in text
        assert "no such file" not in text
    assert len(caller.entries) == 3
    assert caller.run("DEL", USERSPACE_CNI_SPOOL_MAX="4").code == 0


def test_other_files_do_not_count(caller: Caller) -> None:
    """Files that are no DELs neither count nor are removed, except temporary files of dead writers."""
    caller.spool.mkdir(parents=True)
    others = [".hidden", "README", "0123456789-1-00000000", "x" * 200, "012345678901234567890-1-0", ".tmp"]
    for name in others:
        (caller.spool / name).touch()
    (caller.spool / "sub").mkdir()
    for number in range(3):
        (caller.spool / f".tmp-{number:020}-1-00000000").touch()
    assert caller.run("DEL", USERSPACE_CNI_SPOOL_MAX="1").code == 0
    left = {path.name for path in caller.entries}
    assert left - {name for name in left if NAME.fullmatch(name)} == {*others, "sub"}
    assert len(left) == len(others) + 2


def test_many_entries_are_counted(caller: Caller) -> None:
    """The count is right for more names than one reading of the directory gives."""
    occupy(caller, 1500)
    refused(caller.run("DEL", USERSPACE_CNI_SPOOL_MAX="1500"), 11, "it holds 1500")
    assert caller.run("DEL", USERSPACE_CNI_SPOOL_MAX="1501").code == 0


def test_twenty_at_once(caller: Caller) -> None:
    """Twenty DELs at once respect the bound exactly; each that was answered with success is there, whole."""
    processes = [caller.start("DEL", CNI_IFNAME=f"n{number}", USERSPACE_CNI_SPOOL_MAX="7") for number in range(20)]
    for process in processes:
        give_stdin(process)
    done = [finish(process, None) for process in processes]
    assert sorted(each.code for each in done) == [0] * 7 + [1] * 13
    kept = {f"n{number}" for number, each in enumerate(done) if each.code == 0}
    assert {entry.environ["CNI_IFNAME"] for entry in in_python(caller).entries()} == kept
    assert len(caller.entries) == 7
    for each in done:
        if each.code:
            refused(each, 11, "may hold 7")


def held(caller: Caller) -> int:
    """The spool's lock, held by a slow writer."""
    caller.spool.mkdir(parents=True)
    fd = os.open(caller.spool, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_lock_is_waited_for(caller: Caller) -> None:
    """A DEL waits for another writer, and writes nothing meanwhile."""
    lock = held(caller)
    with caller.start("DEL") as process:
        give_stdin(process)
        wait_until(lambda: _opened(process.pid, caller.spool), what="the shim to open the spool")
        assert caller.entries == []
        os.close(lock)
        assert finish(process, None).code == 0
    assert len(caller.entries) == 1


def test_lock_that_is_kept(impatient: Caller) -> None:
    """A lock that another process keeps until the deadline is 11."""
    lock = held(impatient)
    refused(impatient.run("DEL"), 11, str(impatient.spool), "timed out")
    os.close(lock)
    assert impatient.entries == []


def test_stopped_while_it_waits_for_the_lock(caller: Caller) -> None:
    """A DEL that is told to stop while it waits for the lock still spools."""
    lock = held(caller)
    with caller.start("DEL") as process:
        give_stdin(process)
        wait_until(lambda: _opened(process.pid, caller.spool), what="the shim to open the spool")
        process.terminate()
        os.close(lock)
        assert finish(process, None).code == 0
    assert len(caller.entries) == 1


def _opened(pid: int, path: Path) -> bool:
    """Whether the process has this file open."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return str(path) in names


def test_killed_writer(caller: Caller) -> None:
    """A writer that is killed leaves nothing that has a DEL's name, and no lock."""
    lock = held(caller)
    with caller.start("DEL") as process:
        give_stdin(process)
        wait_until(lambda: _opened(process.pid, caller.spool), what="the shim to open the spool")
        process.kill()
        process.wait(60)
    os.close(lock)
    assert caller.run("DEL").code == 0
    assert len(caller.entries) == 1


@pytest.mark.parametrize(("broken", "reason"), [("state", "Not a directory"), ("state/spool", "Not a directory")])
def test_file_in_the_way(caller: Caller, broken: str, reason: str) -> None:
    """A file where the spool should be is 11 with the reason."""
    path = caller.directory / broken
    path.parent.mkdir(exist_ok=True)
    path.touch()
    refused(caller.run("DEL"), 11, str(caller.spool), reason)


def test_link_in_the_way(caller: Caller) -> None:
    """A link in the place of the spool is not followed."""
    (caller.directory / "elsewhere").mkdir()
    caller.spool.parent.mkdir()
    caller.spool.symlink_to(caller.directory / "elsewhere")
    refused(caller.run("DEL"), 11, str(caller.spool))
    assert list((caller.directory / "elsewhere").iterdir()) == []


def test_file_size_limit(caller: Caller) -> None:
    """An entry that cannot be written whole is not there at all: 11 with the reason, and no temporary file."""
    with caller.start("DEL") as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        refused(finish(process, b"{" + b" " * 5000 + b"}"), 11, "File too large")
    assert caller.entries == []
    assert caller.run("DEL").code == 0


@pytest.mark.parametrize(("option", "reason"), [("ro", "Read-only file system"), ("size=8k", "No space left on device")])
def test_file_system_that_takes_nothing(caller: Caller, option: str, reason: str) -> None:
    """A state directory that is read-only or full is 11 with the reason."""
    caller.spool.parent.mkdir()
    script = f'cd "$1"; mount -t tmpfs -o {option} none state; "$0"; code=$?; find state -type f >&2; exit $code'
    command = ["unshare", "-m", "sh", "-c", script, caller.program, str(caller.directory)]
    environ = caller.environ("DEL", PATH=os.environ["PATH"])
    with subprocess.Popen(command, env=environ, stdin=-1, stdout=-1, stderr=-1) as process:
        done = finish(process, NETWORK + b" " * 50_000)
    refused(done, 11, str(caller.spool), reason)
    assert ".tmp-" not in done.stderr


def test_stdin_is_never_spooled_in_part(caller: Caller) -> None:
    """A DEL whose runtime dies amid stdin is refused with 6 and never kept: no agent could serve it."""
    with caller.start("DEL") as process:
        assert process.stdin
        process.stdin.write(NETWORK[:10])
        process.stdin.flush()
        wait_until(lambda: waits(process), what="the shim to wait for more")
        assert caller.entries == []
        process.stdin.close()
        process.stdin = None
        refused(finish(process, None), 6, "JSON")
    assert caller.entries == []


@pytest.mark.parametrize(
    ("code", "stdin", "variables"),
    [
        (6, b"", {}),
        (6, b"not json", {}),
        (6, b" {} x", {}),
        (4, NETWORK, {"CNI_CONTAINERID": "../x"}),
        (4, NETWORK, {"CNI_CONTAINERID": "_x"}),
        (4, NETWORK, {"CNI_IFNAME": "a/b"}),
        (4, NETWORK, {"CNI_IFNAME": "x" * 16}),
    ],
)
def test_what_no_agent_could_serve(caller: Caller, code: int, stdin: bytes, variables: dict[str, str]) -> None:
    """Without an agent, a DEL that an agent would refuse fails too: spooled, it would be lost."""
    refused(caller.run("DEL", stdin, **variables), code)
    assert caller.entries == []
    assert caller.run("DEL", b" \n" + NETWORK + b"\n ").code == 0
