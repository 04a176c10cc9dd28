"""What `why` says of an application that is not there: by the pod's processes, and by whether it ever was."""

from __future__ import annotations

import pytest

from tests.lab.node.memory_switch import Seen
from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OvsPort, SocketFile, VhostUserClient
from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, SwitchSight
from userspace_cni.diagnosis.why.socket_causes import judge_application
from userspace_cni.node.pod_processes import PodProcesses

STEPS = (SocketFile("/d", "/d", "s"), OvsPort("br0", "p1", VhostUserClient("/short/s")))
RECORD = Record("ready", "n", "c1", "net1", pod_namespace="shop", pod_name="web", steps=STEPS)


def judged(processes: PodProcesses | None = None, *, mtu: int = 0, record: Record = RECORD) -> Finding:
    """`mtu`: of a port to which an application was connected."""
    port = Seen("p1", link_state="down", now=PortNow(mtu=mtu))
    [found] = judge_application(AttachmentSight(record, switch=SwitchSight("alive", ports={"p1": port}), processes=processes))
    return found


@pytest.mark.parametrize(
    ("processes", "runs", "look"),
    [
        (PodProcesses(0), ", and no process runs in the pod", "`kubectl -n shop describe pod web`"),
        (PodProcesses(1), ", and 1 process runs in the pod", "`kubectl -n shop logs web --all-containers`"),
        (PodProcesses(2), ", and 2 processes run in the pod", "`kubectl -n shop logs web --all-containers`"),
        (None, "", "`kubectl -n shop logs web --all-containers`"),
    ],
)
def test_an_application_that_never_came(processes: PodProcesses | None, runs: str, look: str) -> None:
    """Where nothing runs in the pod, its containers are to be looked at; else the log of what runs."""
    found = judged(processes)
    assert found.name == "application-never-started"
    assert found.message == f"no application has ever connected since the switch opened the port{runs}"
    assert found.why == "the switch drops what is sent to the pod until an application makes its socket /d/s"
    assert look in found.remedy


def test_an_application_that_has_ended() -> None:
    """Its log says why; that its pod is deleted starts it again. Of an attachment of no pod no kubectl is told."""
    found = judged(mtu=1500)
    assert found.name == "application-ended"
    assert found.remedy == (
        "its log says why the application ended: `kubectl -n shop logs web --all-containers`; "
        "`kubectl -n shop delete pod web` has the pod's owner start it again"
    )
    bare = Record("ready", "n", "c1", "net1", steps=STEPS)
    assert judged(mtu=1500, record=bare).remedy == "its log says why the application ended; then start it again"
