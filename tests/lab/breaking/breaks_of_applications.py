"""Breaks of the application, its socket, and what the pod sees of it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from tests.lab.breaking.breakable_node import BreakableNode, RichPod, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.runtimes.inhabitant import inhabitant
from tests.lab.switch.switch import wait_until


class PoorPod(RichPod):
    """A pod that has not asked for hugepages."""

    def manifest(self) -> dict[str, Any]:
        made = super().manifest()
        del made["spec"]["containers"][0]["resources"]
        return made


class CrashingPod(RichPod):
    """A pod whose container ends again and again, as the kubelet tells."""

    def manifest(self) -> dict[str, Any]:
        made = super().manifest()
        ended = {"terminated": {"exitCode": 139, "reason": "Error"}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        made["status"]["containerStatuses"] = [{"name": "app", "restartCount": 5, "state": waiting, "lastState": ended}]
        return made


def dpdk_process(node: BreakableNode, pod: RunningPod, path: str, *more: str) -> None:
    """A process in the pod with the command line of a DPDK application at this socket."""
    node.in_pod(pod, ":", "dpdk-app", "--in-memory", f"--vdev=virtio_user0,{','.join((f'path={path}', *more))}")


@breaks("app", "application-ended", "has ended: one was connected, and none is now", "delete pod app` has the pod's owner")
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


@breaks(
    "app",
    "application-never-started",
    "no application has ever connected",
    "no process runs in the pod",
    "describe pod web",
    asks="web",
)
def break_application_never_started(node: BreakableNode, pod: RunningPod) -> None:
    """A pod is attached, and its application does not start."""
    node.add("app", "web", started=False)


@breaks("served", "application-never-started", "no application has ever connected", "1 process runs in the pod", asks="web")
def break_calling_application_never_started(node: BreakableNode, pod: RunningPod) -> None:
    """A pod is attached and runs another program; the application that would connect to OVS's socket does not start."""
    node.in_pod(node.add("served", "web", started=False), ":")


@breaks("app", "application-crashes", "CrashLoopBackOff", "code 139 (signal 11)", "5 restarts", "--previous", asks="web")
def break_application_crashes_at_start(node: BreakableNode, pod: RunningPod) -> None:
    """The container ends with a segmentation fault before it comes to its network, again and again."""
    node.add("app", "web", started=False, pod_class=CrashingPod)


@breaks(
    "app",
    "socket-dead",
    "was killed and left its socket",
    "cannot bind",
    "What to do: start the agent first",
    "delete pod",
    mended=True,
)
def break_dead_socket(node: BreakableNode, pod: RunningPod) -> None:
    """The application was killed while there was no agent: its socket stays, and the next one cannot bind."""
    node.kill_agent()
    assert pod.application
    pod.application.kill()


@breaks("app", "application-other-path", "uses another socket than this interface's", "other.sock", asks="web")
def break_application_at_another_name(node: BreakableNode, pod: RunningPod) -> None:
    """The application makes its socket under a name of its own in the right directory."""
    lost = node.add("app", "web", started=False)
    node.listen(lost, "other.sock")


@breaks("app", "application-other-path", "uses another socket", f"{MAPPED_DIR}/eth1.sock", asks="web")
def break_application_told_another_path(node: BreakableNode, pod: RunningPod) -> None:
    """The application was started with another socket's path on its command line."""
    lost = node.add("app", "web", started=False)
    dpdk_process(node, lost, f"{MAPPED_DIR}/eth1.sock", "server=1")


@breaks("app", "application-wrong-role", "is the client: it connects to the socket", "has to be the server", asks="web")
def break_application_as_client(node: BreakableNode, pod: RunningPod) -> None:
    """The application was started without server=1, in a network in which it has to make the socket."""
    crossed = node.add("app", "web", started=False)
    dpdk_process(node, crossed, f"{MAPPED_DIR}/{crossed.port}")


@breaks("served", "application-wrong-role", "is the server: it makes the socket", "has to be the client", asks="web")
def break_application_as_server(node: BreakableNode, pod: RunningPod) -> None:
    """The application was started with server=1, in a network in which OVS makes the socket."""
    crossed = node.add("served", "web", started=False)
    dpdk_process(node, crossed, f"{MAPPED_DIR}/{crossed.port}", "server=1")


@breaks("app", "application-not-ready", "is connected, and has not set up its queues", asks="web")
def break_application_without_queues(node: BreakableNode, pod: RunningPod) -> None:
    """A process takes the switch's connection and says nothing, as a VM that is paused before its driver is up."""
    booting = node.add("app", "web", started=False)
    node.listen(booting, booting.port)


@breaks("app", "hugepages-missing", "may use hugepages", "no free hugepages", asks="web")
def break_no_hugepages(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's author has not asked for hugepages, and the application does not come up."""
    node.add("app", "web", started=False, pod_class=PoorPod)


@breaks("app", "socket-occupied", "a regular file", "find out what made it", asks="web")
def break_file_in_place_of_the_socket(node: BreakableNode, pod: RunningPod) -> None:
    """A program in the pod has made a file with the socket's name."""
    occupied = node.add("app", "web", started=False)
    occupied.socket.write_text("not a socket")


@breaks("app", "directory-missing", "directory for its socket is gone", "recreate the pod")
def break_volume_removed(node: BreakableNode, pod: RunningPod) -> None:
    """A cleanup has removed the pod's emptyDir from the node."""
    assert pod.application
    pod.application.kill()
    shutil.rmtree(pod.volume)


@breaks("app", "directory-unseen", "no process of the pod sees the directory", "mount the volume", asks="web")
def break_volume_not_mounted(node: BreakableNode, pod: RunningPod) -> None:
    """The container that runs does not mount the volume for the socket."""
    blind = node.add("app", "web", started=False)
    without_mounts = ("unshare", "--mount", "--propagation", "private")
    covered = f"mount -t tmpfs none {node.live.kubelet}; mount -t tmpfs none {node.live.short}"
    node.in_pod(blind, covered, prefix=without_mounts)


@breaks("served", "mount-unfollowed", "does not follow the host's", "HostToContainer")
def break_propagation_missing(node: BreakableNode, pod: RunningPod) -> None:
    """The container's volumeMount has no mountPropagation: it will lose OVS's socket with the next restart."""
    node.end.enter_context(inhabitant(pod.netns, pod.volume, MAPPED_DIR, "rprivate"))


@breaks("served", "socket-unseen", "the container sees the file on which it was mounted", "HostToContainer")
def break_restart_without_propagation(node: BreakableNode, pod: RunningPod) -> None:
    """The container's volumeMount has no mountPropagation, and ovs-vswitchd was restarted: OVS's new socket is not seen there."""
    node.end.enter_context(inhabitant(pod.netns, pod.volume, MAPPED_DIR, "rprivate"))
    before = pod.socket.stat().st_ino
    node.switch.restart_vswitchd()
    wait_until(lambda: pod.socket.is_socket() and pod.socket.stat().st_ino != before, what="the new socket placed")


@breaks("app", "mount-missing", "through which the switch sees the pod's directory", "is gone", mended=True)
def break_mount_removed(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and the pod's directory was unmounted by hand below short_dir."""
    node.kill_agent()
    assert pod.application
    pod.application.kill()
    pod.socket.unlink()
    for target in node.live.short.iterdir():
        subprocess.run(["umount", "-l", str(target)], check=True)
