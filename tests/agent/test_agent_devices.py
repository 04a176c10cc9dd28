"""Devices of bridges as a runtime and a pod see them: which directory an interface uses, and what may interfere."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container, port_of
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.pods import Pod, downward_file
from tests.lab.node.node import mounts_below
from tests.lab.runtimes.runtime import netns
from userspace_cni.fastpath.vhost.socket_paths import ListeningSocket
from userspace_cni.linux.instant import Instant
from userspace_cni.pod.__main__ import main as reader

RESOURCE = "userspace-cni.io/br-dev"
POD = Pod(name="app", namespace="blue")
MAPPED = "/var/lib/cni/usrspcni"


@pytest.fixture
def kubelet(live: LiveNode) -> Iterator[Kubelet]:
    """The node's kubelet, to which the agent offers three devices of br-dev, an administrator's bridge."""
    live.settings["USERSPACE_CNI_DEVICES_PER_BRIDGE"] = "3"
    switch_of(live).vsctl("add-br", "br-dev", "--", "set", "Bridge", "br-dev", "datapath_type=netdev")
    with Kubelet(live.kubelet) as kubelet:
        live.start()
        kubelet.await_health(RESOURCE, "Healthy")
        yield kubelet


def on(live: LiveNode, bridge: str = "br-dev", **keys: Any) -> dict[str, Any]:
    """A network of that bridge that says no mode."""
    return {**live.network(), "host": {"bridge": {"bridgeName": bridge}}, **keys}


def asking(live: LiveNode, device: str, bridge: str = "br-dev") -> dict[str, Any]:
    """A network as Multus passes it for a NetworkAttachmentDefinition with a resourceName."""
    return on(live, bridge, deviceID=device, pciBusID=device)


def place_of(live: LiveNode, device: str) -> Path:
    return live.directory / "run" / "devices" / device


def seen_by_ovs(live: LiveNode, name: str) -> Path:
    """The path of the socket to which OVS connects."""
    return Path(switch_of(live).interface(name)["options"]["vhost-server-path"])


def device_behind(live: LiveNode, name: str) -> int:
    """The file system in which the port's socket is."""
    return seen_by_ovs(live, name).parent.stat().st_dev


def await_ovs(listening: ListeningSocket) -> None:
    connection = listening.accept(Instant.after(60))
    assert connection is not None
    connection.close()


def test_the_directory_of_a_device(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """A pod with a device and no volume is attached in the device's directory:
    OVS connects there, and the directory stays after DEL.
    """
    answer = kubelet.give("blue/app", RESOURCE, "br-dev-1")
    [mount] = answer.mounts
    host = place_of(live, "br-dev-1")
    assert (mount.container_path, mount.host_path, mount.read_only) == (f"{MAPPED}/br-dev-1", str(host), False)
    assert dict(answer.envs) == {"USERSPACE_CNI_DIRS_BR_DEV": f"{MAPPED}/br-dev-1"}
    assert (host.stat().st_mode & 0o7777, host.parent.stat().st_mode & 0o7777) == (0o777, 0o700)
    own = {"vhost": {"mode": "server"}}
    network = on(live, cniVersion="1.0.0", container=own, ipam=live.host_local())  # a program is run beside gRPC's threads
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=POD.args))
    assert device_behind(live, port_of()) == host.stat().st_dev
    [told] = [json.loads(path.read_text()) for path in host.iterdir()]
    assert told["config"]["vhost"] == {"mode": "server", "socketfile": port_of()}
    with ListeningSocket(str(host / port_of())) as listening:
        await_ovs(listening)
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=POD.args))
    assert list(host.iterdir()) == []
    left = live.leftovers()
    assert left == {"mounts": [str(host)], "bridges": ["br-dev"]}
    assert [word for word in ("fork", "is the vhost-user server", "container.vhost.mode") if word in live.log.read_text()] == []
    assert live.metric("device_allocations_total", outcome="ok") == 1


def test_a_device_of_ovns_bridge(live: LiveNode, sandbox: str) -> None:
    """It is offered as any bridge that we did not make: a pod of a network with `ovn` is scheduled where it is, and needs no
    volume."""
    rules = '[[rule]]\nnamespaces = ["blue"]\nwithout_port_security = ["node"]\n'
    Path(live.environ["USERSPACE_CNI_CONFIG"]).write_text(rules)
    live.settings["USERSPACE_CNI_DEVICES_PER_BRIDGE"] = "3"
    switch_of(live).vsctl("add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev")
    with Kubelet(live.kubelet) as kubelet:
        live.start()
        kubelet.await_health("userspace-cni.io/br-int", "Healthy")
        kubelet.give("blue/app", "userspace-cni.io/br-int", "br-int-1")
        network = {**live.network(), "host": {}, "ovn": {"wait": "port"}, "addresses": "unknown"}
        succeeded(live.run("ADD", network, sandbox, CNI_ARGS=POD.args))
        assert device_behind(live, port_of()) == place_of(live, "br-int-1").stat().st_dev
        assert switch_of(live).interface(port_of())["external_ids"]["iface-id"] == "blue_app"
        succeeded(live.run("DEL", network, sandbox, CNI_ARGS=POD.args))


def test_each_interface_takes_one(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """Interfaces of one bridge take the pod's devices in order, each once; one interface too many is refused.

    DEL frees a device.
    """
    kubelet.give("blue/app", RESOURCE, "br-dev-2", "br-dev-0")
    for ifname, device in (("net1", "br-dev-0"), ("net2", "br-dev-2")):
        succeeded(live.run("ADD", on(live), sandbox, ifname=ifname, CNI_ARGS=POD.args))
        assert device_behind(live, port_of(ifname=ifname)) == place_of(live, device).stat().st_dev
    refused(live.run("ADD", on(live), sandbox, ifname="net3", CNI_ARGS=POD.args), 7, "has 2 of userspace-cni.io/br-dev")
    succeeded(live.run("DEL", on(live), sandbox, CNI_ARGS=POD.args))
    succeeded(live.run("ADD", on(live), sandbox, ifname="net3", CNI_ARGS=POD.args))
    assert device_behind(live, port_of(ifname="net3")) == place_of(live, "br-dev-0").stat().st_dev


def test_interfaces_at_once_take_one_each(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """Interfaces of a pod that are attached at the same time choose one after the other: none takes the device of another."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0", "br-dev-1", "br-dev-2")
    ifnames = ("net1", "net2", "net3")
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(live.run, "ADD", on(live), sandbox, ifname=each, CNI_ARGS=POD.args) for each in ifnames]:
            succeeded(done.result())
    taken = {device_behind(live, port_of(ifname=each)) for each in ifnames}
    assert taken == {place_of(live, f"br-dev-{number}").stat().st_dev for number in range(3)}


def test_whose_device_it_is(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """A network's deviceID means a device of this pod and bridge, and of no other; another plugin's ID is ignored."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0", "br-dev-1")
    kubelet.give("red/app", RESOURCE, "br-dev-2")
    kubelet.pods["blue/app"] = {**kubelet.pods["blue/app"], "example.com/nic": ("0000:03:02.0",)}
    for network, words in (
        (asking(live, "br-dev-2"), "gave no such device to pod blue/app"),
        (asking(live, "../br-dev-0"), "gave no such device to pod blue/app"),
        (on(live, runtimeConfig={"deviceID": "br-dev-2"}), "gave no such device to pod blue/app"),
        (asking(live, "br-dev-0", "br-test"), "a device of userspace-cni.io/br-dev, and the network's bridge is br-test"),
    ):
        refused(live.run("ADD", network, sandbox, CNI_ARGS=POD.args), 7, words)
    kubelet.pods["green/app"] = {RESOURCE: ("br-other-1", "../../etc")}
    assert "br-other" not in json.dumps(succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=Pod("app", "green").args)))
    succeeded(live.run("DEL", on(live), sandbox))
    succeeded(live.run("ADD", asking(live, "br-dev-1"), sandbox, CNI_ARGS=POD.args))
    assert device_behind(live, port_of()) == place_of(live, "br-dev-1").stat().st_dev
    foreign = live.run("ADD", asking(live, "0000:03:02.0"), sandbox, ifname="net2", CNI_ARGS=POD.args)
    assert succeeded(foreign)["interfaces"][0]["socketPath"].startswith(str(live.shared))


def test_only_as_a_client(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """A device is refused, with the reason, in a network that makes OVS the server.

    A pod's volume takes precedence over its device.
    """
    kubelet.give("blue/app", RESOURCE, "br-dev-0")
    network = on(live)
    network["host"]["vhost"] = {"mode": "server"}
    refused(live.run("ADD", network, sandbox, CNI_ARGS=POD.args), 7, "does not see a socket that is mounted there later")
    volume = live.empty_dir(POD.uid)
    kubelet.kill()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=POD.args))
    assert (volume / port_of()).exists()


@contextmanager
def hung(live: LiveNode) -> Iterator[None]:
    """A kubelet that takes connections and says nothing."""
    path = live.kubelet / "pod-resources" / "kubelet.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield


def test_the_kubelets_word_is_awaited(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """While the kubelet does not answer, ADD for a pod without a volume is "try again"; with its answer the pod is attached."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0")
    kubelet.kill()
    for network in (on(live), asking(live, "br-dev-0")):
        refused(live.run("ADD", network, sandbox, CNI_ARGS=POD.args), 11, "asking the kubelet for the devices of pod blue/app")
    assert live.page("/readyz")[0] == 200
    with hung(live):
        refused(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args), 11, "DEADLINE_EXCEEDED")
    kubelet.start()
    succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args))


def test_a_device_whose_former_pod_is_not_detached(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """The device's next pod gets a directory of its own: the former pod's port
    stays in the old one, and its DEL changes nothing here.
    """
    kubelet.give("blue/app", RESOURCE, "br-dev-0")
    former, later = container(1), container(2)
    succeeded(live.run("ADD", on(live), sandbox, former, CNI_ARGS=POD.args))
    before = device_behind(live, port_of(former))
    del kubelet.pods["blue/app"]
    kubelet.give("red/app", RESOURCE, "br-dev-0")
    with netns() as other:
        succeeded(live.run("ADD", on(live), other, later, CNI_ARGS=Pod("app", "red").args))
        assert device_behind(live, port_of(former)) == before
        assert device_behind(live, port_of(later)) == place_of(live, "br-dev-0").stat().st_dev != before
        live.tick(2)
        assert device_behind(live, port_of(former)) == before
        with ListeningSocket(str(place_of(live, "br-dev-0") / port_of(later))) as listening:
            succeeded(live.run("DEL", on(live), sandbox, former, CNI_ARGS=POD.args))
            assert listening.is_in_place()
            await_ovs(listening)
        succeeded(live.run("DEL", on(live), other, later))
    assert mounts_below(live.directory) == [str(place_of(live, "br-dev-0"))]


def test_a_mount_that_is_lost_after_its_device_went_on(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """The former pod's port never gets into the directory of the pod that has the device now; its DEL succeeds."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0")
    succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args))
    mount = seen_by_ovs(live, port_of()).parent
    kubelet.give("red/app", RESOURCE, "br-dev-0")
    subprocess.run(["umount", str(mount)], check=True)
    live.tick(2)
    assert "is another pod's now" in live.log.read_text()
    assert not mount.is_mount()
    succeeded(live.run("DEL", on(live), sandbox, CNI_ARGS=POD.args))
    assert mounts_below(live.directory) == [str(place_of(live, "br-dev-0"))]


def test_a_directory_outlives_agent_and_kubelet(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """The directory of a container survives the death of the agent that gave it and of the kubelet.

    If a reboot removes it, the next ADD makes it again.
    """
    kubelet.give("blue/app", RESOURCE, "br-dev-0")
    host = place_of(live, "br-dev-0")
    (host / "kept").touch()
    live.kill()
    kubelet.kill()
    kubelet.start()
    live.start()
    succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args))
    assert (host / "kept").exists()
    succeeded(live.run("DEL", on(live), sandbox))
    subprocess.run(["umount", str(host)], check=True)
    host.rmdir()
    succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args))
    assert device_behind(live, port_of()) == host.stat().st_dev != host.parent.stat().st_dev


def test_what_the_pod_is_told(live: LiveNode, kubelet: Kubelet, sandbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Annotations, device-info and the reader of the annotations have each socket's path in the container."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0", "br-dev-1")
    info = live.device_info / "cni" / "blue-net"
    asked = {**asking(live, "br-dev-1"), "runtimeConfig": {"CNIDeviceInfoFile": str(info), "deviceID": "br-dev-1"}}
    paths = {
        ifname: f"{MAPPED}/{device}/{port_of(ifname=ifname)}" for ifname, device in (("net1", "br-dev-1"), ("net2", "br-dev-0"))
    }
    with ApiServer() as api:
        POD.create(api)
        live.settings["USERSPACE_CNI_KUBECONFIG"] = str(api.kubeconfig(live.directory))
        live.end()
        live.start()
        succeeded(live.run("ADD", asked, sandbox, CNI_ARGS=POD.args))
        succeeded(live.run("ADD", on(live), sandbox, ifname="net2", CNI_ARGS=POD.args))
        told = POD.annotations(api)
        succeeded(live.run("CHECK", {**on(live), "prevResult": result_of(live, sandbox, "net2")}, sandbox, ifname="net2"))
    assert json.loads(info.read_text())["vhost-user"] == {"mode": "server", "path": paths["net1"]}
    assert told["userspace/mapped-dir"] == f"{MAPPED}/"
    assert all(path in told["userspace/dpdk-args"] for path in paths.values())
    file = live.directory / "annotations"
    file.write_text(downward_file(told))
    assert reader(["--json", "--any-sandbox", "--annotations", str(file)]) == 0
    assert {each["ifname"]: each["path"] for each in json.loads(capsys.readouterr().out)} == paths


def result_of(live: LiveNode, sandbox: str, ifname: str) -> dict[str, Any]:
    """The result of an ADD as a runtime keeps it."""
    interface = {"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": sandbox}
    return {"cniVersion": "1.1.0", "interfaces": [interface]}


def test_the_reader_without_annotations(live: LiveNode, kubelet: Kubelet, sandbox: str, tmp_path: Path) -> None:
    """Without annotations, the file beside each socket describes it, and the reader finds the files of all devices."""
    kubelet.give("blue/app", RESOURCE, "br-dev-0", "br-dev-1")
    for ifname in ("net1", "net2"):
        succeeded(live.run("ADD", on(live), sandbox, ifname=ifname, CNI_ARGS=POD.args))
    argv = [sys.executable, "-m", "userspace_cni.pod", "--json", "--any-sandbox", "--dir", str(place_of(live, "br-dev-0").parent)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = {each["ifname"]: each["path"] for each in json.loads(done.stdout)}
    assert found == {
        ifname: str(place_of(live, device) / port_of(ifname=ifname))
        for ifname, device in (("net1", "br-dev-0"), ("net2", "br-dev-1"))
    }


def test_an_agent_without_devices_pays_nothing(live: LiveNode, sandbox: str) -> None:
    """Without the setting no gRPC is imported, the kubelet is not asked, and a deviceID is ignored."""
    live.start()
    added = succeeded(live.run("ADD", asking(live, "x-0", "br-test"), sandbox, CNI_ARGS=POD.args))
    assert added["interfaces"][0]["name"] == "net1"
    assert "cygrpc" not in Path(f"/proc/{live.pid}/maps").read_text()
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()
