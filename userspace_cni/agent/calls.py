"""The calls of runtimes: each is served on a worker's thread, an ADD that has to wait for its pod on two, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from userspace_cni.agent.addressee import require_addressee
from userspace_cni.agent.agent_metrics import Metrics
from userspace_cni.agent.exchange import Exchange, attempt
from userspace_cni.agent.waiting_calls import WaitingCall, WaitingCalls
from userspace_cni.agent.workers import Job, Workers
from userspace_cni.attachment import verbs
from userspace_cni.base import notices
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.log import collected_warnings
from userspace_cni.base.stages import Stage, collected
from userspace_cni.cni import protocol
from userspace_cni.cni.call import CniAnswer, Postponed, answer
from userspace_cni.cni.request import Request, recipient_of
from userspace_cni.node.local import LocalNode

Serve = Callable[[Request], bytes]


@dataclass
class _Call:
    """A call, and what it took and said by now. `began`: of time.perf_counter."""

    exchange: Exchange
    environ: Mapping[str, str]
    began: float = field(default_factory=time.perf_counter)
    stages: dict[Stage, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    told: list[Finding] = field(default_factory=list)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note what the verb, or what is left of it, takes and says in the block."""
        with collected() as stages, collected_warnings() as warnings, notices.collected() as told:
            try:
                yield
            finally:
                self.stages |= stages
                self.warnings += warnings
                self.told += told


class Calls:
    """Serves the verbs of `node`. `before_answer` is called with the container of an ADD that has succeeded."""

    def __init__(
        self, node: LocalNode, workers: Workers, metrics: Metrics, waiting: WaitingCalls, before_answer: Callable[[str], None]
    ) -> None:
        self._node = node
        self._workers = workers
        self._metrics = metrics
        self._waiting = waiting
        self._before_answer = before_answer

    def submit(self, exchange: Exchange, work: Callable[[Exchange], None] | None = None) -> None:
        """Have a worker serve the call, or do the `work` that is left of it. Never waits. Raises Overloaded."""
        container = exchange.headers.get("Cni-Containerid", "")
        self._workers.submit(Job(partial(attempt, work or self._begin, exchange), exchange.verb or "", container))

    # -- on a worker ------------------------------------------------------------------------------------------------------

    def _begin(self, exchange: Exchange) -> None:
        call = _Call(exchange, protocol.environment(exchange.head))
        require_addressee(protocol.addressee(exchange.head), self._node.installation.settings, self._node.installation.root)
        if exchange.hung_up and exchange.verb == "ADD":
            exchange.refuse(Unavailable("ADD: its caller has gone", "it waited too long for a thread"))
            return
        if exchange.verb == "DEL":
            self._waiting.turn_away(call.environ.get("CNI_CONTAINERID", ""), call.environ.get("CNI_IFNAME", ""))
        self._run(call, partial(verbs.serve, node=self._node, called=protocol.called(exchange.head)))

    def _run(self, call: _Call, serve: Serve) -> None:
        """Serve the call, or what is left of it, and answer, unless it has to wait."""
        try:
            with call.observed():
                answered = answer(call.environ, lambda: call.exchange.body, serve)
        except Postponed as postponed:
            self._postpone(call, postponed)
        else:
            self._answer(call, answered)

    def _answer(self, call: _Call, answered: CniAnswer) -> None:
        if call.exchange.verb == "ADD" and answered.code == 0:
            self._before_answer(call.environ.get("CNI_CONTAINERID", ""))
        seconds = time.perf_counter() - call.began  # before the answer: after it the caller and the server's thread run
        call.exchange.answer(200 if answered.code == 0 else 500, answered.output, warnings=call.warnings)
        self._metrics.observe_call(call.environ["CNI_COMMAND"], answered.error, seconds, call.stages)
        self._node.pods.tell(recipient_of(call.environ), call.told)

    # -- an ADD that waits ------------------------------------------------------------------------------------------------

    def _postpone(self, call: _Call, postponed: Postponed) -> None:
        """Have the call wait without a thread; it is answered now if it must not."""
        waits_since = time.perf_counter()

        def go_on(error: UserspaceError | None) -> None:
            def rest(exchange: Exchange) -> None:
                call.stages["address"] = time.perf_counter() - waits_since
                if exchange.hung_up:
                    exchange.refuse(Unavailable("ADD: its caller has gone", "it waited for its pod"))
                else:
                    self._run(call, _raising(error) if error else lambda _: postponed.proceed())

            try:
                self.submit(call.exchange, rest)
            except Unavailable as full:
                call.exchange.refuse(full)

        try:
            self._waiting.add(WaitingCall(call.exchange, postponed, go_on))
        except UserspaceError as error:
            self._run(call, _raising(error))


def _raising(error: UserspaceError) -> Serve:
    def serve(_: Request) -> bytes:
        raise error

    return serve
