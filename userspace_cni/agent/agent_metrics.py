"""The agent's metrics: its series and their sources.

Every label's values are known beforehand or are ports of this node: a caller's mistakes must never add series. Callbacks give
what is read at each scrape (ports and their counters, spool, threads). One that fails, as when the switch is away, leaves out
its own metrics and never fails the scrape; a metric without data is present without series.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from userspace_cni.attachment.listing import CountedPort, SwitchPort
from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.errors import UNEXPECTED
from userspace_cni.base.exposition import family, labels
from userspace_cni.base.metrics import Registry
from userspace_cni.base.stages import STAGES, Stage
from userspace_cni.cni.request import VERBS
from userspace_cni.pod.program_build import UNKNOWN, describe_interpreter, recorded_build

if TYPE_CHECKING:
    from userspace_cni.attachment.listing import LimitedDirection

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_GROUPS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
_OUTCOMES: Final = (
    (range(1), "ok"),
    (range(3, 4), "gone"),
    (range(1, 9), "input"),
    (range(11, 12), "unavailable"),
    (range(50, 52), "not_serving"),
    (range(100, 111), "step"),
    (range(111, 112), "protocol"),
    (range(UNEXPECTED, UNEXPECTED + 1), "bug"),
)
"""The classes of CNI codes (`errors`), of which the first match counts; every other code is an IPAM plugin's own."""


class SpecState(Protocol):
    """Something that the node itself is to have."""

    @property
    def kind(self) -> str:
        """What it is: provider-network, gateway, translation, runtime-network."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str:
        """Who asks for it: settings, objects, annotations, commands, install."""
        ...

    @property
    def holds(self) -> bool:
        """Whether the node has it as it is desired."""
        ...


class AgentMetrics:
    """The agent's metrics. Methods may be called from any thread.

    `ports` gives every port to show; `gauges` give further numbers by name; `counters` gives the counters of our ports; `dead`
    gives the ports whose sockets are dead; `limits` the limited directions of our ports. All are called at each scrape, not
    before. So is the gauge `vswitchd_alive`: at 0 what the switch said of links and applications is out of date.
    """

    def __init__(
        self,
        ports: Callable[[], Iterable[SwitchPort]],
        gauges: Mapping[str, Callable[[], float | None]],
        counters: Callable[[], Iterable[CountedPort]] = tuple,
        dead: Callable[[], Iterable[PortRef]] = tuple,
        limits: Callable[[], Iterable[LimitedDirection]] = tuple,
    ) -> None:
        self._registry = registry = Registry()
        text = "Seconds that CNI calls took, by verb, stage (total is all of it) and outcome"
        self._calls = registry.histogram("verb_seconds", text, "verb", "stage", "outcome", buckets=_SECONDS)
        self._groups = registry.histogram("ovsdb_group_size", "Calls that shared one OVSDB transaction", buckets=_GROUPS)
        self._actions = registry.counter("reconcile_actions", "What reconcile did, by action", "action")
        self._flushes = registry.counter("flush_failures", "Flushes after a DEL that the disk refused")
        text = "Registrations of a bridge's devices with the kubelet, by outcome"
        self._registrations = registry.counter("device_registrations", text, "outcome")
        self._allocations = registry.counter("device_allocations", "Containers that were given devices, by outcome", "outcome")
        self._slices = registry.counter("slice_writes", "Writes of the node's ResourceSlices, by outcome", "outcome")
        text = "Claims of devices that the kubelet had prepared and unprepared, by outcome"
        self._claims = registry.counter("claims", text, "verb", "outcome")
        self._events = registry.counter("events_dropped", "Notices for which no Event on the pod could be made")
        self._traces = registry.counter("traces_dropped", "Traces of calls that the collector did not take")
        self._reconnects = registry.counter("ovsdb_reconnects", "Connections to OVSDB after the first")
        self._spec_failures = registry.counter("spec_failures", "New problems of the node's specs, by kind", "kind")
        build = recorded_build()
        registry.constant(
            "build_info",
            "Always 1; its labels say which build the agent is",
            version=build.version or UNKNOWN,
            commit=build.commit or UNKNOWN,
            **describe_interpreter(),
        )
        for name, look in gauges.items():
            self.add_gauge(name, look)
        self._alive = gauges.get("vswitchd_alive", lambda: None)
        self._ports = ports
        self._counters = counters
        self._dead = dead
        self._limits = limits
        self._specs: Callable[[], Iterable[SpecState]] = tuple
        self._concerns: Callable[[], Iterable[tuple[str, str]]] = tuple
        self._owned: dict[str, tuple[Mapping[str, str], str, str]] = {}
        self._of_calls: dict[tuple[str, str, str], Any] = {}

    def show_specs(
        self, look: Callable[[], Iterable[SpecState]], lacking: Callable[[], Iterable[tuple[str, str]]] = tuple
    ) -> None:
        """Add what the node itself is to have, as `look` gives it at each scrape. `lacking`: gateways and what each lacks."""
        self._specs, self._concerns = look, lacking

    def count_spec_failure(self, kind: str) -> None:
        """Count a spec of this kind that has got a problem, or another one."""
        self._spec_failures.labels(kind).inc()

    def observe_call(self, verb: str, code: int, seconds: float, stages: Mapping[Stage, float]) -> None:
        """Count a call that has ended: its CNI code (0 for success), its seconds, and those of each of its stages."""
        verb = verb if verb in VERBS else "other"
        outcome = outcome_of(code)
        self._series(verb, "total", outcome).observe(seconds)
        for stage in STAGES:
            if stage in stages:
                self._series(verb, stage, outcome).observe(stages[stage])

    def _series(self, verb: str, stage: str, outcome: str) -> Any:
        """The series of these labels, which the library looks for with a lock and a list each time."""
        found = self._of_calls.get((verb, stage, outcome))
        if found is None:
            found = self._of_calls[verb, stage, outcome] = self._calls.labels(verb, stage, outcome)
        return found

    def observe_group(self, size: int) -> None:
        """Count an OVSDB transaction that was committed for `size` calls."""
        self._groups.observe(size)

    def count_action(self, action: str) -> None:
        """Count an action of reconcile; `action` is one of its own few words."""
        self._actions.labels(action).inc()

    def count_flush_failure(self) -> None:
        self._flushes.inc()

    def add_gauge(self, name: str, look: Callable[[], float | None]) -> None:
        """Add a number that `look` gives at each scrape; with None, for what is not known, the metric is not there.

        One of which there may be nothing to tell is a family of its own, as `_of_sockets`: it is there, without series.
        """
        self._registry.gauge(name, _HELP.get(name, name.replace("_", " ")), look)

    def count_registration(self, outcome: str) -> None:
        """Count a registration of a bridge's devices: "ok" or "failed"."""
        self._registrations.labels(outcome).inc()

    def count_allocation(self, outcome: str) -> None:
        """Count an allocation of devices to a container: "ok" or "failed"."""
        self._allocations.labels(outcome).inc()

    def count_slice_write(self, outcome: str) -> None:
        """Count a write of all ResourceSlices of the node: "written" or "failed"."""
        self._slices.labels(outcome).inc()

    def count_claim(self, verb: str, outcome: str) -> None:
        """Count a claim that was prepared or unprepared: "prepare" or "unprepare"; "ok" or "failed"."""
        self._claims.labels(verb, outcome).inc()

    def count_dropped_events(self, number: int) -> None:
        """Count notices that no pod was told."""
        self._events.inc(number)

    def count_dropped_traces(self, number: int) -> None:
        """Count traces that are given up."""
        self._traces.inc(number)

    def count_reconnect(self) -> None:
        """Count a connection to OVSDB that replaces a lost one."""
        self._reconnects.inc()

    def render(self) -> bytes:
        """Return all series, as CONTENT_TYPE."""
        dead = self._registry.ask("dead sockets", lambda: list(self._dead()))
        limits = self._registry.ask("limits", lambda: list(self._limits()))
        specs = self._registry.ask("specs", lambda: list(self._specs()))
        concerns = self._registry.ask("concerns", lambda: list(self._concerns()))
        told = [
            *(() if dead is None else _of_sockets(dead)),
            *(() if limits is None else _of_limits(limits)),
            *(() if specs is None else _of_specs(specs)),
            *(() if concerns is None else _of_concerns(concerns)),
        ]
        rendered = self._registry.render()
        ports = self._registry.ask("ports", lambda: list(self._ports()))
        if ports is not None:
            bridges = {port.name: port.bridge for port in ports}
            # A switch without ports is not asked for their counters.
            counted = (
                []
                if not ports
                else self._registry.ask("port counters", lambda: [each for each in self._counters() if each.name in bridges])
            )
            told += [
                *_of_ports(ports, stale=self._alive() == 0),
                *(() if counted is None else _of_traffic(self._labelled(counted, bridges))),
            ]
        return rendered + "".join(told).encode(errors="replace")

    def _labelled(self, counted: list[CountedPort], bridges: Mapping[str, str]) -> list[tuple[str, Mapping[str, int]]]:
        """Labels and counters of attachments' ports; `bridges` by port. Probes are left out: each would add series for a moment.

        Labels are kept from scrape to scrape while a port's marks are the same object.
        """
        attached = [port for port in counted if port.marks.get("container-id")]
        before, now = self._owned, {}
        for port in attached:
            known, bridge = before.get(port.name), bridges[port.name]
            if known is None or known[0] is not port.marks or known[1] != bridge:
                known = port.marks, bridge, _owned(port, bridge)
            now[port.name] = known
        self._owned = now
        return [(now[port.name][2], port.statistics) for port in attached]


def outcome_of(code: int) -> str:
    """The class of a CNI code, as a label."""
    return next((name for codes, name in _OUTCOMES if code in codes), "delegate")


_HELP: Final[Mapping[str, str]] = {
    "vswitchd_alive": "1 while ovs-vswitchd answers, 0 while it is dead or silent",
    "ovsdb_connected": "1 while there is a session with OVSDB",
    "spool_entries": "DELs that wait to be read from the spool",
    "adds_waiting": "ADDs that wait for addresses in their pods' annotations, without a thread",
    "workers_busy": "Calls that are running",
    "workers_queued": "Calls that wait for a thread",
    "workers_stuck": "Calls that have been running for longer than any deadline",
    "workers_dead": "Threads that are gone; the agent should be restarted",
    "route_pods_applied": "Pods that have the routes of their Route objects",
    "route_pods_skipped": "Pods that lack what all routes of their Route objects need",
    "route_pods_failed": "Pods in which a route of a Route object cannot be made",
    "routes_in_pods": "Routes made for Route objects",
    "route_conflicts": "Destinations in pods for which more than one Route asks",
    "route_looks": "Checks of pods' routes since the start",
    "route_round_seconds": "How long the last round over the pods' routes took",
    "route_cache_unreadable": "Files of the runtime's cache that could not be used",
    "dra_registered": "1 while the kubelet knows the driver of devices",
    "device_bridges": "Bridges whose devices the kubelet watches",
    "slice_devices": "Devices of the node's bridges in ResourceSlices",
    "connections": "Connections to the agent's socket",
}


def _of_ports(ports: list[SwitchPort], *, stale: bool) -> Iterator[str]:
    """`stale`: what the switch said of them is out of date: their links count as unknown, and applications have no series."""
    tally = Tally((port.bridge, port.interface_type or "system", "unknown" if stale else _state(port)) for port in ports)
    yield family(
        "userspace_cni_ports",
        "gauge",
        "Ports, by bridge, kind and link state",
        [(labels(dict(zip(("bridge", "kind", "link_state"), of, strict=True))), number) for of, number in tally.items()],
    )
    vhost = [] if stale else [port for port in ports if port.interface_type.startswith("dpdkvhostuser")]
    where = [labels({"bridge": port.bridge, "port": port.name}) for port in vhost]
    connected = [int(port.status.get("status") == "connected") for port in vhost]
    negotiated = [int("features" in port.status) for port in vhost]
    text = "1 while the application of a vhost-user port is connected"
    yield family("userspace_cni_vhost_connected", "gauge", text, zip(where, connected, strict=True))
    text = "1 while the port's virtio features are negotiated"
    yield family("userspace_cni_vhost_negotiated", "gauge", text, zip(where, negotiated, strict=True))


def _of_sockets(dead: list[PortRef]) -> Iterator[str]:
    """The sockets that no process has; nothing of the others, which are most."""
    text = "1 for a port whose socket no process has: an application or ovs-vswitchd was killed and left it"
    yield family("userspace_cni_socket_dead", "gauge", text, [(_owned(port, port.bridge), 1) for port in dead])


def _of_specs(specs: list[SpecState]) -> Iterator[str]:
    """What the node itself is to have; what is being undone, too."""
    samples = [(labels({"kind": each.kind, "name": each.name, "source": each.source}), int(each.holds)) for each in specs]
    yield family("userspace_cni_spec_ready", "gauge", "1 while the node has what the spec asks for", samples)


def _of_concerns(concerns: list[tuple[str, str]]) -> Iterator[str]:
    """What gateways lack; nothing of one that lacks nothing."""
    text = "1 for something that a gateway needs and the node lacks: a sysctl, a rule of another program, a router"
    samples = [(labels({"gateway": gateway, "what": what}), 1) for gateway, what in concerns]
    yield family("userspace_cni_gateway_concern", "gauge", text, samples)


def _of_limits(limits: list[LimitedDirection]) -> Iterator[str]:
    """The limits of attachments, by direction as the pod has it; nothing of what is not limited."""
    where = [_owned(each.port, each.port.bridge, direction=each.direction) for each in limits]
    rates = [(labelled, each.rate) for labelled, each in zip(where, limits, strict=True) if each.rate is not None]
    yield family("userspace_cni_port_limit_bits_per_second", "gauge", "The rate to which a port is limited, by direction", rates)
    drops = [(labelled, each.drops) for labelled, each in zip(where, limits, strict=True) if each.drops is not None]
    text = "Packets that a port's limit has dropped, by direction"
    yield family("userspace_cni_port_limit_drops_total", "counter", text, drops)


_WAYS: Final = (("rx", "the switch received from the application"), ("tx", "the switch sent to the application"))
_COUNTED: Final[Mapping[str, str]] = {
    "packets": "Packets that {}",
    "bytes": "Bytes that {}",
    "dropped": "Packets dropped among those that {}",
    "errors": "Packets with errors among those that {}",
}
_OWNER: Final[Mapping[str, str]] = {
    "namespace": "pod-namespace",
    "pod": "pod-name",
    "vm": "vm-name",
    "network": "network",
    "interface": "ifname",
}
"""Label -> mark of the port."""


def _of_traffic(attached: list[tuple[str, Mapping[str, int]]]) -> Iterator[str]:
    """Counters of attachments' ports, each with its labels."""
    for way, direction in _WAYS:
        for what, text in _COUNTED.items():
            key = f"{way}_{what}"
            samples = [(where, statistics[key]) for where, statistics in attached if key in statistics]
            yield family(f"userspace_cni_port_{key}_total", "counter", f"{text.format(direction)}, by port", samples)


def _owned(port: CountedPort | PortRef | OvsPort, bridge: str, **more: str) -> str:
    whose = {label: port.marks.get(mark, "") for label, mark in _OWNER.items()}
    return labels({"bridge": bridge, "port": port.name, **whose, **more})


def _state(port: SwitchPort) -> str:
    return "error" if port.error else port.link_state or "unknown"
