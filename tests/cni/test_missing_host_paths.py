"""A pod's hostPath that is missing is made in the allowed directories, as the former plugin made it, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cni.spec import refused, succeeded, switch_of
from tests.host.places import UNUSED_ID, mode, tree
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.inside import killed_at
from tests.lab.node.node import CONTAINER, Node

DATA = Path(__file__).parent / "data"


@pytest.fixture
def allowed(node: Node) -> Path:
    """The directory in which sockets may be."""
    made = node.directory / "allowed"
    made.mkdir()
    node.settings["USERSPACE_CNI_SHARED_DIRS"] = str(made)
    return made


def pod_at(api: ApiServer, directory: Path, name: str = "app") -> Pod:
    """A pod whose spec has that hostPath, without a type."""
    pod = Pod(name, volume={"hostPath": {"path": str(directory)}})
    pod.create(api)
    return pod


def network_of(node: Node, api: ApiServer, **vhost: str) -> dict[str, Any]:
    """A network whose application makes the socket."""
    network = node.network(kubeconfig=api.kubeconfig(node.directory))
    network["host"]["vhost"] = {"mode": "client", **vhost}
    return network


def test_the_former_plugins_example(node: Node, sandbox: str, api: ApiServer) -> None:
    """With its pod and network unchanged, the hostPath in the run directory of OVS is made with mode 0750, and removed by DEL."""
    spec = yaml.safe_load((DATA / "former-pod.yaml").read_text())["spec"]
    [path] = [each["hostPath"]["path"] for each in spec["volumes"] if each["name"] == "shared-dir"]
    directory = Path(path.replace("/run/openvswitch", switch_of(node).rundir))
    config = json.loads(yaml.safe_load((DATA / "former-net.yaml").read_text())["spec"]["config"])
    config["kubeconfig"] = api.kubeconfig(node.directory)
    config["host"]["bridge"]["bridgeName"] = "br-test"
    pod = pod_at(api, directory)
    succeeded(node.run("ADD", config, sandbox, CNI_ARGS=pod.args))
    assert mode(directory) == 0o750
    succeeded(node.run("DEL", config, sandbox, CNI_ARGS=pod.args))
    assert not directory.exists()
    assert node.leftovers() == {}


@pytest.mark.parametrize("order", [("net1", "net2"), ("net2", "net1")])
def test_the_last_interface_removes_it(node: Node, sandbox: str, api: ApiServer, allowed: Path, order: tuple[str, str]) -> None:
    """Two interfaces of a pod share what the first one made, with the access that the network asks for, in any order of DELs."""
    pod = pod_at(api, allowed / "pmd-1")
    network = network_of(node, api, user=str(UNUSED_ID), dirmode="0770")
    for ifname in ("net1", "net2"):
        succeeded(node.run("ADD", network, sandbox, ifname=ifname, CNI_ARGS=pod.args))
    assert (mode(allowed / "pmd-1"), (allowed / "pmd-1").stat().st_uid) == (0o770, UNUSED_ID)
    for ifname in order:
        assert (allowed / "pmd-1").is_dir()
        succeeded(node.run("DEL", network, sandbox, ifname=ifname, CNI_ARGS=pod.args))
    assert (tree(allowed), node.leftovers()) == (set(), {})


def test_what_a_pod_left_stays(node: Node, sandbox: str, api: ApiServer, allowed: Path) -> None:
    """A directory that is not empty stays with its content, and DEL succeeds."""
    pod = pod_at(api, allowed / "pmd-1")
    succeeded(node.run("ADD", network_of(node, api), sandbox, CNI_ARGS=pod.args))
    (allowed / "pmd-1" / "core").write_text("theirs")
    succeeded(node.run("DEL", network_of(node, api), sandbox, CNI_ARGS=pod.args))
    assert (tree(allowed), node.leftovers()) == ({"pmd-1"}, {})


def test_what_was_there_stays(node: Node, sandbox: str, api: ApiServer, allowed: Path) -> None:
    """A directory that the kubelet or a user made before keeps owner and mode, and stays after DEL although it is empty."""
    (allowed / "pmd-1").mkdir(mode=0o700)
    pod = pod_at(api, allowed / "pmd-1")
    network = network_of(node, api, user=str(UNUSED_ID), dirmode="0777")
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert (mode(allowed / "pmd-1"), (allowed / "pmd-1").stat().st_uid) == (0o700, 0)
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert (tree(allowed), node.leftovers()) == ({"pmd-1"}, {})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("elsewhere/pmd-1", "is not a directory write `type: DirectoryOrCreate`"),
        ("allowed/../elsewhere/pmd-1", "is not a directory"),
        ("allowed/out/pmd-1", "is not a directory"),
        ("allowed/dangling", "is not a directory"),
        ("allowed/between/pmd-1", "the directory above it has to be there"),
        ("allowed/file", "is a regular file"),
        ("allowed/" + "n" * 256, "errno ENAMETOOLONG"),
    ],
)
def test_where_none_is_made(node: Node, sandbox: str, api: ApiServer, allowed: Path, path: str, words: str) -> None:
    """Outside of the allowed directories, also through links, below a missing
    one, and where a file is: 106, and nothing is made.
    """
    (node.directory / "elsewhere").mkdir()
    (allowed / "out").symlink_to(node.directory / "elsewhere")
    (allowed / "dangling").symlink_to(node.directory / "elsewhere" / "none")
    (allowed / "file").touch()
    pod = pod_at(api, Path(f"{node.directory}/{path}"))
    refused(node.run("ADD", network_of(node, api), sandbox, CNI_ARGS=pod.args), 106, words)
    assert tree(node.directory / "elsewhere") == set()
    assert tree(allowed) == {"out", "dangling", "file"}
    assert node.leftovers() == {}


def test_death_right_after_it_is_made(node: Node, sandbox: str, api: ApiServer, allowed: Path) -> None:
    """The directory is recorded before it is made, so that DEL removes what a killed ADD has made."""
    pod = pod_at(api, allowed / "pmd-1")
    network = network_of(node, api)
    variables = node.variables("ADD", sandbox, CNI_ARGS=pod.args)
    assert killed_at(variables, json.dumps(network).encode(), "after directory")
    assert tree(allowed) == {"pmd-1"}
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert (tree(allowed), node.leftovers()) == (set(), {})


def test_two_pods_with_one_of_them(node: Node, sandbox: str, api: ApiServer, allowed: Path) -> None:
    """A directory that one attachment made is shared with the other pod, until the last DEL."""
    first, second = (pod_at(api, allowed / "shared", name) for name in ("one", "two"))
    other = CONTAINER[:-1] + "0"
    network = network_of(node, api)
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=first.args))
    succeeded(node.run("ADD", network, sandbox, other, "net2", CNI_ARGS=second.args))
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=first.args))
    assert (allowed / "shared").is_dir()
    succeeded(node.run("DEL", network, sandbox, other, "net2", CNI_ARGS=second.args))
    assert (tree(allowed), node.leftovers()) == (set(), {})
