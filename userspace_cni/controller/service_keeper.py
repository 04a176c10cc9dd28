"""The load balancers of Services as a part of a controller: it watches Services, EndpointSlices and nodes, and keeps the rows."""

from __future__ import annotations

from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.row_keeper import RowKeeper
from userspace_cni.controller.service_rounds import ServiceRounds, ServiceSources
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import ENDPOINT_SLICES, NODES, SERVICES
from userspace_cni.ovn.services.service_objects import keep_node_addresses, keep_service, keep_slice


class ServiceKeeper(RowKeeper):
    """The threads. `hold`: the session with the database, which its owner closes; `metrics` gets their numbers."""

    def __init__(
        self, session: ApiSession, hold: NorthboundHold, metrics: ControllerMetrics, watch_times: WatchTimes | None = None
    ) -> None:
        super().__init__()
        self._sources = ServiceSources(
            ObjectWatch(session, SERVICES, keep=keep_service, on_change=self.ask, times=watch_times),
            ObjectWatch(session, ENDPOINT_SLICES, keep=keep_slice, on_change=self.ask, times=watch_times),
            ObjectWatch(session, NODES, keep=keep_node_addresses, on_change=self.ask, times=watch_times),
        )
        self.rounds = ServiceRounds(hold, self._sources)
        self.rounds.on_write = lambda change: metrics.count_row("load_balancers", change)
        self.rounds.on_news = self._tell
        self._add_numbers(metrics)

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        sources = self._sources
        self.begin(sources.services, sources.slices, sources.nodes, self.rounds)

    def ask(self) -> None:
        """Have a round soon: something has changed, as who leads."""
        self.rounds.ask()

    @property
    def obstacles(self) -> list[str]:
        """Why it could not act now."""
        sources = self._sources
        found = (
            sources.services.problem,
            sources.slices.problem,
            sources.nodes.problem,
            self.rounds.problem or self.rounds.pending,
        )
        return [each for each in found if each]

    def _add_numbers(self, metrics: ControllerMetrics) -> None:
        rounds, services = self.rounds, self._sources.services
        metrics.add("ovn_services", "Services that the controller knows", lambda: len(services.objects() or ()))
        metrics.add("ovn_load_balancers", "Load balancers that Services are to have", lambda: rounds.balancers)
        metrics.add("ovn_services_lacking", "Services of which not everything is served", lambda: rounds.lacking)
        metrics.add("ovn_services_full_seconds", "Seconds of the last comparison of all Services", lambda: rounds.full_s)
