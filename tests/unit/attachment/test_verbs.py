"""The verbs as folds over steps, on a node in memory: what is left, and in what order, whatever fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.node.calls import call_plugin
from tests.lab.node.inside import Clock
from tests.lab.node.world import MemoryDriver, World, no_fault
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.attachment_store import AttachmentStore
from userspace_cni.attachment.node import Node
from userspace_cni.attachment.records import record_key
from userspace_cni.attachment.spool import Entry, Spool
from userspace_cni.attachment.steps import Lease, OvsPort, PortRef, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Interrupted, NotServing, StepFailed, Unavailable
from userspace_cni.cni import protocol
from userspace_cni.linux import instant as deadline_module

CONTAINER = "0123456789abcdef0123456789abcdef"
IPAM = {"type": "host-local"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def call(world: World, verb: str, container: str = CONTAINER, ifname: str = "net1", **keys: Any) -> tuple[int, Any]:
    """Exit code and decoded stdout of one call."""
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace", **keys}).encode()
    variables = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": ifname,
        "CNI_PATH": "/opt/cni/bin",
    }
    answer = call_plugin(variables, lambda: stdin, lambda: world)
    return answer.code, json.loads(answer.output) if answer.output else None


def listing(attachments: object) -> dict[str, Any]:
    return {"cni.dev/valid-attachments": attachments}


def leftovers(world: World) -> tuple[set[str], list[Any], list[Any]]:
    """What exists, the records, and the shared resources."""
    return world.true, world.journal.records(), world.journal.places()


NOTHING: tuple[set[str], list[Any], list[Any]] = (set(), [], [])


@pytest.mark.parametrize("mode", ["client", "server"])
def test_add_then_del(world: World, mode: str) -> None:
    """ADD makes every step true and answers; DEL is silent and leaves nothing."""
    code, result = call(world, "ADD", ipam=IPAM, host={"vhost": {"mode": mode}})
    assert code == 0
    assert result["interfaces"][0]["name"] == "net1"
    assert result["ips"] == [{"address": "10.1.2.3/24", "interface": 0}]
    assert f"port:{CONTAINER[:12]}-net1" in world.true
    assert call(world, "DEL", ipam=IPAM) == (0, None)
    assert leftovers(world) == NOTHING


@pytest.mark.parametrize("mode", ["client", "server"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(8))
def test_failure_at_every_step(world: World, when: str, number: int, mode: str) -> None:
    """Whichever step of ADD fails, before or after its effect, nothing is left and the step's error is the answer."""
    seen: list[str] = []

    def fault(point: str, step: Step) -> None:
        if point in (f"{when} apply", f"{when} lease"):
            seen.append(step.kind)
            if len(seen) == number + 1:
                raise StepFailed(f"injected at {step.kind}")

    world.fault = fault
    keys: dict[str, Any] = {"ipam": IPAM, "host": {"vhost": {"mode": mode}}}
    code, answer = call(world, "ADD", runtimeConfig={"CNIDeviceInfoFile": "/run/devinfo"}, **keys)
    if len(seen) <= number:
        assert code == 0
        assert number >= 6
        return
    assert (code, answer["code"], answer["msg"]) == (1, 100, f"injected at {seen[number]}")
    assert leftovers(world) == NOTHING


def test_a_shared_thing_is_made_and_unmade_under_its_places_lock(world: World) -> None:
    """Meanwhile no other call changes its list of holders, or concludes that it was the last one."""
    seen: list[tuple[str, bool]] = []

    def is_locked(place: str) -> bool:
        try:
            with world.journal.place_lock(place, Deadline.after(0.05)):
                return False
        except Unavailable:
            return True

    def look(point: str, step: Step) -> None:
        if point in ("before apply", "before undo") and step.resource and not step.resource.exclusive:
            with ThreadPoolExecutor(1) as another:
                seen.append((point, another.submit(is_locked, step.resource.place).result()))

    world.fault = look
    assert call(world, "ADD")[0] == 0
    assert call(world, "DEL")[0] == 0
    assert set(seen) == {("before apply", True), ("before undo", True)}


def test_failed_add_whose_undo_fails(world: World) -> None:
    """What cannot be undone stays recorded with just these steps, is named in the error, and is finished by the next call."""

    def fault(point: str, step: Step) -> None:
        if point == "after apply" and step.kind == "config-file":
            raise StepFailed("disk gone")
        if point == "before undo" and step.kind == "port":
            raise Unavailable("OVS gone")

    world.fault = fault
    code, answer = call(world, "ADD")
    assert code == 1
    assert "disk gone" in answer["msg"]
    assert "port (OVS gone)" in answer["details"]
    [record] = world.journal.records()
    assert (record.state, [step.kind for step in record.steps]) == ("deleting", ["port"])
    world.fault = lambda _point, _step: None
    assert call(world, "DEL", container="another") == (0, None)
    assert leftovers(world) == NOTHING


def test_second_add_of_a_live_attachment(world: World) -> None:
    """A repeated ADD is refused and the first attachment stays untouched."""
    assert call(world, "ADD")[0] == 0
    before = leftovers(world)
    code, answer = call(world, "ADD")
    assert (code, answer["code"]) == (1, 101)
    assert leftovers(world) == before


def test_name_is_taken_over_all_networks(world: World) -> None:
    """An interface name is one per container, whatever the network."""
    assert call(world, "ADD")[0] == 0
    assert call(world, "ADD", name="other")[1]["code"] == 101


def test_kernel_interface_of_the_name(world: World) -> None:
    """A kernel interface of that name in the container refuses ADD before any effect."""
    world.links.add(("/run/netns/x", "net1"))
    assert call(world, "ADD")[1]["code"] == 101
    assert leftovers(world) == NOTHING


def test_unfinished_add_starts_over(world: World) -> None:
    """An ADD that finds a dead one's remains undoes them and continues."""

    def die(point: str, step: Step) -> None:
        if point in ("after apply", "before undo") and step.kind in ("port", "pod-mount"):
            raise Unavailable("died here")

    world.fault = die
    assert call(world, "ADD")[0] == 1
    assert world.journal.records()[0].state == "deleting"
    world.fault = lambda _point, _step: None
    assert call(world, "ADD")[0] == 0
    assert call(world, "DEL") == (0, None)
    assert leftovers(world) == NOTHING


def test_one_is_finished_however_late_it_is(world: World) -> None:
    """Even if reading the records takes all of the time for it, each call finishes one unfinished attachment."""
    for container in ("first", "second"):
        assert call(world, "ADD", container=container)[0] == 0
    world.boot = "boot-2"
    for left in (1, 0):
        cleanup.finish(world.store, world.driver, Deadline.after(0))
        assert len(world.journal.records()) == left
    assert leftovers(world) == NOTHING


def test_what_is_imported_takes_nothing_of_the_time_to_finish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drivers of an unfinished attachment are imported before the time for undoing it begins."""
    order: list[str] = []
    assert call(world, "ADD")[0] == 0
    world.boot = "boot-2"
    after = Deadline.after
    monkeypatch.setattr(MemoryDriver, "prepare", lambda _self: order.append("prepare"))

    def begin(seconds: float) -> Deadline:
        order.append("time")
        return after(seconds)

    monkeypatch.setattr(cleanup, "Deadline", SimpleNamespace(after=begin))
    cleanup.finish(world.store, world.driver, Deadline.after(60))
    assert order[0] == "prepare"
    assert order[-1] == "time"
    assert leftovers(world) == NOTHING


def test_two_holders_of_a_directory(world: World) -> None:
    """A directory and its mount stay until the last of two interfaces in it is gone."""
    assert call(world, "ADD", ifname="net1")[0] == 0
    shared = {name for name in world.true if name.startswith(("directory", "mount"))}
    assert len(shared) == 2
    assert call(world, "ADD", ifname="net2")[0] == 0
    assert call(world, "DEL", ifname="net1") == (0, None)
    assert shared <= world.true
    assert call(world, "DEL", ifname="net2") == (0, None)
    assert leftovers(world) == NOTHING


def test_second_holder_fails(world: World) -> None:
    """A second attachment that fails in a shared directory takes nothing from the first."""
    assert call(world, "ADD", ifname="net1")[0] == 0
    before = leftovers(world)

    def fault(point: str, step: Step) -> None:
        if point == "after apply" and step.kind == "config-file":
            raise StepFailed("injected")

    world.fault = fault
    assert call(world, "ADD", ifname="net2")[0] == 1
    assert leftovers(world) == before


def test_directory_that_was_there(world: World) -> None:
    """A directory that existed before ADD is never removed."""
    world.true.add(f"directory:/pods/{CONTAINER[:12]}")
    assert call(world, "ADD")[0] == 0
    assert call(world, "DEL") == (0, None)
    assert world.true == {f"directory:/pods/{CONTAINER[:12]}"}


def test_socket_name_has_one_owner(world: World) -> None:
    """Two attachments cannot have the same socket path: the second is refused and leaves nothing of its own."""
    host = {"vhost": {"mode": "client", "socketfile": "same"}}
    assert call(world, "ADD", ifname="net1", host=host)[0] == 0
    before = leftovers(world)
    code, answer = call(world, "ADD", ifname="net2", host=host)
    assert (code, answer["code"]) == (1, 105)
    assert leftovers(world) == before


def test_del_works_from_the_record(world: World) -> None:
    """DEL needs no configuration: a stripped one removes all, the lease with the ADD's own stdin."""
    leases: list[Lease] = []

    def watch(point: str, step: Step) -> None:
        if point == "before undo" and isinstance(step, Lease):
            leases.append(step)

    assert call(world, "ADD", ipam={**IPAM, "subnet": "10.1.2.0/24"})[0] == 0
    world.fault = watch
    assert call(world, "DEL") == (0, None)
    assert leftovers(world) == NOTHING
    assert json.loads(leases[0].stdin)["ipam"]["subnet"] == "10.1.2.0/24"


def test_del_without_add(world: World) -> None:
    """DEL without an ADD succeeds, also when repeated, and still reaches IPAM."""
    reached: list[str] = []
    world.fault = lambda point, step: reached.append(step.kind) if point == "before undo" else None
    for _ in range(3):
        assert call(world, "DEL", ipam=IPAM) == (0, None)
    assert reached.count("lease") == 3
    assert leftovers(world) == NOTHING


def test_del_of_another_network(world: World) -> None:
    """A DEL for another network does not touch the attachment of that name."""
    assert call(world, "ADD")[0] == 0
    before = leftovers(world)
    assert call(world, "DEL", name="other") == (0, None)
    assert leftovers(world) == before


def test_del_while_the_switch_is_away(world: World) -> None:
    """DEL records and answers success when only the switch is away; the rest is undone at once, the port later."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0

    def away(point: str, step: Step) -> None:
        if isinstance(step, OvsPort):
            raise Unavailable("OVSDB is away")

    world.fault = away
    assert call(world, "DEL", ipam=IPAM) == (0, None)
    assert world.true == {f"port:{CONTAINER[:12]}-net1"}
    [record] = world.journal.records()
    assert record.state == "deleting"
    world.fault = lambda _point, _step: None
    assert call(world, "ADD", container="fedcba")[0] == 0
    assert [record.container_id for record in world.journal.records()] == ["fedcba"]


@pytest.mark.parametrize("kind", ["config-file", "socket-file"])
def test_what_lies_in_a_directory_keeps_it(world: World, kind: str) -> None:
    """A directory stays while a thing of ours in it could not be removed: otherwise nothing would remove that."""
    assert call(world, "ADD")[0] == 0
    [directory] = (name for name in world.true if name.startswith("directory:"))

    def fault(when: str, step: Step) -> None:
        if when == "before undo" and step.kind == kind:
            raise Unavailable("no descriptor is left")

    world.fault = fault
    assert call(world, "DEL")[0] == 1
    assert directory in world.true
    [record] = world.journal.records()
    assert [step.kind for step in record.steps] == ["directory", kind]
    world.fault = no_fault
    assert call(world, "DEL")[0] == 0
    assert leftovers(world) == NOTHING


def test_del_goes_on_after_a_failure(world: World) -> None:
    """One failing step does not stop the others; its error is the answer, and a second DEL ends it."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0

    def refuse(point: str, step: Step) -> None:
        if point == "before undo" and step.kind == "lease":
            raise StepFailed("file not found: no such file or directory")

    world.fault = refuse
    code, answer = call(world, "DEL", ipam=IPAM)
    assert (code, answer["code"]) == (1, 100)
    assert "not found" not in answer["msg"]
    assert "no such file or directory" not in answer["msg"].lower()
    assert world.true == {"lease"}
    world.fault = lambda _point, _step: None
    assert call(world, "DEL", ipam=IPAM) == (0, None)
    assert leftovers(world) == NOTHING


class SlowDriver(MemoryDriver):
    """Its undo takes so many seconds of a busy machine, and fails if it has less time."""

    clock: Clock
    seconds = 4.0
    undone: list[str]

    def undo(self, step: Step, deadline: Deadline) -> None:
        self.clock.skip(min(self.seconds, deadline.remaining()))
        deadline.require(f"undoing step '{step.kind}'")
        self.undone.append(step.kind)
        super().undo(step, deadline)


@pytest.fixture
def slow(world: World, monkeypatch: pytest.MonkeyPatch) -> type[SlowDriver]:
    """The node's drivers on a machine with slow undos; each call has half a minute."""
    clock = Clock()
    driver = type("SlowDriver", (SlowDriver,), {"clock": clock, "undone": []})
    monkeypatch.setattr(deadline_module, "time", clock)
    monkeypatch.setattr(world, "deadline_s", 30.0)
    monkeypatch.setattr(world, "driver", lambda _step: driver(world))
    return driver


def test_a_busy_machine_has_the_time_of_the_caller_to_undo(world: World, slow: type[SlowDriver]) -> None:
    """Each step takes seconds: one DEL undoes all of them in its own time."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0
    assert call(world, "DEL", ipam=IPAM) == (0, None)
    assert leftovers(world) == NOTHING
    assert len(slow.undone) >= 5


def test_what_an_earlier_add_left_on_a_busy_machine(world: World, slow: type[SlowDriver]) -> None:
    """ADD, too, uses its caller's time for what it has to undo before it begins."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0
    record = world.journal.read(CONTAINER, "net1")
    assert record
    world.journal.write(record.to("applying"))
    assert call(world, "ADD", ipam=IPAM)[0] == 0
    assert len(slow.undone) >= 5


def test_what_was_undone_stays_undone(world: World, slow: type[SlowDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    """A DEL that runs out of time answers 11 with a part undone: the next DELs do only the rest."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0
    monkeypatch.setattr(world, "deadline_s", 10.0)
    codes: list[int] = []
    while not codes or codes[-1]:
        code, answer = call(world, "DEL", ipam=IPAM)
        codes.append(code)
        record = world.journal.read(CONTAINER, "net1")
        assert (answer or {}).get("code", 0) in (0, 11)
        assert record is None or not {step.kind for step in record.steps} & set(slow.undone)
        assert len(codes) <= 8
    assert len(codes) > 1
    assert len(slow.undone) == len(set(slow.undone))
    assert leftovers(world) == NOTHING


def test_reboot(world: World) -> None:
    """After a reboot the next verb undoes what the last boot left, and the name is free again."""
    assert call(world, "ADD", ipam=IPAM)[0] == 0
    world.boot = "boot-2"
    assert call(world, "DEL", container="another") == (0, None)
    assert leftovers(world) == NOTHING


def test_pod_removes_its_placed_socket(world: World) -> None:
    """Calls for other containers place a missing server-mode socket again, and never wait for it."""
    assert call(world, "ADD", host={"vhost": {"mode": "server"}})[0] == 0
    [placed] = [name for name in world.true if name.startswith("socket:")]
    world.true.discard(placed)
    assert call(world, "DEL", container="another") == (0, None)
    assert placed in world.true
    assert world.made_again == ["placed-socket"]


def test_interrupted_add(world: World) -> None:
    """A signal amid ADD undoes it and answers 11."""

    def interrupt(point: str, step: Step) -> None:
        if point == "after apply" and step.kind == "port":
            raise Interrupted("stopped by SIGTERM")

    world.fault = interrupt
    code, answer = call(world, "ADD", ipam=IPAM)
    assert (code, answer["code"]) == (1, 11)
    assert leftovers(world) == NOTHING


def test_bug_in_a_driver(world: World) -> None:
    """An unexpected exception is answered with 999 and undoes the ADD; no traceback reaches stdout."""

    def fault(point: str, step: Step) -> None:
        if point == "after apply" and step.kind == "port":
            raise ZeroDivisionError("oops")

    world.fault = fault
    code, answer = call(world, "ADD")
    assert (code, answer["code"]) == (1, 999)
    assert "ZeroDivisionError" in answer["msg"]
    assert leftovers(world) == NOTHING


def test_requested_address_that_is_not_given(world: World) -> None:
    """An address that runtimeConfig asks for and IPAM does not give fails ADD with 7, and the lease is released."""
    code, answer = call(world, "ADD", ipam=IPAM, runtimeConfig={"ips": ["10.9.9.9/24"]})
    assert (code, answer["code"]) == (1, 7)
    assert leftovers(world) == NOTHING


def test_check(world: World) -> None:
    """CHECK passes right after ADD, forwards to IPAM, and names what drifted."""
    _, result = call(world, "ADD", ipam=IPAM)
    assert call(world, "CHECK", prevResult=result, ipam=IPAM) == (0, None)
    assert world.forwarded == ["CHECK"]
    world.true.discard(f"port:{CONTAINER[:12]}-net1")
    code, answer = call(world, "CHECK", prevResult=result, ipam=IPAM)
    assert (code, answer["code"]) == (1, 103)
    assert "port" in answer["msg"]


def test_check_needs_a_previous_result(world: World) -> None:
    """CHECK without prevResult is 7; with one that has not this interface, or without a record, 102."""
    _, result = call(world, "ADD")
    assert call(world, "CHECK")[1]["code"] == 7
    assert call(world, "CHECK", prevResult={**result, "interfaces": []})[1]["code"] == 102
    assert call(world, "DEL") == (0, None)
    assert call(world, "CHECK", prevResult=result)[1]["code"] == 102


def test_gc(world: World) -> None:
    """GC removes the stale attachments of its network only, and is silent; a second run finds nothing."""
    for container, network in (("aa", "n"), ("bb", "n"), ("cc", "other")):
        assert call(world, "ADD", container=container, name=network)[0] == 0
    valid = listing([{"containerID": "bb", "ifname": "net1"}])
    for _ in range(2):
        assert call(world, "GC", **valid) == (0, None)
        assert sorted(record.container_id for record in world.journal.records()) == ["bb", "cc"]


def test_gc_without_the_list(world: World) -> None:
    """GC without its list is 7, removes nothing and forwards nothing."""
    assert call(world, "ADD")[0] == 0
    before = leftovers(world)
    assert call(world, "GC", ipam=IPAM)[1]["code"] == 7
    assert leftovers(world) == before
    assert world.forwarded == []


def test_gc_of_an_empty_list(world: World) -> None:
    """A null list means that every attachment of the network is stale."""
    assert call(world, "ADD")[0] == 0
    assert call(world, "GC", **listing(None)) == (0, None)
    assert leftovers(world) == NOTHING


def test_gc_sweeps_lost_records(world: World) -> None:
    """A port with our marks and no record goes with GC, together with the directory it held; another store's stays."""
    assert call(world, "ADD")[0] == 0
    [record] = world.journal.records()
    port = next(step.ref for step in record.steps if isinstance(step, OvsPort))
    foreign = PortRef("ffff-net1", "br0", {**port.marks, "container-id": "ffff", "store": "another"})
    world.true.add("port:ffff-net1")
    world.marked = [port, foreign]
    world.journal._store.drop("attachments", record_key(CONTAINER, "net1"))
    assert call(world, "GC", **listing([])) == (0, None)
    assert {name for name in world.true if not name.startswith("config-file")} == {"port:ffff-net1"}
    assert world.journal.places() == []


def test_gc_leaves_work_in_progress(world: World) -> None:
    """GC skips an attachment whose lock is taken."""
    assert call(world, "ADD")[0] == 0
    lock = world.journal.try_turn_lock(record_key(CONTAINER, "net1"))
    assert lock
    with lock:
        assert call(world, "GC", **listing([])) == (0, None)
        assert len(world.journal.records()) == 1


def test_status(world: World) -> None:
    """STATUS is silent when ready and has the node's own code when not."""
    assert call(world, "STATUS", ipam=IPAM) == (0, None)
    assert world.forwarded == ["STATUS"]
    world.serving_error = NotServing("vswitchd is dead", code=51)
    assert call(world, "STATUS")[1]["code"] == 51


def test_version_needs_nothing() -> None:
    """VERSION answers despite unusable input, and does not open the node."""
    environ = {"CNI_COMMAND": "VERSION", "CNI_IFNAME": "a/b", "CNI_NETNS": "dummy"}

    def no_node() -> Node:
        raise AssertionError("VERSION must not need the node")

    for stdin, echoed in ((b"", "1.1.0"), (b'{"cniVersion":"0.3.1"}', "0.3.1"), (b'{"cniVersion":"9"}', "9"), (b"\xff", "1.1.0")):
        answer = call_plugin(environ, lambda stdin=stdin: stdin, no_node)  # type: ignore[misc]
        assert answer.code == 0
        assert json.loads(answer.output)["cniVersion"] == echoed


def test_quarantined_record(world: World) -> None:
    """A record of a shape that cannot be read counts as lost: DEL succeeds, and the file is kept aside."""
    assert call(world, "ADD")[0] == 0
    world.journal._store.put("attachments", record_key(CONTAINER, "net1"), {"schema": 1, "steps": [{"step": "teleport"}]})
    assert call(world, "DEL") == (0, None)
    assert world.journal.records() == []
    assert list((world.directory / "state" / "quarantine").iterdir())
    assert not any(name.startswith(("port", "mount", "directory")) for name in world.true)


class Overheard(World):
    """A node whose spool tells when it was read to its end."""

    @property
    def store(self) -> AttachmentStore:
        store, heard = super().store, self.heard

        class Told(Spool):
            def entries(self, *, keep: bool = False) -> Iterator[Entry]:
                yield from super().entries(keep=keep)
                heard.set()

        store.spool.__class__ = Told
        return store

    heard = threading.Event()


def test_add_behind_a_spooled_del_of_a_busy_container(tmp_path: Path) -> None:
    """An ADD carries out a spooled and answered DEL of its name even if its container was busy until then."""
    world = Overheard(tmp_path, now=10)
    assert call(world, "ADD")[0] == 0
    [before] = world.journal.records()
    spooled = Path(f"{tmp_path}/state/spool")
    spooled.mkdir(mode=0o700)
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}
    called = {"Called-Boot-Id": world.boot, "Called-Boottime-Ns": "20"}
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace"}).encode()
    (spooled / "20-1-0").write_bytes(protocol.request_bytes("/api/v1/del", environ, stdin, extra=called))
    world.now, world.heard = 30, threading.Event()
    answers: list[tuple[int, Any]] = []
    caller = threading.Thread(target=lambda: answers.append(call(world, "ADD")))
    with world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        caller.start()
        assert world.heard.wait(60)
        assert len(world.store.spool) == 1
    caller.join(60)
    assert [code for code, _ in answers] == [0]
    [record] = world.journal.records()
    assert record.boottime_ns > before.boottime_ns
    assert len(world.store.spool) == 0
