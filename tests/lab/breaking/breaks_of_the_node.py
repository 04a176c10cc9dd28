"""Breaks of the agent, the store of records, and what becomes of calls."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.breaking.breakable_node import BreakableNode, RichPod, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.node.disks import fill
from tests.lab.node.inside import killed_at


@breaks("app", "agent-dead", "the agent has died", "no pod is attached")
def break_agent_killed(node: BreakableNode, pod: RunningPod) -> None:
    """The agent was killed, and is not started again."""
    node.kill_agent()


@breaks("app", "agent-absent", "no agent runs", "no pod is attached")
def break_agent_ended(node: BreakableNode, pod: RunningPod) -> None:
    """The agent was ended in an orderly way, and is not started again."""
    node.live.end()


@breaks("app", "agent-stopped", "is stopped by a signal", "kill -CONT")
def break_agent_hangs(node: BreakableNode, pod: RunningPod) -> None:
    """The agent got SIGSTOP."""
    node.stop_agent()


@breaks("app", "agent-dead", "1 DEL that no agent received waits in the spool")
def break_agent_killed_before_a_delete(node: BreakableNode, pod: RunningPod) -> None:
    """The agent was killed, and another pod has ended meanwhile."""
    other = node.add("app", "other", started=False)
    node.kill_agent()
    assert node.detach(other).status == 0


@breaks("app", "del-spooled", "asked to detach it (DEL) while no agent answered", mended=True)
def break_delete_waits(node: BreakableNode, pod: RunningPod) -> None:
    """The agent was killed, and the pod itself has ended meanwhile."""
    node.kill_agent()
    assert node.detach(pod).status == 0


@breaks("app", "record-unfinished", "state applying: its ADD was not finished", asks="web", mended=True)
def break_add_died(node: BreakableNode, pod: RunningPod) -> None:
    """There is no agent, and a plugin was killed in an ADD after it had made the port."""
    node.kill_agent()
    half = node.prepare("app", "web")
    variables = node.live.variables("ADD", half.netns, half.container, CNI_ARGS=half.pod.args)
    assert killed_at(variables, json.dumps(half.network).encode(), "after port")


@breaks("app", "record-quarantined", "could not be read and was put aside")
def break_record_damaged(node: BreakableNode, pod: RunningPod) -> None:
    """A crash of the disk has torn the attachment's record."""
    node.kill_agent()
    [record] = (node.live.state / "attachments").glob(f"{pod.container}*")
    record.write_bytes(record.read_bytes()[:-40])


@breaks("app", "store-unwritable", "(setting state_dir): it cannot be written")
def break_state_directory_read_only(node: BreakableNode, pod: RunningPod) -> None:
    """The file system of the state directory was remounted read-only, as after an error of the disk."""
    state = str(node.live.state)
    subprocess.run(["mount", "--bind", state, state], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
    node.end.callback(subprocess.run, ["umount", "-l", state], check=True)


@breaks("app", "store-full", "(setting state_dir): its file system is full")
def break_state_directory_full(node: BreakableNode, pod: RunningPod) -> None:
    """The disk of the state directory is full."""
    state = node.live.state
    with TemporaryDirectory() as copy:
        shutil.copytree(state, Path(copy) / "state")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(state)], check=True)
        node.end.callback(subprocess.run, ["umount", "-l", str(state)], check=True)
        shutil.copytree(Path(copy) / "state", state, dirs_exist_ok=True)
    fill(state / ".filler", 0)


@breaks("app", "pod-unknown", "the API server has no such pod: it was deleted since", "did you mean default/app/net1", asks="apq")
def break_name_misspelled(node: BreakableNode, pod: RunningPod) -> None:
    """Nothing is broken: the pod's name is spelled otherwise."""


@breaks("app", "pod-elsewhere", "is on node n2, and this is node n1", asks="web")
def break_pod_of_another_node(node: BreakableNode, pod: RunningPod) -> None:
    """Nothing is broken: the pod runs on another node."""
    node.add_to_api(RichPod("web"), "n2", "other-net")


@breaks("app", "never-called", "this plugin was never called for it", "'default/no-such-net' does not exist", asks="web")
def break_network_of_nobody(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's annotation names a network that does not exist, so that Multus calls nothing."""
    node.add_to_api(RichPod("web"), "n1", "no-such-net")


@breaks("app", "never-called", "has no annotation", asks="web")
def break_network_forgotten(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's author has forgotten the annotation with the network."""
    node.add_to_api(RichPod("web"), "n1", "")


@breaks("app", "add-refused", "was refused 2 times", "code 106", "has no volume 'shared-dir'", asks="web")
def break_add_refused(node: BreakableNode, pod: RunningPod) -> None:
    """The pod has no volume for its socket: its ADD is refused, again and again."""
    refused = node.prepare("app", "web", volume={})
    for _ in range(2):
        assert node.attach(refused).code == 106
