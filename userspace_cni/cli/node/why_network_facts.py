"""Gathers for `why` what the kernel, the node's own network, Route objects, the API and OVN have of an attachment.

Each question is asked once. Nothing is changed. What a question needs is imported when there is something to ask it about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import NotAllowed, UserspaceError
from userspace_cni.cli.agent_client import DeadAgent, NoAgent, RoutesOff, SlowAgent
from userspace_cni.cli.site import SWITCH_S, Site, attachment_limit, patient
from userspace_cni.diagnosis.why.attachment_sight import ChassisSight, Fact, known
from userspace_cni.node.seen_pod import SeenPod

if TYPE_CHECKING:
    from userspace_cni.node.seen_annotations import SeenAnnotations
    from userspace_cni.node.seen_definition import SeenDefinition
    from userspace_cni.node.seen_link import SeenLink
    from userspace_cni.node.seen_specs import SeenSpec
    from userspace_cni.ovn.databases import OvnDatabases
    from userspace_cni.ovn.seen_logical_port import NorthboundPort, PortBinding
    from userspace_cni.routes.seen_routes import SeenRoutes

_GATEWAY: Final = "gateway "


@dataclass(frozen=True)
class AgentPages:
    """What the agent says of the node's own network and of routes; why it does not, as an error, else."""

    network: Mapping[str, Any] | UserspaceError
    routes: Mapping[str, Any] | UserspaceError


def read_pages(site: Site) -> AgentPages:
    """Both pages; an agent that has not answered is not asked twice."""
    network = _page(site.client.network)
    return AgentPages(network, network if isinstance(network, SlowAgent) else _page(site.client.routes))


def _page(ask: Callable[[], dict[str, Any]]) -> Mapping[str, Any] | UserspaceError:
    try:
        return ask()
    except UserspaceError as error:
        return error


class NetworkFacts:
    """Of the attachments of one node; `pages`: the agent's. Methods raise UserspaceError where something cannot be asked."""

    def __init__(self, site: Site, pages: AgentPages) -> None:
        self._site = site
        self._pages = pages

    def see_link(self, record: Record) -> SeenLink | None:
        if record.link is None:
            return None
        from userspace_cni.node.seen_link import see_link

        return see_link(record.link, self._site.drivers.installation, attachment_limit())

    def see_specs(self, record: Record) -> tuple[SeenSpec, ...] | None:
        """The provider networks and gateways at its bridge, as the records and the agent have them."""
        if record.port_ref is None:
            return None
        from userspace_cni.node.seen_specs import see_specs

        site, told = self._site, self._pages.network
        found = see_specs(record.port_ref.bridge, site.node.store.journal.node_records(), site.drivers.installation)
        page = told if isinstance(told, Mapping) else {}
        problems = {(each["kind"], each["name"]): each["problem"] for each in page.get("specs", ()) if not each["ready"]}
        concerns: Sequence[str] = page.get("concerns", ())
        return tuple(
            replace(
                each,
                problem=problems.get((each.kind, each.name), ""),
                concerns=tuple(text for text in concerns if text.startswith(f"{_GATEWAY}{each.name}"))
                if each.kind == "gateway"
                else (),
            )
            for each in found
        )

    def see_routes(self, record: Record) -> SeenRoutes | None:
        told, here = self._pages.routes, self._site.drivers.installation
        if isinstance(told, RoutesOff):
            from userspace_cni.routes.seen_routes import see_asked_routes

            return see_asked_routes(record.pod_namespace, record.pod_name, record.pod_uid, here)
        if isinstance(told, (NoAgent, DeadAgent, SlowAgent)):
            return None  # what that means is told of the agent
        if isinstance(told, UserspaceError):
            raise told
        from userspace_cni.routes.seen_routes import see_pod_routes

        return see_pod_routes(told, record.container_id, here)

    def see_annotations(self, record: Record, pod: Fact[SeenPod]) -> SeenAnnotations | None:
        """What the pod asks for now; None while the pod is not known, and of an attachment that is not ready."""
        seen = known(pod)
        if seen is None or record.state != "ready":
            return None
        from userspace_cni.node.seen_annotations import see_annotations

        return see_annotations(seen.view, record, self._site.settings)

    def see_definition(self, record: Record, pod: Fact[SeenPod]) -> SeenDefinition | None:
        """The definition by which the pod asked for the interface; None where that is not known, or may not be read."""
        seen = known(pod)
        if seen is None:
            return None
        from userspace_cni.node.seen_definition import see_definition
        from userspace_cni.ovn.pod_interfaces import find_definition

        name = find_definition(seen.networks, seen.namespace, record.ifname)
        try:
            return see_definition(name, record, self._site.drivers.installation) if name else None
        except NotAllowed:  # the right may be left out
            return None


class OvnFacts:
    """What OVN has of logical ports, for one thread; `close` ends its sessions."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._opened: OvnDatabases | None = None

    def see_chassis(self, record: Record) -> ChassisSight | None:
        port = record.port
        if port is None or port.logical is None:
            return None
        drivers = self._site.drivers
        (name, hostname), faults = drivers.switch.ports.find_ovn_faults(port, patient(SWITCH_S))
        return ChassisSight((name, *filter(None, (hostname, drivers.installation.name))), faults)

    def see_row(self, record: Record) -> NorthboundPort | None:
        """None also where this node is not told where the database is: most nodes need not know."""
        if not (name := _logical_name(record)):
            return None
        from userspace_cni.ovn.seen_logical_port import look_at_row

        databases = self._open()
        if not (databases.settings.ovn_nb or databases.ids.get("ovn-nb")):
            return None
        what = "looking at OVN's northbound database"
        return databases.northbound.read(lambda session: look_at_row(session, name), frozenset(), what, patient(SWITCH_S))

    def see_binding(self, record: Record) -> PortBinding | None:
        if not (name := _logical_name(record)):
            return None
        from userspace_cni.ovn.seen_logical_port import look_at_binding

        databases = self._open()
        if not (databases.settings.ovn_sb or databases.ids.get("ovn-remote")):
            return None
        what = "looking at OVN's southbound database"
        return databases.southbound.read(lambda session: look_at_binding(session, name), frozenset(), what, patient(SWITCH_S))

    def close(self) -> None:
        if self._opened:
            self._opened.close()

    def _open(self) -> OvnDatabases:
        from userspace_cni.ovn.databases import OvnDatabases
        from userspace_cni.ovn.former_settings import FORMER_FILE

        if self._opened is None:
            site = self._site
            self._opened = OvnDatabases(site.settings, site.drivers.switch.ports.client, patient(SWITCH_S), site.map_path)
            former = Path(site.map_path(FORMER_FILE))
            if former.is_file():
                self._opened.read_former(former.read_text(errors="replace"))
        return self._opened


def _logical_name(record: Record) -> str:
    return record.port.logical.name if record.port and record.port.logical else ""
