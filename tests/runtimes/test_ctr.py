"""`ctr run --cni`: the client itself calls the plugin, with a mount namespace of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cni.spec import held, succeeded
from tests.lab.node.agent import running as running_agent
from tests.lab.node.node import PLUGINS, Node, mounts_below
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.runtimes.images import UNSTARTABLE
from tests.lab.switch.switch import wait_until
from tests.runtimes.seen import (
    VERSION,
    addressed,
    attached,
    conflist,
    listed,
    namespace_of,
    refusing,
    server_path,
    witness,
)

FOREVER = ("/bin/sleep", "1000")
_WITH_PLUGINS = """\
mount --make-private /
mount -t tmpfs plugins /opt
mkdir /opt/cni
ln -s "$1" /opt/cni/bin
shift
exec "$@"
"""


@pytest.fixture
def runtime_node(node: Node) -> Iterator[Node]:
    """The node with an agent that finds Debian's plugins where ctr looks. Up to Debian 13 it also looks in /usr/lib/cni."""
    view = ("unshare", "--mount", "--propagation=unchanged", "sh", "-ec", _WITH_PLUGINS, "view", PLUGINS)
    with shared_mounts(node.directory.parent), running_agent(node, *view):
        yield node


@contextmanager
def running(node: Node, containerd: Containerd, name: str) -> Iterator[dict[str, Any]]:
    """A container of ctr, until it is killed; the row of its interface."""
    started = containerd.ctr_run(name, *FOREVER)
    try:
        wait_until(lambda: containerd.ctr_tasks().get(name) == "RUNNING", what="ctr's container runs")
        yield attached(node, f"default-{name}")
    finally:
        containerd.ctr_kill(name)
        _, stderr = started.communicate(timeout=60)
        print(stderr)


def failed(containerd: Containerd, name: str, *command: str) -> tuple[int, str]:
    """Exit status and stderr of a `ctr run` that ends by itself."""
    started = containerd.ctr_run(name, *command)
    _, stderr = started.communicate(timeout=60)
    return started.returncode, stderr


def test_run_and_end(runtime_node: Node, containerd: Containerd) -> None:
    """ADD names the namespace by the process, DEL names none, neither has arguments; nothing is left when the container ends.

    A ctr of containerd 1.7 or newer sends a DEL before it kills the container, and another one when it has ended.
    """
    watched = witness(containerd.host)
    setting = {"type": "tuning", "sysctl": {"net.ipv4.conf.lo.forwarding": "1"}}
    containerd.start(conflist(listed(watched), addressed(runtime_node), setting))
    with running(runtime_node, containerd, "one") as row:
        assert namespace_of(row).startswith("/proc/")
        assert containerd.host.links(namespace_of(row)) == {"lo"}
        assert containerd.host.run("cat", "/proc/sys/net/ipv4/conf/lo/forwarding", namespace=namespace_of(row)) == "1\n"
    added, *deleted = watched.calls()
    assert (added["command"], {each["command"] for each in deleted}) == ("ADD", {"DEL"})
    assert {each["env"]["CNI_ARGS"] for each in (added, *deleted)} == {""}
    assert (added["env"]["CNI_NETNS"], {each["env"]["CNI_NETNS"] for each in deleted}) == (namespace_of(row), {""})
    assert ["prevResult" in json.loads(each["stdin"]) for each in deleted] == [True, False][: len(deleted)]
    assert runtime_node.leftovers() == {}


def test_mounts_are_seen_by_the_switch(runtime_node: Node, containerd: Containerd) -> None:
    """The switch sees the mount of OVS's directory, though ctr and its processes have mounts of their own."""
    containerd.start(conflist(runtime_node.network()))
    with running(runtime_node, containerd, "one") as row:
        assert mounts_below(runtime_node.directory) == [str(server_path(row).parent)]
        assert server_path(row).parent.samefile(runtime_node.shared / "default-one"[:12])
    assert runtime_node.leftovers() == {}


def test_names_that_begin_alike(runtime_node: Node, containerd: Containerd) -> None:
    """ctr's container IDs begin with its namespace, and port names have twelve characters of them: a second one is refused."""
    containerd.start(conflist(runtime_node.network()))
    with running(runtime_node, containerd, "web-1") as row:
        status, stderr = failed(containerd, "web-2", *FOREVER)
        assert status == 1
        assert "is in use by the attachment default-web-1@eth0; its DEL is missing" in stderr
        assert attached(runtime_node, "default-web-1")["_uuid"] == row["_uuid"]
    assert runtime_node.leftovers() == {}


def test_killed_after_add(runtime_node: Node, containerd: Containerd) -> None:
    """When ctr is killed between our ADD and the end of its work, no process is left to send DEL: GC collects the attachment."""
    later = witness(containerd.host, "later")
    containerd.start(conflist(runtime_node.network(), listed(later)))
    with held(later, "ADD", answer={"cniVersion": VERSION}) as inside:
        started = containerd.ctr_run("one", *FOREVER)
        inside()
        started.kill()
    started.communicate(timeout=60)
    attached(runtime_node, "default-one")
    succeeded(runtime_node.run("GC", {**runtime_node.network(), "cni.dev/valid-attachments": []}))
    assert runtime_node.leftovers() == {}
    assert later.commands() == ["ADD"]


def test_failed_add(runtime_node: Node, containerd: Containerd) -> None:
    """ctr's message has our plugin's error, ctr sends DEL, and nothing is left."""
    watched = witness(containerd.host)
    containerd.start(conflist(listed(watched), refusing(runtime_node)))
    status, stderr = failed(containerd, "one", *FOREVER)
    assert status == 1
    assert "plugin type=\"userspace\" failed (add): key 'host.bandwidth' is" in stderr
    assert watched.commands() == ["ADD", "DEL"]
    assert runtime_node.leftovers() == {}


def test_failed_start(runtime_node: Node, containerd: Containerd) -> None:
    """A missing command fails before ADD, one that the kernel refuses after it; neither leaves anything."""
    watched = witness(containerd.host)
    containerd.start(conflist(listed(watched), runtime_node.network()))
    assert "no such file" in failed(containerd, "one", "/no/such/command")[1]
    assert watched.commands() == []
    assert "no such file" in failed(containerd, "two", UNSTARTABLE)[1]
    assert watched.commands() == ["ADD", "DEL"]
    assert runtime_node.leftovers() == {}
