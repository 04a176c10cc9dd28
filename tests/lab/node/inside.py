"""The plugin inside a process of the test, so that an error or death can happen at a chosen point of a verb.

The node is the real one, with its real drivers; between them and the verbs is a `Trip`, which is called at each point: "before
port", "after port", "before undo port", "before lease", "after writing pending", and so on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from tests.lab.node.calls import call_plugin
from tests.lab.node.forked import died
from userspace_cni.attachment.attachment_store import AttachmentStore
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.shared_holders import SharedHolders
from userspace_cni.attachment.steps import Driver, Lease, Rest, SharedReads, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.settings import Settings, load
from userspace_cni.cni.call import CniAnswer
from userspace_cni.linux.boot import boot_id
from userspace_cni.node.drivers import Drivers
from userspace_cni.node.installation import Installation
from userspace_cni.node.known_subnets import Subnets
from userspace_cni.node.local_addresses import LocalAddresses
from userspace_cni.node.local_node import LocalNode

Watch = Callable[[str], None]
"""A function that is called with each point, and may raise."""


@dataclass
class Trip:
    """Records the points, and calls `act` once, at the first point named `at`."""

    at: str = ""
    act: Callable[[], object] = lambda: None
    passed: list[str] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        first = point not in self.passed
        self.passed.append(point)
        if point == self.at and first:
            self.act()


class Clock:
    """The clock by which deadlines in this process pass. A test lets time pass at a point of its choice.

    So a verb reaches a call that hangs with enough time left, and the test does not have to wait for the deadline.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._skipped = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic() + self._skipped

    def leave(self, seconds: float, of: float = Settings.deadline_s) -> None:
        """Let all but so many seconds pass, of the `of` seconds that a verb had when the clock was made."""
        self.skip(max(0.0, self._began + of - seconds - self.monotonic()))

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._skipped += seconds


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


class _TrippedDriver(Driver[Step]):
    def __init__(self, driver: Driver[Any], trip: Watch) -> None:
        self._driver = driver
        self._trip = trip

    def apply(self, step: Step, deadline: Deadline) -> Rest | None:
        if isinstance(step, Lease):  # it was leased before the plan was made
            return self._driver.apply(step, deadline)
        return self._tell(step, partial(self._driver.apply, step, deadline))

    def _tell(self, step: Step, act: Callable[[], Rest | None]) -> Rest | None:
        self._trip(f"before {step.kind}")
        rest = act()
        self._trip(f"after {step.kind}")
        return partial(self._rest, step.kind, rest) if rest else None

    def _rest(self, kind: str, rest: Rest) -> None:
        self._trip(f"before rest of {kind}")
        rest()
        self._trip(f"after rest of {kind}")

    def make_again(self, step: Step, deadline: Deadline) -> Rest | None:
        return self._tell(step, partial(self._driver.make_again, step, deadline))

    def undo(self, step: Step, deadline: Deadline) -> None:
        self._trip(f"before undo {step.kind}")
        self._driver.undo(step, deadline)
        self._trip(f"after undo {step.kind}")

    def check(self, step: Step, deadline: Deadline) -> list[Drift]:
        return self._driver.check(step, deadline)

    def is_present(self, step: Step) -> bool:
        return self._driver.is_present(step)

    def is_lost(self, step: Step, seen: SharedReads, deadline: Deadline) -> bool:
        return self._driver.is_lost(step, seen, deadline)

    def is_mounted(self, step: Step, seen: SharedReads) -> bool:
        return self._driver.is_mounted(step, seen)


class _TrippedJournal(Journal):
    def __init__(self, settings: Settings, trip: Watch) -> None:
        super().__init__(settings.state_dir, settings.run_dir, lambda _: None, boot_id)
        self._trip = trip

    def write(self, record: Record) -> None:
        self._trip(f"before writing {record.state}")
        super().write(record)
        self._trip(f"after writing {record.state}")

    def advance(self, record: Record) -> None:
        self._trip(f"before writing {record.state}")
        super().advance(record)
        self._trip(f"after writing {record.state}")

    def drop(self, record: Record) -> None:
        self._trip("before dropping the record")
        super().drop(record)
        self._trip("after dropping the record")

    def write_shared(self, place: str, shared: SharedHolders) -> None:
        self._trip("before writing holders")
        super().write_shared(place, shared)
        self._trip("after writing holders")


class _TrippedAddresses(LocalAddresses):
    def __init__(self, installation: Installation, subnets: Callable[[], Subnets], trip: Watch) -> None:
        super().__init__(installation, subnets)
        self._trip = trip

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        self._trip("before lease")
        answer = super().lease(step, deadline, lock)
        self._trip("after lease")
        return answer


@dataclass(frozen=True, kw_only=True)
class _DriversBehindTrip(Drivers):
    trip: Watch

    def __call__(self, step: Step) -> Driver[Any]:
        return _TrippedDriver(super().__call__(step), self.trip)


class TrippedDrivers(LocalNode):
    """This node, which tells `trip` of every step and of every write of the journal."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], trip: Watch, *, resident: bool = False) -> None:
        super().__init__(settings, environ, resident=resident)
        self._trip = trip

    @cached_property
    def store(self) -> AttachmentStore:
        """The real one, with its journal behind the trip."""
        return replace(super().store, journal=_TrippedJournal(self.installation.settings, self._trip))

    @cached_property
    def driver(self) -> Drivers:
        """The real ones behind the trip."""
        return _DriversBehindTrip(self.installation, self.store, self.switch, self.addresses, self.pods, trip=self._trip)

    @cached_property
    def addresses(self) -> LocalAddresses:
        """The real ones behind the trip."""
        return _TrippedAddresses(self.installation, lambda: self.subnets, self._trip)


def answer(environ: Mapping[str, str], stdin: bytes, trip: Watch) -> CniAnswer:
    """Run one verb in this process; its session with OVSDB is closed afterwards."""
    made: list[LocalNode] = []

    def node() -> LocalNode:
        made.append(TrippedDrivers(load(environ), environ, trip))
        return made[0]

    try:
        return call_plugin(environ, lambda: stdin, node)
    finally:
        for each in made:
            if "switch" in vars(each):
                each.switch.close()


def killed_at(environ: Mapping[str, str], stdin: bytes, point: str) -> bool:
    """Run one verb in its own process, which gets SIGKILL at the first `point`; whether it got there."""
    return died(_die_at, dict(environ), stdin, point)


def _die_at(environ: dict[str, str], stdin: bytes, point: str) -> None:
    answer(environ, stdin, Trip(point, lambda: os.kill(os.getpid(), signal.SIGKILL)))
