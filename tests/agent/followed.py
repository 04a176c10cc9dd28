"""A node whose own network is described by objects of the API."""

from __future__ import annotations

import json
from typing import Any

from tests.agent.living import LiveNode
from tests.lab.kube.apiserver import ApiServer
from tests.lab.network.outside import Wire
from tests.lab.node import agent

ADDRESS = "192.0.2.11"


class Followed:
    """A node n1 with a NIC, whose agent follows objects."""

    def __init__(self, live: LiveNode, wire: Wire, api: ApiServer) -> None:
        assert live.switch
        self.live, self.wire, self.api, self.switch = live, wire, api, live.switch
        live.follow(api)
        live.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"

    def spec(self, name: str = "net1") -> dict[str, Any]:
        """The agent's status of the provider network, {} if it has none."""
        _, body = agent.get(self.live.socket, "/api/v1/network")
        return next((each for each in json.loads(body)["specs"] if each["name"] == name), {})

    def place(self) -> str:
        """The link that has the node's address."""
        shown = json.loads(self.wire.on_node("ip", "-j", "address", "show"))
        return ",".join(link["ifname"] for link in shown for each in link["addr_info"] if each["local"] == ADDRESS)

    def trunks(self) -> list[int]:
        """The VLANs of the uplink; [] also if there is none."""
        found = [row["trunks"] for row in self.switch.rows("Port") if row["name"] == "nic0"]
        return sorted(each for trunks in found for each in ([trunks] if isinstance(trunks, int) else trunks))
