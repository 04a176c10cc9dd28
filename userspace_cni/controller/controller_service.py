"""The controller as a whole: a process that stays, of which several may run and one acts.

It may be killed at any moment: everything that it knows is in objects, and the next leader makes the missing writes. Nothing on
a node waits for it but a node's first range of a Subnet.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Protocol, TypeVar

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.log import begin, bind, say
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.base.signals import Signals, waking
from userspace_cni.base.supervisor import StayingThread, Supervisor
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.election import Election
from userspace_cni.controller.port_service import PodPortKeeper, PortTask, read_task
from userspace_cni.controller.status_events import COMPONENT, make_notifier
from userspace_cni.controller.status_rounds import Rounds, RoundTimes, WriteListener
from userspace_cni.controller.watches import Watches
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.events import Events
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import Clients, in_cluster


class Controller(Supervisor):
    """The threads that watch, elect and write. `namespace`: where the Lease is; `times`: of what is written; `watch_times`: of
    what is watched; `ports`: by what logical ports of OVN are kept, None for none; `slices`: whether nodes offer devices (DRA).
    """

    def __init__(
        self,
        session: ApiSession,
        namespace: str,
        times: RoundTimes | None = None,
        watch_times: WatchTimes | None = None,
        ports: PortTask | None = None,
        *,
        slices: bool = False,
    ) -> None:
        super().__init__()
        objects = Objects(session)
        self.watches = Watches(session, self._changed, watch_times, slices=slices)
        self.election = Election(objects, namespace, on_change=self._changed)
        self.metrics = ControllerMetrics(lambda: self.election.leading, self.watches.counts())
        self.events = Events(session, "", self.metrics.count_dropped_events, component=COMPONENT)
        hearing = WriteListener(self.metrics.count_write, make_notifier(self.events.tell))
        self.rounds = Rounds(objects, self.watches.cluster, lambda: self.election.leading, hearing=hearing, times=times)
        self.ports = PodPortKeeper(session, ports, lambda: self.election.leading, self.metrics) if ports else None
        if self.ports:
            self.ports.tell_by(self.events)
        self.page_ports: Sequence[StayingThread] = ()

    def start(self) -> None:
        """Begin. Raises Unavailable.

        They are stopped the other way round: nothing more is written, and only then the Lease is given back.
        """
        ports = (self.ports,) if self.ports else ()
        self.begin(*self.page_ports, self.watches, self.events, self.election, self.rounds, *ports)

    def obstacles(self) -> list[str]:
        """The reasons why this process could not act now, or does not do all that it should."""
        of_ports = self.ports.obstacles if self.ports else ()
        return [each for each in (*self.watches.obstacles, self.election.problem, self.rounds.problem, *of_ports) if each]

    def _changed(self) -> None:
        self.rounds.ask()
        if self.ports:
            self.ports.ask()


class ServedController(StayingThread, Protocol):
    """A controller as a process needs it."""

    election: Election
    page_ports: Sequence[StayingThread]
    metrics: ControllerMetrics

    def obstacles(self) -> list[str]:
        """The reasons why this process could not act now, or does not do all that it should."""


C = TypeVar("C", bound=ServedController)


def account(settings: Settings, environ: Mapping[str, str]) -> ApiSession:
    """The account of this process: the setting's kubeconfig, else that of its pod. Raises InvalidConfig without either."""
    if not settings.kubeconfig and not in_cluster(environ):
        raise InvalidConfig(
            "the controller has no account of the API server", "the setting kubeconfig; in a pod, its service account"
        )
    return Clients(KubeconfigBounds.of(settings), HERE, settings.kubeconfig).of("").session


def make_controller(session: ApiSession, settings: Settings) -> Controller:
    """The controller that the settings describe; it keeps logical ports where they say where OVN's northbound database is."""
    ports = read_task(settings) if settings.ovn_nb else None
    return Controller(session, settings.controller_namespace, ports=ports, slices=settings.dra)


def serve(
    settings: Settings,
    environ: Mapping[str, str],
    make: Callable[[ApiSession], C],
    page_ports: Callable[[C], Sequence[StayingThread]],
    session: ApiSession | None = None,
) -> int:
    """Run a controller until SIGTERM or SIGINT; the exit code. Raises UserspaceError when it cannot start.

    `make`: makes it; `page_ports`: the ports on which it is asked for health and metrics; `session`: with another account of the
    API server than that of settings and environment.
    """
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        say("info", "stopping", signal=signal.Signals(number).name)
        stopping.set()

    Signals(stop, (signal.SIGTERM, signal.SIGINT), ignored_too=True).hear()
    woken = waking()
    begin(settings.log_level, settings.log_format)
    with bind(settings.log_level):
        controller = make(session or account(settings, environ))
        controller.page_ports = page_ports(controller)
        say("info", "the controller starts", identity=controller.election.identity)
        controller.start()
        while not stopping.is_set():
            os.read(woken, 64)
        controller.stop()
        say("info", "stopped")
    return 0
