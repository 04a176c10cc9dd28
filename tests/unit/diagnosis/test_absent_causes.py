"""What `why` says of a pod on this node for which the plugin was never called."""

from __future__ import annotations

import pytest

from userspace_cni.diagnosis.why.absent_causes import judge_whereabouts
from userspace_cni.diagnosis.why.attachment_sight import AbsentSight, Fact, Unasked
from userspace_cni.node.seen_pod import SeenPod

POD = SeenPod("default", "web", "uid", "n1", "Running", "blue,green")


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        (("default/blue",), "the network definition 'default/blue' does not exist"),
        (("default/blue", "x/green"), "network definitions do not exist: 'default/blue', 'x/green'"),
        ((), "its networks exist, so that they are of another plugin, or Multus does not run here"),
        (Unasked("forbidden"), "its networks are of another plugin, or do not exist, or Multus does not run here"),
    ],
)
def test_what_of_its_networks_is_known(missing: Fact[tuple[str, ...]], why: str) -> None:
    """A definition that the API does not have is named; where the API may not be asked, that is told, and nothing is guessed."""
    sight = AbsentSight("web", node="n1", has_account=True, pod=POD, missing=missing)
    [found] = judge_whereabouts(sight)
    assert (found.name, found.why) == ("never-called", why)
    asked = ("the networks for which it asks", "forbidden")
    assert (asked in sight.unasked) == isinstance(missing, Unasked)
