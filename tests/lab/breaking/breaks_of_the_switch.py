"""Breaks of the switch: its daemons, bridges and ports."""

from __future__ import annotations

from tests.lab.breaking.breakable_node import BRIDGE, BreakableNode, RunningPod
from tests.lab.breaking.table import breaks


@breaks("app", "port-missing", "has no port", "deleted it from bridge br-test", mended=True)
def break_port_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and the port was deleted by hand."""
    node.kill_agent()
    node.switch.vsctl("del-port", BRIDGE, pod.port)


@breaks("app", "vswitchd-dead", "ovs-vswitchd is dead", "no port of this node carries a frame")
def break_vswitchd_killed(node: BreakableNode, pod: RunningPod) -> None:
    """ovs-vswitchd was killed."""
    node.end.callback(node.switch.restart_vswitchd)
    node.switch.kill_vswitchd()


@breaks("app", "vswitchd-stopped", "is stopped by a signal")
def break_vswitchd_stopped(node: BreakableNode, pod: RunningPod) -> None:
    """ovs-vswitchd got SIGSTOP."""
    node.end.callback(node.switch.resume_vswitchd)
    node.switch.pause_vswitchd()
