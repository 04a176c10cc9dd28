"""What the API's objects say of this node's network: the watches of the objects, and of the node's own Node.

Of an object only its spec is kept, of a Subnet also the nodes' ranges: a status that a thousand nodes make grow wakes no agent.
Nothing is decided here, and nothing that is not known is made up: what was not listed to its end is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from userspace_cni.base.errors import ObjectRefused
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import NODES, PROVIDER_NETWORKS, SUBNETS, VLANS, ApiResource

SPECS: Final = (PROVIDER_NETWORKS, VLANS, SUBNETS)
"""The resources of which objects are specs."""


@dataclass(frozen=True)
class KeptObject:
    """An object, as far as it matters here. `created`: its creationTimestamp; `spec` and `ranges` are as the server has them.

    `ranges`: status.nodeRanges of a Subnet.
    """

    created: str
    spec: Any
    ranges: Any = None


@dataclass(frozen=True)
class OwnNode:
    """The Node of this node: labels, annotations, and its internal addresses."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class KnownObjects:
    """What is known of the objects by name, None for what was not listed to its end; `own` is None also for a node of no such
    name. `unconfirmed`: the resources of which there may be objects that are not among these."""

    node: str
    own: OwnNode | None = None
    provider_networks: Mapping[str, KeptObject] | None = None
    vlans: Mapping[str, KeptObject] | None = None
    subnets: Mapping[str, KeptObject] | None = None
    unconfirmed: frozenset[ApiResource] = field(default=frozenset(), kw_only=True)


class NodeObjects(Supervisor):
    """The watches, for the agent of node `node` (as the API calls it). Safe to use from any thread.

    `on_change` is called when something kept has changed, after each first list, and when that is confirmed; it must not wait.
    `specs`: the resources that are followed beside the node's own Node; of another one nothing is known.
    """

    def __init__(
        self,
        session: ApiSession,
        node: str,
        on_change: Callable[[], None],
        *,
        specs: Sequence[ApiResource] = SPECS,
        times: WatchTimes | None = None,
    ) -> None:
        super().__init__()
        self._node = node
        self._watches: dict[ApiResource, ObjectWatch] = {
            each: ObjectWatch(session, each, keep=read_object, on_change=on_change, times=times) for each in specs
        }
        self._watches[NODES] = ObjectWatch(
            session, NODES, field_selector=f"metadata.name={node}", keep=_own_node, on_change=on_change, times=times
        )

    def start(self) -> None:
        """Start the threads; returns at once. Raises Unavailable."""
        self.begin(*self._watches.values())

    @property
    def problem(self) -> str:
        """Why something is not watched now, or cannot be used; "" when all is well."""
        problems = [watch.problem for watch in self._watches.values() if watch.problem]
        if not problems and self.read_known().own is None:
            problems = [
                f"the API server knows no node {self._node}: does the API know this node by this name? See the setting node_name"
            ]
        return " | ".join(problems)

    def of(self, resource: ApiResource) -> Mapping[str, KeptObject] | None:
        """The ProviderNetworks, Vlans or Subnets by name; None where they were not listed to the end, or are not followed."""
        return self._watches[resource].objects() if resource in self._watches else None

    def is_absence_confirmed(self, resource: ApiResource) -> bool:
        """Whether a ProviderNetwork, Vlan or Subnet that is not known does not exist. To be asked before `of`."""
        return resource in self._watches and self._watches[resource].confirmed

    def read_known(self) -> KnownObjects:
        unconfirmed = frozenset(each for each in SPECS if not self.is_absence_confirmed(each))
        networks, vlans, subnets = map(self.of, SPECS)
        own = (self._watches[NODES].objects() or {}).get(self._node)
        return KnownObjects(self._node, own, networks, vlans, subnets, unconfirmed=unconfirmed)


def look(session: ApiSession, node: str) -> KnownObjects:
    """What the server has now, by single requests; for a process that follows nothing.

    Raises UserspaceError where any of it cannot be read: what is not known is not made up.
    """
    objects = Objects(session)
    found = [{each["metadata"]["name"]: read_object(each) for each in objects.list(resource)} for resource in SPECS]
    own = objects.list(NODES, fields=f"metadata.name={node}")  # `get` is no right of an agent's account
    if not own:
        raise ObjectRefused(
            f"the API server knows no node {node}", "does the API know this node by this name? See the setting node_name"
        )
    return KnownObjects(node, _own_node(own[0]), *found)


def read_object(thing: Mapping[str, Any]) -> KeptObject:
    """What is kept of an object as the server sends it."""
    status = thing.get("status") if thing.get("kind") == SUBNETS.kind else None
    ranges = status.get("nodeRanges") if isinstance(status, dict) else None
    return KeptObject(str(thing["metadata"].get("creationTimestamp") or ""), thing.get("spec"), ranges)


def _own_node(thing: Mapping[str, Any]) -> OwnNode:
    metadata = thing["metadata"]
    found = (thing.get("status") or {}).get("addresses") or ()
    addresses = tuple(str(each["address"]) for each in found if each.get("type") == "InternalIP")
    return OwnNode(dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {}), addresses)
