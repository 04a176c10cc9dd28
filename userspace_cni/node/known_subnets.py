"""The Subnets that networks name: what one gives on this node, and the IP objects of attachments that have its addresses.

An agent knows the objects from its watches, and asks the server nothing on a verb's path; a process of one call reads them. What
is not known now makes ADD try again; what is known and cannot be refuses it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.subnets import Placement, Subnet, node_ranges, place, read_subnet, read_vlan
from userspace_cni.cni.subnet_keys import as_leased, complete_request, require_possible
from userspace_cni.kube.kept_objects import DesiredObjects, KeptObjects
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import IPS, SUBNETS, VLANS, ApiResource
from userspace_cni.linux.boot import boottime_ns
from userspace_cni.node.ip_objects import NODE_LABEL, ip_objects, label, subnet_of
from userspace_cni.node.objects import KeptObject, read_object
from userspace_cni.node.reporting import MANAGER
from userspace_cni.node.state import SubnetUse

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.steps import Lease
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.cni.request import Request
    from userspace_cni.kube.credentials import ApiSession
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.objects import NodeObjects

_YOUNG_NS: Final = 60 * 10**9


class Subnets:
    """The Subnets as this node knows them. Before `follow` it asks the server itself. `is_gone` is asked of a pod by UID."""

    def __init__(self, installation: Installation, journal: Journal, is_gone: Callable[[str], bool]) -> None:
        self._installation = installation
        self._journal = journal
        self._is_gone = is_gone
        self._leases = f"{installation.settings.state_dir}/leases"  # as the host calls it, on which the IPAM plugin runs
        self._objects: NodeObjects | None = None
        self._ips: KeptObjects | None = None

    def follow(self, session: ApiSession, objects: NodeObjects) -> KeptObjects:
        """Go by these watches; the thread that keeps the IP objects of this node's attachments, which is to be begun."""
        self._objects = objects
        labels = {NODE_LABEL: label(self._installation.name)}
        self._ips = KeptObjects(Objects(session), IPS, labels, MANAGER, self._ip_objects)
        return self._ips

    @property
    def problem(self) -> str:
        """Why the IP objects are not as they should be; "" where nothing is known to be wrong."""
        return self._ips.problem if self._ips else ""

    def uses(self) -> Sequence[SubnetUse] | None:
        """The Subnets of which nodes have ranges, with that of this node; None while they are not known."""
        known = self._objects.of(SUBNETS) if self._objects else None
        if known is None:
            return None
        divided = ((name, each.ranges) for name, each in sorted(known.items()) if (each.spec or {}).get("perNodePrefix"))
        return [SubnetUse(name, _range_of(self._installation.name, ranges)) for name, ranges in divided]

    def on_state(self, record: Record) -> None:
        """Note the new state of an attachment. Never waits."""
        if self._ips and record.state in ("ready", "deleting") and subnet_of(record):
            self._ips.ask()

    def complete(self, request: Request, deadline: Deadline) -> Request:
        """The request with all that its network's Subnet gives here. Raises Unavailable and BadRequest, before any effect."""
        require_possible(request.network)
        subnet, placement = self._place(request.network.subnet, deadline)
        namespace = request.environment.pod_namespace
        if namespace and subnet.namespaces and namespace not in subnet.namespaces:
            raise InvalidConfig(
                f"key 'subnet' is {subnet.name!r}, which pods of namespace {namespace!r} cannot have",
                f"its 'namespaces' are {', '.join(subnet.namespaces)}",
            )
        return complete_request(request, placement, self._leases, shared=not subnet.per_node_prefix)

    def as_leased(self, request: Request, lease: Lease | None) -> Request:
        """The request as host-local is to have it for another verb than ADD; `lease`: which it is about, if that is known."""
        return as_leased(request, self._leases, lease.configuration if lease else None)

    def _ip_objects(self) -> DesiredObjects:
        records = self._journal.records()
        return ip_objects([each for each in records if not self._is_over(each)], self._installation.name)

    def _is_over(self, record: Record) -> bool:
        """Whether the attachment's pod no longer exists, so that its name may be another's by now."""
        old = boottime_ns() - record.boottime_ns > _YOUNG_NS  # the watch may not have seen a younger pod yet
        return bool(record.pod_uid) and old and self._is_gone(record.pod_uid)

    def _place(self, name: str, deadline: Deadline) -> tuple[Subnet, Placement]:
        asked, installation = f"key 'subnet' is {name!r}", self._installation
        if not installation.settings.network_objects:
            raise InvalidConfig(
                f"{asked}: this node reads no objects of the API", "set network_objects to true, or remove the key"
            )
        if not installation.has_account:
            raise InvalidConfig(f"{asked}: there are no credentials for the API server", "see the setting kubeconfig")
        found = self._find(SUBNETS, name, deadline)
        subnet = read_subnet(name, found.spec or {})
        vlan: tuple[int | None, str] = (None, "")
        if subnet.vlan:
            vlan = read_vlan(subnet.vlan, self._find(VLANS, subnet.vlan, deadline).spec or {})
        return subnet, place(subnet, vlan, node_ranges(subnet, {"nodeRanges": found.ranges}, installation.name))

    def known(self, resource: ApiResource, deadline: Deadline) -> Mapping[str, KeptObject]:
        """All ProviderNetworks, Vlans or Subnets by name. Raises Unavailable while they were not listed once."""
        if self._objects:
            found = self._objects.of(resource)
            if found is None:
                raise Unavailable(f"{resource.title} are not known yet: they were not listed to the end", self._objects.problem)
            return found
        if self._installation.resident:
            raise Unavailable(f"{resource.title} are not known yet: they are not followed", "the agent is starting")
        deadline.require(f"listing {resource.title}")
        listed = Objects(self._installation.clients.of("").session).list(resource)
        return {each["metadata"]["name"]: read_object(each) for each in listed}

    def _find(self, resource: ApiResource, name: str, deadline: Deadline) -> KeptObject:
        """The object of that name. Raises Unavailable while objects are not known, InvalidConfig when there is none."""
        asked = f"{resource.kind} '{name}'"
        if self._objects:
            confirmed, known = self._objects.is_absence_confirmed(resource), self._objects.of(resource)
            if known is None or (name not in known and not confirmed):
                why = (
                    "were not listed to the end"
                    if known is None
                    else "were listed once, and another list tells whether it is gone"
                )
                raise Unavailable(f"{asked} is not known yet: {resource.title} {why}", self._objects.problem)
            found = known.get(name)
        else:
            deadline.require(f"reading {asked}")
            read = Objects(self._installation.clients.of("").session).get(resource, name)
            found = read_object(read) if read else None
        if found is None:
            raise InvalidConfig(f"{asked} does not exist", f"kubectl get {resource.title}")
        return found


def _range_of(node: str, ranges: Any) -> str:
    """The node's range in status.nodeRanges; "" for none."""
    found = (each for each in ranges or () if isinstance(each, dict) and each.get("node") == node)
    return next((str(each.get("range", "")) for each in found), "")
