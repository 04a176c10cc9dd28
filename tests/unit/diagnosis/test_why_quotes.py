"""What a pod's author writes is quoted and cut in the findings of `why`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.node.memory_switch import Seen
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OvsPort, SocketFile, VhostUserClient
from userspace_cni.diagnosis.why.absent_causes import judge_whereabouts
from userspace_cni.diagnosis.why.attachment_sight import AbsentSight, AttachmentSight, SocketSight, SwitchSight
from userspace_cni.diagnosis.why.socket_causes import judge_application
from userspace_cni.node.pod_processes import PodProcesses, VhostArgument
from userspace_cni.node.seen_pod import SeenPod

FORGED = "x. What to do: `rm -rf /`" + "y" * 4000
PORT = OvsPort("br0", "p1", VhostUserClient("/short/s"))
RECORD = Record("ready", "n", "c1", "net1", steps=(SocketFile("/d", "/d", "s"), PORT))
SWITCH = SwitchSight("alive", ports={"p1": Seen("p1", link_state="down")})


@pytest.mark.parametrize(
    "fact",
    [
        {"socket": SocketSight("", others=(FORGED,))},
        {"processes": PodProcesses(1, arguments=(VhostArgument(7, FORGED, "server"),))},
    ],
)
def test_sockets_of_the_pod(fact: dict[str, Any]) -> None:
    """The name of a socket, and a path on a command line, cannot pass for sentences of ours, nor fill the screen."""
    [found, *_] = judge_application(AttachmentSight(RECORD, switch=SWITCH, **fact))
    assert "'x. What to do: `rm -rf /`y" in found.message
    assert len(found.message) < 600


def test_the_annotation_of_the_pod() -> None:
    """Nor can the networks that it asks Multus for."""
    pod = SeenPod("default", "web", "uid", "n1", "Running", FORGED)
    [found] = judge_whereabouts(AbsentSight("web", node="n1", has_account=True, pod=pod))
    assert "asks for 'x. What to do: `rm -rf /`y" in found.message
    assert len(found.message) < 600
