"""containerd calls the plugin as the kubelet makes it: RunPodSandbox, StopPodSandbox, RemovePodSandbox."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cni.spec import paused_vswitchd, switch_of
from tests.lab.kube.pods import MAPPED_DIR, Pod
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import BROKEN, Containerd
from tests.lab.runtimes.cri import CriError
from tests.lab.runtimes.runtime import CURRENT
from tests.lab.switch.switch import wait_until
from tests.runtimes.seen import (
    VERSION,
    addressed,
    attached,
    conflist,
    debian_bridge,
    listed,
    mac_of,
    namespace_of,
    port_of,
    ports,
    refusing,
    server_path,
    witness,
)

LISTEN = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.settimeout(60)
    listener.listen()
    listener.accept()
    print("connected")
"""
AT_ONCE = 20


def test_the_only_network(runtime_node: Node, containerd: Containerd) -> None:
    """A sandbox on our network alone: port, record and lease, no link of ours in its namespace, and nothing left after it."""
    cri = containerd.start(conflist(addressed(runtime_node)))
    assert cri.network_ready()
    pod = Pod()
    sandbox = cri.run(pod)
    row = attached(runtime_node, sandbox)
    assert row["external_ids"]["pod-uid"] == pod.uid
    assert containerd.host.links(namespace_of(row)) == {"lo"}
    status = cri.status(sandbox)
    assert (status.ready, status.addresses) == (True, ("10.56.0.2",))
    seen = status.interfaces["eth0"]
    assert (seen["Mac"], seen["Sandbox"]) == (mac_of(row), namespace_of(row))
    assert [each["IP"] for each in seen["IPConfigs"]] == ["10.56.0.2"]
    cri.stop(sandbox)
    assert ports(runtime_node) == set()
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}


def test_three_deletes(runtime_node: Node, containerd: Containerd) -> None:
    """A Stop, a repeated Stop and a Remove are a DEL each, the last two without namespace and prevResult; all succeed."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), addressed(runtime_node)))
    sandbox = cri.run(Pod())
    row = attached(runtime_node, sandbox)
    cri.stop(sandbox)
    assert runtime_node.leftovers() == {}
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert watched.commands() == ["ADD", "DEL", "DEL", "DEL"]
    deletes = watched.calls()[1:]
    assert [call["env"]["CNI_NETNS"] for call in deletes] == [namespace_of(row), "", ""]
    assert ["prevResult" in json.loads(call["stdin"]) for call in deletes] == [True, False, False]
    assert runtime_node.leftovers() == {}


def test_many_at_once(runtime_node: Node, containerd: Containerd) -> None:
    """Twenty sandboxes set up at once get their own ports and addresses, and are removed at once without a trace."""
    cri = containerd.start(conflist(addressed(runtime_node)))
    pods = [Pod(f"app-{number}") for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sandboxes = list(pool.map(cri.run, pods))
        assert ports(runtime_node) == {port_of(sandbox) for sandbox in sandboxes}
        for sandbox in sandboxes:
            attached(runtime_node, sandbox)
        assert len({cri.status(sandbox).addresses for sandbox in sandboxes}) == AT_ONCE
        list(pool.map(cri.stop, sandboxes))
        assert runtime_node.leftovers() == {}
        list(pool.map(cri.remove, sandboxes))
    assert runtime_node.leftovers() == {}


def test_before_debians_plugins(runtime_node: Node, containerd: Containerd) -> None:
    """Debian's plugins that need no link work after ours in a list, and pass our result on."""
    setting = {"type": "tuning", "sysctl": {"net.ipv4.conf.lo.forwarding": "1"}}
    passive: list[dict[str, Any]] = [{"type": "portmap", "capabilities": {"portMappings": True}}, {"type": "bandwidth"}]
    cri = containerd.start(conflist(addressed(runtime_node), setting, *passive, {"type": "firewall", "backend": "iptables"}))
    sandbox = cri.run(Pod())
    row = attached(runtime_node, sandbox)
    status = cri.status(sandbox)
    assert (status.addresses, status.interfaces["eth0"]["Mac"]) == (("10.56.0.2",), mac_of(row))
    assert containerd.host.run("cat", "/proc/sys/net/ipv4/conf/lo/forwarding", namespace=namespace_of(row)) == "1\n"
    assert "10.56.0.2/32" in containerd.host.run("iptables", "--list-rules", "CNI-FORWARD")
    cri.stop(sandbox)
    assert "10.56.0.2" not in containerd.host.run("iptables", "--list-rules")
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}


def test_after_debians_loopback(runtime_node: Node, containerd: Containerd) -> None:
    """Second in a list, our plugin adds its interface to the result of the first."""
    cri = containerd.start(conflist({"type": "loopback"}, addressed(runtime_node)))
    sandbox = cri.run(Pod())
    attached(runtime_node, sandbox)
    status = cri.status(sandbox)
    assert status.addresses == ("10.56.0.2",)
    assert status.interfaces.keys() >= {"lo", "eth0"}
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}


def test_after_debians_bridge_in_one_list(runtime_node: Node, containerd: Containerd) -> None:
    """Both plugins of one list get the name eth0: ours refuses the bridge plugin's, and nothing is left."""
    cri = containerd.start(conflist(debian_bridge(runtime_node), addressed(runtime_node)))
    with pytest.raises(CriError, match=r'plugin type="userspace" failed \(add\): interface eth0 exists in the container already'):
        cri.run(Pod())
    assert cri.sandboxes() == []
    assert not any(name.startswith("veth") for name in containerd.host.links())
    assert runtime_node.leftovers() == {}


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_beside_debians_bridge(runtime_node: Node, containerd: Containerd, first: bool) -> None:
    """Two networks on one sandbox, ours and Debian's bridge: each has its interface, whichever comes first."""
    ours = conflist(addressed(runtime_node) if first else runtime_node.network())
    theirs = conflist(debian_bridge(runtime_node), name="kernel")
    cri = containerd.start(*((ours, theirs) if first else (theirs, ours)))
    ours_is, theirs_is = ("eth0", "eth1") if first else ("eth1", "eth0")
    sandbox = cri.run(Pod())
    row = attached(runtime_node, sandbox, ours_is)
    assert containerd.host.links(namespace_of(row)) == {"lo", theirs_is}
    status = cri.status(sandbox)
    assert status.addresses == ("10.56.0.2" if first else "10.88.0.2",)
    assert status.interfaces[ours_is]["Mac"] == mac_of(row)
    assert status.interfaces[theirs_is]["IPConfigs"][0]["IP"] == "10.88.0.2"
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}


def test_without_addresses(runtime_node: Node, containerd: Containerd) -> None:
    """containerd refuses a sandbox whose eth0 has no address: it undoes our successful ADD, and nothing is left."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), runtime_node.network()))
    with pytest.raises(CriError, match="failed to find network info for sandbox"):
        cri.run(Pod())
    assert watched.commands() == ["ADD", "DEL"]
    assert cri.sandboxes() == []
    assert runtime_node.leftovers() == {}


def test_failed_add(runtime_node: Node, containerd: Containerd) -> None:
    """The runtime's error has our plugin's text, and the runtime's DEL finds nothing to undo."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), refusing(runtime_node)))
    with pytest.raises(CriError, match=r'plugin type="userspace" failed \(add\): .*bandwidth'):
        cri.run(Pod())
    assert watched.commands() == ["ADD", "DEL"]
    assert watched.calls()[1]["env"]["CNI_NETNS"]
    assert runtime_node.leftovers() == {}


def test_failed_add_in_the_switch(runtime_node: Node, containerd: Containerd) -> None:
    """A bridge of the kernel's datapath is refused by name; the lease that was taken before is released."""
    switch = switch_of(runtime_node)
    switch.vsctl("--no-wait", "add-br", "br-kernel", "--", "set", "Bridge", "br-kernel", "datapath_type=system")
    network = addressed(runtime_node)
    network["host"]["bridge"] = {"bridgeName": "br-kernel"}
    cri = containerd.start(conflist(network))
    with pytest.raises(CriError, match="br-kernel"):
        cri.run(Pod())
    assert runtime_node.leftovers() == {"bridges": ["br-kernel"]}


def test_failed_plugin_after_ours(runtime_node: Node, containerd: Containerd) -> None:
    """When a later plugin of the list fails, the runtime's DEL undoes our good ADD."""
    later = witness(containerd.host, "later").tell("ADD", answer={"code": 120, "msg": "not today"}, exit=1)
    cri = containerd.start(conflist(addressed(runtime_node), listed(later)))
    with pytest.raises(CriError, match="not today"):
        cri.run(Pod())
    assert later.commands() == ["ADD", "DEL"]
    assert runtime_node.leftovers() == {}


def test_failed_start_after_add(runtime_node: Node, containerd: Containerd) -> None:
    """A sandbox whose container cannot be started after a good ADD: the runtime's DEL leaves nothing."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), addressed(runtime_node)))
    with pytest.raises(CriError, match="/no/such/runc"):
        cri.run(Pod(), BROKEN)
    assert watched.commands() == ["ADD", "DEL"]
    assert cri.sandboxes() == []
    assert runtime_node.leftovers() == {}


def test_status(runtime_node: Node, containerd: Containerd) -> None:
    """A containerd that calls STATUS, as 2.1 does, accepts no pods while ovs-vswitchd hangs; an older one does not ask."""
    watched = witness(containerd.host)
    cri = containerd.start(conflist(listed(watched), runtime_node.network()) | {"cniVersion": CURRENT})
    assert cri.network_ready()
    asks = "STATUS" in watched.commands()
    with paused_vswitchd(switch_of(runtime_node)):
        wait_until(lambda: cri.network_ready() != asks, what="containerd to hear of it")
    wait_until(cri.network_ready, what="containerd to hear that it is over")


def test_annotations_of_the_pod(runtime_node: Node, containerd: Containerd) -> None:
    """The pod's annotations, which containerd sends to a plugin with that capability, change nothing."""
    capability = "io.kubernetes.cri.pod-annotations"
    granted = {"cniVersion": VERSION, "ips": [{"address": "10.1.2.3/24"}]}
    delegate = witness(containerd.host).tell("ADD", answer=granted)
    network = runtime_node.network(ipam={"type": delegate.name}, capabilities={capability: True})
    cri = containerd.start(conflist(network))
    annotations = {"note": 'a\nb="c";d', "userspace/mapped-dir": "/elsewhere"}
    sandbox = cri.run(Pod(), annotations=annotations)
    attached(runtime_node, sandbox)
    told = json.loads(delegate.calls()[-1]["stdin"])["runtimeConfig"]
    assert told == {capability: annotations}
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}


def test_socket_of_a_container(runtime_node: Node, containerd: Containerd) -> None:
    """OVS connects to the socket that the application makes in its volume, which is removed with the sandbox."""
    cri = containerd.start(conflist(addressed(runtime_node)))
    pod = Pod()
    volume = runtime_node.empty_dir(pod.uid)
    sandbox = cri.run(pod)
    path = server_path(attached(runtime_node, sandbox))
    assert path.parent.samefile(volume)
    container = cri.start(sandbox, pod, ["/bin/sleep", "1000"], {MAPPED_DIR: str(volume), "/usr": "/usr"})
    assert cri.run_in(container, "/usr/bin/python3", "-c", LISTEN, f"{MAPPED_DIR}/{path.name}") == "connected\n"
    cri.stop(sandbox)
    assert list(volume.iterdir()) == []
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}
