"""What may differ between two clusters of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PODS: Final = "10.244.0.0/24"
DEFAULT_NETWORK: Final[Mapping[str, Any]] = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
"""The network that every pod has as eth0."""


@dataclass(frozen=True)
class SecondFamily:
    """Addresses of IPv6: of the node, of the other end of its link, and the subnet of its pods."""

    node: str
    gateway: str
    pods: str


@dataclass(frozen=True)
class Shape:
    """A cluster with a bridge for eth0, and with IPv4 alone, unless it says otherwise.

    `arguments`: program -> its arguments beside the lab's own, which they follow. `kubelet`: keys of its configuration.
    """

    network: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_NETWORK)
    second: SecondFamily | None = None
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kubelet: Mapping[str, Any] = field(default_factory=dict)

    def more(self, program: str) -> Sequence[str]:
        """What is said to this program beside the lab's own arguments."""
        return self.arguments.get(program, ())
