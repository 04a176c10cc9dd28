"""What `kubevirt doctor` reports of a node in memory, and which process is at a socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kubevirt.manifests import ManifestOptions
from kubevirt.plugin_manifests import plugin_manifests
from kubevirt.plugin_schema import Version
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.objectstore import Kind
from tests.lab.node.memory_switch import Facts
from tests.unit.cli.test_cli_commands import Town, decoded
from tests.unit.kubevirt.plugin_definition import definition, stored
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import Unavailable
from userspace_cni.cli.node.socket_parties import UnixSockets
from userspace_cni.consumers.kubevirt.guests import Party
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugePages
from userspace_cni.linux.unix_sockets import UnixSocket, file_of


def test_who_is_at_a_socket(tmp_path: Path) -> None:
    """The file decides, not the name, which all VMs of a network share; without a full view the answer is not "none"."""
    path = tmp_path / "a.sock"
    path.touch()
    facts = path.stat()
    inode, device = file_of(facts)
    listener, accepted = UnixSocket(True, "/q/a.sock", inode, device), UnixSocket(False, "/q/a.sock", inode, device)
    others = UnixSocket(False, "/q/a.sock", inode + 1, device)

    def told(*sockets: UnixSocket, is_whole: bool = True) -> Party:
        return UnixSockets(sockets, is_whole).at(path, facts)

    assert [told(listener, accepted), told(accepted, is_whole=False)] == ["connected", "connected"]
    assert [told(listener, others), told(others), told()] == ["listening", "none", "none"]
    assert [told(listener, is_whole=False), told(is_whole=False)] == ["", ""]
    assert told(replace(listener, device=device + 1)) == ""
    assert told(replace(listener, device=device + 1, name="/q/b.sock")) == "none"


def _pages(free: int) -> HugepagePool:
    return HugepagePool(2 << 20, 0, 512, free, None, 0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A node in memory with enough huge pages, in a directory with a path short enough for sockets."""
    monkeypatch.setattr(hugepages, "read_hugepages", lambda **_: HugePages((), (_pages(512),), ()))
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Town(Path(directory))


@pytest.fixture
def town(quiet: Town) -> Town:
    """The same with an ordinary pod and a VM."""
    town = quiet
    town.call("ADD", "deadbeef01234567")
    town.call("ADD")
    marks = {"vm-name": "vm"}
    steps = tuple(replace(step, marks=marks) if isinstance(step, OvsPort) else step for step in town.record().steps)
    town.rewrite(pod_namespace="ns", pod_name="virt-launcher-vm-abcde", steps=steps)
    return town


def told(town: Town, *arguments: str, code: int = 0) -> Any:
    """The JSON of a call that ended with this code."""
    return decoded(town.cli("kubevirt", "doctor", *arguments, "--json"), code)


def test_only_vms_are_looked_at(town: Town) -> None:
    """The ordinary pod is left out, and the VM is named as KubeVirt names it."""
    found = told(town)
    assert found["checked"] == 1
    assert (found["interfaces"][0]["vm"], found["interfaces"][0]["verdict"]) == ("ns/vm", "good")
    assert {each["name"] for each in found["findings"]} == {"post-copy", "iommu"}
    town.ports.told = Facts({"vhost-postcopy-support": "true", "vhost-iommu-support": "true"})
    assert told(town)["findings"] == []


def test_by_name(town: Town) -> None:
    """The name of a VM or pod chooses it, an interface's chooses all of that name; an unknown name ends with 1, as with list."""
    for name in ("vm", "ns/vm", "ns/vm/net1", "net1", "virt-launcher-vm-abcde", "c0ffee"):
        assert told(town, name)["checked"] == 1
    result = town.cli("kubevirt", "doctor", "deadbeef")
    assert (result.exit_code, result.stdout.count("net1")) == (0, 0)
    assert "no interface of a VM has that name" in result.stderr
    assert town.cli("kubevirt", "doctor", "unknown").exit_code == town.cli("list", "unknown").exit_code == 1


def test_a_name_of_several_vms(town: Town) -> None:
    """One name in two namespaces ends with 2 and names both; their interface's name is both."""
    steps = tuple(
        replace(each, marks={"vm-name": "vm"}, mac="") if isinstance(each, OvsPort) else each for each in town.record().steps
    )
    town.rewrite("deadbeef01234567", result=None, pod_namespace="other", pod_name="virt-launcher-vm-fghij", steps=steps)
    result = town.cli("kubevirt", "doctor", "vm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ns/vm, other/vm" in result.stderr
    assert [told(town, "net1")["checked"], told(town, "other/vm")["checked"], told(town, "ns/vm", "net1")["checked"]] == [2, 1, 2]


def test_one_mac_of_two_vms_by_what_add_answered(town: Town) -> None:
    """A port without a MAC has the result's, in upper or lower case."""

    def rewrite(container: str, name: str, mac: str) -> None:
        record = town.record(container)
        steps = tuple(
            replace(each, marks={"vm-name": name}, mac=mac) if isinstance(each, OvsPort) else each for each in record.steps
        )
        result = {"interfaces": [{"name": "net1", "sandbox": record.netns, "mac": "02:00:00:00:00:0A"}]}
        town.rewrite(container, pod_namespace="ns", pod_name=f"virt-launcher-{name}-abcde", steps=steps, result=result)

    rewrite("c0ffee0123456789", "a", "02:00:00:00:00:0a")
    rewrite("deadbeef01234567", "b", "")
    found = [each for each in told(town, code=1)["findings"] if each["name"] == "mac-conflict"]
    assert sorted(each["where"] for each in found) == ["VM ns/a, interface net1", "VM ns/b, interface net1"]


def test_a_lost_port(town: Town) -> None:
    """A port that the switch lacks is reported once, and ends with 1."""
    town.lose()
    found = told(town, code=1)
    assert [each["name"] for each in found["findings"] if each["severity"] == "error"] == ["port-down"]
    assert found["interfaces"][0]["verdict"] == "error"


def test_a_dead_datapath(town: Town) -> None:
    """A dead ovs-vswitchd is an error of the switch, and its last states of ports are not shown."""
    town.ports.alive = replace(town.ports.alive, state="dead", reason="gone")
    found = told(town, code=1)
    assert [(each["name"], each["where"]) for each in found["findings"]] == [("port-down", "switch")]
    assert [found["interfaces"][0][key] for key in ("link_state", "vhost", "verdict")] == ["unknown"] * 3


def test_a_switch_that_is_away(town: Town) -> None:
    """What cannot be asked is listed as unchecked; without findings that ends with 3."""
    town.unreachable = Unavailable("OVSDB is away")
    found = told(town, code=3)
    assert [(each["name"], each["message"]) for each in found["findings"]] == [("port-down", "OVSDB is away")]
    assert found["unchecked"] == ["ports and settings of the switch could not be looked at: OVSDB is away"]
    assert found["interfaces"][0]["verdict"] == "unknown"


def test_a_node_without_vms(quiet: Town) -> None:
    """On a node without VMs a line says so; without its switch, what was not looked at is listed, in text and in JSON."""
    result = quiet.cli("kubevirt", "doctor")
    assert result.exit_code == 0
    assert "no interface of a VM on this node" in result.stderr
    quiet.unreachable = Unavailable("OVSDB is away")
    unchecked = "ports and settings of the switch could not be looked at: OVSDB is away"
    assert told(quiet, code=3)["unchecked"] == [unchecked]
    result = quiet.cli("kubevirt", "doctor")
    assert (result.exit_code, unchecked in result.stderr) == (3, True)


def test_a_guest_that_is_too_large(town: Town) -> None:
    """A VM that is to be started is compared with the free huge pages."""
    assert told(town, "--guest", "1Gi")
    assert [each["severity"] for each in told(town, "--guest", "2Gi", code=1)["findings"]] == ["note", "note", "error"]


def test_notes_of_a_healthy_node(town: Town) -> None:
    """A person reads a line for each VM and that nothing is wrong; notes about the node are counted, and shown on request."""
    result = town.cli("kubevirt", "doctor")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert "1 interface of VMs checked: nothing found (2 notes about the node: --notes)" in result.stderr
    result = town.cli("kubevirt", "doctor", "--notes")
    assert ("post-copy:" in result.stdout, "iommu:" in result.stdout, "2 notes" in result.stderr) == (True, True, True)
    assert "--notes" not in result.stderr


def test_pages_that_healthy_vms_took(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Used-up pages are no fault while all VMs run, and may be the reason why one does not."""
    monkeypatch.setattr(hugepages, "read_hugepages", lambda **_: HugePages((), (_pages(0),), ()))
    assert [each["severity"] for each in told(town)["findings"] if each["name"] == "hugepages-short"] == ["note"]
    assert "hugepages-short" not in town.cli("kubevirt", "doctor").stdout
    town.lose()
    assert [each["severity"] for each in told(town, code=1)["findings"] if each["name"] == "hugepages-short"] == ["warning"]


def test_a_size_that_is_none(town: Town) -> None:
    """--guest accepts an amount of memory."""
    assert town.cli("kubevirt", "doctor", "--guest", "much").exit_code == 2


# -- the cluster's Plugins -------------------------------------------------------------------------------------------------------

KUBEVIRTS = Kind("kubevirt.io", "v1", "kubevirts", "KubeVirt", namespaced=True, has_status=True)


@pytest.fixture
def api(town: Town) -> Iterator[ApiServer]:
    """The API server of the town, which knows nothing of KubeVirt."""
    with ApiServer() as api:
        town.kubeconfig = api.kubeconfig(town.directory)
        yield api


def install(api: ApiServer, cluster: str, form: Version) -> None:
    """KubeVirt of that version, and our Plugin in the form of a version, as the server keeps it."""
    api.define(definition(cluster))
    api.serve(KUBEVIRTS)
    configuration = {"developerConfiguration": {"featureGates": ["Plugins"]}}
    kubevirt = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt"},
        "spec": {"configuration": configuration},
        "status": {"observedKubeVirtVersion": f"v{cluster}.0"},
    }
    api.add(kubevirt, "kubevirt")
    [plugin] = [each.object for each in plugin_manifests(ManifestOptions(kubevirt=form)) if each.object["kind"] == "Plugin"]
    api.add(stored(plugin, cluster))


def of_plugins(found: Any) -> list[tuple[str, str, str]]:
    """The findings that are about neither a VM nor a part of the node."""
    return [(each["name"], each["severity"], each["where"]) for each in found["findings"] if each["where"].startswith("cluster")]


@pytest.mark.parametrize(("cluster", "form"), [("1.10", (1, 9)), ("1.9", (1, 10))])
def test_a_plugin_that_has_lost_its_hook(town: Town, api: ApiServer, cluster: str, form: Version) -> None:
    """After an upgrade or downgrade of KubeVirt the server has the Plugin without its hook: an error with what to apply."""
    install(api, cluster, form)
    found = told(town, code=1)
    assert of_plugins(found) == [("plugin-pruned", "error", "cluster: Plugin userspace-cni-vhostuser")]
    assert f"manifests plugin --kubevirt {cluster}" in str(found["findings"])


@pytest.mark.parametrize(("cluster", "form"), [("1.9", (1, 9)), ("1.10", (1, 10))])
def test_a_plugin_of_the_clusters_version(town: Town, api: ApiServer, cluster: str, form: Version) -> None:
    """Nothing is found of a Plugin in the right form."""
    install(api, cluster, form)
    assert of_plugins(told(town)) == []


def test_a_cluster_without_plugins(town: Town, api: ApiServer) -> None:
    """A server that knows no Plugins, or has none, causes no message, and KubeVirt's object is not read."""
    assert of_plugins(told(town)) == []
    api.define(definition("1.10"))
    assert of_plugins(told(town)) == []
    assert not [each for each in api.requests if "kubevirts" in each.path]


def test_plugins_that_cannot_be_read(town: Town, api: ApiServer) -> None:
    """When the account may not read them, a note has the right that it needs; while the server is away they are unchecked."""
    install(api, "1.10", (1, 9))
    api.faults.append(Fault("LIST", status=403))
    found = told(town)
    assert of_plugins(found) == [("not-given", "note", "cluster")]
    assert "the verb list on plugins.plugin.kubevirt.io" in str(found["findings"])
    api.faults[:] = [Fault("LIST", about="/kubevirts", status=403)]
    found = told(town, code=1)
    assert [name for name, _, _ in of_plugins(found)] == ["plugin-pruned", "not-given"]
    assert "the verb list on kubevirts.kubevirt.io" in str(found["findings"])
    api.stop()
    found = told(town, code=3)
    assert of_plugins(found) == []
    assert [each.startswith("KubeVirt's Plugins could not be looked at: ") for each in found["unchecked"]] == [True]
    api.start()
