"""Events about pods: there is one for each pod and reason, however often the reason occurs and whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.notices import HUGEPAGES_MISSING, KEY_IGNORED, ROUTE_REFUSED, VOLUME_MISSING, Recipient
from userspace_cni.kube.events import MESSAGE_MAX, EventLimits, Events
from userspace_cni.kube.pod_requests import KubeClient

FAST = EventLimits(apart_s=0.0, repeats=BackOff(0.05, 0.05), back_off=BackOff(0.02, 0.05))
RARE = EventLimits(apart_s=0.0, repeats=BackOff(3600.0, 3600.0))
APP = Recipient("default", "app", "u-1", "net1")
MISSING = VOLUME_MISSING.finding("the pod has no place for its socket")
IGNORED = KEY_IGNORED.finding("key 'x' is unknown and ignored")


class Teller:
    """The Events of agents of node n1, one after the other; `dropped` counts for all."""

    def __init__(self, api: ApiServer, directory: Path) -> None:
        self.api = api
        self.dropped = 0
        self._session = KubeClient(api.kubeconfig(directory)).session
        self._made: list[Events] = []

    def agent(self, times: EventLimits = FAST, node: str = "n1", component: str = "userspace-cni") -> Events:
        self._made.append(Events(self._session, node, self._drop, times, component))
        self._made[-1].start()
        return self._made[-1]

    def _drop(self, notices: int) -> None:
        self.dropped += notices

    def count(self, reason: str, pod: str = "app") -> int:
        """How often the pod was told of the reason, as the API server has it."""
        event = self.api.events.of(pod).get(reason)
        return int(event["count"]) if event else 0

    def close(self) -> None:
        for events in self._made:
            events.stop()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        yield started


@pytest.fixture
def teller(api: ApiServer, tmp_path: Path) -> Iterator[Teller]:
    """Agents of the node, which are ended after the test."""
    made = Teller(api, tmp_path)
    yield made
    made.close()


def test_an_event(api: ApiServer, teller: Teller) -> None:
    """An Event has the UID that the pod has on the node, its reason and type, and which program on which node sent it."""
    events = teller.agent(RARE)
    events.tell(APP, [MISSING, HUGEPAGES_MISSING.finding("none")])
    wait_until(lambda: len(api.events.of("app")) == 2)
    found = api.events.of("app")
    event = found["VolumeMissing"]
    assert event["involvedObject"] == {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "app", "uid": "u-1"}
    assert (event["type"], found["HugepagesMissing"]["type"]) == ("Warning", "Normal")
    assert event["message"] == "net1: the pod has no place for its socket"
    assert event["source"] == {"component": "userspace-cni", "host": "n1"}
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert event["count"] == 1
    assert teller.dropped == 0


def test_an_event_about_an_object_of_the_cluster(api: ApiServer, teller: Teller) -> None:
    """The Event is in namespace `default`, names no namespace and no node, and differs from the Event of a pod with this name."""
    events = teller.agent(RARE, "", "controller")
    events.tell(Recipient("", "app", "u-1", "", "Route", "k8s.ovn.org/v1"), [ROUTE_REFUSED.finding("to loopback")])
    wait_until(lambda: api.events.of("app"))
    event = api.events.of("app")["RouteRefused"]
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"kind": "Route", "apiVersion": "k8s.ovn.org/v1", "name": "app", "uid": "u-1"}
    assert (event["message"], event["source"]) == ("to loopback", {"component": "controller"})
    api.events.expire()
    events.tell(Recipient("default", "app", "u-1", ""), [ROUTE_REFUSED.finding("no way to 192.0.2.9")])
    wait_until(lambda: api.events.of("app"))
    assert api.events.of("app")["RouteRefused"]["metadata"]["name"] != event["metadata"]["name"]


def test_a_hundred_retries(api: ApiServer, teller: Teller) -> None:
    """Retries of an ADD raise the count of one Event, in few requests. Other reasons and pods have Events of their own."""
    events = teller.agent()
    for _ in range(100):
        events.tell(APP, [MISSING])
    events.tell(APP, [IGNORED])
    events.tell(Recipient("default", "app", "u-2", "net1"), [HUGEPAGES_MISSING.finding("x")])
    wait_until(lambda: teller.count("VolumeMissing") == 100)
    wait_until(lambda: len(api.events.of("app")) == 3)
    assert api.count("EVENT") <= 10


def test_repeats_are_rare(api: ApiServer, teller: Teller) -> None:
    """A notice that is soon repeated waits, and causes no request."""
    events = teller.agent(RARE)
    events.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 1)
    for _ in range(50):
        events.tell(APP, [MISSING])
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.count("KeyIgnored") == 1)
    assert (teller.count("VolumeMissing"), api.count("EVENT")) == (1, 2)


def test_two_interfaces(api: ApiServer, teller: Teller) -> None:
    """Two interfaces with the same problem share an Event, which names both, the latest first."""
    events = teller.agent()
    for interface, text in (("net1", "old"), ("net2", "key 'b'"), ("net1", "key 'a'")):
        events.tell(Recipient("default", "app", "u-1", interface), [KEY_IGNORED.finding(text)])
    wait_until(lambda: teller.count("KeyIgnored") == 3)
    assert api.events.of("app")["KeyIgnored"]["message"] == "net1: key 'a' | net2: key 'b'"


def test_two_keys_of_one_network(api: ApiServer, teller: Teller) -> None:
    """Texts of one call with the same reason are one notice. The texts of the next call replace them."""
    events = teller.agent()
    events.tell(APP, [KEY_IGNORED.finding("key 'a'"), KEY_IGNORED.finding("key 'b'")])
    wait_until(lambda: teller.count("KeyIgnored") == 1)
    assert api.events.of("app")["KeyIgnored"]["message"] == "net1: key 'a' | net1: key 'b'"
    events.tell(APP, [KEY_IGNORED.finding("key 'b'")])
    wait_until(lambda: teller.count("KeyIgnored") == 2)
    assert api.events.of("app")["KeyIgnored"]["message"] == "net1: key 'b'"


def test_a_text_of_a_tenant(api: ApiServer, teller: Teller) -> None:
    """A message is one printable line of limited length; a long pod's name is shortened, too."""
    events = teller.agent()
    name = "a" * 231 + "." + "b" * 21
    events.tell(Recipient("default", name, "u-1", "net1"), [KEY_IGNORED.finding("a\n\x1b[31m\udcff" + "x" * 5000)])
    wait_until(lambda: api.events.of(name))
    event = api.events.of(name)["KeyIgnored"]
    assert event["message"].startswith("net1: a  [31m x")
    assert len(event["message"]) == MESSAGE_MAX
    assert len(event["metadata"]["name"]) <= 253


def test_what_waits_is_bounded(api: ApiServer, teller: Teller) -> None:
    """While the server is away, no more texts are kept for a pod than its message can show."""
    api.faults.append(Fault(status=503))
    events = teller.agent()
    for number in range(100):
        long = [KEY_IGNORED.finding(f"key {number} {each} " + "x" * 4000) for each in range(32)]
        events.tell(Recipient("default", "app", "u-1", f"net{number}"), long)
    kept = [text for event in events._events.values() for texts in event.texts.values() for text in texts]
    assert 0 < sum(map(len, kept)) <= 4 * MESSAGE_MAX


@pytest.mark.parametrize(("namespace", "name"), [("", ""), ("", "app"), ("default", ""), ("..", "app"), ("default", "../x")])
def test_no_pod(api: ApiServer, teller: Teller, namespace: str, name: str) -> None:
    """A call without a pod causes no Event. An invalid name of a pod does not change the path of the request."""
    events = teller.agent()
    events.tell(Recipient(namespace, name, "u-1", "net1"), [MISSING])
    events.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 1)
    assert (api.count("EVENT"), teller.dropped) == (1, 0)


def test_a_restarted_agent(api: ApiServer, teller: Teller) -> None:
    """The next agent continues the Event of the last one, also when that was killed in the middle of its work."""
    first = teller.agent()
    for _ in range(3):
        first.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 3)
    started = api.events.of("app")["VolumeMissing"]["firstTimestamp"]
    first.stop()
    second = teller.agent()
    second.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 4)
    second.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 5)
    assert api.events.of("app")["VolumeMissing"]["firstTimestamp"] == started


def test_a_forgotten_event(api: ApiServer, teller: Teller) -> None:
    """An Event that the server has forgotten is made anew."""
    events = teller.agent()
    events.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 1)
    api.events.expire()
    events.tell(APP, [MISSING])
    wait_until(lambda: teller.count("VolumeMissing") == 1)
    assert teller.dropped == 0


def test_the_server_is_away(api: ApiServer, teller: Teller, capsys: pytest.CaptureFixture[str]) -> None:
    """Events while the server is away are sent when it is back, and the log says once that they wait."""
    events = teller.agent()
    api.stop()
    for _ in range(20):
        events.tell(APP, [MISSING])
    wait_until(lambda: "cannot be sent now" in capsys.readouterr().err)
    events.tell(APP, [IGNORED])
    api.start()
    wait_until(lambda: teller.count("VolumeMissing") == 20)
    wait_until(lambda: teller.count("KeyIgnored") == 1)
    assert teller.dropped == 0
    assert "cannot be sent" not in capsys.readouterr().err


def test_more_than_can_wait(api: ApiServer, teller: Teller) -> None:
    """While the server is away a bounded number of Events waits; the others are counted, and sent ones make room."""
    api.stop()
    events = teller.agent(EventLimits(apart_s=0.0, repeats=BackOff(0.05, 3600.0), back_off=BackOff(0.02, 0.05), kept=4))
    for number in range(7):
        events.tell(Recipient("default", f"p{number}", "u", "net1"), [MISSING])
    events.tell(Recipient("default", "p0", "u", "net1"), [MISSING])
    assert teller.dropped == 3
    api.start()
    wait_until(lambda: teller.count("VolumeMissing", "p0") == 2)
    wait_until(lambda: all(teller.count("VolumeMissing", f"p{number}") == 1 for number in (1, 2, 3)))
    for number in range(4, 20):
        events.tell(Recipient("default", f"p{number}", "u", "net1"), [MISSING])
        wait_until(partial(api.events.of, f"p{number}"))
    assert teller.dropped == 3


def test_an_account_that_may_not(api: ApiServer, teller: Teller, capsys: pytest.CaptureFixture[str]) -> None:
    """An account without the permission drops and counts them; the log says once which verbs it needs."""
    api.faults.append(Fault("EVENT", status=403))
    events = teller.agent()
    events.tell(APP, [MISSING])
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.dropped == 2)
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.dropped == 3)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "create and patch on events" in said
    api.faults.clear()
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.count("KeyIgnored") == 1)


def test_a_namespace_that_ends(api: ApiServer, teller: Teller, capsys: pytest.CaptureFixture[str]) -> None:
    """An Event in a namespace that is being deleted is dropped. The log says nothing about permissions."""
    api.events.ending.add("default")
    events = teller.agent()
    events.tell(APP, [MISSING])
    wait_until(lambda: teller.dropped == 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "fault",
    [
        Fault("EVENT", status=500, times=3),
        Fault("EVENT", status=429, times=3),
        Fault("EVENT", close=True, times=3),
        Fault("EVENT", hang=0.2, times=1),
        Fault("EVENT", drip=0.001, times=2),
        Fault("EVENT", cut=20, times=1),
    ],
    ids=["500", "429", "closed", "hangs", "slow", "cut"],
)
def test_a_server_in_trouble(api: ApiServer, teller: Teller, fault: Fault) -> None:
    """When the server has recovered, there is one Event for each reason, whatever its fault was."""
    api.faults.append(fault)
    events = teller.agent()
    events.tell(APP, [MISSING])
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.count("VolumeMissing") >= 1)
    wait_until(lambda: teller.count("KeyIgnored") >= 1)
    assert teller.dropped == 0


def test_an_answer_that_is_none(api: ApiServer, teller: Teller) -> None:
    """After an invalid answer later notices are sent."""
    api.faults.append(Fault("EVENT", garbage=b"[1", times=1))
    events = teller.agent()
    events.tell(APP, [MISSING])
    wait_until(lambda: api.count("EVENT") == 1)
    events.tell(APP, [IGNORED])
    wait_until(lambda: teller.count("KeyIgnored") == 1)
