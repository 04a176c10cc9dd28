"""A living attachment follows its pod's annotations: which limits and mirrors apply, and which steps change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.node.ports import port_with
from tests.lab.node.world import World
from userspace_cni.attachment.amend import amend, steps_now
from userspace_cni.attachment.facts import ChangeableOptions
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import HostEnd, Link, OvsPort, PortTerms, Shaper, Step
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.mirrors import MirrorSource

SLOW, FAST = Rate(10_000_000, 1_000_000), Rate(100_000_000, 10_000_000)
LINK = Link("uc1", "02:00:00:00:00:02", "alias", "eth0", "02:00:00:00:00:01", 1500, "/run/netns/x", 7)
VHOST = port_with(bridge="br0", name="p", interface_type="dpdkvhostuserclient", server_path="/s")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def record(*steps: Step) -> Record:
    return Record("ready", "net", "c0ffee", "eth0", boot_id="boot", pod_name="app", steps=steps)


def test_a_vhost_user_port() -> None:
    """Both directions are limited at the port."""
    wanted = Limits(SLOW, FAST)
    assert steps_now(record(VHOST), ChangeableOptions(wanted)) == (replace(VHOST, limits=wanted),)
    assert steps_now(record(VHOST), ChangeableOptions()) == (VHOST,)


def test_a_kernel_link() -> None:
    """What leaves the pod is limited at the pod's end, by a step that is added and removed."""
    port = OvsPort("br0", "uc1", HostEnd("system", 1500))
    steps = steps_now(record(LINK, port), ChangeableOptions(Limits(SLOW, FAST)))
    shaper = Shaper("eth0", "/run/netns/x", 7, FAST.rate, FAST.burst)
    assert steps == (LINK, shaper, replace(port, limits=Limits(SLOW)))
    assert steps_now(record(*steps), ChangeableOptions()) == (LINK, port)


def test_mirrors() -> None:
    """The port is a source of exactly the mirrors in the annotation."""
    theirs, own = MirrorSource("ids"), MirrorSource("tap", to_pod=False)
    port = replace(VHOST, terms=PortTerms(mirrors=(theirs,)), mirrors=(theirs,))
    [joined] = steps_now(record(port), ChangeableOptions(mirrors=(theirs, own)))
    assert isinstance(joined, OvsPort)
    assert joined.mirrors == (theirs, own)
    assert steps_now(record(joined), ChangeableOptions(mirrors=(theirs,))) == (port,)


def test_what_holds_again() -> None:
    """When an annotation that was there at ADD is removed, the network's value
    applies, and not the runtime's, which came from it.
    """
    port = replace(VHOST, limits=Limits(SLOW), terms=PortTerms(Limits(SLOW), Limits(SLOW), Limits(FAST)))
    assert steps_now(record(port), ChangeableOptions(Limits(SLOW))) == (port,)
    [changed] = steps_now(record(port), ChangeableOptions())
    assert isinstance(changed, OvsPort)
    assert changed.limits == Limits(FAST)


def test_the_record_says_the_new_value(world: World) -> None:
    """The changed step is applied, an unwanted one is undone, and both are recorded."""
    port = OvsPort("br0", "uc1", HostEnd("system", 1500))
    made = replace(record(LINK, Shaper("eth0", "/run/netns/x", 7, 1, 1), port), boot_id=world.boot_id())
    world.journal.write(made)
    world.said["app"] = ChangeableOptions(Limits(SLOW))
    assert amend(made, world.store, world.driver, world.pods)
    [kept] = world.journal.records()
    assert kept.steps == (LINK, replace(port, limits=Limits(SLOW)))
    assert amend(kept, world.store, world.driver, world.pods) is False


def test_what_is_being_deleted_stays(world: World) -> None:
    """An attachment whose DEL has begun is not changed."""
    made = replace(record(VHOST), boot_id=world.boot_id(), state="deleting")
    world.journal.write(made)
    world.said["app"] = ChangeableOptions(Limits(SLOW))
    assert amend(made, world.store, world.driver, world.pods) is False
    assert world.journal.records() == [made]


def test_another_call_works_on_it(world: World) -> None:
    """While a verb works on the attachment it is left for later, because the verb may have read the former value."""
    made = replace(record(VHOST), boot_id=world.boot_id())
    world.journal.write(made)
    world.said["app"] = ChangeableOptions(Limits(SLOW))
    lock = world.journal.try_turn_lock(made.key)
    assert lock is not None
    with lock:
        assert amend(made, world.store, world.driver, world.pods) is None
        assert amend(replace(made, state="applying"), world.store, world.driver, world.pods) is None
    assert amend(made, world.store, world.driver, world.pods)


def test_a_half_that_cannot_be_done(world: World) -> None:
    """When one step of a change is refused, the earlier ones are reverted: the record still describes what exists."""
    port = OvsPort("br0", "uc1", HostEnd("system", 1500))
    made = replace(record(LINK, port), boot_id=world.boot_id())
    world.journal.write(made)
    world.said["app"] = ChangeableOptions(Limits(SLOW, FAST))

    def refusing(when: str, step: Step) -> None:
        if when == "before apply" and isinstance(step, OvsPort) and step.limits:
            raise SwitchRefused("no such limit", "")

    world.fault = refusing
    with pytest.raises(SwitchRefused):
        amend(made, world.store, world.driver, world.pods)
    assert world.journal.records() == [made]
    assert not [each for each in world.true if each.startswith("shaper")]
