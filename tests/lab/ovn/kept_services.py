"""A controller's part for Services, in the process of the tests."""

from __future__ import annotations

from collections import Counter
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.service_keeper import ServiceKeeper
from userspace_cni.kube.events import Events
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

GROUPS: Final = ("cluster-load-balancers", "gateway-load-balancers")
WATCHED: Final = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)


class KeptServices:
    """A controller's part for Services, with its own connections. `leads` may be set to False."""

    def __init__(self, kubeconfig: str, remote: str, watched: WatchTimes = WATCHED) -> None:
        session = Clients(KubeconfigBounds.of(Settings()), HERE, kubeconfig).of("").session
        self.leads = True
        self.wrote: Counter[str] = Counter()
        self.metrics = ControllerMetrics(lambda: self.leads, {})
        self.hold = NorthboundHold(remote, None, lambda: self.leads)
        self.keeper = ServiceKeeper(session, self.hold, self.metrics, watched)
        self.events = Events(session, "", self.metrics.count_dropped_events)
        self.keeper.tell_by(self.events)
        self.keeper.rounds.on_write = lambda kind: self.wrote.update([kind])
        self.keeper.start()
        self.events.start()

    def lead(self, leads: bool) -> None:
        self.leads = leads
        self.keeper.ask()

    def at_rest(self) -> None:
        """Wait for rounds in which nothing is left to do."""
        for _ in range(3):
            assert self.keeper.rounds.await_round(60)

    def stop(self) -> None:
        self.keeper.stop()
        self.hold.close()
        self.events.stop()
