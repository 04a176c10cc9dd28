"""Events of a Route about its entries that can never work, on a real HTTP API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.switch.switch import wait_until
from tests.unit.controller.test_route_statuses import reporting, use
from userspace_cni.base.back_off import BackOff
from userspace_cni.controller.controller_service import Controller
from userspace_cni.controller.status_events import make_notifier
from userspace_cni.controller.status_rounds import RoundTimes
from userspace_cni.controller.writes import Summary
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.resources import ROUTES

NAMESPACE = "userspace-cni"
AT_ONCE = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
"""Watches with short waits for the lists that confirm theirs."""
LOOPBACK = {"route": [{"dst": "127.0.0.0/8", "dev": "eth1"}, {"dst": "172.16.0.0/16", "dev": "eth1"}]}


class Watched:
    """Controllers, one after the other, on a cluster with one node that has a part in Routes."""

    def __init__(self, api: ApiServer, session: Callable[[], ApiSession]) -> None:
        self.api = api
        self._session = session
        self._made: list[Controller] = []
        api.add(node("n0"))
        api.add(reporting("n0"))

    def start(self) -> Controller:
        self._made.append(Controller(self._session(), NAMESPACE, RoundTimes(rounds_s=0.05, writes_s=0.0), AT_ONCE))
        self._made[-1].start()
        return self._made[-1]

    def route(self, name: str, spec: Any, generation: int = 1) -> None:
        """Have a Route with this spec; what was written to its status stays."""
        self.api.add({"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec})
        self.report(*(self.use(each, generation=generation) for each in self.names()))

    def use(self, name: str, **changes: Any) -> dict[str, Any]:
        """What the node says of that Route."""
        return use(name=name, uid=self.api.objects("routes.k8s.ovn.org").get("", name)["metadata"]["uid"], **changes)

    def report(self, *uses: dict[str, Any]) -> None:
        self.api.add(reporting("n0", *uses))

    def names(self) -> list[str]:
        return [name for _, name in self.api.objects("routes.k8s.ovn.org").names()]

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects("routes.k8s.ovn.org").get("", name).get("status") or {}
        return found

    def event(self, name: str) -> dict[str, Any]:
        """The Event about the Route; {} while there is none."""
        return self.api.events.of(name).get("RouteRefused", {})

    def close(self) -> None:
        for each in self._made:
            each.stop()


@pytest.fixture
def watched(api: ApiServer, session: Callable[[], ApiSession]) -> Iterator[Watched]:
    made = Watched(api, session)
    yield made
    made.close()


def test_what_can_never_be(watched: Watched) -> None:
    """A refused entry is named, as in the status, and so is a Route that cannot be read; a right one gets no Event."""
    watched.route("one", LOOPBACK)
    watched.route("odd", {"pods": [{}]})
    watched.route("right", {"route": [{"dst": "172.16.0.0/16", "dev": "eth1"}]})
    watched.start()
    wait_until(lambda: watched.event("one") and watched.event("odd") and watched.status("right").get("status") == "Applied")
    event = watched.event("one")
    uid = watched.api.objects("routes.k8s.ovn.org").get("", "one")["metadata"]["uid"]
    assert event["involvedObject"] == {"kind": "Route", "apiVersion": "k8s.ovn.org/v1", "name": "one", "uid": uid}
    assert event["source"] == {"component": "userspace-cni-controller"}
    [valid] = [each for each in watched.status("one")["conditions"] if each["type"] == "Valid"]
    assert event["message"] == valid["message"]
    assert "spec.route[0]" in event["message"]
    assert watched.event("odd")["message"].startswith("nothing of it is applied: ")
    assert watched.event("right") == {}


def test_it_is_told_once(watched: Watched) -> None:
    """Neither another change of the status nor another controller repeats the Event; another text makes a new one."""
    watched.route("one", LOOPBACK)
    controller = watched.start()
    wait_until(lambda: watched.event("one"))
    watched.report(watched.use("one", failed=1, failures=[{"pod": "default/web", "message": "no"}]))
    wait_until(lambda: watched.status("one")["pods"]["failed"] == 1)
    controller.stop()
    asked = watched.api.count("EVENT")
    watched.start()
    watched.report(watched.use("one", applied=3, skipped=0))
    wait_until(lambda: watched.status("one")["pods"]["applied"] == 3)
    assert watched.api.count("EVENT") == asked
    watched.report(watched.use("one", message="10.96.0.0/12 has an address of the API server"))
    wait_until(lambda: "of the API server" in watched.event("one")["message"] and watched.event("one")["count"] == 2)


def test_statuses_wait_for_no_event(watched: Watched) -> None:
    """While Events are refused every status is written, and waiting Events are sent when they are accepted again."""
    watched.api.faults.append(Fault("EVENT", status=503))
    for number in range(20):
        watched.route(f"r{number:02}", LOOPBACK)
    watched.start()
    wait_until(lambda: all(watched.status(name).get("status") == "Degraded" for name in watched.names()))
    assert not any(watched.event(name) for name in watched.names())
    watched.api.faults.clear()
    wait_until(lambda: all(watched.event(name) for name in watched.names()))


def test_an_account_without_the_right(watched: Watched) -> None:
    """What is refused is counted, and nothing else suffers."""
    watched.api.faults.append(Fault("EVENT", status=403))
    watched.route("one", LOOPBACK)
    controller = watched.start()
    wait_until(lambda: b"controller_events_dropped_total 1.0" in controller.metrics.render())
    wait_until(lambda: watched.status("one").get("status") == "Degraded")
    assert (controller.problems(), controller.obstacles()) == ([], [])


def test_a_status_that_says_the_same_is_not_told_again() -> None:
    """Whatever else of the status has changed; another reason is, and none is when all is well again."""
    said: list[str] = []
    tell = make_notifier(lambda _, notices: said.extend(each.message for each in notices))

    def status(message: str, failed: int = 0) -> dict[str, Any]:
        valid = {"type": "Valid", "status": "False" if message else "True", "message": message}
        return {"status": "Degraded", "pods": {"failed": failed}, "conditions": [valid]}

    for before, after in (({}, "a"), (status("a"), "a"), (status("a"), "b"), (status("b"), "")):
        tell(Summary(ROUTES, "one", "u", "1", status(after, failed=1), before=before))
    assert said == ["a", "b"]
