"""An agent in a container prints the node's paths, because those who read them are not in the container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.agent import Agent, install_shim
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.switch.switch import wait_until

UID = "7d1a2c00-0000-4000-8000-000000000003"
_VIEW = 'mount --rbind / "$USERSPACE_CNI_HOST_ROOT" && exec "$@"'
_IN_A_CONTAINER = ("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _VIEW, "sh")


@dataclass
class Contained:
    """An agent that sees the host's root at `root`, as one in a container does."""

    node: Node
    root: str
    agent: Agent

    def command(self, *words: str) -> str:
        """The output of a command in the agent's container, on both streams."""
        argv = [*_IN_A_CONTAINER, sys.executable, "-m", "userspace_cni", *words]
        environ = {**os.environ, **self.node.environ, "USERSPACE_CNI_HOST_ROOT": self.root}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def page(self, target: str) -> str:
        return self.agent.get(target)[1].decode()

    def add(self, sandbox: str, uid: str = UID, **keys: object) -> str:
        arguments = f"IgnoreUnknown=1;K8S_POD_UID={uid}"
        return self.node.run("ADD", self.node.network("1.0.0", **keys), sandbox, CNI_ARGS=arguments).stdout.decode()


@contextmanager
def contained(node: Node) -> Iterator[Contained]:
    """An agent that is not started yet."""
    with TemporaryDirectory(prefix="uc-") as root, shared_mounts(node.directory.parent):
        install_shim(node)
        agent = Agent(node, _IN_A_CONTAINER, USERSPACE_CNI_HOST_ROOT=root)
        try:
            yield Contained(node, root, agent)
        finally:
            agent.close()


def no_namespace(it: Contained, sandbox: str) -> str:
    it.agent.start()
    return it.add("/run/netns/never-made")


def no_volume(it: Contained, sandbox: str) -> str:
    """ADD for a pod whose volume the kubelet has not made, and for one in whose place a file is."""
    it.agent.start()
    missing = it.add(sandbox)
    it.node.empty_dir(UID).rmdir()
    volume = it.node.empty_dir(UID)
    volume.rmdir()
    volume.touch()
    return missing + it.add(sandbox)


def no_plugin(it: Contained, sandbox: str) -> str:
    """ADD with an IPAM plugin that is not installed."""
    it.agent.start()
    it.node.empty_dir(UID)
    return it.add(sandbox, ipam={"type": "never-installed"})


def file_for_short_dir(it: Contained, sandbox: str) -> str:
    """ADD, the pages and `status`, while a file is where directories of sockets would be made."""
    shutil.rmtree(it.node.short, ignore_errors=True)
    Path(it.node.short).touch()
    it.agent.start()
    it.node.empty_dir(UID)
    try:
        return it.add(sandbox) + it.page("/readyz") + it.command("status")
    finally:
        Path(it.node.short).unlink()


def no_switch(it: Contained, sandbox: str) -> str:
    """The start of an agent, its pages, ADD and the commands while OVSDB's socket is away."""
    place = Path(it.node.environ["USERSPACE_CNI_OVSDB"].removeprefix("unix:"))
    away = place.with_name("away.sock")
    place.rename(away)
    try:
        it.agent.start()
        it.node.empty_dir(UID)
        commands = "".join(it.command(*words) for words in (("list",), ("status",), ("check",), ("gc",), ("probe",)))
        return it.page("/readyz") + it.add(sandbox) + commands
    finally:
        away.rename(place)


def torn_files(it: Contained, sandbox: str) -> str:
    """A record that cannot be read, a spooled DEL that is invalid, and a legacy directory that is a file."""
    for directory in ("attachments", "node", "spool", "places"):
        (it.node.state / directory).mkdir(parents=True, exist_ok=True)
    for directory in ("attachments", "node", "places"):
        (it.node.state / directory / "torn.json").write_text("{")
    (it.node.state / "spool" / f"{7:020}-torn").write_text("nothing")
    it.agent.start()
    it.agent.reconcile()
    return it.command("status") + it.command("list") + it.add(sandbox)


def socket_exchanged(it: Contained, sandbox: str) -> str:
    """A directory that replaces the agent's socket."""
    it.agent.start()
    Path(it.agent.socket).unlink()
    Path(it.agent.socket).mkdir()
    wait_until(lambda: "agent.sock" in it.agent.log.read_text().rpartition("the agent starts")[2], what="the agent complains")
    return ""


def second_agent(it: Contained, sandbox: str) -> str:
    """A second agent, and `uninstall`, while the first one serves."""
    it.agent.start()
    return it.command("uninstall", "--bin-dir", str(it.node.bin)) + it.command("agent", "probe", "readyz")


def state_is_a_file(it: Contained, sandbox: str) -> str:
    """Commands while the state directory is a file."""
    shutil.rmtree(it.node.state, ignore_errors=True)
    it.node.state.touch()
    try:
        return it.command("status") + it.command("list") + it.command("uninstall", "--bin-dir", str(it.node.bin))
    finally:
        it.node.state.unlink()


FAULTS = [
    no_namespace,
    no_volume,
    no_plugin,
    file_for_short_dir,
    no_switch,
    torn_files,
    socket_exchanged,
    second_agent,
    state_is_a_file,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_nodes_paths(node: Node, sandbox: str, fault: Callable[[Contained, str], str]) -> None:
    """Neither log nor answers, pages and commands name a path below the container's mount of the host's root.

    The mount itself is named where the manifest has to be changed.
    """
    with contained(node) as it:
        told = fault(it, sandbox) + (it.agent.log.read_text() if it.agent.log.exists() else "")
        assert told
        assert [line for line in told.splitlines() if f"{it.root}/" in line] == []
