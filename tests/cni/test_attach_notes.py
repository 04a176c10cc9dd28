"""The pod's note, end to end: annotations through the API server, or a file in the pod's directory without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import refused, refused_late, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod, downward_file
from tests.lab.node.node import CONTAINER, Node

CID12 = CONTAINER[:12]
CONFIGURATION_DATA, MAPPED_DIR, DPDK_ARGS = (f"userspace/{key}" for key in ("configuration-data", "mapped-dir", "dpdk-args"))
NEWER = "feedbeef" * 8


class Noted:
    """A pod with an emptyDir, in a network whose kubeconfig leads to the API server."""

    def __init__(self, node: Node, api: ApiServer, netns: str) -> None:
        self.node, self.api, self.netns = node, api, netns
        self.pod = Pod(volume={"emptyDir": {}}, mount_path="/sockets")
        self.pod.create(api)
        node.empty_dir(self.pod.uid)
        self.network = node.network("1.0.0", ipam=node.host_local(), kubeconfig=api.kubeconfig(node.directory))

    def call(self, verb: str, ifname: str = "net1", container: str = CONTAINER, **keys: Any) -> Any:
        network = {**self.network, **keys}
        return self.node.run(verb, network, self.netns, container, ifname, CNI_ARGS=self.pod.args)

    @property
    def annotations(self) -> dict[str, str]:
        return self.pod.annotations(self.api)

    def ifnames(self) -> list[str]:
        """The interface names of the entries, in their order."""
        return [entry["ifName"] for entry in self.pod.entries(self.api)]

    def writes(self) -> int:
        """The requests that would change something."""
        return sum(request.method != "GET" for request in self.api.requests)


@pytest.fixture
def noted(node: Node, api: ApiServer, sandbox: str) -> Noted:
    return Noted(node, api, sandbox)


def read_in_pod(*options: str) -> str:
    """The output of the reader in the container, which may need only the standard library."""
    argv = [sys.executable, "-I", "-S", "-c", _BARE_READER, *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_BARE_READER = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from userspace_cni.pod.__main__ import main
sys.exit(main())
"""


def test_two_interfaces(noted: Noted, tmp_path: Path) -> None:
    """An entry per interface in the order of ADD, one directory, and arguments as the reader prints them; DEL removes its own."""
    first, second = (succeeded(noted.call("ADD", ifname)) for ifname in ("net1", "net2"))
    text = noted.annotations[CONFIGURATION_DATA]
    assert text.startswith(f'[{{\n    "containerId": "{CONTAINER}",\n    "ifName": "net1",\n    "name": "net",\n')
    assert "=" not in text + noted.annotations[MAPPED_DIR]
    assert noted.annotations[MAPPED_DIR] == "/sockets/"
    for entry, result in zip(noted.pod.entries(noted.api), (first, second), strict=True):
        assert entry["config"]["vhost"] == {"mode": "server", "socketfile": f"{CID12}-{entry['ifName']}"}
        assert entry["ipResult"]["interfaces"][0]["mac"] == result["interfaces"][0]["mac"]
        [address] = entry["ipResult"]["ips"]
        assert (address["version"], address["address"]) == ("4", result["ips"][0]["address"])
        assert address["gateway"] == "10.56.0.1"
    file = tmp_path / "annotations"
    file.write_text(downward_file(noted.annotations))
    macs = [result["interfaces"][0]["mac"] for result in (first, second)]
    assert read_in_pod("--annotations", str(file)) == noted.annotations[DPDK_ARGS]
    assert noted.annotations[DPDK_ARGS].split() == [
        "--in-memory",
        "--single-file-segments",
        f"--vdev=virtio_user0,path=/sockets/{CID12}-net1,server=1,mac={macs[0]}",
        f"--vdev=virtio_user1,path=/sockets/{CID12}-net2,server=1,mac={macs[1]}",
    ]
    succeeded(noted.call("DEL", "net1"))
    assert noted.ifnames() == ["net2"]
    assert "net1" not in noted.annotations[DPDK_ARGS]
    succeeded(noted.call("DEL", "net2"))
    assert (noted.annotations, noted.node.leftovers()) == ({}, {})


def test_what_others_wrote_stays(noted: Noted) -> None:
    """Other annotations, labels, spec and status of the pod are untouched by ADD and DEL."""
    noted.api.change("default", "app", {"metadata": {"annotations": {"other": "a=b"}, "labels": {"x": "y"}}})

    def others() -> dict[str, Any]:
        pod = noted.api.pod("default", "app")
        kept = {key: value for key, value in noted.annotations.items() if not key.startswith("userspace/")}
        return {"annotations": kept, "labels": pod["metadata"]["labels"], "spec": pod["spec"], "status": pod["status"]}

    before = others()
    succeeded(noted.call("ADD"))
    assert others() == before
    succeeded(noted.call("DEL"))
    assert others() == before
    assert noted.annotations == {"other": "a=b"}


def test_a_new_sandbox_replaces_the_entry(noted: Noted) -> None:
    """The pod's next sandbox replaces the entry, and a late DEL of the former sandbox does not remove it."""
    succeeded(noted.call("ADD"))
    succeeded(noted.call("ADD", container=NEWER))
    assert [entry["containerId"] for entry in noted.pod.entries(noted.api)] == [NEWER]
    succeeded(noted.call("DEL"))
    assert [entry["containerId"] for entry in noted.pod.entries(noted.api)] == [NEWER]
    succeeded(noted.call("DEL", container=NEWER))
    assert (noted.annotations, noted.node.leftovers()) == ({}, {})


def test_account_that_may_not_patch(noted: Noted) -> None:
    """With Multus' role PATCH is 403: the note is written by PUT, and the pod's status stays."""
    noted.api.faults.append(Fault("PATCH", status=403))
    before = noted.api.pod("default", "app")["status"]
    succeeded(noted.call("ADD"))
    assert noted.ifnames() == ["net1"]
    succeeded(noted.call("DEL"))
    assert noted.annotations == {}
    assert noted.api.pod("default", "app")["status"] == before
    assert noted.api.count("PUT") == 2


def test_others_that_write_at_the_same_time(noted: Noted) -> None:
    """After a conflict the pod is read again and the write repeated."""
    noted.api.faults.append(Fault("PATCH", status=409, times=3))
    succeeded(noted.call("ADD"))
    assert noted.ifnames() == ["net1"]
    succeeded(noted.call("DEL"))
    assert noted.node.leftovers() == {}


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(close=True), Fault(hang=60)], ids=["5xx", "closed", "hangs"])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_api_server_that_does_not_answer(noted: Noted, fault: Fault, method: str) -> None:
    """ADD fails with 11 and leaves nothing, whether reading or writing the pod fails; DEL of an attachment succeeds."""
    failing = Fault(method, fault.status, fault.close, fault.hang)
    noted.api.faults.append(failing)
    refused_late(noted.node, lambda: noted.call("ADD"), 11, f"{method} ", "default/pods/app")
    assert noted.node.leftovers() == {}
    noted.api.faults.clear()
    assert noted.annotations == {}
    succeeded(noted.call("ADD"))
    noted.api.faults.append(failing)
    succeeded(noted.call("DEL"))
    assert noted.node.leftovers() == {}


def test_account_that_may_nothing(noted: Noted) -> None:
    """Without permission ADD answers 107, which names the verbs that are needed, and leaves nothing."""
    noted.api.faults += [Fault("PATCH", status=403), Fault("PUT", status=403)]
    refused(noted.call("ADD"), 107, "not allowed (403)", "patch (or update) on pods/status")
    noted.api.faults.append(Fault("GET", status=403))
    refused(noted.call("ADD"), 107, "not allowed (403)", "get on pods")
    assert (noted.annotations, noted.node.leftovers()) == ({}, {})


@pytest.mark.parametrize("how", ["gone", "another of its name"])
def test_pod_that_is_gone(noted: Noted, how: str) -> None:
    """ADD answers 3, before any effect, for a pod that the API server does not know or has only by its name.

    DEL writes no note to it.
    """
    succeeded(noted.call("ADD"))
    noted.api.remove_pod("default", "app")
    if how != "gone":
        Pod(volume={"emptyDir": {}}).create(noted.api)
    before = noted.writes()
    error = refused(noted.call("ADD", "net2"), 3, "default/app", noted.pod.uid)
    assert "gone" in error["msg"]
    succeeded(noted.call("DEL"))
    assert noted.writes() == before
    assert noted.node.leftovers() == {}


def test_pod_that_is_being_deleted(noted: Noted) -> None:
    """No note is written to a pod that is being deleted."""
    succeeded(noted.call("ADD"))
    noted.api.change("default", "app", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    before = noted.writes()
    succeeded(noted.call("DEL"))
    assert (noted.writes(), noted.node.leftovers()) == (before, {})


def test_two_directories_in_one_pod(noted: Noted) -> None:
    """A pod whose note names another directory already cannot be served: 7 naming both, and nothing is left."""
    noted.api.change("default", "app", {"metadata": {"annotations": {MAPPED_DIR: "/elsewhere"}}})
    refused(noted.call("ADD"), 7, "/elsewhere", "/sockets/")
    assert noted.annotations == {MAPPED_DIR: "/elsewhere"}
    assert noted.node.leftovers() == {}


def test_virtual_machine_without_a_note(noted: Noted) -> None:
    """For `consumer: kubevirt` the note is optional: if the server refuses
    everything, there is a warning and the VM is attached.
    """
    noted.node.empty_dir(noted.pod.uid, "public")
    noted.api.faults.append(Fault(status=503))
    added = noted.call("ADD", consumer="kubevirt")
    succeeded(added)
    assert b"without what it says" in added.stderr
    assert len(switch_of(noted.node).ports("br-test")) == 1
    succeeded(noted.call("DEL", consumer="kubevirt"))
    assert noted.node.leftovers() == {}


def test_kubeconfig_that_may_not_be_used(noted: Noted, tmp_path: Path) -> None:
    """With `netconf_kubeconfig = never` the API server is not asked, and the file tells the application instead."""
    noted.node.settings["USERSPACE_CNI_NETCONF_KUBECONFIG"] = "never"
    succeeded(noted.call("ADD"))
    assert noted.api.requests == []
    assert [path.name for path in noted.node.empty_dir(noted.pod.uid).iterdir()] == [f"configData-{CID12}-net1.json"]
    succeeded(noted.call("DEL"))
    assert noted.node.leftovers() == {}


@pytest.mark.parametrize("mode", ["client", "server"])
def test_file_without_an_api_server(node: Node, sandbox: str, mode: str) -> None:
    """The file in the pod's directory has one object per interface and any user can read it.

    The reader makes arguments and JSON of it.
    """
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    network = node.network("1.0.0", ipam=node.host_local(), container={"vhost": {"queues": 2, "queueSize": 1024}})
    network["host"]["vhost"]["mode"] = mode
    results = [succeeded(node.run("ADD", network, sandbox, ifname=name, CNI_ARGS=pod.args)) for name in ("net2", "net10")]
    entry = json.loads((volume / f"configData-{CID12}-net2.json").read_text())
    assert list(entry) == ["containerId", "ifName", "name", "config", "ipResult"]
    assert (volume / f"configData-{CID12}-net2.json").stat().st_mode & 0o777 == 0o644
    role = "server=1," if mode == "client" else ""
    mapped = node.directory / "mapped"  # where a container would have it: close to its root
    mapped.symlink_to(volume)
    assert read_in_pod("--dir", str(mapped)).split()[2:] == [
        f"--vdev=virtio_user{number},path={mapped}/{CID12}-{name},{role}mac={result['interfaces'][0]['mac']},queues=2,queue_size=1024"
        for number, (name, result) in enumerate(zip(("net2", "net10"), results, strict=True))
    ]
    told = json.loads(read_in_pod("--dir", str(mapped), "--json", "--interface", "net10", "--wait", "1", "--expect", "1"))
    assert [(each["ifname"], each["ips"]) for each in told] == [("net10", [results[1]["ips"][0]["address"]])]
    for name in ("net2", "net10"):
        succeeded(node.run("DEL", network, sandbox, ifname=name))
    assert (list(volume.iterdir()), node.leftovers()) == ([], {})
