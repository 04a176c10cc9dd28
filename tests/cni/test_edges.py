"""Attacks, several installations and unlucky moments: each case has happened."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cni.spec import ipam, refused, scripted, succeeded, switch_of
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node, clean

PORT = f"{CONTAINER[:12]}-net1"


@pytest.mark.parametrize("cni_args", ["nonsense", "FOO=bar"])
def test_del_of_the_unknown_is_not_remembered(node: Node, sandbox: str, cni_args: str) -> None:
    """A DEL without ADD that IPAM refuses answers its error and leaves no record, which would block the next ADD."""
    network = node.network("1.0.0", ipam=node.host_local())
    assert node.run("DEL", network, sandbox, CNI_ARGS=cni_args).status == 1
    assert node.leftovers() == {}
    succeeded(node.run("ADD", network, sandbox))
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_del_follows_a_corrected_configuration(node: Node, sandbox: str) -> None:
    """A DEL that failed for a missing IPAM plugin succeeds when the network does not name it any more."""
    refused(node.run("DEL", node.network(ipam={"type": "missing"}), sandbox), 7, "missing")
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


def test_exec_plugin_of_another_user(node: Node, sandbox: str) -> None:
    """A kubeconfig in a directory of another user is refused: root would run the program that it names."""
    pod, theirs, witness = Pod(), node.directory / "theirs", node.directory / "witness"
    theirs.mkdir(mode=0o755)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(witness)]}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"exec": command}}],
    }
    (theirs / "kubeconfig").write_text(json.dumps(config))
    os.chown(theirs, 65534, 65534)
    os.chown(theirs / "kubeconfig", 65534, 65534)
    made = node.run("ADD", node.network(kubeconfig=str(theirs / "kubeconfig")), sandbox, CNI_ARGS=pod.args)
    refused(made, 7, "belongs to user 65534")
    assert not witness.exists()
    assert node.leftovers() == {}


def test_state_directory_of_others(node: Node, sandbox: str) -> None:
    """A state_dir that holds other things is refused, and its mode stays as it was."""
    state = node.directory / "var"
    state.mkdir()
    state.chmod(0o1777)
    (state / "other").touch()
    node.settings["USERSPACE_CNI_STATE_DIR"] = str(state)
    refused(node.run("ADD", node.network(), sandbox), 109, "name another")
    assert state.stat().st_mode & 0o7777 == 0o1777
    assert node.leftovers() == {}


def test_no_process_reads_stderr(node: Node, sandbox: str) -> None:
    """When stderr cannot be written, answer and exit code are the same."""
    environ = node.variables("ADD", sandbox)
    network = json.dumps(node.network()).encode()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([node.plugin], env=environ, input=network, stdout=subprocess.PIPE, stderr=full, check=False)
    assert (done.returncode, json.loads(done.stdout)["interfaces"][0]["name"]) == (0, "net1")


def test_check_of_a_dead_switch(node: Node, sandbox: str) -> None:
    """CHECK fails while ovs-vswitchd is dead, and names it; it passes when ovs-vswitchd is back."""
    network = node.network()
    result = succeeded(node.run("ADD", network, sandbox))
    switch_of(node).kill_vswitchd()
    try:
        refused(node.run("CHECK", {**network, "prevResult": result}, sandbox), 103, "ovs-vswitchd dead")
    finally:
        switch_of(node).restart_vswitchd()
    succeeded(node.run("DEL", network, sandbox))


def test_port_of_another_installation(node: Node, sandbox: str, tmp_path: Path) -> None:
    """A second installation on the same switch does not take over the first one's port, whatever it is asked."""
    with clean(Node(node.directory / "second", node.switch)) as second:
        succeeded(node.run("ADD", node.network(), sandbox))
        before = switch_of(node).interface(PORT)["options"]
        refused(second.run("ADD", node.network(), sandbox), 105, "store")
        succeeded(second.run("DEL", node.network(), sandbox))
        assert switch_of(node).interface(PORT)["options"] == before
        succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


def test_another_program_deletes_the_last_port(node: Node, sandbox: str) -> None:
    """DEL removes a bridge of ours, even when another program has deleted its last port."""
    succeeded(node.run("ADD", node.network(), sandbox))
    switch_of(node).vsctl("del-port", PORT)
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


def test_containers_whose_ids_begin_alike(node: Node, sandbox: str) -> None:
    """A failed ADD of a container whose ID begins like another's removes nothing of the other."""
    succeeded(node.run("ADD", node.network(), sandbox))
    before = node.leftovers()
    refused(node.run("ADD", node.network(), sandbox, container=f"{CONTAINER[:12]}ff"), 105)
    assert node.leftovers() == before


def test_status_of_a_full_disk(node: Node) -> None:
    """STATUS answers 50 when the records' file system is full: every ADD would fail."""
    disk = node.directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=True)
    try:
        node.settings["USERSPACE_CNI_STATE_DIR"] = str(disk / "state")
        succeeded(node.run("STATUS", node.network()))
        (disk / "junk").write_bytes(b"x" * 100_000)
        refused(node.run("STATUS", node.network()), 50, "full")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_slow_delegate_is_finished_by_others(node: Node, sandbox: str) -> None:
    """Other calls release a left lease in one go, even if that takes longer than the time they have for it."""
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate))
    succeeded(node.run("ADD", network, sandbox))
    delegate.tell("DEL", answer={"cniVersion": "1.1.0", "code": 177, "msg": "not now"}, exit=1)
    refused(node.run("DEL", network, sandbox), 177)
    assert node.leftovers().keys() == {"records"}
    delegate.tell("DEL", takes=0.4)
    succeeded(node.run("DEL", node.network(), sandbox, container="another"))
    assert node.leftovers() == {}


def test_plugin_as_its_own_ipam(node: Node, sandbox: str) -> None:
    """A network whose ipam leads back to this plugin is refused at once, on ADD and DEL, and leaves nothing."""
    network = node.network(ipam={"type": "userspace"})
    refused(node.run("ADD", network, sandbox), 7, "leads back to this plugin")
    refused(node.run("DEL", network, sandbox), 7, "leads back to this plugin")
    assert node.leftovers() == {}
    succeeded(node.run("ADD", node.network(), sandbox))
