"""The calls of runtimes: each is served on a worker's thread, an ADD that has to wait for its pod on two, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from userspace_cni.agent import call_trace
from userspace_cni.agent.addressee import require_addressee
from userspace_cni.agent.agent_metrics import AgentMetrics
from userspace_cni.agent.exchange import Exchange, refusing
from userspace_cni.agent.refused_calls import RefusedCalls
from userspace_cni.agent.waiting_calls import WaitingCall, WaitingCalls
from userspace_cni.agent.workers import Job, Workers
from userspace_cni.attachment import verbs
from userspace_cni.base import notices
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.log import collect_warnings
from userspace_cni.base.stages import Stage, StagePeriod, collect
from userspace_cni.cni import protocol
from userspace_cni.cni.call import CniAnswer, PostponedCall, answer
from userspace_cni.cni.request import Request, recipient_of
from userspace_cni.node.local_node import LocalNode

Serve = Callable[[Request], bytes]


@dataclass
class _TimedCall:
    """A call, and what it took and said by now. `began`: of time.perf_counter.

    `serve`: what is left of it, after it has waited; None while nothing was done. `request`: what it was read as. `periods`: of
    its stages, None where it is not traced.
    """

    exchange: Exchange
    serve: Serve | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0
    stages: dict[Stage, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    told: list[Finding] = field(default_factory=list)
    request: Request | None = None
    periods: list[StagePeriod] | None = None

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Record the time and the warnings of the verb, or of its rest, in the block."""
        with collect(self.periods) as stages, collect_warnings() as warnings, notices.collect() as told:
            try:
                yield
            finally:
                self.stages |= stages
                self.warnings += warnings
                self.told += told


class Calls:
    """Serves the verbs of `node`. `before_answer` is called with the container of an ADD that has succeeded.

    `trace` is given the trace of each call, after its answer; None where no collector is named.
    """

    def __init__(
        self,
        node: LocalNode,
        workers: Workers,
        metrics: AgentMetrics,
        waiting: WaitingCalls,
        before_answer: Callable[[str], None],
    ) -> None:
        self.trace: Callable[[call_trace.CallTrace], None] | None = None
        self.refused = RefusedCalls()
        self._node = node
        self._workers = workers
        self._metrics = metrics
        self._waiting = waiting
        self._before_answer = before_answer

    def submit(self, exchange: Exchange, left: _TimedCall | None = None) -> None:
        """Have a worker serve the call, or what is left of it. Never waits. Raises Overloaded."""
        container = exchange.headers.get("Cni-Containerid", "")
        self._workers.submit(Job(partial(self._serve, left or _TimedCall(exchange)), exchange.verb or "", container))

    # -- on a worker ------------------------------------------------------------------------------------------------------

    def _serve(self, call: _TimedCall) -> None:
        """Serve the call, or its rest, and answer, unless it has to wait."""
        exchange = call.exchange
        with refusing(exchange):
            serve = call.serve or self._begin(call)
            if exchange.hung_up and exchange.verb == "ADD":
                waited_for = "its pod" if call.serve else "a thread"
                raise Unavailable("ADD: its caller has gone", f"it waited too long for {waited_for}")
            try:
                with call.observe():
                    answered = answer(call.environ, lambda: exchange.body, serve)
            except PostponedCall as postponed:
                self._postpone(call, postponed)
            else:
                self._answer(call, answered)

    def _begin(self, call: _TimedCall) -> Serve:
        """What serves the call. Raises WrongAgent and MalformedRequest."""
        head = call.exchange.head
        call.began, call.environ = time.perf_counter(), protocol.environment(head)
        require_addressee(protocol.addressee(head), self._node.installation.settings, self._node.installation.root)
        if self.trace and call_trace.is_wanted(call.environ):
            call.periods = []
        if head.verb == "DEL":
            self._waiting.turn_away(call.environ.get("CNI_CONTAINERID", ""), call.environ.get("CNI_IFNAME", ""))
        called = protocol.read_call_time(head)

        def serve(request: Request) -> bytes:
            call.request = request
            return verbs.serve(request, self._node, called)

        return serve

    def _answer(self, call: _TimedCall, answered: CniAnswer) -> None:
        if call.exchange.verb == "ADD":
            self.refused.note(call.environ, answered.output, refused=answered.code != 0)
            if answered.code == 0:
                self._before_answer(call.environ.get("CNI_CONTAINERID", ""))
        seconds = time.perf_counter() - call.began  # before the answer: after it the caller and the server's thread run
        call.exchange.answer(200 if answered.code == 0 else 500, answered.output, warnings=call.warnings)
        self._metrics.observe_call(call.environ["CNI_COMMAND"], answered.error, seconds, call.stages)
        self._node.pods.tell(recipient_of(call.environ), call.told)
        if self.trace and call.periods is not None:
            self.trace(self._trace_of(call, answered.error, seconds))

    def _trace_of(self, call: _TimedCall, code: int, seconds: float) -> call_trace.CallTrace:
        """The trace of a call that took so long; the caller's own time is from its clock, which goes on where the node sleeps."""
        clock, store = time.perf_counter_ns(), self._node.store
        offset = time.time_ns() - clock
        began = int(call.began * 1e9) + offset
        called = protocol.read_call_time(call.exchange.head)
        ago = store.boottime_ns() - called.boottime_ns if called and called.boot_id == store.boot_id() else 0
        network = call.request.network if call.request else None
        bridge = call_trace.bridge_of(network.raw, self._node.installation.settings.ovn_bridge) if network else ""
        return call_trace.CallTrace(
            verb=call.environ["CNI_COMMAND"],
            code=code,
            called=min(began, clock + offset - max(ago, 0)),
            began=began,
            ended=began + int(seconds * 1e9),
            stages=call_trace.at_wall_clock(call.periods or (), offset),
            names=call_trace.names_of(call.environ, network.name if network else "", bridge),
            parent=call_trace.read_parent(call.environ),
        )

    # -- an ADD that waits ------------------------------------------------------------------------------------------------

    def _postpone(self, call: _TimedCall, postponed: PostponedCall) -> None:
        """Have the call wait without a thread; it is answered now if it must not."""
        waits_since = time.perf_counter()

        def go_on(error: UserspaceError | None) -> None:
            now = time.perf_counter()
            call.stages["address"] = now - waits_since
            if call.periods is not None:
                call.periods.append(StagePeriod("address", waits_since, now))
            call.serve = _raising(error) if error else lambda _: postponed.proceed()
            try:
                self.submit(call.exchange, call)
            except Unavailable as full:
                call.exchange.refuse(full)

        try:
            self._waiting.add(WaitingCall(call.exchange, postponed, go_on))
        except UserspaceError as error:
            call.serve = _raising(error)
            self._serve(call)


def _raising(error: UserspaceError) -> Serve:
    def serve(_: Request) -> bytes:
        raise error

    return serve
