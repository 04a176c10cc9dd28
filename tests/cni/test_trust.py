"""A network's author is only a user of a namespace: root does not read, run or send anything else because a network names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import records, refused, succeeded
from tests.lab.kube.apiserver import TOKEN, ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until

ENTRIES = pytest.mark.parametrize("node", ["process", "agent"], indirect=True)
EXEC = "client.authentication.k8s.io/v1"


def programmed(witness: Path) -> dict[str, Any]:
    """A user whose exec plugin leaves a trace, and gives the token."""
    status = json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": TOKEN}})
    return {"exec": {"apiVersion": EXEC, "command": "sh", "args": ["-c", f"id -u > {witness}; echo '{status}'"]}}


def kubeconfig(api: ApiServer, directory: Path, user: Mapping[str, Any] | None = None) -> str:
    """A kubeconfig that root owns, in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    return api.kubeconfig(directory, user)


def attached_pod(node: Node, api: ApiServer) -> Pod:
    """A pod that has its volume and is known to the API server."""
    pod = Pod(volume={"emptyDir": {}})
    pod.create(api)
    node.empty_dir(pod.uid)
    return pod


@ENTRIES
@pytest.mark.parametrize("dirs", ["default", "kubelet's"])
def test_a_pods_etc_hosts_is_no_kubeconfig(node: Node, sandbox: str, api: ApiServer, dirs: str) -> None:
    """A pod's /etc/hosts belongs to root on the node, mode 0644, but its content
    is the pod's: no kubeconfig, and no program of it runs.
    """
    pod, witness = attached_pod(node, api), node.directory / "witness"
    written = Path(kubeconfig(api, node.directory, programmed(witness)))
    hosts = written.rename(node.kubelet / "pods" / pod.uid / "etc-hosts")
    hosts.chmod(0o644)
    node.settings["USERSPACE_CNI_KUBECONFIG_EXEC"] = "true"
    node.settings["USERSPACE_CNI_KUBECONFIG_DIRS"] = "/etc/cni" if dirs == "default" else f"/etc/cni:{node.kubelet}"
    made = node.run("ADD", node.network(kubeconfig=str(hosts)), sandbox, CNI_ARGS=pod.args)
    refused(made, 7, str(hosts), "kubeconfig_dirs")
    assert not witness.exists()
    assert api.requests == []
    assert records(node) == []


@ENTRIES
def test_a_program_runs_only_where_a_setting_allows_it(node: Node, sandbox: str, api: ApiServer) -> None:
    """A network's kubeconfig that names a program is refused, naming the setting; with the setting it is used."""
    pod, witness = attached_pod(node, api), node.directory / "witness"
    network = node.network(kubeconfig=kubeconfig(api, node.directory, programmed(witness)))
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 7, "kubeconfig_exec")
    assert not witness.exists()
    assert api.requests == []
    node.settings["USERSPACE_CNI_KUBECONFIG_EXEC"] = "true"
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert witness.read_text() == "0\n"
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}


@ENTRIES
def test_no_file_of_the_node_is_sent_as_a_token(node: Node, sandbox: str, api: ApiServer) -> None:
    """A kubeconfig that names a file elsewhere as its token is refused, and nothing is sent to its server."""
    pod = attached_pod(node, api)
    secret = node.directory / "secret"
    secret.write_text("of the node")
    node.settings["USERSPACE_CNI_KUBECONFIG_DIRS"] = f"{node.directory}/etc"
    path = kubeconfig(api, node.directory / "etc", {"tokenFile": str(secret)})
    refused(node.run("ADD", node.network(kubeconfig=path), sandbox, CNI_ARGS=pod.args), 7, str(secret), "kubeconfig_dirs")
    assert api.requests == []


@ENTRIES
def test_credentials_of_our_own(node: Node, sandbox: str, api: ApiServer) -> None:
    """The setting's kubeconfig is used for the pod's note, wherever it is and with its program; a network's is not read."""
    pod, witness = attached_pod(node, api), node.directory / "witness"
    node.settings["USERSPACE_CNI_KUBECONFIG_DIRS"] = "/etc/cni"
    node.settings["USERSPACE_CNI_KUBECONFIG"] = kubeconfig(api, node.directory, programmed(witness))
    network = node.network(kubeconfig=f"{node.kubelet}/pods/{pod.uid}/etc-hosts")
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert witness.read_text() == "0\n"
    assert [entry["ifName"] for entry in pod.entries(api)] == ["net1"]
    [note] = [step for step in records(node)[0]["steps"] if step["step"] == "pod-note"]
    assert "kubeconfig" not in note
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert "userspace/configuration-data" not in pod.annotations(api)
    assert node.leftovers() == {}


@pytest.mark.parametrize("node", ["agent"], indirect=True)
def test_the_agents_watch_has_credentials_of_our_own(node: Node, sandbox: str, api: ApiServer) -> None:
    """Outside of a pod the setting's kubeconfig replaces a service account: the node's pods are watched."""
    pod = attached_pod(node, api)
    node.settings["USERSPACE_CNI_KUBECONFIG"] = kubeconfig(api, node.directory)
    succeeded(node.run("ADD", node.network(), sandbox, CNI_ARGS=pod.args))
    wait_until(lambda: api.watches, what="a watch")
    assert [entry["ifName"] for entry in pod.entries(api)] == ["net1"]
    succeeded(node.run("DEL", node.network(), sandbox, CNI_ARGS=pod.args))


@ENTRIES
def test_a_record_that_names_a_kubeconfig_elsewhere(node: Node, sandbox: str, api: ApiServer) -> None:
    """The file's name in a record came from a network: DEL succeeds without reading the file or running its program."""
    pod, witness = attached_pod(node, api), node.directory / "witness"
    network = node.network(kubeconfig=kubeconfig(api, node.directory))
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    [path] = (node.state / "attachments").glob("*.json")
    text = path.read_text()
    hosts = node.kubelet / "pods" / pod.uid / "etc-hosts"
    Path(kubeconfig(api, node.directory, programmed(witness))).rename(hosts)
    path.write_text(text.replace(network["kubeconfig"], str(hosts)))
    requests = len(api.requests)
    node.settings["USERSPACE_CNI_KUBECONFIG_EXEC"] = "true"
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert not witness.exists()
    assert len(api.requests) == requests
    hosts.unlink()
    assert node.leftovers() == {}


@ENTRIES
@pytest.mark.parametrize("named", ["CNIDeviceInfoFile", "sharedDir"])
def test_a_name_that_no_file_can_have_keeps_nothing_from_being_deleted(node: Node, sandbox: str, named: str) -> None:
    """A network may name a file whose name is too long: its ADD is undone completely, and a DEL succeeds."""
    keys: dict[str, Any] = {"sharedDir": f"{node.shared}/{'n' * 256}"}
    if named == "CNIDeviceInfoFile":  # the name of its temporary file is longer
        keys = {"runtimeConfig": {"CNIDeviceInfoFile": f"{node.device_info}/{'n' * 251}"}}
    network = node.network(**keys)
    refused(node.run("ADD", network, sandbox, CNI_ARGS=Pod().args), 106, "File name too long")
    assert records(node) == []
    assert node.leftovers() == {}
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=Pod().args))


@ENTRIES
def test_no_tree_is_made_that_is_deeper_than_a_path(node: Node, sandbox: str) -> None:
    """A sharedDir of more than 1024 bytes is refused before root makes its first directory: no path could reach the last one."""
    network = node.network(sharedDir=str(node.shared) + "/directory" * 500)
    refused(node.run("ADD", network, sandbox, CNI_ARGS=Pod().args), 7, "sharedDir", "at most 1024")
    assert not node.shared.exists()
