"""A failed ADD is undone as by DEL: wherever it fails, nothing stays in the switch, the file system, IPAM or the pod."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.crash.test_kill_add import OF_VETHS
from tests.crash.victims import Victim
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.inside import Clock, Trip, answer, raising
from tests.lab.node.node import CONTAINER, Node
from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment import cleanup
from userspace_cni.base.errors import Interrupted, StepFailed, Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.cni.call import CniAnswer
from userspace_cni.linux import instant

STEPS = {
    "client": ("lease", "directory", "socket-file", "pod-mount", "port", "device-info", "pod-note", "rest of port"),
    "server": ("lease", "directory", "port", "rest of port", "placed-socket", "device-info", "pod-note"),
}
POINTS = [(mode, f"{when} {step}") for mode, steps in STEPS.items() for step in steps for when in ("before", "after")]
OTHER = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"


class Attaching:
    """A pod with a volume, a network that uses every feature, and the place of its device-info file."""

    def __init__(self, node: Node, api: ApiServer, netns: str) -> None:
        self.node, self.api, self.netns = node, api, netns
        self.pod = Pod(volume={"emptyDir": {}})
        self.pod.create(api)
        self.before = self.pod.annotations(api)
        self.volume = node.empty_dir(self.pod.uid)
        self.kubeconfig = api.kubeconfig(node.directory)
        self.device_infos = node.directory / "devinfo"

    def network(self, mode: str = "client", ifname: str = "net1", **keys: Any) -> bytes:
        """With IPAM, an API server and a device-info file."""
        network = self.node.network(
            "1.0.0",
            ipam=self.node.host_local(),
            kubeconfig=self.kubeconfig,
            runtimeConfig={"CNIDeviceInfoFile": f"{self.device_infos}/{ifname}"},
        )
        network["host"]["vhost"]["mode"] = mode
        return json.dumps({**network, **keys}).encode()

    def variables(self, verb: str, ifname: str = "net1") -> dict[str, str]:
        """The variables of a call, as containerd sends them for this pod."""
        return self.node.variables(verb, self.netns, ifname=ifname, CNI_ARGS=self.pod.args)

    def add(self, trip: Trip, mode: str = "client", ifname: str = "net1") -> CniAnswer:
        return answer(self.variables("ADD", ifname), self.network(mode, ifname), trip)

    def delete(self, ifname: str = "net1") -> None:
        """DEL in this process, which must succeed and print nothing."""
        assert answer(self.variables("DEL", ifname), self.network(ifname=ifname), Trip()) == CniAnswer(0, b"")

    def leftovers(self) -> dict[str, Any]:
        """Everything that an attachment can leave, outside of the node's directories, too."""
        found: dict[str, Any] = dict(self.node.leftovers())
        assert self.node.switch
        rows = {table: self.node.switch.rows(table) for table in ("Port", "Interface", "QoS")}
        noted = self.pod.annotations(self.api)
        others = {
            "rows": {table: items for table, items in rows.items() if items},
            "device info": [str(path) for path in self.device_infos.glob("*")],
            "annotations": {} if noted == self.before else noted,
        }
        return found | {kind: items for kind, items in others.items() if items}

    def assert_clean(self) -> None:
        """Nothing is left; ovs-vswitchd removes its own sockets a moment after their ports."""
        assert self.leftovers() == {}
        assert self.node.switch
        directory = self.node.switch.dir
        wait_until(lambda: not list(directory.glob("*-net?")), what=f"no sockets in {directory}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of verbs in this process, by which their deadlines pass."""
    clock = Clock()
    monkeypatch.setattr(instant, "time", clock)
    return clock


@pytest.fixture
def attaching(node: Node, api: ApiServer, sandbox: str) -> Attaching:
    return Attaching(node, api, sandbox)


def error_of(answered: CniAnswer) -> dict[str, Any]:
    """The one JSON error on stdout."""
    assert answered.code == 1
    error: dict[str, Any] = json.loads(answered.output)
    return error


def finish(node: Node) -> None:
    """DELs of another container, each of which finishes some of what earlier calls left recorded."""
    assert node.leftovers()["records"]

    def finished() -> bool:
        assert node.run("DEL", node.network(), container=OTHER).status == 0
        return "records" not in node.leftovers()

    wait_until(finished, what="no record is left")


@pytest.mark.parametrize("mode", STEPS)
def test_add_passes_all_points(attaching: Attaching, mode: str) -> None:
    """ADD passes exactly the points at which the following tests fail, each once and in this order."""
    trip = Trip()
    assert attaching.add(trip, mode).code == 0
    passed = [point for point in trip.passed if "writing" not in point]
    assert [(mode, point) for point in passed] == [point for point in POINTS if point[0] == mode]
    found = attaching.leftovers()
    assert {"bridges", "records", "leases", "device info", "annotations"} <= found.keys()
    attaching.delete()
    attaching.assert_clean()


@pytest.mark.parametrize("point", OF_VETHS)
def test_failure_of_a_kernel_link(node: Node, sandbox: str, point: str) -> None:
    """When a step of a kernel link fails before or after its effect, ADD answers with that error, and everything is as before."""
    victim = Victim(node, sandbox, "veth")
    error = error_of(victim.call("ADD", Trip(point, raising(StepFailed("injected", code=123)))))
    assert (error["code"], error["msg"]) == (123, "injected")
    assert victim.leftovers() == {}


@pytest.mark.parametrize(("mode", "point"), POINTS)
def test_failure_at_every_step(attaching: Attaching, mode: str, point: str) -> None:
    """When a step fails before or after its effect, ADD answers with that error, and everything is as before."""
    trip = Trip(point, raising(StepFailed("injected", code=123)))
    error = error_of(attaching.add(trip, mode))
    assert (error["code"], error["msg"]) == (123, "injected")
    assert trip.passed.count(point) == 1
    attaching.assert_clean()


@pytest.mark.parametrize("state", ["pending", "applying", "ready"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_failure_at_every_record(attaching: Attaching, when: str, state: str) -> None:
    """A record that cannot be written fails ADD, and everything is as before."""
    error = error_of(attaching.add(Trip(f"{when} writing {state}", raising(StepFailed("injected")))))
    assert error["msg"] == "injected"
    attaching.assert_clean()


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unavailable("away"), 11), (Interrupted("SIGTERM"), 11), (RuntimeError("bug"), 999), (OSError(28, "full"), 999)],
)
def test_any_error_is_undone(attaching: Attaching, error: BaseException, code: int) -> None:
    """Transient errors, signals and bugs undo ADD alike; only their codes differ."""
    assert error_of(attaching.add(Trip("after port", raising(error))))["code"] == code
    attaching.assert_clean()
    assert attaching.add(Trip()).code == 0
    attaching.delete()
    attaching.assert_clean()


@pytest.mark.parametrize("step", STEPS["client"][2:-1])  # undoing the last one, the note, never fails
def test_undo_that_fails_is_done_later(attaching: Attaching, step: str) -> None:
    """When the undo fails, too, the answer is the first error and names what is left; the next call on the node removes that."""
    faults = {f"after {STEPS['client'][-1]}": StepFailed("the cause"), f"before undo {step}": Unavailable("cannot be undone")}

    def watch(point: str) -> None:
        if point in faults:
            raise faults[point]

    answered = answer(attaching.variables("ADD"), attaching.network(), watch)
    error = error_of(answered)
    assert error["msg"] == "the cause"
    assert f"recorded for later: {step} (cannot be undone)" in error["details"]
    finish(attaching.node)
    attaching.assert_clean()


@pytest.mark.parametrize("then", ["close", "mute"])
def test_commit_that_landed_while_its_answer_was_lost(attaching: Attaching, then: Any, clock: Clock) -> None:
    """OVSDB wrote the rows, but its answer was lost: ADD finds the rows, or fails with 11 and removes them."""
    node = attaching.node
    assert node.switch
    with Proxy(node.directory / "proxy.sock", node.switch.dir / "db.sock", lose_answer_to=b'"op":"insert"', then=then) as proxy:
        node.settings["USERSPACE_CNI_OVSDB"] = proxy.remote
        answered = attaching.add(Trip("before port", lambda: clock.leave(2 if then == "mute" else Settings.deadline_s)))
        assert proxy.lost.is_set()
        if then == "close":
            assert answered.code == 0
            assert len(node.switch.ports("br-test")) == 1
            attaching.delete()
        else:
            assert error_of(answered)["code"] == 11
        attaching.assert_clean()


def test_commit_that_landed_before_the_database_went_away(attaching: Attaching, clock: Clock) -> None:
    """OVSDB wrote the rows, then went away before it answered: 11, the rest is undone, and a later call removes the rows."""
    node = attaching.node
    assert node.switch
    with ExitStack() as stack:
        lossy = Proxy(node.directory / "proxy.sock", node.switch.dir / "db.sock", lose_answer_to=b'"op":"insert"', then="mute")
        remote = stack.enter_context(lossy).remote

        def watch(point: str) -> None:
            if point == "before port":
                clock.leave(2)
            elif point == "before undo port":
                stack.close()

        environ = attaching.variables("ADD") | {"USERSPACE_CNI_OVSDB": remote}
        error = error_of(answer(environ, attaching.network(), watch))
    assert error["code"] == 11
    assert "recorded for later: port" in error["details"]
    assert attaching.leftovers().keys() == {"bridges", "records", "rows"}
    finish(node)
    attaching.assert_clean()


@pytest.mark.parametrize("mode", STEPS)
def test_database_that_hangs(attaching: Attaching, mode: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ovsdb-server stopped, ADD answers 11 by the deadline; what stays unknown is recorded, and the next call removes it."""
    node = attaching.node
    assert node.switch
    monkeypatch.setattr(cleanup, "UNDO_S", 1.0)
    switch, paused = node.switch, []

    def watch(point: str) -> None:
        if point == "before port":
            switch.pause_ovsdb()
            paused.append(point)
            clock.leave(1)

    try:
        error = error_of(answer(attaching.variables("ADD"), attaching.network(mode), watch))
    finally:
        switch.resume_ovsdb()
    assert (error["code"], paused) == (11, ["before port"])
    finish(node)
    attaching.assert_clean()


@pytest.mark.parametrize("mode", STEPS)
def test_read_back_that_timed_out(attaching: Attaching, mode: str, clock: Clock) -> None:
    """A stopped ovs-vswitchd never opens the interface: 11 within the deadline, and the rows are removed before it sees them."""
    node = attaching.node
    assert node.switch
    node.switch.pause_vswitchd()
    try:
        error = error_of(attaching.add(Trip("before rest of port", lambda: clock.leave(1)), mode))
    finally:
        node.switch.resume_vswitchd()
    assert error["code"] == 11
    assert "vswitchd" in error["msg"]
    attaching.assert_clean()
    assert attaching.add(Trip(), mode).code == 0
    attaching.delete()
    attaching.assert_clean()


@pytest.mark.parametrize("point", [f"{when} {step}" for step in STEPS["client"][1:] for when in ("before", "after")])
def test_second_of_two_holders_fails(attaching: Attaching, point: str) -> None:
    """A second interface in the same directory fails without harm to the first, whose later DEL leaves nothing."""
    assert attaching.add(Trip()).code == 0
    before = attaching.leftovers()
    assert error_of(attaching.add(Trip(point, raising(StepFailed("injected"))), ifname="net2"))["msg"] == "injected"
    assert_same(attaching, before)
    attaching.delete()
    attaching.assert_clean()


def assert_same(attaching: Attaching, before: dict[str, Any]) -> None:
    """Everything is as before, lists of holders included; only the switch's counters of the rows may differ."""
    after = attaching.leftovers()
    changing = ("rows",)
    assert {key: value for key, value in after.items() if key not in changing} == {
        key: value for key, value in before.items() if key not in changing
    }
    for table, rows in before["rows"].items():
        assert [row["_uuid"] for row in after["rows"][table]] == [row["_uuid"] for row in rows]
    for path in map(Path, after["places"]):
        assert list(json.loads(path.read_text())["value"]["holders"]) == [f"{CONTAINER}@net1"]


def test_bridge_of_another_kind(attaching: Attaching) -> None:
    """An administrator's kernel bridge is refused with 104, which names it; the bridge stays, and nothing of ours does."""
    switch = attaching.node.switch
    assert switch
    switch.vsctl("--no-wait", "add-br", "br-test")
    error = error_of(attaching.add(Trip()))
    assert error["code"] == 104
    assert "br-test has datapath_type" in error["msg"]
    assert switch.ports("br-test") == []
    switch.vsctl("--no-wait", "del-br", "br-test")
    attaching.assert_clean()


def test_addresses_that_cannot_be_used(attaching: Attaching) -> None:
    """When IPAM has no address left, or not the requested one, the answer is its own error, and no lease is left."""
    full = {**attaching.node.host_local(), "ranges": [[{"subnet": "10.56.0.0/30"}]]}
    first = answer(attaching.variables("ADD"), attaching.network(ipam=full), Trip())
    assert first.code == 0
    before = attaching.leftovers()["leases"]
    error = error_of(answer(attaching.variables("ADD", "net2"), attaching.network(ipam=full), Trip()))
    assert "no IP addresses available" in error["msg"]
    asked = {"ips": ["10.99.0.77/24"]}
    error = error_of(answer(attaching.variables("ADD", "net2"), attaching.network(runtimeConfig=asked), Trip()))
    assert "10.99.0.77" in error["msg"]
    assert attaching.leftovers()["leases"] == before
    attaching.delete()
    attaching.assert_clean()
