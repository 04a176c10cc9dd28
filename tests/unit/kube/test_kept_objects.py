"""Objects that are kept as desired: no requests at rest, writes that wait out an outage, and other nodes' objects that stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube import network_objects
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import define_all, defined_server
from tests.lab.kube.network_objects import IPS, add
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.kube import resources
from userspace_cni.kube.kept_objects import KeepingTimes, KeptObjects
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import KubeClient

FAST = KeepingTimes(look_s=0.0, apart_s=0.0, tick_s=0.05, back_off=BackOff(0.02, 0.05))
POD = {"podName": "app", "namespace": "default"}
LABELS = {"userspace-cni.io/node": "n1"}


def thing(container: str, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"labels": {"userspace-cni.io/node": node}}, "spec": {**POD, "nodeName": node, "containerID": container}}


class Keeping:
    """The desired objects, and processes that keep them, one after the other."""

    def __init__(self, api: ApiServer, directory: Path) -> None:
        self.api = api
        self.desired: dict[str, dict[str, Any] | None] | None = {}
        self.looks = 0
        self._session = KubeClient(api.kubeconfig(directory)).session
        self._made: list[KeptObjects] = []

    def process(self, times: KeepingTimes = FAST) -> KeptObjects:
        kept = KeptObjects(Objects(self._session), resources.IPS, LABELS, "agent", self._look, times)
        self._made.append(kept)
        kept.start()
        return kept

    def _look(self) -> dict[str, dict[str, Any] | None] | None:
        self.looks += 1
        return self.desired

    def rest(self) -> None:
        """Wait until the thread has looked twice more: then a complete look has ended that began after this call."""
        before = self.looks
        wait_until(lambda: self.looks >= before + 2)

    def await_objects(self, **expected: str) -> None:
        """Wait until exactly these objects exist, by name with their containers."""
        wait_until(lambda: {name: spec["containerID"] for name, spec in network_objects.ips(self.api).items()} == expected)

    def close(self) -> None:
        for each in self._made:
            each.stop()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with defined_server() as started:
        yield started


@pytest.fixture
def keeping(api: ApiServer, tmp_path: Path) -> Iterator[Keeping]:
    """Nothing is desired yet."""
    keeping = Keeping(api, tmp_path)
    yield keeping
    keeping.close()


def writes(api: ApiServer) -> list[str]:
    """The requests that write, as METHOD name."""
    found = [(each.method, each.path.partition("?")[0].rpartition("/")[2]) for each in api.requests]
    return [f"{method} {name}" for method, name in found if method in ("PATCH", "DELETE", "POST", "PUT")]


def test_follows_what_is_desired(keeping: Keeping, api: ApiServer) -> None:
    """A new desired object is made, a changed one changed, an undesired one deleted; at rest there is no request."""
    keeping.process()
    keeping.desired = {"a": thing("1"), "b": thing("2")}
    keeping.await_objects(a="1", b="2")
    keeping.desired = {"a": thing("3")}
    keeping.await_objects(a="3")
    keeping.rest()
    asked = len(api.requests)
    keeping.rest()
    assert len(api.requests) == asked
    assert api.count("LIST") == 1
    assert sorted(writes(api)) == ["DELETE b", "PATCH a", "PATCH a", "PATCH b"]


def test_goes_on_from_what_is_there(keeping: Keeping, api: ApiServer) -> None:
    """A new process writes only what differs from the objects of its node, and does not read others."""
    for name, container, node in (("same", "1", "n1"), ("other", "2", "n1"), ("left", "3", "n1"), ("elsewhere", "4", "n2")):
        add(api, "IP", name, spec=thing(container)["spec"], labels={"userspace-cni.io/node": node})
    keeping.desired = {"same": thing("1"), "other": thing("5"), "new": thing("6")}
    keeping.process()
    keeping.await_objects(same="1", other="5", new="6", elsewhere="4")
    keeping.rest()
    assert sorted(writes(api)) == ["DELETE left", "PATCH new", "PATCH other"]


def test_unknown_is_not_gone(keeping: Keeping, api: ApiServer) -> None:
    """While the desired objects are unknown, nothing is deleted or requested."""
    add(api, "IP", "a", spec=thing("1")["spec"], labels=LABELS)
    keeping.desired = None
    keeping.process()
    keeping.rest()
    assert api.requests == []
    keeping.desired = {"a": None}
    wait_until(lambda: api.requests)
    keeping.rest()
    keeping.await_objects(a="1")
    assert writes(api) == []


def test_another_node_has_it_now(keeping: Keeping, api: ApiServer) -> None:
    """A pod that was made anew on another node has its object there: the end of the former pod does not delete it."""
    keeping.desired = {"a": thing("1"), "b": thing("2")}
    keeping.process()
    keeping.await_objects(a="1", b="2")
    add(api, "IP", "a", spec=thing("9", "n2")["spec"], labels={"userspace-cni.io/node": "n2"})
    keeping.desired = {}
    keeping.await_objects(a="9")
    keeping.rest()
    assert [each for each in writes(api) if each.endswith(" a")] == ["PATCH a", "DELETE a"]


def test_touched_by_a_user(keeping: Keeping, api: ApiServer) -> None:
    """An object of this node is deleted even if a user has changed it. An object that is gone already is no fault."""
    keeping.desired = {"a": thing("1"), "b": thing("2")}
    kept = keeping.process()
    keeping.await_objects(a="1", b="2")
    touched = api.objects(IPS).read("", "a")
    touched["metadata"]["annotations"] = {"note": "mine"}
    api.add(touched)
    api.objects(IPS).remove("", "b")
    keeping.desired = {}
    keeping.await_objects()
    keeping.rest()
    assert kept.problem == ""


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=403), Fault(close=True)], ids=["503", "403", "closes"])
def test_the_server_is_away(keeping: Keeping, api: ApiServer, fault: Fault) -> None:
    """Failed writes and lists are repeated when the server is back. Until then the problem is reported."""
    api.faults.append(fault)
    kept = keeping.process()
    keeping.desired = {"a": thing("1")}
    wait_until(lambda: kept.problem)
    api.faults.clear()
    keeping.await_objects(a="1")
    wait_until(lambda: not kept.problem)
    api.faults.append(fault)
    keeping.desired = {"b": thing("2")}
    wait_until(lambda: kept.problem)
    api.faults.clear()
    keeping.await_objects(b="2")


def test_a_missing_resource(tmp_path: Path) -> None:
    """Without the definition of the resource the problem is reported. Work begins when the definition is there."""
    with ApiServer() as api:
        keeping = Keeping(api, tmp_path)
        keeping.desired = {"a": thing("1")}
        kept = keeping.process()
        wait_until(lambda: "ips.userspace-cni.io" in kept.problem)
        define_all(api)
        keeping.await_objects(a="1")
        keeping.close()


def test_one_is_refused(keeping: Keeping, api: ApiServer) -> None:
    """The other objects are written when the server refuses one, which is tried again."""
    api.faults.append(Fault("PATCH", status=422, about="/bad"))
    keeping.desired = {"bad": thing("1"), "good": thing("2")}
    kept = keeping.process()
    keeping.await_objects(good="2")
    wait_until(lambda: "bad" in kept.problem)
    api.faults.clear()
    keeping.await_objects(good="2", bad="1")
    wait_until(lambda: not kept.problem)


def test_ends_while_the_server_hangs(keeping: Keeping, api: ApiServer) -> None:
    """Handing over objects never waits. The process can end while a request of its thread hangs."""
    api.faults.append(Fault(hang=60.0))
    keeping.desired = {"a": thing("1")}
    kept = keeping.process()
    wait_until(lambda: api.requests)
    kept.ask()
    kept.stop()
    assert kept.alive  # it hangs in its request, and ends with the process
    api.stop()
    wait_until(lambda: not kept.alive)
