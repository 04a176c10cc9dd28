"""The agent as a whole: a process that stays and serves the plugin's verbs over a socket.

It may be killed at any moment: it can read its state again, and the records hold what it was doing. When it is stopped it takes
no more calls, lets the running ones end or makes them fail (they undo themselves, or the next agent undoes them), and must end
within five seconds.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final

from userspace_cni.agent.agent_metrics import AgentMetrics
from userspace_cni.agent.agent_server import Server
from userspace_cni.agent.calls import Calls
from userspace_cni.agent.exchange import Exchange
from userspace_cni.agent.flusher import Flusher
from userspace_cni.agent.listener import Listener
from userspace_cni.agent.notify_socket import READY, STOPPING, notify
from userspace_cni.agent.offered_devices import OfferedDevices
from userspace_cni.agent.one_processor import OneProcessor
from userspace_cni.agent.ovn_recomputing import OvnRecomputing
from userspace_cni.agent.served_pages import PageContent, ServedPage
from userspace_cni.agent.singleton import Singleton
from userspace_cni.agent.tcp import TcpPages
from userspace_cni.agent.waiting_calls import WaitingCalls
from userspace_cni.agent.watchdog import Watchdog
from userspace_cni.agent.workers import Job, Workers
from userspace_cni.attachment.cleanup import drain, sweep, undo
from userspace_cni.attachment.dead_sockets import dead_sockets
from userspace_cni.attachment.listing import CountedPort, SwitchPort, describe_all
from userspace_cni.attachment.spool import Entry
from userspace_cni.attachment.steps import PortRef, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, Unavailable, UserspaceError
from userspace_cni.base.host_paths import see_host_at
from userspace_cni.base.log import about, begin, bind, say
from userspace_cni.base.metrics import CONTENT_TYPE
from userspace_cni.base.settings import Settings
from userspace_cni.base.signals import Signals, waking
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.cni import protocol
from userspace_cni.cni.request import Called, subject_of
from userspace_cni.network.concerns import list_lacks
from userspace_cni.network.network_service import NodeNetwork
from userspace_cni.node.callbacks import Callbacks
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.surroundings import missing
from userspace_cni.pod.program_build import recorded_build

if TYPE_CHECKING:
    from userspace_cni.agent.trace_export import TraceExport
    from userspace_cni.attachment.listing import LimitedDirection
    from userspace_cni.routes.routes_service import NodeRoutes

BUILD: Final = recorded_build()
AGENT_S: Final = 40.0
"""A verb that runs longer than this is stuck: its drivers had 30 s (setting deadline_s), and its shim gives up after 45 s."""
PASS_S: Final = 300.0
"""A pass of reconciliation that takes longer than this is stuck."""
FORMER_S: Final = 30.0
"""How long a new agent waits for one that still has the locks: a rollout starts it while the former one ends, and a restarted
kubelet ends the former one only when it has its list of pods. The kubelet restarts an agent that gave up after 10 s, then after
twice as long each time."""
FORMER_SAID_S: Final = 1.0
"""When the log says what it waits for: usually the former agent ends earlier."""
FORMER_LOOK_S: Final = 0.1
THREADS_S: Final = 0.5
"""How long to wait for the end of all permanent threads: those that hang in a request end with the process."""
FINISH_S: Final = 3.0
UNDO_S: Final = 1.0
START_S: Final = 5.0
DESCRIPTORS: Final = 1 << 16
SWITCH_S: Final = 0.002
"""How long one thread may keep the interpreter from the others. At the default 5 ms an answer waits long while many verbs compute
(measured with twenty: 520 ms; 78 ms at 1 ms). A shorter time makes threads wake each other in vain more often."""


def serve(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the agent until SIGTERM or SIGINT; the exit code. Raises UserspaceError when it cannot start."""
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        say("info", "stopping", signal=signal.Signals(number).name)
        stopping.set()

    Signals(stop, (signal.SIGTERM, signal.SIGINT), ignored_too=True).hear()
    woken = waking()
    sys.setswitchinterval(SWITCH_S)
    begin(settings.log_level, settings.log_format)
    see_host_at(settings.host_root)
    with bind(settings.log_level):
        say("info", "the agent starts", build=BUILD.summary, state_dir=settings.state_dir, ovsdb=settings.ovsdb)
        agent = Agent(settings, environ)
        Signals(lambda _number, _frame: agent.ask(), (signal.SIGHUP,), ignored_too=True).hear()
        if not agent.claim(stopping):
            return 0
        agent.start()
        notify(READY, environ)
        while not stopping.is_set():
            os.read(woken, 64)
        notify(STOPPING, environ)
        agent.stop()
    return 0


class Agent:
    """The node, the threads that work on it, and the socket in front of them."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self.threads = Supervisor()
        self.waiting = WaitingCalls(settings.waiting_per_namespace)
        self.metrics = AgentMetrics(self._ports, self._gauges(), self._counters, self._dead, self._limits)
        self.node = LocalNode(
            settings,
            environ,
            resident=True,
            tell=Callbacks(
                self.metrics.observe_group,
                self._on_disconnect,
                self._on_change,
                self.metrics.count_dropped_events,
                self._on_pod,
                self._on_claims,
                self._on_lost_session,
            ),
        )
        self.devices = OfferedDevices(self.node, self.metrics)
        self.watchdog = Watchdog(
            self.node,
            self.node.switch,
            self.metrics.count_action,
            self.metrics.count_reconnect,
            settings.tick_s,
            self.devices.look if settings.devices_per_bridge or settings.dra else None,
        )
        self.watchdog.limit_s = PASS_S
        self.network = NodeNetwork(self.node, environ, self.metrics.count_spec_failure, self.watchdog.on_link)
        self.routes = self._node_routes()
        self.metrics.show_specs(lambda: self.network.statuses, lambda: list_lacks(self.network.concerns.found))
        self.flusher = Flusher(lambda: self.node.store.journal, self.metrics.count_flush_failure)
        self.workers = Workers()
        before_answer = self.routes.await_routes if self.routes else lambda _: None
        self.calls = Calls(self.node, self.workers, self.metrics, self.waiting, before_answer)
        self.traces = self._trace_export()
        self.calls.trace = self.traces.put if self.traces else None
        self._singleton = Singleton()
        listener = Listener(self.node.installation.root.path(settings.agent_socket))
        self.server = Server(listener, self._show, self._undo, on_hung_up=self.waiting.look_at, call=self.calls.submit)
        metrics = ServedPage("/metrics", lambda: PageContent(200, self.metrics.render(), CONTENT_TYPE))
        ready = ServedPage("/readyz", lambda: _health(self.problems() + self.obstacles()))
        health = ServedPage("/healthz", lambda: _health(self.problems()))
        self.pages = {
            ("GET", "/metrics"): metrics,
            ("GET", "/readyz"): ready,
            ("GET", "/api/v1/attachments"): ServedPage("the attachments", self._attachments),
            ("GET", "/api/v1/refusals"): ServedPage("refused ADDs", self._refusals),
            ("GET", "/api/v1/network"): ServedPage("the node's network", self._network),
            ("POST", "/api/v1/network"): ServedPage("keeping the node's network", self._kept),
            ("POST", "/api/v1/gateways"): ServedPage("trying the gateways", self._tried),
            ("POST", "/api/v1/reconcile"): ServedPage("reconciliation", self._reconciled),
            ("GET", "/api/v1/routes"): ServedPage("the routes of pods", self._routes),
            ("POST", "/api/v1/routes"): ServedPage("looking at the routes of pods", self._looked),
        }
        over_tcp = (
            ("metrics_listen", settings.metrics_listen, {"/metrics": metrics}),
            ("health_listen", settings.health_listen, {"/healthz": health, "/readyz": ready}),
        )
        self.over_tcp = tuple(TcpPages(setting, listen, pages) for setting, listen, pages in over_tcp if listen)

    def claim(self, stopping: threading.Event) -> bool:
        """Become the node's agent, for which a former one that is ending is awaited; False when told to stop meanwhile.

        Raises Unavailable when another one goes on, InvalidConfig for a socket that cannot be used.
        """
        begun, said = time.monotonic(), False
        while True:
            try:
                self.server.claim()
                self._claim_records()
            except Unavailable as error:
                waited = time.monotonic() - begun
                if waited > FORMER_S:
                    raise
                if waited > FORMER_SAID_S and not said:
                    said = True
                    say("info", "waiting for another process to end", error=str(error), seconds=FORMER_S)
            else:
                return True
            if stopping.wait(FORMER_LOOK_S):
                return False

    def start(self) -> None:
        """Read the node's state, carry out the spooled DELs, and only then take calls: those that come before wait.

        After `claim`. Raises UserspaceError.
        """
        self.server.listen()
        try:
            self._begin()
        except BaseException:
            self.server.stop()  # a socket that stays would look like that of an agent that died
            raise
        say("info", "the agent serves", socket=self._settings.agent_socket, pid=os.getpid())

    def _begin(self) -> None:
        _raise_descriptor_limit()
        self.node.store.journal.on_unflushed = self.flusher.ask
        for sentence in missing(self._settings):
            say("warning", "this agent lacks something", missing=sentence)
        self.node.pods.begin_telling()  # what is found from now on is told once
        self.threads.begin(OneProcessor())
        self.threads.begin(self.network)  # first: what a dead agent left half done is finished, whatever the API server does
        warm = Deadline.after(START_S)
        self.node.warm_up(warm)
        # before the API server is waited for: after a boot the kubelet refuses pods with devices that no agent offers. A pod that
        # has got one is attached next, and its call waits at the socket, which is there
        self.threads.begin(self.devices)
        self.node.pods.await_known(warm)
        gc.freeze()  # what is there now stays: no collection has to look at it again
        store, node = self.node.store, self.node
        sweep(store)
        drain(store, node.sandboxes, node.addresses, Deadline.after(START_S), self.metrics.count_action)
        if self.traces:
            self.threads.begin(self.traces)
        self.threads.begin(*self.over_tcp, self.flusher, self.waiting, self.watchdog, self.server)
        self.network.serve()
        if self.routes:
            self.threads.begin(self.routes)
        if self._settings.ovn_recompute_s:
            self.threads.begin(OvnRecomputing(self.node.switch.ask_ovn_to_recompute, self._settings.ovn_recompute_s))

    def stop(self) -> None:
        """Take no more calls, and end."""
        self.server.stop_accepting()
        last = (self.traces,) if self.traces else ()
        self.threads.stop(THREADS_S, but=(*self.over_tcp, self.flusher, self.server, *last))
        if not self.workers.drain(FINISH_S):
            say("warning", "calls are cut short and undone", running=self.workers.busy)
            self.node.close()
            self.workers.drain(UNDO_S)
        self.workers.close()
        self.threads.stop()
        self.node.close()
        self._singleton.release()
        say("info", "stopped")

    def ask(self) -> None:
        """Look at everything, and read again what may be read again. Never waits."""
        self.watchdog.ask()
        self.network.read_again()
        if self.routes:
            self.routes.ask()

    def _node_routes(self) -> NodeRoutes | None:
        """Routes in pods; None where the setting is off."""
        if not self._settings.routes:
            return None
        from userspace_cni.routes.routes_service import NodeRoutes

        routes = NodeRoutes(self.node.installation, self.node.store, self.node.pods.tell, self.network.note_routes)
        for name, look in routes.gauges().items():
            self.metrics.add_gauge(name, look)
        return routes

    def _trace_export(self) -> TraceExport | None:
        """Where traces go; None where no collector is named, or where the extra is not installed that knows its form."""
        settings = self._settings
        if not settings.otlp_endpoint:
            return None
        from userspace_cni.agent.trace_export import TraceExport

        node = settings.node_name or socket.gethostname()
        resource = {"service.name": "userspace-cni", "service.version": BUILD.version, "k8s.node.name": node}
        try:
            return TraceExport(settings.otlp_endpoint, resource, self.metrics.count_dropped_traces)
        except Exception as error:  # noqa: BLE001 -- whatever is wrong with the extra: pods are attached without it
            extra = "pip install 'userspace-cni[otel]' installs what is missing, in versions that fit"
            say("warning", "no traces are sent to otlp_endpoint", error=error, details=extra)
            return None

    def _claim_records(self) -> None:
        with suppress(UserspaceError):  # STATUS tells why the identity cannot be written
            self.node.store.journal.identity()
        self._singleton.claim(self.node.store.journal.directory, self._settings.run_dir)

    def _on_disconnect(self, port: str) -> None:
        self.watchdog.on_disconnect(port)

    def _on_change(self, bridge: str, marks: Mapping[str, str]) -> None:
        self.watchdog.on_change(bridge, marks)
        if bridge or owner_kind(marks) == "node":
            self.network.ask()

    def _on_lost_session(self) -> None:
        self.watchdog.wake()

    def _on_pod(self, namespace: str, name: str) -> None:
        self.waiting.on_pod(namespace, name)
        self.watchdog.on_pod(namespace, name)

    def _on_claims(self, namespace: str, names: Collection[str]) -> None:
        self.devices.note_claims(namespace, names)

    def _ports(self) -> list[SwitchPort]:
        return list(self.node.switch.list_ports() or ())

    def _counters(self) -> list[CountedPort]:
        return list(self.node.switch.counters())

    def _dead(self) -> list[PortRef]:
        return list(self.watchdog.dead_sockets)

    def _limits(self) -> list[LimitedDirection]:
        return self.node.switch.list_limited(self.node.store.journal.records())

    def _gauges(self) -> dict[str, Callable[[], float | None]]:
        return {
            "vswitchd_alive": lambda: self.watchdog.switch.is_alive,
            "ovsdb_connected": lambda: self.node.switch.ports.connected,
            "spool_entries": lambda: len(self.node.store.spool),
            "adds_waiting": lambda: self.waiting.number,
            "workers_busy": lambda: self.workers.busy,
            "workers_queued": lambda: self.workers.queued,
            "workers_stuck": lambda: len(self.workers.stuck(AGENT_S)),
            "workers_dead": lambda: self.workers.dead,
            "connections": lambda: self.server.connections,
        }

    def problems(self) -> list[str]:
        """The reasons why this process no longer works; restarting it may help."""
        found = [
            f"{job.verb} of container {job.container or '-'} runs for {job.seconds:.0f} s" for job in self.workers.stuck(AGENT_S)
        ]
        found += [
            f"ADD of container {container or '-'} waits for its pod and is not ended"
            for container in self.waiting.overdue(AGENT_S)
        ]
        slow = [(page.name, page.seconds) for page in self.pages.values()]
        found += [f"{name} has been rendered for {seconds:.0f} s" for name, seconds in slow if seconds > AGENT_S]
        if self.workers.dead:
            found.append(f"{self.workers.dead} worker threads are dead")
        return found + self.threads.problems() + self.node.pods.problems()

    def obstacles(self) -> list[str]:
        """The reasons why no pod can be attached now."""
        try:
            self.node.switch.ready(Deadline.after(1.0))
        except NotServing as error:
            return [str(error)]
        return []

    # -- on the server's thread -------------------------------------------------------------------------------------------

    def _show(self, exchange: Exchange) -> None:
        """Have a page's own thread answer; /healthz, which only looks at this process, is answered at once."""
        page = self.pages.get((exchange.method, exchange.target))
        if page:
            page.ask(exchange)
        elif (exchange.method, exchange.target) == ("GET", "/healthz"):
            content = _health(self.problems())
            exchange.answer(content.status, content.body)
        else:
            exchange.refuse(protocol.MalformedRequest(404, f"{exchange.method} {exchange.target[:80]} is not served"))

    def _undo(self, exchange: Exchange) -> None:
        """Undo an ADD whose answer was lost: the runtime saw no result and takes the attachment for failed."""
        if exchange.verb != "ADD" or exchange.status != 200:
            return
        environ = protocol.environment(exchange.head)
        entry = Entry("", environ, exchange.body, Called(self.node.store.boot_id(), exchange.answered_ns))
        with bind(verb="ADD"), about(subject_of(environ)):
            say("warning", "an ADD whose caller has gone is undone")
            try:
                self.workers.submit(Job(partial(self._undo_entry, entry), "DEL"))
            except Unavailable as error:
                say("error", "it stays until the runtime's DEL", error=error)

    def _undo_entry(self, entry: Entry) -> None:
        node = self.node
        undo(entry, node.store, node.driver, node.sandboxes, node.addresses, Deadline.after(AGENT_S))

    # -- on a page's thread -----------------------------------------------------------------------------------------------

    def _attachments(self) -> PageContent:
        records, ports = self.node.store.journal.records(), self.node.switch.list_ports()
        switch, dead, boot_id = self.node.switch, dead_sockets(records, self.node.driver), self.node.store.boot_id()
        vswitchd = switch.vswitchd()
        counted = switch.list_counted() if vswitchd == "alive" else None
        described = describe_all(records, ports, boot_id=boot_id, vswitchd=vswitchd, dead=dead, counters=counted)
        return PageContent(200, _json(described))

    def _refusals(self) -> PageContent:
        return PageContent(200, _json(self.calls.refused.describe()))

    def _network(self) -> PageContent:
        return PageContent(200, _json(self.network.describe()))

    def _kept(self) -> PageContent:
        self.network.reconcile(Deadline.after(AGENT_S))
        return self._network()

    def _tried(self) -> PageContent:
        self.network.concerns.look()
        return self._network()

    def _routes(self) -> PageContent:
        if self.routes is None:
            raise Unavailable("routes in pods are off", "the setting routes, of the agent")
        return PageContent(200, _json(self.routes.describe()))

    def _looked(self) -> PageContent:
        if self.routes:
            self.routes.look(Deadline.after(AGENT_S))
        return self._routes()

    def _reconciled(self) -> PageContent:
        self.network.read_again()
        return PageContent(200, _json({"actions": dict(self.watchdog.reconcile(Deadline.after(AGENT_S)))}))


def _health(problems: list[str]) -> PageContent:
    return PageContent(503 if problems else 200, _json({"version": BUILD.version, "commit": BUILD.commit, "problems": problems}))


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _raise_descriptor_limit() -> None:
    """Raise the soft limit: a thousand callers need as many descriptors, and the usual limit is for users of select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)), hard)
    )
