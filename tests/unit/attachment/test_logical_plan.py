"""The plan of an interface that is a logical port of OVN, and its record."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.attachment import test_link_plan, test_plan
from userspace_cni.attachment.planned import logical_of
from userspace_cni.attachment.steps import LogicalPort, OvsPort
from userspace_cni.attachment.stored_form import form_of
from userspace_cni.cni.result import EMPTY

LOGICAL = LogicalPort("ns_pod", "uid-1")
THEIRS = LogicalPort("pod.ns", "uid-1", {"pod_name": "pod"})


def test_a_vhost_user_port() -> None:
    """Its port is on the bridge that the node says, and is the logical port."""
    port = test_plan.only(test_plan.planned(replace(test_plan.FACTS, bridge="br-int", logical=LOGICAL), ovn={}), OvsPort)
    assert (port.bridge, port.logical) == ("br-int", LOGICAL)


def test_a_veth() -> None:
    """The same of a kernel link's host end."""
    port = test_link_plan.only(test_link_plan.planned(replace(test_link_plan.FACTS, bridge="br-int", logical=LOGICAL)), OvsPort)
    assert (port.bridge, port.logical) == ("br-int", LOGICAL)


def test_addresses_for_another_control_plane() -> None:
    """Where its keys are written, the addresses are among them; else none are."""
    facts = replace(test_plan.FACTS, logical=THEIRS)
    assert logical_of(facts, test_link_plan.LEASED) == replace(THEIRS, ids={"pod_name": "pod", "ip": "10.56.0.7,fd00::7"})
    assert logical_of(facts, EMPTY) == THEIRS
    assert logical_of(replace(facts, logical=LOGICAL), test_link_plan.LEASED) == LOGICAL
    assert logical_of(test_plan.FACTS, test_link_plan.LEASED) is None


def test_its_record() -> None:
    """DEL and reconciliation have all of it from the record; a port without one is recorded as before."""
    port = test_plan.only(test_plan.planned(replace(test_plan.FACTS, logical=THEIRS)), OvsPort)
    assert form_of(OvsPort).read(form_of(OvsPort).write(port)) == port
    assert "logical" not in form_of(OvsPort).write(replace(port, logical=None))
