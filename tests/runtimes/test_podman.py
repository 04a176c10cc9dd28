"""podman with the cni backend: containers by themselves, without pods or Kubernetes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cni.spec import held, records, succeeded
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.node.node import Node
from tests.lab.runtimes.podman import Podman, PodmanError
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
    ports,
    refusing,
    server_path,
    witness,
)

FOREVER = ("/bin/sleep", "1000")


def links_inside(podman: Podman, container: str) -> set[str]:
    """Names of the links that the container itself sees."""
    lines = podman.run_in(container, "/bin/ip", "-oneline", "link").splitlines()
    return {line.split(":")[1].strip().partition("@")[0] for line in lines}


def test_alone(runtime_node: Node, podman: Podman) -> None:
    """podman asks for our version, runs a container on our network alone, and takes it away without a trace."""
    watched = witness(podman.host)
    podman.host.write_networks(conflist(listed(watched), addressed(runtime_node)))
    container = podman.run(*FOREVER, networks="net")
    row = attached(runtime_node, container)
    assert links_inside(podman, container) == {"lo"}
    seen = podman.networks(container)["net"]
    assert (seen["MacAddress"], seen["IPAddress"]) == (mac_of(row), "10.56.0.2")
    probed, added = watched.calls()
    assert (probed["command"], json.loads(probed["stdin"])) == ("VERSION", {"cniVersion": VERSION})
    assert [probed["env"][f"CNI_{name}"] for name in ("CONTAINERID", "NETNS", "IFNAME", "PATH")] == [
        "",
        "dummy",
        "dummy",
        "dummy",
    ]
    assert (added["command"], added["env"]["CNI_NETNS"]) == ("ADD", namespace_of(row))
    podman.remove(container)
    deleted = watched.calls()[-1]
    assert (deleted["command"], deleted["env"]["CNI_NETNS"]) == ("DEL", namespace_of(row))
    assert "prevResult" in json.loads(deleted["stdin"])
    assert runtime_node.leftovers() == {}


def test_before_debians_plugins(runtime_node: Node, podman: Podman) -> None:
    """Debian's plugins that need no link do their work after ours in a list, and podman gets our result through them."""
    setting = {"type": "tuning", "sysctl": {"net.ipv4.conf.lo.forwarding": "1"}}
    passive: list[dict[str, Any]] = [{"type": "portmap", "capabilities": {"portMappings": True}}, {"type": "bandwidth"}]
    podman.host.write_networks(conflist(addressed(runtime_node), setting, *passive, {"type": "firewall", "backend": "iptables"}))
    container = podman.run(*FOREVER, networks="net")
    row = attached(runtime_node, container)
    assert podman.networks(container)["net"]["MacAddress"] == mac_of(row)
    assert podman.run_in(container, "/bin/cat", "/proc/sys/net/ipv4/conf/lo/forwarding") == "1\n"
    podman.remove(container)
    assert "10.56.0.2" not in podman.host.run("iptables", "--list-rules")
    assert runtime_node.leftovers() == {}


@pytest.mark.parametrize("networks", ["net,kernel", "kernel,net"])
def test_beside_debians_bridge(runtime_node: Node, podman: Podman, networks: str) -> None:
    """A container on our network and on Debian's bridge has an interface of each; podman lists both."""
    podman.host.write_networks(conflist(runtime_node.network()), conflist(debian_bridge(runtime_node), name="kernel"))
    container = podman.run(*FOREVER, networks=networks)
    [record] = records(runtime_node)
    row = attached(runtime_node, container, record["ifname"])
    [theirs] = {"eth0", "eth1"} - {record["ifname"]}
    assert links_inside(podman, container) == {"lo", theirs}
    seen = podman.networks(container)
    assert (seen["net"]["MacAddress"], seen["kernel"]["IPAddress"]) == (mac_of(row), "10.88.0.2")
    podman.remove(container)
    assert runtime_node.leftovers() == {}


def test_container_that_ends_by_itself(runtime_node: Node, podman: Podman) -> None:
    """When the container ends, a podman that its monitor starts sends DEL, with the settings of podman's configuration alone."""
    watched = witness(podman.host)
    podman.host.write_networks(conflist(listed(watched), addressed(runtime_node)))
    podman.run("/bin/true", networks="net")
    wait_until(lambda: watched.commands() == ["VERSION", "ADD", "VERSION", "DEL"], what="podman's DEL")
    assert runtime_node.leftovers() == {}


def test_failed_add(runtime_node: Node, podman: Podman) -> None:
    """podman's error has our plugin's text, and its DEL finds nothing to undo."""
    watched = witness(podman.host)
    podman.host.write_networks(conflist(listed(watched), refusing(runtime_node)))
    with pytest.raises(PodmanError, match=r'plugin type="userspace" failed \(add\): .*host.bandwidth'):
        podman.run(*FOREVER, networks="net")
    assert watched.commands() == ["VERSION", "ADD", "DEL"]
    assert runtime_node.leftovers() == {}


def test_failed_start(runtime_node: Node, podman: Podman) -> None:
    """A missing command is found out after a good ADD; podman's DEL leaves nothing."""
    watched = witness(podman.host)
    podman.host.write_networks(conflist(listed(watched), addressed(runtime_node)))
    with pytest.raises(PodmanError, match="/no/such/command"):
        podman.run("/no/such/command", networks="net")
    assert watched.commands() == ["VERSION", "ADD", "DEL"]
    assert runtime_node.leftovers() == {}


def test_killed_before_it_saved_our_result(runtime_node: Node, podman: Podman) -> None:
    """podman killed between our ADD and saving its result never sends DEL, not even on removal: GC collects the attachment."""
    later = witness(podman.host, "later")
    network = addressed(runtime_node)
    podman.host.write_networks(conflist(network, listed(later)))
    with held(later, "ADD") as inside:
        started = podman.begin_run(*FOREVER, networks="net")
        inside()
        started.kill()
        started.wait()
    told = later.calls()[-1]["env"]
    container = told["CNI_CONTAINERID"]
    with podman.forgotten(told["CNI_NETNS"]):
        row = attached(runtime_node, container)
        podman.remove(container)
        assert later.commands() == ["VERSION", "ADD"]
        assert ports(runtime_node) == {row["name"]}
        succeeded(runtime_node.run("GC", {**network, "cni.dev/valid-attachments": []}))
        assert runtime_node.leftovers() == {}


def test_shared_directory_of_a_container(runtime_node: Node, podman: Podman) -> None:
    """Without Kubernetes a container mounts the network's `sharedDir`, which holds OVS's directory."""
    shared = runtime_node.directory / "mine"
    shared.mkdir()
    podman.host.write_networks(conflist(runtime_node.network(sharedDir=str(shared))))
    container = podman.run(*FOREVER, networks="net", volumes={MAPPED_DIR: str(shared)})
    path = server_path(attached(runtime_node, container))
    inside = f"{MAPPED_DIR}/{container[:12]}"
    document = f"configData-{path.name}.json"
    assert podman.run_in(container, "/bin/cat", f"{inside}/{document}") == (path.parent / document).read_text()
    podman.remove(container)
    assert runtime_node.leftovers() == {}
    assert list(shared.iterdir()) == []
