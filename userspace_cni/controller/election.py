"""Which of several controllers acts: the holder of a Lease of the API, which it renews.

It must never say that it leads when another one may: it leads for `renew_s` after the beginning of its last renewal, which is
shorter than the `lease_s` for which others wait from when they see that renewal. No two machines' clocks are compared: the times
in the Lease are for people, and what counts is for how long this process has seen them unchanged. Its clock goes on while the
machine sleeps. A request that was begun before the end may still arrive after it, so writers carry the version that they follow
from.

The `kubernetes` library's `leaderelection` is not used: it needs the typed models (20 MiB), reads the wall clock, waits without
bounds in its requests and sleeps, cannot be ended, and does not give the lease back.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Conflict, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import LEASES

NAME: Final = "userspace-cni-controller"
STOP_S: Final = 2.0
_LEASE_MAX_S: Final = 3600
"""A Lease that says a longer time is not believed."""


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds. Others take the Lease `lease_s` after they saw its last change (whole seconds, as the API has it).

    Its holder renews it each `retry_s`, and stops acting `renew_s` after the last renewal. That is earlier by more than one
    request takes. Others look each `retry_s`. After a failure there is another look `again_s` later, so that the holder may yet
    renew in time.
    """

    lease_s: int = 30
    renew_s: float = 18.0
    retry_s: float = 6.0
    again_s: float = 1.0


class Election(Loop):
    """Takes part in the election from `start` to `stop`. `problem`: why it is not known who leads.

    `on_change` is called when this process begins to lead, also again after a lapse, however short, and must not wait. `name`:
    the Lease's.
    """

    failing = "the Lease of the controllers is not available now: "
    end_s = STOP_S

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        times: LeaseTimes | None = None,
        on_change: Callable[[], None] = lambda: None,
        name: str = NAME,
    ) -> None:
        super().__init__("election", "elects a leader")
        self._objects = objects
        self._leases = LEASES.within(namespace)
        self._name = name
        self._times = times or LeaseTimes()
        self.back_off = BackOff(self._times.again_s, self._times.again_s)
        self._on_change = on_change
        self.identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
        """What the Lease calls this process; another one after a restart."""
        self._until = 0.0
        self.problem = "the Lease was not read yet"
        # only the thread uses these
        self._lease: Mapping[str, Any] | None = None
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0
        self._led = False

    def stop(self, within_s: float = STOP_S) -> None:
        """Lead no longer, and give the Lease back, so that another one leads at once. Waits 2 s at most."""
        super().stop(within_s)
        self._until = 0.0

    @property
    def leading(self) -> bool:
        """Whether this process may act now."""
        return clock() < self._until

    def _end(self) -> None:
        if self.leading and self._lease is not None:
            self._until = 0.0
            self._give_back(self._lease)

    def _round(self) -> float:
        began = clock()
        try:
            if self._take_or_renew():
                former, self._until = self._until, began + self._times.renew_s
                if clock() >= former:
                    self._led = False  # it had lapsed, be it while the request was under way: what was asked then was not done
        except Conflict:
            pass  # another one was first: it is read again
        finally:
            self._tell_of_change()
        self._note("")
        return self._times.retry_s

    def _tell_of_change(self) -> None:
        if self.leading != self._led:
            self._led = self.leading
            say(
                "info",
                "this controller leads" if self._led else "this controller is no longer the leader",
                identity=self.identity,
            )
            if self._led:
                self._on_change()

    def _take_or_renew(self) -> bool:
        """Whether the Lease is ours now; it is kept as it was written last. Raises UserspaceError."""
        known, self._lease = self._lease, None
        if known is not None and self.leading:
            self._lease = self._put(known, {"renewTime": _now()})
            return True
        lease = self._objects.get(self._leases, self._name)
        if lease is None:
            self._lease = self._objects.create(self._leases, self._name, {"spec": self._taken(0)})
            return True
        spec = _spec(lease)
        seen = tuple(spec.get(key) for key in ("holderIdentity", "renewTime", "leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, clock()
        holder = spec.get("holderIdentity")
        if holder not in (self.identity, None, "") and clock() - self._seen_at < _duration(spec, self._times.lease_s):
            return False
        transitions = spec.get("leaseTransitions")
        taken = self._taken(transitions + 1 if isinstance(transitions, int) else 0)
        self._lease = self._put(lease, {"renewTime": _now()} if holder == self.identity else taken)
        return True

    def _taken(self, transitions: int) -> dict[str, Any]:
        now = _now()
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.lease_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _put(self, lease: Mapping[str, Any], change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the Lease over the version that was read. Raises Conflict when that is no longer the last one."""
        return self._objects.replace(self._leases, self._name, {**lease, "spec": {**_spec(lease), **change}})

    def _give_back(self, lease: Mapping[str, Any]) -> None:
        try:
            self._put(lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()})
        except UserspaceError as error:
            say("warning", "the Lease was not released: another controller waits until it expires", error=error)


def clock() -> float:
    """Seconds since the machine's start, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _duration(spec: Mapping[str, Any], usual: int) -> float:
    said = spec.get("leaseDurationSeconds")
    return float(said) if isinstance(said, int) and 0 < said <= _LEASE_MAX_S else float(usual)
