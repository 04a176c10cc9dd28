"""Breaks of the switch: its daemons, bridges and ports."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.lab.breaking.breakable_node import BRIDGE, BreakableNode, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.switch.switch import wait_until


@breaks("app", "port-missing", "has no port", "deleted it from bridge br-test", mended=True)
def break_port_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and the port was deleted by hand."""
    node.kill_agent()
    node.switch.vsctl("del-port", BRIDGE, pod.port)


@breaks("app", "bridge-missing", "bridge br-test is gone from the switch", mended=True)
def break_bridge_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and the bridge was deleted by hand."""
    node.kill_agent()
    node.switch.vsctl("del-br", BRIDGE)


@breaks("app", "bridge-missing", "bridge br-admin is gone", "it was an administrator's", asks="web")
def break_administrators_bridge_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator's bridge, which the agent never makes, was deleted under a pod."""
    node.switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
    guest = node.prepare("app", "web")
    guest.network["host"]["bridge"]["bridgeName"] = "br-admin"
    assert node.attach(guest).status == 0
    node.switch.vsctl("del-br", "br-admin")


@breaks("app", "bridge-datapath", "has the datapath system, and the port needs netdev")
def break_bridge_of_another_datapath(node: BreakableNode, pod: RunningPod) -> None:
    """The bridge was made anew without datapath_type=netdev."""
    node.kill_agent()
    node.switch.vsctl("--no-wait", "set", "Bridge", BRIDGE, "datapath_type=system")


@breaks(
    "served", "port-refused", "cannot open it", "its log: ", "a file has the name at which it makes", "start the agent first, "
)
def break_port_in_error(node: BreakableNode, pod: RunningPod) -> None:
    """A file has the name at which OVS would make the port's socket, and ovs-vswitchd was restarted."""
    node.kill_agent()
    node.switch.kill_vswitchd()
    occupied = Path(node.switch.rundir) / pod.port
    occupied.write_text("")
    node.end.callback(occupied.unlink, missing_ok=True)
    node.switch.restart_vswitchd()
    wait_until(lambda: node.switch.interface(pod.port)["error"], what="the port in error")


@breaks("app", "vswitchd-dead", "ovs-vswitchd is dead", "no port of this node carries a frame")
def break_vswitchd_killed(node: BreakableNode, pod: RunningPod) -> None:
    """ovs-vswitchd was killed."""
    node.end.callback(node.switch.restart_vswitchd)
    node.switch.kill_vswitchd()


@breaks("app", "vswitchd-stopped", "is stopped by a signal", "kill -CONT")
def break_vswitchd_stopped(node: BreakableNode, pod: RunningPod) -> None:
    """ovs-vswitchd got SIGSTOP."""
    node.end.callback(node.switch.resume_vswitchd)
    node.switch.pause_vswitchd()


@breaks("app", "ovsdb-away", "OVSDB cannot be asked", "ports that are open go on")
def break_ovsdb_dead(node: BreakableNode, pod: RunningPod) -> None:
    """ovsdb-server has ended."""
    node.end.callback(node.switch.restart_ovsdb)
    node.switch.stop_ovsdb()


@breaks("app", "ovsdb-away", "OVSDB cannot be asked: ovsdb-server, process", "is stopped by a signal (state T)", "kill -CONT")
def break_ovsdb_stopped(node: BreakableNode, pod: RunningPod) -> None:
    """ovsdb-server got SIGSTOP."""
    pid = node.switch.ovsdb_pid
    node.end.callback(os.kill, pid, signal.SIGCONT)
    node.switch.pause_ovsdb()
