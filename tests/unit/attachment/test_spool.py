"""The spool: entries come oldest first, invalid files are moved aside, and a DEL affects no newer attachment."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.lab.node.calls import call_plugin
from tests.lab.node.world import World, no_fault
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.records import record_key
from userspace_cni.attachment.spool import Entry, Spool
from userspace_cni.attachment.steps import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.cni import protocol
from userspace_cni.cni.call import CniAnswer
from userspace_cni.cni.request import Called

CONTAINER = "c0ffee0123456789"
STDIN = b'{"cniVersion":"1.1.0","name":"n","type":"userspace"}'
WITH_IPAM = b'{"cniVersion":"1.1.0","name":"n","type":"userspace","ipam":{"type":"host-local"}}'


def put(world: World, boottime_ns: int, *, boot: str = "boot-1", container: str = CONTAINER, stdin: bytes = STDIN) -> Path:
    """Spool a DEL as the shim does."""
    environ = {"CNI_CONTAINERID": container, "CNI_IFNAME": "net1", "CNI_PATH": "/bin"}
    extra = {"Called-Boot-Id": boot, "Called-Boottime-Ns": str(boottime_ns)}
    path = world.directory / "state" / "spool" / f"{boottime_ns:020}-1-00000000"
    path.parent.parent.mkdir(mode=0o700, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(protocol.request_bytes("/api/v1/del", environ, stdin, extra=extra))
    return path


def call(world: World, verb: str, container: str = CONTAINER) -> CniAnswer:
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}
    return call_plugin(environ, lambda: STDIN, lambda: world)


def drain(world: World) -> list[str]:
    actions: list[str] = []
    cleanup.drain(world.store, world.sandboxes, world.addresses, Deadline.after(60), actions.append)
    return actions


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, resident=True, now=100)


def test_a_carried_out_entry_is_recorded(world: World) -> None:
    """The entry is removed, and the record durably says `deleting`: emptying the run directory changes nothing."""
    assert call(world, "ADD").code == 0
    put(world, 101)
    assert drain(world) == ["spooled-del"]
    shutil.rmtree(world.directory / "live")
    assert [record.state for record in world.journal.records()] == ["deleting"]


def test_an_older_attachment_is_deleted(world: World) -> None:
    """A DEL that was called after the ADD becomes a record in state `deleting`, and the entry is removed."""
    assert call(world, "ADD").code == 0
    path = put(world, 101)
    assert drain(world) == ["spooled-del"]
    assert [record.state for record in world.journal.records()] == ["deleting"]
    assert not path.exists()
    cleanup.finish(world.store, world.driver, Deadline.after(60))
    assert world.true == set()


@pytest.mark.parametrize(("boot", "boottime_ns"), [("boot-1", 99), ("boot-1", 1), ("boot-0", 10**18)])
def test_a_newer_attachment_is_left_alone(world: World, boot: str, boottime_ns: int) -> None:
    """A DEL that was called before the ADD, or in an earlier boot, touches nothing and is forgotten."""
    assert call(world, "ADD").code == 0
    path = put(world, boottime_ns, boot=boot)
    assert drain(world) == []
    assert [record.state for record in world.journal.records()] == ["ready"]
    assert not path.exists()


def test_an_attachment_of_an_earlier_boot(world: World) -> None:
    """Any DEL deletes an attachment of an earlier boot, whatever the time of its call."""
    assert call(world, "ADD").code == 0
    world.boot = "boot-2"
    put(world, 1, boot="boot-2")
    assert drain(world) == ["spooled-del"]


def test_another_network(world: World) -> None:
    """A DEL of another network's name for the same interface does nothing."""
    assert call(world, "ADD").code == 0
    put(world, 101, stdin=STDIN.replace(b'"n"', b'"other"'))
    assert drain(world) == []
    assert [record.state for record in world.journal.records()] == ["ready"]


@pytest.mark.parametrize("verb", ["ADD", "DEL", "GC"])
def test_every_verb_carries_it_out_first(world: World, verb: str) -> None:
    """The next verb on the node carries out a spooled DEL before its own work, so that an ADD of the same name starts anew."""
    assert call(world, "ADD").code == 0
    put(world, 101)
    world.now = 200
    stdin = json.dumps({**json.loads(STDIN), "cni.dev/valid-attachments": []}).encode() if verb == "GC" else STDIN
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": CONTAINER,
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": "net1",
        "CNI_PATH": "/b",
    }
    assert call_plugin(environ, lambda: stdin, lambda: world).code == 0
    assert len(world.store.spool) == 0
    assert [record.boottime_ns for record in world.journal.records()] == ([200] if verb == "ADD" else [])


def test_what_no_record_knows(world: World) -> None:
    """Without a record, DEL looks for marked rows and runs the IPAM plugin; a record keeps both for the next pass."""
    put(world, 101, stdin=WITH_IPAM)
    assert drain(world) == ["spooled-del"]
    [record] = world.journal.records()
    assert (record.state, [step.kind for step in record.steps]) == ("deleting", ["lease", "port-ref", "port-ref"])


def test_a_busy_attachment_waits(world: World) -> None:
    """The entry of an attachment on which another call works stays, and the others are carried out."""
    busy, free = put(world, 101), put(world, 102, container="other")
    with world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert drain(world) == ["spooled-del"]
    assert (busy.exists(), free.exists()) == (True, False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"POST /api/v1/del HTTP/1.1\r\n",
        protocol.request_bytes("/api/v1/add", {"CNI_CONTAINERID": "c", "CNI_IFNAME": "i"}, STDIN),
        protocol.request_bytes("/api/v1/del", {"CNI_CONTAINERID": "c", "CNI_IFNAME": "i"}, STDIN),
        protocol.request_bytes(
            "/api/v1/del", {"CNI_CONTAINERID": "c"}, STDIN, extra={"Called-Boot-Id": "b", "Called-Boottime-Ns": "1"}
        ),
        protocol.request_bytes(
            "/api/v1/del",
            {"CNI_CONTAINERID": "c", "CNI_IFNAME": "i"},
            b"{",
            extra={"Called-Boot-Id": "b", "Called-Boottime-Ns": "1"},
        ),
    ],
    ids=["empty", "torn", "no DEL", "without a time", "without an interface", "no JSON"],
)
def test_files_that_are_no_entries(world: World, content: bytes) -> None:
    """An unreadable file is put aside with a message, so that it does not block the others, and is not deleted."""
    bad = put(world, 1)
    bad.write_bytes(content)
    put(world, 101)
    assert drain(world) == ["spooled-del"]
    assert not bad.exists()
    [kept] = (world.directory / "state" / "quarantine").iterdir()
    assert kept.read_bytes() == content


def test_oldest_first(tmp_path: Path) -> None:
    """Entries come in the order of their calls."""
    world = World(tmp_path)
    for boottime_ns in (300, 20, 1000):
        put(world, boottime_ns)
    assert [entry.called.boottime_ns for entry in world.store.spool.entries()] == [20, 300, 1000]
    assert len(world.store.spool) == 3


def test_half_written_entries(tmp_path: Path) -> None:
    """A dead writer's temporary file is no entry, and is removed; a living writer's is kept."""
    world = World(tmp_path)
    put(world, 1)
    half = tmp_path / "state" / "spool" / ".tmp-x"
    half.write_bytes(b"POST")
    assert len(list(world.store.spool.entries())) == 1
    fd = os.open(half.parent, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX)
        world.store.spool.sweep()
        assert half.exists()
    finally:
        os.close(fd)
    world.store.spool.sweep()
    assert not half.exists()


def test_what_is_forgotten_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished entry is removed durably, and one that is moved aside gets its new name first.

    So no power cut restores the first or loses the second.
    """
    spool, entries = Spool(str(tmp_path / "spool"), str(tmp_path / "aside")), tmp_path / "spool"
    entries.mkdir()
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    for name in ("1", "2"):
        (entries / name).touch()
    spool.remove("1")
    assert flushed == ["spool"]
    spool.put_aside("2", "it is none")
    assert flushed == ["spool", "aside", "spool"]


def test_a_spool_that_is_none(tmp_path: Path) -> None:
    """A file in the directory's place fails no verb."""
    world = World(tmp_path)
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "spool").write_text("")
    assert call(world, "ADD").code == 0
    assert call(world, "DEL").code == 0
    assert len(world.store.spool) == 0


def test_missing_spool(tmp_path: Path) -> None:
    """No directory is an empty spool."""
    assert list(Spool(f"{tmp_path}/none", f"{tmp_path}/q").entries()) == []


def test_newer_is_decided_within_a_boot(world: World) -> None:
    """Only times of the present boot are compared."""
    assert call(world, "ADD").code == 0
    [record] = world.journal.records()
    assert [cleanup.is_newer(record, Called("boot-1", time), world.store) for time in (99, 100, 101)] == [True, False, False]
    world.now = 50  # a damaged record that says it is of the future must not outlive every DEL
    assert not cleanup.is_newer(record, Called("boot-1", 1), world.store)
    world.boot, world.now = "boot-2", 1000
    assert not cleanup.is_newer(record, Called("boot-1", 99), world.store)


def test_a_look_moves_nothing(world: World) -> None:
    """Entries can be listed without moving invalid files aside."""
    bad = put(world, 1)
    bad.write_bytes(b"junk")
    put(world, 101)
    assert [entry.called.boottime_ns for entry in world.store.spool.entries(keep=True)] == [101]
    assert bad.exists()


def test_what_cannot_be_put_aside(world: World) -> None:
    """An invalid entry that cannot be moved aside does not block the others."""
    bad = put(world, 1)
    bad.write_bytes(b"junk")
    put(world, 101)
    (world.directory / "state" / "quarantine").write_text("")
    assert drain(world) == ["spooled-del"]
    assert bad.exists()


@pytest.mark.parametrize(("boottime_ns", "left"), [(99, ["ready"]), (101, [])])
def test_a_live_del_that_waited(world: World, boottime_ns: int, left: list[str]) -> None:
    """A DEL that waited while the interface was attached anew does not affect the new attachment; a newer DEL removes that."""
    assert call(world, "ADD").code == 0
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": CONTAINER, "CNI_IFNAME": "net1"}
    answer = call_plugin(environ, lambda: STDIN, lambda: world, Called("boot-1", boottime_ns))
    assert (answer.code, [record.state for record in world.journal.records()]) == (0, left)


class Died(BaseException):
    """The agent was killed."""


@pytest.mark.parametrize("kind", ["lease", "directory", "port", "config-file"])
def test_an_agent_that_dies_while_it_undoes_an_add(world: World, kind: str) -> None:
    """An ADD whose caller has gone is recorded as being deleted before anything of it goes: the next pass ends it."""
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}
    assert call_plugin(environ, lambda: WITH_IPAM, lambda: world).code == 0

    def die(when: str, step: Step) -> None:
        if (when, step.kind) == ("after undo", kind):
            raise Died

    world.fault = die
    with pytest.raises(Died):
        cleanup.undo(
            Entry("", environ, WITH_IPAM, Called("boot-1", 100)),
            world.store,
            world.driver,
            world.sandboxes,
            world.addresses,
            Deadline.after(60),
        )
    world.fault = no_fault
    assert [record.state for record in world.journal.records()] == ["deleting"]
    cleanup.finish(world.store, world.driver, Deadline.after(60))
    assert (world.true, world.journal.records()) == (set(), [])
