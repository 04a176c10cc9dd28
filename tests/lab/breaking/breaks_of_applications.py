"""Breaks of the application, its socket, and what the pod sees of it."""

from __future__ import annotations

from tests.lab.breaking.breakable_node import BreakableNode, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.switch.switch import wait_until


@breaks("app", "application-ended", "has ended: one was connected, and none is now", "start it again")
def break_application_killed(node: BreakableNode, pod: RunningPod) -> None:
    """The application was connected and was killed; the agent has removed the socket that it left."""
    assert pod.application
    pod.application.kill()
    wait_until(lambda: not pod.socket.exists(), what="the dead socket removed")


@breaks("served", "application-ended", "has ended: one was connected, and none is now")
def break_calling_application_killed(node: BreakableNode, pod: RunningPod) -> None:
    """The application, which connects to OVS's socket, was connected and was killed."""
    assert pod.application
    pod.application.kill()


@breaks("app", "application-never-started", "no application has ever connected", "no processes run in the pod", asks="idle")
def break_application_never_started(node: BreakableNode, pod: RunningPod) -> None:
    """A pod is attached, and its application does not start."""
    node.add("app", "idle", started=False)


@breaks("app", "socket-dead", "was killed and left its socket", "cannot bind", mended=True)
def break_dead_socket(node: BreakableNode, pod: RunningPod) -> None:
    """The application was killed while there was no agent: its socket stays, and the next one cannot bind."""
    node.kill_agent()
    assert pod.application
    pod.application.kill()
