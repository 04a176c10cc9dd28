"""The bridges of provider networks: they are made with their uplinks, and by nothing else.

If a pod or gateway made such a bridge first, the uplink could not be made while the pod or gateway exists. So a missing bridge
is compared with all names that a provider network may have: those of settings and commands, of records, and of objects of the
API. Among objects a Vlan is enough: its provider network may be written a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from userspace_cni.base.provider_networks import usual_bridge
from userspace_cni.kube.resources import PROVIDER_NETWORKS, VLANS

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.known_subnets import Subnets


class ProviderBridges:
    """Those of this node. `subnets` is asked for when objects of the API have to be looked at. Safe to use from any thread."""

    def __init__(self, installation: Installation, journal: Journal, subnets: Callable[[], Subnets]) -> None:
        self._installation = installation
        self._journal = journal
        self._subnets = subnets
        self.desired: Collection[str] = ()
        """The bridges of what is desired now by any source, also of what is refused; for who reads the sources."""

    @property
    def named(self) -> frozenset[str]:
        """The bridges by what is known without asking: the settings, what is desired now, and what is recorded. Raises
        RecordRefused."""
        records = self._journal.node_records()
        recorded = (record.node_bridge.name for record in records if record.node_bridge)
        return frozenset((*(each.bridge for each in self._installation.settings.provider_networks), *self.desired, *recorded))

    def has(self, bridge: str, deadline: Deadline) -> bool:
        """Whether the bridge is, or may come to be, a provider network's. Raises Unavailable while that is not known."""
        if bridge in self.named:
            return True
        if not self._installation.settings.network_objects or not self._installation.has_account:
            return False
        if any(usual_bridge(name) == bridge for name in self._subnets().known(PROVIDER_NETWORKS, deadline)):
            return True
        specs = (each.spec for each in self._subnets().known(VLANS, deadline).values())
        return any(isinstance(spec, dict) and usual_bridge(str(spec.get("provider"))) == bridge for spec in specs)
