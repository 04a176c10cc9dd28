"""Power cuts: whatever unflushed writes of a verb are lost or torn, the next boot undoes all that the last one made.

The node's effects are the hostile ones: what outlives a boot (leases, directories, files, sockets, rows) was on the disk at once,
and rows that were deleted may be back. The next boot is one with the run directory gone, or as it was.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.crash.power_cuts import Change, Image, Named, Trace, Written, images, restore
from tests.lab.node.calls import call_plugin
from tests.lab.node.world import MemoryAddresses, MemoryDriver, MemorySwitch, World, name_of
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.facts import SocketPlace
from userspace_cni.attachment.steps import Lease, OvsPort, PortRef, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.cni import protocol

OLD, OTHER, NEW = "0" * 16, "1" * 16, "2" * 16
PLAIN = {"cniVersion": "1.1.0", "name": "n", "type": "userspace"}
LEASED = {**PLAIN, "ipam": {"type": "host-local"}}
LOST_WITH_THE_BOOT = ("mount:", "guard:", "link:", "shaper:", "announcement:")
LINKED = {**LEASED, "host": {"iftype": "veth"}, "bandwidth": {"ingressRate": 8_000_000, "egressRate": 4_000_000}}
PLACE = SocketPlace("/pods/both", "/pods", create=True, own=True)
SAMPLE = 200
"""How many power cuts with a run directory are tried of each story."""


@dataclass
class Disk(World):
    """A node whose effects are noted in the trace by number: the trace has their time, this class their content."""

    rows: dict[str, PortRef] = field(default_factory=dict)
    history: list[tuple[int, frozenset[str], Mapping[str, PortRef]]] = field(default_factory=list)
    trace: Trace | None = None
    began: int = 0
    """How many changes were made before the story began; before that nothing was promised."""

    def note(self) -> None:
        if self.trace:
            self.history.append((len(self.trace.changes), frozenset(self.true), dict(self.rows)))

    def driver(self, step: Step) -> MemoryDriver:
        """Drivers that note their effects, and keep rows."""
        return _Noting(self)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.addresses = _NotingAddresses(self)
        self.switch = _Rows(self)


@dataclass(frozen=True)
class _NotingAddresses(MemoryAddresses):
    world: Disk

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        answer = super().lease(step, deadline, lock)
        self.world.note()
        return answer


@dataclass(frozen=True)
class _Rows(MemorySwitch):
    world: Disk

    def list_marked(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        return [port for port in self.world.rows.values() if network is None or port.marks["network"] == network]


@dataclass
class _Noting(MemoryDriver):
    world: Disk

    def apply(self, step: Step, deadline: Deadline) -> Callable[[], None]:
        rest = super().apply(step, deadline)
        if isinstance(step, OvsPort):
            self.world.rows[step.name] = step.ref
        self.world.note()
        return rest

    def undo(self, step: Step, deadline: Deadline) -> None:
        super().undo(step, deadline)
        if isinstance(step, OvsPort | PortRef):
            self.world.rows.pop(step.name, None)
        self.world.note()


def call(world: World, verb: str, container: str, network: Mapping[str, Any] = PLAIN, ifname: str = "net1") -> int:
    """Make one call of a runtime; return its exit code."""
    world.now += 1
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": f"/run/netns/{container}", "CNI_IFNAME": ifname}
    return call_plugin(environ, json.dumps(network).encode, lambda: world).code


def add(world: Disk) -> None:
    assert call(world, "ADD", OLD) == 0


def add_leased(world: Disk) -> None:
    """Make an attachment with an address."""
    assert call(world, "ADD", OLD, LEASED) == 0


def add_linked(world: Disk) -> None:
    """Make an attachment of a kernel link with an address and limits, then detach it and attach another."""
    assert [call(world, "ADD", OLD, LINKED), call(world, "DEL", OLD, LINKED), call(world, "ADD", OTHER, LINKED)] == [0, 0, 0]


def come_and_go(world: Disk) -> None:
    """Attach and detach two pods, one with an address, two in one directory."""
    assert [call(world, "ADD", OLD, LEASED), call(world, "ADD", OLD, ifname="net2"), call(world, "ADD", OTHER)] == [0, 0, 0]
    assert [call(world, "DEL", OLD, LEASED), call(world, "DEL", OTHER), call(world, "DEL", OLD, ifname="net2")] == [0, 0, 0]


def come_back(world: Disk) -> None:
    """Attach, detach and attach the same name again."""
    assert [call(world, verb, OLD, LEASED) for verb in ("ADD", "DEL", "ADD")] == [0, 0, 0]


def add_in_vain(world: Disk) -> None:
    """Make an ADD that fails at its port and is undone."""
    world.fault = _fails("before apply", "port")
    assert call(world, "ADD", OLD, LEASED) == 1
    world.fault = World.fault


def delete_in_part(world: Disk) -> None:
    """Make a DEL that cannot remove the port, and another that can."""
    assert call(world, "ADD", OLD, LEASED) == 0
    world.fault = _fails("before undo", "port")
    assert call(world, "DEL", OLD, LEASED) == 1
    world.fault = World.fault
    assert call(world, "DEL", OLD, LEASED) == 0


def delete_spooled(world: Disk) -> None:
    """Spool a DEL of an attachment without a record, with an address: the next call carries it out."""
    world.true.add("lease")
    world.note()
    environ = {"CNI_CONTAINERID": OLD, "CNI_IFNAME": "net1", "CNI_PATH": "/bin"}
    extra = {"Called-Boot-Id": world.boot, "Called-Boottime-Ns": "1"}
    text = protocol.request_bytes("/api/v1/del", environ, json.dumps(LEASED).encode(), extra=extra)
    spool = world.directory / "state" / "spool"
    for path in (world.directory, spool.parent, spool):
        path.mkdir(mode=0o700)
    fd = os.open(spool / "00000000000000000001-1-00000000", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, text)
    os.fsync(fd)
    os.close(fd)
    fd = os.open(spool, os.O_RDONLY)
    os.fsync(fd)  # as the shim does before it answers
    os.close(fd)
    assert world.trace
    world.began = len(world.trace.changes)
    assert call(world, "ADD", OTHER) == 0
    cleanup.finish(world.store, world.driver, Deadline.after(60))


STORIES = (add, add_leased, add_linked, come_and_go, come_back, add_in_vain, delete_in_part, delete_spooled)


def _fails(when: str, kind: str) -> Callable[[str, Step], None]:
    def fault(point: str, step: Step) -> None:
        if (point, step.kind) == (when, kind):
            raise SwitchRefused("the switch says no", "")

    return fault


@dataclass(frozen=True)
class Cut:
    """A power cut: content of the disk, state of the node, rows of the switch."""

    image: Image
    true: frozenset[str]
    rows: Mapping[str, PortRef]


def cuts(world: Disk, trace: Trace, run: str) -> list[Cut]:
    """List every different power cut that the trace allows; with a run directory a sample, as nothing in it is ever flushed."""
    found: dict[Any, Cut] = {}
    ever: dict[str, PortRef] = {}
    true: frozenset[str] = frozenset()
    rows: Mapping[str, PortRef] = {}
    chance = random.Random(7)
    moments = iter([*world.history, (len(trace.changes) + 1, frozenset(), {})])
    at, next_true, next_rows = next(moments)
    for count in range(len(trace.changes) + 1):
        states = [(true, rows)]
        while at <= count:
            true, rows = next_true, next_rows
            ever |= rows
            states.append((true, rows))
            at, next_true, next_rows = next(moments)
        if count < world.began:
            continue
        changes = [each for each in trace.changes[:count] if run == "kept" or not is_of_the_run(each, trace)]
        for image in images(changes, chance):
            for truth, present in states:
                for switch in (present, ever):  # rows that were deleted may be back
                    key = (frozenset(image.items()), truth, frozenset(switch))
                    found.setdefault(key, Cut(image, truth, dict(switch)))
    every = list(found.values())
    return every if run == "gone" else chance.sample(every, min(SAMPLE, len(every)))


def is_of_the_run(change: Change, trace: Trace) -> bool:
    """Whether the change is about a file of the run directory, which the next boot does not have."""
    if isinstance(change, Named):
        return not change.path.startswith("state/")
    what = change.file if isinstance(change, Written) else change.what
    return not (trace.path_of(what) if isinstance(what, int) else f"{what}/").startswith("state/")


def power_cuts_of(
    story: Callable[[Disk], None], directory: Path, patch: pytest.MonkeyPatch, run: str, *, flushes: bool = True
) -> list[Cut]:
    """Run the story under trace, and list its power cuts."""
    world = Disk(directory, place=PLACE, deadline_s=5.0)
    world.trace = Trace(directory)
    with patch.context() as patched:
        world.trace.note(patched, flushes=flushes)
        story(world)
    return cuts(world, world.trace, run)


def wrong_after(cut: Cut, directory: Path) -> str:
    """Begin the next boot with an ADD, then detach all; return what is wrong, "" for nothing."""
    world = Disk(directory, place=PLACE, boot="boot-2", now=1)
    restore(cut.image, directory)
    world.true = {name for name in cut.true if not name.startswith(LOST_WITH_THE_BOOT)} | {f"port:{name}" for name in cut.rows}
    world.rows = dict(cut.rows)
    if code := call(world, "ADD", NEW):
        return f"ADD of the next boot answers {code}"
    [record, *others] = sorted(world.journal.records(), key=lambda each: each.container_id != NEW)
    if others or record.container_id != NEW:
        return f"records after it: {record.key}, {[other.key for other in others]}"
    needed = {name_of(step) for step in record.steps}
    if world.true != needed:
        return f"left: {sorted(world.true - needed)}, missing: {sorted(needed - world.true)}"
    if code := call(world, "DEL", NEW):
        return f"DEL of the next boot answers {code}"
    left = [*sorted(world.true), *(record.key for record in world.journal.records()), *(p for p, _ in world.journal.places())]
    return f"left in the end: {left}" if left else ""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, whose flushes cost nothing: thousands of boots run on it."""
    with TemporaryDirectory(prefix="uc-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize("run", ["gone", "kept"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_next_boot_undoes_the_last(
    memory: Path, monkeypatch: pytest.MonkeyPatch, story: Callable[[Disk], None], run: str
) -> None:
    """For each power cut, the first ADD of the next boot succeeds, and nothing of the last boot is left."""
    every = power_cuts_of(story, memory / "told", monkeypatch, run)
    for number, cut in enumerate(every):
        directory = memory / str(number)
        directory.mkdir()
        assert wrong_after(cut, directory) == "", (number, cut)
        shutil.rmtree(directory)
    print(f"{story.__name__}, run directory {run}: {len(every)} power cuts")
    assert len(every) >= 20


def test_a_disk_that_lies_is_found(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay can fail: without flushes, an address stays leased and a directory stays behind."""
    every = power_cuts_of(add_leased, memory / "told", monkeypatch, "gone", flushes=False)
    found = set()
    for number, cut in enumerate(every):
        directory = memory / str(number)
        directory.mkdir()
        found.add(wrong_after(cut, directory))
    assert any("lease" in wrong for wrong in found), found
    assert any("directory:" in wrong for wrong in found), found
