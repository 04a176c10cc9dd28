"""The node's own network as objects of the API wish it: an agent, a switch, a NIC, and an API server that comes and goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import define_all
from tests.lab.network.outside import Wire, wired
from tests.lab.node import agent
from tests.lab.switch.switch import Switch, wait_until

ADDRESS = "192.0.2.11"
UPLINK = {"defaultInterface": "nic0", "moveAddresses": "primary"}


class Followed:
    """A node n1 with a NIC, whose agent follows objects."""

    def __init__(self, live: LiveNode, wire: Wire, api: ApiServer) -> None:
        assert live.switch
        self.live, self.wire, self.api, self.switch = live, wire, api, live.switch
        live.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(live.directory)
        live.settings["USERSPACE_CNI_NODE_NAME"] = "n1"
        live.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"

    def wish(self, name: str = "net1") -> dict[str, Any]:
        """What the agent says of the provider network, {} for nothing."""
        _, body = agent.get(self.live.socket, "/api/v1/network")
        return next((each for each in json.loads(body)["wishes"] if each["name"] == name), {})

    def place(self) -> str:
        """The link that has the node's address."""
        shown = json.loads(self.wire.on_node("ip", "-j", "address", "show"))
        return ",".join(link["ifname"] for link in shown for each in link["addr_info"] if each["local"] == ADDRESS)

    def trunks(self) -> list[int]:
        """The VLANs of the uplink."""
        [port] = [row for row in self.switch.rows("Port") if row["name"] == "nic0"]
        return sorted([port["trunks"]] if isinstance(port["trunks"], int) else port["trunks"])


@pytest.fixture
def followed(live: LiveNode) -> Iterator[Followed]:
    """Its API server has the definitions and the node; what is left is undone at the end."""
    switch: Switch | None = live.switch
    assert switch
    with wired(switch.netns) as wire, ApiServer() as api:
        define_all(api)
        api.add(node("n1", ADDRESS))
        found = Followed(live, wire, api)
        yield found
        live.close()
        argv = [sys.executable, "-m", "userspace_cni", "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}"]
        subprocess.run(argv, env=live.environ, check=True, capture_output=True, timeout=60)


def test_an_uplink_of_objects(followed: Followed) -> None:
    """Made, given VLANs, and undone as the objects say; whatever becomes of the API server, also while the agent is made anew, no
    uplink goes; an object that cannot be leaves it as it is and says why."""
    api, live = followed.api, followed.live
    api.add(ours("ProviderNetwork", "net1", **UPLINK))
    live.start()
    wait_until(lambda: followed.wish().get("ready"), 20, "the uplink")
    assert (followed.place(), followed.wire.answers(ADDRESS)) == ("br-net1", True)
    api.add(ours("Vlan", "blue", id=100, provider="net1"))
    wait_until(lambda: followed.trunks() == [0, 100], what="the VLAN")
    reported = api.objects("nodestates.userspace-cni.io")
    wait_until(
        lambda: [each["ready"] for each in reported.read("", "n1")["status"]["wishes"]] == [True] if reported.names() else 0
    )

    api.faults.append(Fault(status=404))
    api.close_watches()
    live.kill()
    live.start()
    wait_until(lambda: followed.wish() and api.count("LIST") > 8)
    assert (followed.place(), followed.trunks(), followed.wire.answers(ADDRESS)) == ("br-net1", [0, 100], True)
    api.faults.clear()
    wait_until(lambda: followed.wish().get("source") == "objects" and followed.wish()["ready"], 20)

    api.add(ours("ProviderNetwork", "net1", **UPLINK, exchangeLinkName=True))
    wait_until(lambda: "'exchangeLinkName' is True, which is not built" in followed.wish()["problem"])
    assert (followed.place(), followed.trunks()) == ("br-net1", [0, 100])

    api.objects("provider-networks.userspace-cni.io").remove("", "net1")
    wait_until(lambda: followed.place() == "nic0", 20, "the address is back on the NIC")
    assert followed.wire.answers(ADDRESS)
    wait_until(lambda: not followed.switch.rows("Bridge"), what="no bridge")
