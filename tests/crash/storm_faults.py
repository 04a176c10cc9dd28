"""The faults of a storm: daemons are killed, the disk of the records is full or takes no writes.

Switch, disk, agent and sandboxes each have a thread, so that their faults meet. What a fault is, when it comes and how long it
lasts comes from the seed, counted in calls, for a loaded machine makes fewer of them; no fault lasts longer than some seconds.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.crash.storm_model import Model, Violation
from tests.lab.node.disks import fill, kept_full
from tests.lab.switch.switch import wait_until

OF_SWITCH: Final = ("ovs-vswitchd killed", "ovs-vswitchd killed twice", "ovsdb-server killed")
OF_DISK: Final = ("disk full", "disk read-only", "disk full and ovsdb-server killed")
OF_AGENT: Final = ("agent killed", "agent ended")
OF_SANDBOXES: Final = ("sandbox vanished",)
DEALT: Final = (*OF_SWITCH, *OF_DISK, *OF_AGENT, *OF_SANDBOXES)
OF_CALLERS: Final = "caller killed"
LONGEST_S: Final = 2.5
MANY_CALLS: Final = 1 << 30
DISK_BYTES: Final = 4 << 20


@dataclass
class Clock:
    """Counts calls, and knows when no more are to come."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    calls: int = 0
    _moved: threading.Condition = field(default_factory=threading.Condition)
    _over: bool = False
    _resting: bool = False

    @property
    def now(self) -> float:
        """Seconds since the storm began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.seconds - self.now

    def count(self) -> None:
        with self._moved:
            self.calls += 1
            self._moved.notify_all()

    def stop(self) -> None:
        with self._moved:
            self._over = True
            self._moved.notify_all()

    def rest(self, *, resting: bool) -> None:
        """Set whether no calls are made now, so that no thread waits for them."""
        with self._moved:
            self._resting = resting
            self._moved.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or its time is over."""
        return self._over or self.left <= 0

    @property
    def is_still(self) -> bool:
        """Whether no more calls will come."""
        return self._resting or self.is_over

    def wait(self, until: int, seconds: float = float("inf")) -> None:
        """Wait until so many calls are done, so many seconds have passed, or all is over."""
        end = time.monotonic() + min(seconds, self.left)
        with self._moved:
            while self.calls < until and not (self._over or self._resting) and (left := end - time.monotonic()) > 0:
                self._moved.wait(left)


class Faults:
    """The threads of faults of one burst of calls. After `join` all is healthy again, except for the damage of the faults.

    `vanish`: remove the sandboxes of a pod, and return whether that was possible. `tell` gets the kind of each fault.
    """

    def __init__(
        self,
        node: LiveNode,
        model: Model,
        clock: Clock,
        vanish: Callable[[random.Random], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._node = node
        self._model = model
        self._clock = clock
        self._vanish = vanish
        self._tell = tell
        self._switch = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.found: list[Violation] = []
        """Failures of our own daemons."""
        self._acts: dict[str, Callable[[random.Random], None]] = {
            "ovs-vswitchd killed": self._kill_vswitchd,
            "ovs-vswitchd killed twice": self._kill_vswitchd_twice,
            "ovsdb-server killed": self._kill_ovsdb,
            "disk full": self._fill_disk,
            "disk read-only": self._take_no_writes,
            "disk full and ovsdb-server killed": self._both,
            "agent killed": self._kill_agent,
            "agent ended": self._end_agent,
            "sandbox vanished": self._end_sandbox,
        }

    def begin(self, plan: Sequence[Sequence[str]], calls: range, seed: str) -> None:
        """Run each sequence of kinds in a thread of its own, spread over these calls."""
        self._clock.rest(resting=False)
        for number, kinds in enumerate(plan):
            rng = random.Random(f"{seed}:{number}")
            times = sorted(rng.randrange(calls.start, calls.stop) for _ in kinds)
            thread = threading.Thread(target=self._run, args=(list(zip(times, kinds, strict=True)), rng), name=f"faults-{number}")
            thread.start()
            self._threads.append(thread)

    @property
    def alive(self) -> bool:
        """Whether faults are still to come."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait for the end of the faults that have begun: no more calls come."""
        self._clock.rest(resting=True)
        for thread in self._threads:
            thread.join()

    def _run(self, plan: list[tuple[int, str]], rng: random.Random) -> None:
        for at, kind in plan:
            self._clock.wait(at)
            if self._clock.is_still:
                return
            try:
                self._tell(kind)
                self._acts[kind](rng)
            except BaseException as error:  # the storm ends with it
                self.errors.append(error)
                self._clock.stop()
                return

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        event = self._model.happens(what, self._clock.now)
        try:
            yield
        finally:
            event.ended = self._clock.now

    def _last(self, rng: random.Random, calls: int = 40) -> None:
        """Keep a fault for some calls, or for its longest time."""
        self._clock.wait(self._clock.calls + rng.randrange(1, calls), rng.uniform(0.1, LONGEST_S))

    # -- the switch -------------------------------------------------------------------------------------------------------

    def _kill_vswitchd(self, rng: random.Random) -> None:
        with self._switch, self._told("ovs-vswitchd killed, and started again"):
            switch_of(self._node).kill_vswitchd()
            self._last(rng)
            switch_of(self._node).restart_vswitchd()

    def _kill_vswitchd_twice(self, rng: random.Random) -> None:
        switch = switch_of(self._node)
        with self._switch, self._told("ovs-vswitchd killed twice, and started again"):
            for pause in (0.0, rng.choice((0.0, rng.uniform(0, 1)))):
                self._clock.wait(self._clock.calls + MANY_CALLS, pause)
                switch.kill_vswitchd()
                switch.restart_vswitchd()

    def _kill_ovsdb(self, rng: random.Random) -> None:
        switch = switch_of(self._node)
        with self._switch, self._told("ovsdb-server killed, and started again"):
            os.kill(switch.ovsdb_pid, signal.SIGKILL)
            self._last(rng)
            switch.restart_ovsdb()

    # -- the disk ---------------------------------------------------------------------------------------------------------

    def _fill_disk(self, rng: random.Random) -> None:
        filler = self._node.state / ".filler"
        with self._told("disk full"):
            end = self._clock.calls + rng.randrange(20, 80), time.monotonic() + LONGEST_S

            def going() -> bool:
                return self._clock.calls < end[0] and time.monotonic() < end[1] and not self._clock.is_still

            try:
                if rng.random() < 0.5:
                    with held(self._node.state), kept_full(filler):
                        while going():
                            self._clock.wait(self._clock.calls + 1, 0.3)
                while going():
                    fill(filler, rng.choice((0, 0, 1, 2, 4)))
                    self._clock.wait(self._clock.calls + rng.randrange(1, 10), 0.3)
            finally:
                filler.unlink(missing_ok=True)

    def _take_no_writes(self, rng: random.Random) -> None:
        with self._told("disk read-only"), remounted(self._node.state, "ro"):
            self._last(rng)

    def _both(self, rng: random.Random) -> None:
        switch = switch_of(self._node)
        with self._switch, self._told("ovsdb-server killed while the disk is full, and started again"):
            os.kill(switch.ovsdb_pid, signal.SIGKILL)
            try:
                self._fill_disk(rng)
            finally:
                switch.restart_ovsdb()

    # -- the agent --------------------------------------------------------------------------------------------------------

    def _kill_agent(self, rng: random.Random) -> None:
        with self._told("agent killed, and another one started"):
            self._agent(self._node.kill)
            self._last(rng)
            self._agent(self._node.start)

    def _end_agent(self, rng: random.Random) -> None:
        with self._told("agent ended, and another one started"):
            self._agent(self._node.end)
            self._last(rng)
            self._agent(self._node.start)

    def _end_sandbox(self, rng: random.Random) -> None:
        while not self._vanish(rng) and not self._clock.is_still:
            self._clock.wait(self._clock.calls + 1, 0.1)

    def _agent(self, act: Callable[[], object]) -> None:
        """Do `act`; a failure of the agent is recorded."""
        try:
            act()
        except AssertionError as error:
            self.found.append(Violation(f"the agent does not obey: {error}"))


@contextmanager
def remounted(directory: Path, options: str) -> Iterator[None]:
    """Mount a file system with these options as soon as none of its files is being written, and with `rw` afterwards."""
    wait_until(lambda: _remount(directory, options), what=f"{directory} to be remounted with {options}")
    try:
        yield
    finally:
        wait_until(lambda: _remount(directory, "rw"), what=f"{directory} to be remounted with rw")


def _remount(directory: Path, options: str) -> bool:
    done = subprocess.run(["mount", "-o", f"remount,{options}", str(directory)], check=False, capture_output=True)
    return done.returncode == 0


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Removing files below the directory frees no space, as on a disk with a snapshot."""
    names = directory / ".held"
    names.mkdir()
    try:
        for path in [*directory.glob("*/*.json"), *directory.glob("spool/*")]:
            with suppress(FileNotFoundError):
                (names / f"{path.parent.name}-{path.name}").hardlink_to(path)
        yield
    finally:
        shutil.rmtree(names)


@contextmanager
def disk(directory: Path) -> Iterator[None]:
    """A file system of its own for the records."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(directory)], check=True)
    try:
        yield
    finally:
        with suppress(OSError):
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def deal(rng: random.Random, faults: int, kinds: Sequence[str] = DEALT) -> list[list[str]]:
    """Deal faults to the threads of switch, disk, agent and sandboxes: each kind as often as the others, in any order."""
    threads = [
        chosen for of in (OF_SWITCH, OF_DISK, OF_AGENT, OF_SANDBOXES) if (chosen := [kind for kind in of if kind in kinds])
    ]
    turns = [number for number, of in enumerate(threads) for _ in of]
    decks: list[list[str]] = [[] for _ in threads]
    plan: list[list[str]] = [[] for _ in threads]
    for place in range(faults if turns else 0):
        if place % len(turns) == 0:
            rng.shuffle(turns)
        number = turns[place % len(turns)]
        decks[number] = decks[number] or rng.sample(threads[number], len(threads[number]))
        plan[number].append(decks[number].pop())
    return plan
