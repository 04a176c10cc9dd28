"""Calls that wait for a tenant's controller, which may never act: they hold no worker, and their number per namespace is
limited. A waiting call is a connection and a function to go on with: it has changed nothing yet and holds no lock. One thread
resumes the calls whose pods have changed, whose callers have hung up or whose time is over. A DEL of the interface or the
agent's end refuses them. A thread that watches a pod for one of them ends with it, and counts towards the namespace's limit
until it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import TIMEOUT_MAX
from typing import Final

from userspace_cni.agent.exchange import Exchange
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.cni.call import Awaited, PostponedCall

_ENDING_S: Final = 1.0
"""How long a call waits for the place of a thread whose call has gone on: the thread ends at once, unless it is in a request."""
_RETRY: Final = "try again when it runs"


@dataclass(frozen=True)
class WaitingCall:
    """A call that waits. `go_on` is called once, with the error to answer or None; it must neither wait nor fail."""

    exchange: Exchange
    postponed: PostponedCall
    go_on: Callable[[UserspaceError | None], None]
    since: float = field(default_factory=time.monotonic)

    @property
    def awaited(self) -> Awaited:
        return self.postponed.awaited

    @property
    def is_over(self) -> bool:
        try:
            return self.exchange.hung_up or not self.awaited.until.remaining() or self.awaited.over()
        except Exception as error:  # noqa: BLE001 -- the call itself meets it, and answers
            say("warning", "looking at what an ADD waits for failed", error=repr(error))
            return True


class WaitingCalls(Loop):
    """The waiting calls, at most `most` of each namespace. Safe to use from any thread; only `stop` waits, for its thread."""

    end_s = 1.0

    def __init__(self, most: int) -> None:
        super().__init__("waiting", "ends the waiting of ADDs")
        self._most = most
        self._waiting: dict[Exchange, WaitingCall] = {}
        self._changed: set[Exchange] = set()
        self._left: list[Awaited] = []

    def add(self, call: WaitingCall) -> None:
        """Have the call wait. Raises Unavailable when too many of its namespace do, or the agent is stopping."""
        namespace, _ = call.awaited.pod
        with self._wake:
            if self._waiting_of(namespace) < self._most:
                self._wake.wait_for(lambda: self._stopping or self._held_by(namespace) < self._most, _ENDING_S)
            if self._stopping:
                raise Unavailable("ADD: the agent is stopping", _RETRY)
            if self._held_by(namespace) >= self._most:
                raise Unavailable(
                    f"key 'addresses' is 'annotations': {self._most} ADDs of namespace {namespace} wait for their pods already",
                    f"{call.awaited.text}; the node's setting waiting_per_namespace says how many may wait",
                )
            self._waiting[call.exchange] = call
        try:
            call.awaited.begin(lambda: self._on_end(call.exchange))
        except UserspaceError:
            self._take(call)
            raise
        self.look_at(call.exchange)  # it may have come, or the caller gone, since the call has looked

    def look_at(self, exchange: Exchange) -> None:
        """Note that something has become of what this call waits for, or of its caller; nothing for one that does not wait."""
        with self._wake:
            self._note_changed([exchange])

    def on_pod(self, namespace: str, name: str) -> None:
        """Note that this pod has changed, or is gone."""
        with self._wake:
            self._note_changed([call.exchange for call in self._waiting.values() if call.awaited.pod == (namespace, name)])

    def turn_away(self, container_id: str, ifname: str) -> None:
        """End what waits for this interface: a DEL of it has come."""
        with self._wake:
            calls = [call for call in self._waiting.values() if call.postponed.attachment == (container_id, ifname)]
        for call in calls:
            if self._take(call):
                call.go_on(Unavailable("ADD: a DEL of it came while it waited for its pod", "nothing was done"))

    def stop(self, within_s: float = TIMEOUT_MAX) -> None:
        """Take no more, and turn away those that wait."""
        super().stop(within_s)
        with self._wake:
            calls = list(self._waiting.values())
        for call in calls:
            if self._take(call):
                call.go_on(Unavailable("ADD: the agent is stopping", _RETRY))

    @property
    def number(self) -> int:
        with self._wake:
            return len(self._waiting)

    def overdue(self, limit_s: float) -> list[str]:
        """The containers of calls that have waited for longer than that: none does while the thread works."""
        now = time.monotonic()
        with self._wake:
            return [call.postponed.attachment[0] for call in self._waiting.values() if now - call.since > limit_s]

    def _on_end(self, exchange: Exchange) -> None:
        """Note that what looked in the background for this call has ended, whether the call waits or has gone on."""
        with self._wake:
            self._note_changed([exchange])
            self._left = [awaited for awaited in self._left if awaited.runs]
            self._wake.notify_all()

    # -- under the lock ---------------------------------------------------------------------------------------------------

    def _waiting_of(self, namespace: str) -> int:
        return sum(call.awaited.pod[0] == namespace for call in self._waiting.values())

    def _held_by(self, namespace: str) -> int:
        """The namespace's places: what waits, and the threads of what has gone on, which are told to end."""
        return self._waiting_of(namespace) + sum(awaited.pod[0] == namespace and awaited.runs for awaited in self._left)

    def _note_changed(self, exchanges: Iterable[Exchange]) -> None:
        found = self._waiting.keys() & set(exchanges)
        if found:
            self._changed |= found
            self.ask()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        with self._wake:
            changed, self._changed = self._changed, set()
            calls = [each for each in self._waiting.values() if each.exchange in changed or not each.awaited.until.remaining()]
        for call in calls:
            if call.is_over and self._take(call):
                call.go_on(None)
        with self._wake:
            return min((call.awaited.until.remaining() for call in self._waiting.values()), default=None)

    def _take(self, call: WaitingCall) -> bool:
        """Take the call from those that wait; False when another thread did."""
        with self._wake:
            if self._waiting.pop(call.exchange, None) is None:
                return False
            call.awaited.end()
            if call.awaited.runs:
                self._left.append(call.awaited)
            return True
