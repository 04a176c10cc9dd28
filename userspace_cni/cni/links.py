"""What a network says of an ordinary pod's kernel link: `host.iftype: veth` and the keys that belong to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LinkOptions:
    """A veth. `opened_as`: how OVS opens the host end, "" for the node's setting; `datapath`: Bridge.datapath_type.

    `node_routes`: routes to this node's addresses by the first gateway; `service_cidrs`: to these networks, in the same way.
    """

    opened_as: str = ""
    datapath: Literal["netdev", "system"] = "netdev"
    gateway_check: bool = False
    duplicate_check: bool = False
    node_routes: bool = False
    service_cidrs: tuple[str, ...] = ()
