"""Undo files, state files and lists of holders: what is flushed, and what may be lost."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from localdb import Store
from localdb.atomic_files import Stamp, StoreDirectory
from tests.lab.node.calls import call_plugin
from tests.lab.node.stored import live, state_file, stored
from tests.lab.node.world import World
from tests.lab.switch.switch import wait_until
from userspace_cni.agent import flusher as flushing
from userspace_cni.agent.flusher import Flusher
from userspace_cni.attachment import cleanup, seen_records
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import Lease, OvsPort, PortRef, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import RecordRefused, SwitchRefused, Unavailable

CONTAINER = "0123456789abcdef"
NETWORK = {"cniVersion": "1.1.0", "name": "n", "type": "userspace"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A node without an agent."""
    return World(tmp_path)


def call(world: World, verb: str, container: str = CONTAINER, ifname: str = "net1", **keys: Any) -> int:
    """Make one call of a runtime; its exit code."""
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": ifname}
    return call_plugin(environ, json.dumps({**NETWORK, **keys}).encode, lambda: world).code


@dataclass
class Flushes:
    """Counts what the process flushes."""

    count: int = 0

    @classmethod
    def counted(cls, patch: pytest.MonkeyPatch) -> Flushes:
        counts, real = cls(), os.fsync

        def fsync(fd: int) -> None:
            counts.count += 1
            real(fd)

        patch.setattr(os, "fsync", fsync)
        return counts


@pytest.mark.parametrize(("keys", "files"), [({}, 1), ({"ipam": {"type": "host-local"}}, 2)], ids=["plain", "with addresses"])
def test_what_a_verb_flushes(world: World, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], files: int) -> None:
    """ADD flushes its undo file and the directory, twice with addresses; DEL flushes nothing."""
    assert call(world, "ADD", "another", **keys) == 0  # makes the directories, which is flushed
    flushes = Flushes.counted(monkeypatch)
    assert call(world, "ADD", **keys) == 0
    assert flushes.count == 2 * files
    assert call(world, "DEL", **keys) == 0
    assert flushes.count == 2 * files


def test_undo_files_are_not_rewritten(world: World) -> None:
    """From the first effect until all are undone the undo file stays the same; a state file says how far ADD has come."""
    seen: set[tuple[str, int, int, str]] = set()

    def look(_when: str, _step: Step) -> None:
        [path] = (world.directory / "state" / "attachments").iterdir()
        [state] = live(world.directory, "states")
        facts = path.stat()
        seen.add((path.name, facts.st_ino, facts.st_mtime_ns, json.loads(state.read_text())["value"]["state"]))

    world.fault = look
    assert [call(world, "ADD"), call(world, "DEL")] == [0, 0]
    assert len({each[:3] for each in seen}) == 1
    assert {each[3] for each in seen} == {"applying", "deleting"}
    assert live(world.directory, "states") == []


def test_lost_states(world: World) -> None:
    """Without its state file an attachment counts as ready, whatever its state was: only DEL undoes it."""
    assert call(world, "ADD") == 0
    shutil.rmtree(world.directory / "live")
    assert [record.state for record in world.journal.records()] == ["ready"]
    before = set(world.true)
    assert call(world, "ADD", "another") == 0
    assert before < world.true
    assert [call(world, "DEL", "another"), call(world, "DEL")] == [0, 0]
    assert world.true == set()


@pytest.mark.parametrize("content", ["", "{", '{"schema":1,"key":"k","value":{}}', "state: 1", "undone: x"])
def test_torn_states(world: World, content: str) -> None:
    """A state file that is unreadable, or holds an unknown state, is put aside; the attachment counts as ready."""
    assert call(world, "ADD") == 0
    [path] = live(world.directory, "states")
    if ":" in content and not content.startswith("{"):
        name, _, value = content.partition(": ")
        told = json.loads(path.read_text())
        told["value"] |= {name: value}
        content = json.dumps(told)
    path.write_text(content)
    assert [record.state for record in world.journal.records()] == ["ready"]
    assert live(world.directory, "states") == []
    assert call(world, "DEL") == 0
    assert (world.true, world.journal.records()) == (set(), [])


def test_states_of_another_boot(world: World) -> None:
    """A state file of another boot is ignored: what was undone then may exist again."""
    assert call(world, "ADD") == 0
    [record] = world.journal.records()
    world.journal.keep(record.to("deleting", steps=record.steps[:1]))
    assert [each.steps for each in world.journal.records()] == [record.steps[:1]]
    world.boot = "boot-2"
    assert [each.steps for each in world.journal.records()] == [record.steps]


def another_state(journal: Journal, record: Record) -> None:
    journal.mark_deleting(record)


def some_undone(journal: Journal, record: Record) -> None:
    journal.keep(record.to("deleting", steps=record.steps[:1]))


def another_undo_file(journal: Journal, record: Record) -> None:
    journal.write(record.to("applying", network="other", steps=record.steps[1:]))


def removed(journal: Journal, record: Record) -> None:
    journal.drop(record)


def one_more(journal: Journal, record: Record) -> None:
    journal.write(replace(record, ifname="net9"))


def no_states(journal: Journal, record: Record) -> None:
    shutil.rmtree(Path(journal.directory).parent / "live")


@pytest.mark.parametrize("change", [another_state, some_undone, another_undo_file, removed, one_more, no_states])
def test_what_another_process_changes_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[Journal, Record], None]
) -> None:
    """An agent that has listed the records reads none of them again, until another process changes one."""
    assert [call(world, "ADD"), call(world, "ADD", "other")] == [0, 0]
    agents, others = (Journal(f"{world.directory}/state", str(world.directory), print, world.boot_id) for _ in "ab")
    reads: list[str] = []
    real = StoreDirectory.read

    def read(self: StoreDirectory, name: str) -> bytes:
        reads.append(name)
        return real(self, name)

    monkeypatch.setattr(StoreDirectory, "read", read)

    def reads_nothing() -> bool:
        """Files that are a few ticks old are not trusted yet."""
        reads.clear()
        agents.records()
        return not reads

    wait_until(reads_nothing, what="a listing that reads no file")
    before = agents.records()
    change(others, before[0])
    after = agents.records()
    assert after == Journal(f"{world.directory}/state", str(world.directory), print, world.boot_id).records()
    assert after != before
    assert after[-1] is before[-1] or change is no_states  # then its result is gone, too


def test_a_listing_of_what_has_not_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is looked at while both directories are the same; what an editor writes into a file is seen within a minute."""
    assert call(world, "ADD") == 0
    journal = Journal(f"{world.directory}/state", str(world.directory), print, world.boot_id)
    looks: list[str] = []
    real = StoreDirectory.stamp

    def stamp(self: StoreDirectory, name: str) -> Stamp:
        looks.append(name)
        return real(self, name)

    monkeypatch.setattr(StoreDirectory, "stamp", stamp)

    def looks_at_nothing() -> bool:
        looks.clear()
        journal.records()
        return not looks

    wait_until(looks_at_nothing, what="a listing that looks at no file")
    [before] = journal.records()
    [file] = (world.directory / "state" / "attachments").iterdir()
    file.write_text(file.read_text().replace('"network": "n"', '"network": "m"'))
    assert journal.records() == [before]
    monkeypatch.setattr(seen_records, "RELIST_S", 0.0)
    [after] = journal.records()
    assert (before.network, after.network) == ("n", "m")


def test_a_listing_makes_nothing(tmp_path: Path) -> None:
    """Where there are no records, nothing is made in the state directory, which may be read-only."""
    journal = Journal(f"{tmp_path}/state", str(tmp_path), print, lambda: "boot")
    (tmp_path / "state").mkdir()
    assert journal.records() == journal.records() == []
    assert list((tmp_path / "state").iterdir()) == []


def test_holders_are_built_from_undo_files(world: World) -> None:
    """Lost lists of holders are built again when they are next read, with the things that we made."""
    assert [call(world, "ADD", ifname=name) for name in ("net1", "net2")] == [0, 0]
    before = world.journal.places()
    [(_, shared)] = before
    assert shared.made
    shutil.rmtree(world.directory / "live")
    assert world.journal.places() == before
    assert [call(world, "DEL", ifname=name) for name in ("net1", "net2")] == [0, 0]
    assert world.true == set()


def test_lists_that_are_lost_in_a_turn(world: World) -> None:
    """Lists of holders that another program removes while a call has its turn are built again after it."""
    assert call(world, "ADD") == 0
    before = world.journal.places()
    with world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(30)):
        assert world.journal.places() == before
        shutil.rmtree(world.directory / "live")
    assert world.journal.places() == before


def test_a_turn_stays_with_what_it_has_found(tmp_path: Path) -> None:
    """In its turn a thread does not ask again which state directory there is; other threads and later turns see that it was
    replaced."""
    journal = Journal(f"{tmp_path}/state", str(tmp_path), print, lambda: "boot")
    first, other, seen = journal.identity(), "0" * 32, []
    with journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(30)):
        assert journal.identity() == first
        (tmp_path / "state" / "identity").write_text(f"{other}\n")
        beside = threading.Thread(target=lambda: seen.append(journal.identity()))
        beside.start()
        beside.join()
        assert (journal.identity(), seen) == (first, [other])
    assert journal.identity() == other


def test_what_was_adopted_lasts(world: World) -> None:
    """An adopted thing is remembered when the run directory is lost, and forgotten with its last holder."""
    world.true.add(f"directory:/pods/{CONTAINER[:12]}")
    assert call(world, "ADD") == 0
    [(_, shared)] = world.journal.places()
    [record] = world.journal.records()
    thing = next(step.resource for step in record.steps if step.resource and step.resource.key not in shared.made)
    world.journal.adopt(thing)
    shutil.rmtree(world.directory / "live")
    assert thing.key in world.journal.places()[0][1].made
    assert call(world, "DEL") == 0
    assert (world.true, list((world.directory / "state" / "places").iterdir())) == (set(), [])


def test_an_answered_del_is_not_forgotten(world: World) -> None:
    """A DEL that left its port for later was answered: it is finished even if the run directory was emptied meanwhile."""
    assert call(world, "ADD") == 0

    def away(when: str, step: Step) -> None:
        if when == "before undo" and isinstance(step, OvsPort):
            raise Unavailable("OVSDB is away", "")

    world.fault = away
    assert call(world, "DEL") == 0
    shutil.rmtree(world.directory / "live")
    assert [(each.state, each.boot_id) for each in world.journal.records()] == [("deleting", "boot-1")]
    world.fault = World.fault
    assert call(world, "DEL", "another") == 0
    assert (world.true, world.journal.records()) == (set(), [])


def test_an_adopted_place_without_holders_is_dropped(world: World) -> None:
    """An entry of a place without holders is dropped at the next listing: it would claim things that others make."""
    assert call(world, "ADD") == 0
    Store(world.directory / "state", world.directory / "locks").put("places", "/pods/gone", {"made": ["directory:/pods/gone"]})
    shutil.rmtree(world.directory / "live")
    assert len(world.journal.places()) == 1
    assert list((world.directory / "state" / "places").iterdir()) == []


def test_a_run_directory_that_takes_no_states(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no state can be written the undo file says that the attachment is
    being deleted, and takes precedence over a state file.
    """
    assert call(world, "ADD") == 0
    [record] = world.journal.records()

    class Full(Journal):
        def advance(self, record: Record) -> None:
            raise RecordRefused("writing the state", "No space left on device")

    full = Full(f"{world.directory}/state", str(world.directory), print, world.boot_id)
    full.mark_deleting(record)
    [path] = (world.directory / "state" / "attachments").iterdir()
    assert state_file(world.directory, path)
    assert [each.state for each in world.journal.records()] == ["deleting"]
    assert [each["state"] for each in stored(world.directory / "state", Path("/nowhere"))] == ["deleting"]


def test_another_boot_is_undone_once(world: World) -> None:
    """Before the first ADD of a boot each attachment of the last boot is undone; one that cannot be undone delays no ADD."""
    assert [call(world, "ADD", "stubborn"), call(world, "ADD", "willing")] == [0, 0]
    tried: list[str] = []

    def fault(when: str, step: Step) -> None:
        if when == "before undo" and isinstance(step, OvsPort) and step.marks["container-id"] == "stubborn":
            tried.append(when)
            raise SwitchRefused("no", "")

    world.boot, world.fault, world.resident = "boot-2", fault, True
    for name in ("first", "second"):
        assert call(world, "ADD", name) == 0
        assert len(tried) == 1
        assert sorted(each.container_id for each in world.journal.records() if each.boot_id == "boot-1") == ["stubborn"]


@pytest.mark.parametrize("point", ["before undo", "after undo"])
def test_a_death_while_undoing_another_boot(world: World, point: str) -> None:
    """When a process dies while it undoes another boot's attachments, the next ADD finishes that."""
    assert [call(world, "ADD", "a"), call(world, "ADD", "b")] == [0, 0]

    class Death(BaseException):
        pass

    def die(when: str, step: Step) -> None:
        if when == point and isinstance(step, OvsPort):
            raise Death

    world.boot, world.fault = "boot-2", die
    with pytest.raises(Death):
        cleanup.settle(world.store, world.driver, world.switch, world.sandboxes, Deadline.after(60))
    assert not world.journal.is_settled
    world.fault = World.fault
    assert call(world, "ADD") == 0
    assert [each.container_id for each in world.journal.records()] == [CONTAINER]
    assert call(world, "DEL") == 0
    assert world.true == set()


def test_no_time_to_undo_another_boot(world: World) -> None:
    """An ADD without enough time answers 11 and begins nothing; the next one continues."""
    assert call(world, "ADD") == 0
    world.boot, world.deadline_s, world.resident = "boot-2", 0.0, True
    with pytest.raises(Unavailable):
        cleanup.settle(world.store, world.driver, world.switch, world.sandboxes, Deadline.after(0))
    assert not world.journal.is_settled
    world.deadline_s = 10.0
    assert call(world, "ADD", "another") == 0
    assert [each.container_id for each in world.journal.records()] == ["another"]


def test_rows_of_another_boot_without_a_record(world: World) -> None:
    """A port of ours that no record names, of another boot, is removed; one of this boot or of another store is not."""
    marks = {"owner": "userspace-cni", "network": "n", "ifname": "net1", "store": world.journal.identity()}
    old = PortRef("old", "br0", {**marks, "container-id": "a", "boot-id": "boot-0"})
    ours = replace(old, name="ours", marks={**marks, "container-id": "b", "boot-id": "boot-1"})
    theirs = replace(old, name="theirs", marks={**old.marks, "store": "f" * 32})
    world.marked = [old, ours, theirs]
    world.true = {f"port:{port.name}" for port in world.marked}
    assert call(world, "ADD") == 0
    assert {name for name in world.true if not name.startswith(("directory", "mount", "socket", "file"))} == {
        "port:ours",
        "port:theirs",
        f"port:{CONTAINER[:12]}-net1",
    }


@pytest.mark.parametrize("ifname", ["net1", "net@1"])
def test_states_without_a_record_are_swept(world: World, ifname: str) -> None:
    """A state that was written before its undo file could be is removed, unless another call works on it."""
    journal = world.journal
    journal.identity()
    for name in ("a", "b"):
        journal.advance(Record("pending", "n", name, ifname))
    with journal.turn_lock(record_key("b", ifname), Deadline.after(60)):
        world.journal.sweep()
        assert [path.name for path in live(world.directory, "states")] == [f"b@{ifname}.json"]
    world.journal.sweep()
    assert live(world.directory, "states") == []


def test_states_with_a_record_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that finds a record for each state has looked at names alone."""
    assert [call(world, "ADD"), call(world, "ADD", "other")] == [0, 0]
    world.journal.sweep()
    read_in: set[str] = set()
    real = StoreDirectory.read

    def read(self: StoreDirectory, name: str) -> bytes:
        read_in.add(Path(self.path).name)
        return real(self, name)

    monkeypatch.setattr(StoreDirectory, "read", read)
    world.journal.sweep()
    assert read_in.isdisjoint({"attachments", "states"})
    assert len(live(world.directory, "states")) == 2


@dataclass
class Disk:
    """Records on a disk that may refuse to be flushed."""

    refuses: bool = False
    unflushed: bool = False
    flushed: int = 0
    on_unflushed: Callable[[], None] = lambda: None

    def remove(self) -> None:
        """A record is removed, as of `Journal.drop`."""
        self.unflushed = True
        self.on_unflushed()

    def flush(self) -> None:
        if self.refuses:
            raise RecordRefused("flushing the records", "Input/output error")
        self.unflushed = False
        self.flushed += 1


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def flusher(disk: Disk, failures: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Flusher]:
    """The thread, running, and looking often."""
    monkeypatch.setattr(flushing, "BEAT_S", 0.02)
    made = Flusher(lambda: disk, lambda: failures.append("failed"))
    disk.on_unflushed = made.ask
    made.start()
    yield made
    made.stop()
    wait_until(lambda: not made.alive, what="the flusher to end")


def test_flushing_behind(disk: Disk, flusher: Flusher) -> None:
    """A removed record is flushed soon, once, and nothing is flushed otherwise."""
    disk.remove()
    wait_until(lambda: disk.flushed == 1, what="the flush")
    assert not disk.unflushed
    assert flusher.alive


def test_a_disk_that_refuses(disk: Disk, flusher: Flusher, failures: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each failed flush is counted, logged once, and repeated when the disk works again."""
    disk.refuses = True
    disk.remove()
    wait_until(lambda: len(failures) >= 2, what="two failures")
    disk.refuses = False
    wait_until(lambda: disk.flushed == 1, what="the flush")
    assert capsys.readouterr().err.count("Input/output error") == 1
    assert flusher.alive


def test_the_last_flush(disk: Disk, failures: list[str]) -> None:
    """An agent that ends flushes once more."""
    flusher = Flusher(lambda: disk, lambda: failures.append("failed"))
    flusher.start()
    disk.unflushed = True
    flusher.stop()
    assert disk.flushed == 1


def test_drops_are_flushed(world: World) -> None:
    """After DEL there is something to flush, after a flush nothing."""
    journal = Journal(f"{world.directory}/state", str(world.directory), print, world.boot_id)
    record = Record("pending", "n", CONTAINER, "net1", boot_id="boot-1", steps=(Lease("p", "{}", {}),))
    told: list[str] = []
    journal.on_unflushed = lambda: told.append("unflushed")
    journal.write(record)
    assert not journal.unflushed
    journal.drop(record)
    journal.drop(record)
    assert (journal.unflushed, told) == (True, ["unflushed"])
    journal.flush()
    assert not journal.unflushed
