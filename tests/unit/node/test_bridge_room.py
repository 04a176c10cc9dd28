"""The room of bridges that claims and devices of pods share: what each kind is told of, and who is refused when it is gone."""

from __future__ import annotations

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.node import bridge_room
from userspace_cni.node.bridge_room import BridgeRoom, ClaimedPort

RESOURCE = "userspace-cni.io/br0"
DEVICES = [f"br0-{number}" for number in range(4)]


class SharedBridge:
    """A room of four ports, with the claims that are recorded, and a kubelet that has given devices to pods."""

    def __init__(self, *, offers: bool = True) -> None:
        self.claims: list[ClaimedPort] = []
        self.pods: dict[str, tuple[str, ...]] | None = {}
        self.asked = 0
        self.unreadable = False
        self.room = BridgeRoom(4, self._list, self._ask if offers else None)

    def _list(self) -> list[ClaimedPort]:
        if self.unreadable:
            raise Unavailable("the records cannot be read")
        return self.claims

    def _ask(self) -> dict[str, tuple[str, ...]]:
        self.asked += 1
        if self.pods is None:
            raise Unavailable("the kubelet does not answer")
        return self.pods

    def claim(self, uid: str, ports: int = 1) -> None:
        """Prepare a claim with so many ports."""
        wanted = [ClaimedPort(uid, "br0", "br0")] * ports
        with self.room.admit(uid, wanted):
            self.claims = [*(each for each in self.claims if each.uid != uid), *wanted]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet is asked each time."""
    monkeypatch.setattr(bridge_room, "GIVEN_S", 0.0)


def test_claims_take_from_devices() -> None:
    """As many devices are closed as claims have taken of their room, the last ones first, and none that a pod has."""
    shared = SharedBridge()
    shared.room.refresh()
    assert shared.room.closed("br0", DEVICES) == frozenset()
    shared.claim("a", 2)
    assert shared.room.closed("br0", DEVICES) == {"br0-2", "br0-3"}
    assert shared.room.closed("br0", DEVICES[:3]) == {"br0-2"}
    shared.pods = {RESOURCE: ("br0-3",)}
    shared.room.refresh()
    assert shared.room.closed("br0", DEVICES) == {"br0-1", "br0-2"}
    assert shared.room.closed("br1", ["br1-0"]) == frozenset()
    shared.claims = []
    shared.room.forget_claims()
    assert shared.room.closed("br0", DEVICES) == frozenset()


def test_records_that_cannot_be_read() -> None:
    """What was known of claims stays: no device is opened by that, and no look at devices fails."""
    shared = SharedBridge()
    shared.claim("a", 2)
    assert shared.room.closed("br0", DEVICES) == {"br0-2", "br0-3"}
    shared.unreadable = True
    shared.room.forget_claims()
    assert shared.room.closed("br0", DEVICES) == {"br0-2", "br0-3"}


def test_devices_take_from_claims() -> None:
    """What the kubelet gave counts: its word, and before that what it was just told to take."""
    shared = SharedBridge()
    assert shared.room.given("br0") is None
    shared.pods = {RESOURCE: ("br0-0", "another"), "another.io/br0": ("br0-1",)}
    shared.room.refresh()
    assert shared.room.given("br0") == frozenset({"br0-0"})
    shared.room.give("br0", ["br0-1"])
    assert shared.room.given("br0") == frozenset({"br0-0", "br0-1"})


def test_a_device_that_was_just_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts though the kubelet does not tell of it yet, and no longer when its pod is gone."""
    monkeypatch.setattr(bridge_room, "GIVEN_S", 3600.0)
    shared = SharedBridge()
    shared.room.give("br0", ["br0-1"])
    shared.room.refresh()
    assert shared.room.given("br0") == frozenset({"br0-1"})
    shared.room.refresh()
    assert shared.asked == 1
    monkeypatch.setattr(bridge_room, "GIVEN_S", 0.0)
    shared.room.refresh()
    assert shared.room.given("br0") == frozenset()


def test_who_comes_second_is_refused() -> None:
    """A claim where pods have the last room, and a device where claims have it; both say who has what."""
    shared = SharedBridge()
    shared.pods = {RESOURCE: ("br0-0", "br0-1")}
    shared.claim("a", 2)
    with pytest.raises(Unavailable, match="br0 has no room for 1 more: of its 4 ports claims have 2, and pods 2 as devices"):
        shared.claim("b")
    assert {each.uid for each in shared.claims} == {"a"}
    with pytest.raises(Unavailable, match="br0 has no room for 1 more"):
        shared.room.give("br0", ["br0-2"])
    shared.room.give("br0", ["br0-1"])  # the kubelet's own again, for a pod that comes after another
    shared.claim("a", 2)  # again, as after a restart of the kubelet
    shared.pods = {RESOURCE: ("br0-0",)}
    shared.room.refresh()
    shared.claim("b")


def test_a_claim_whose_ports_are_there() -> None:
    """It is prepared again although the room is less than what is taken, as its pod may run; it gets no more ports."""
    shared = SharedBridge()
    shared.claim("a", 2)
    shared.pods = {RESOURCE: ("br0-0", "br0-1", "br0-2")}
    shared.claim("a", 2)
    shared.claim("a", 1)
    with pytest.raises(Unavailable, match="no room for 3 more"):
        shared.claim("a", 3)


def test_two_claims_at_once() -> None:
    """A claim that is being prepared counts before it is recorded, for claims and for devices; one that failed does not."""
    shared = SharedBridge()
    three = [ClaimedPort("a", "br0")] * 3
    with shared.room.admit("a", three):
        with pytest.raises(Unavailable), shared.room.admit("b", [ClaimedPort("b", "br0")] * 2):
            pass
        with pytest.raises(Unavailable):
            shared.room.give("br0", ["br0-0", "br0-1"])
        with shared.room.admit("c", [ClaimedPort("c", "br0")]):
            pass
    with pytest.raises(ValueError, match="a step"), shared.room.admit("d", three):
        raise ValueError("a step failed")
    shared.claim("e", 4)


def test_a_kubelet_that_does_not_answer() -> None:
    """A claim does not wait for it, and what was known counts."""
    shared = SharedBridge()
    shared.pods = {RESOURCE: ("br0-0", "br0-1", "br0-2")}
    shared.room.refresh()
    shared.pods = None
    with pytest.raises(Unavailable):
        shared.room.refresh()
    shared.claim("a")
    with pytest.raises(Unavailable, match="no room"):
        shared.claim("b")


def test_without_devices() -> None:
    """Where no devices are offered the kubelet is not asked, and what the scheduler has decided holds."""
    shared = SharedBridge(offers=False)
    shared.room.refresh()
    assert shared.room.given("br0") == frozenset()
    shared.claim("a", 5)
    assert shared.room.claimed() == {"br0": ("br0",) * 5}
    assert shared.asked == 0
