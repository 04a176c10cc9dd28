"""Looks at the node for `top`: one sample after the other, from the same thread or, for a screen, from one of its own.

A switch that hangs answers nothing for seconds; keys are answered all the same.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.polling import PollingThread
from userspace_cni.base.threads import start
from userspace_cni.cli.agent_client import AgentClient, DeadAgent, NoAgent, SlowAgent
from userspace_cni.cli.site import Site, patient
from userspace_cni.cli.top.top_layout import TopPicture
from userspace_cni.cli.top.top_rows import RowChoice, TopRow, TopUplink, choose, find_uplinks, make_rows
from userspace_cni.node.port_rates import RateMeter, TrafficRates, total
from userspace_cni.node.traffic import RARELY_S, Traffic, TrafficLooks

_FIRST_ANSWER_S: Final = 1.0
"""How long the first sample waits for the agent's first answer."""


@dataclass(frozen=True)
class TopSample:
    """One look with what follows from it and the one before."""

    traffic: Traffic
    rows: tuple[TopRow, ...] = ()
    uplinks: tuple[TopUplink, ...] = ()
    total: TrafficRates = field(default_factory=TrafficRates)
    loads: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    seconds: float = 0.0
    """Over which the rates were measured; 0 before there are any."""
    agent: str = ""
    agent_problem: str = ""
    taken: float = 0.0
    """Seconds since the epoch."""

    def picture(self, node: str, choice: RowChoice) -> TopPicture:
        """What is to be drawn of it."""
        return TopPicture(
            node=node,
            clock=time.strftime("%H:%M:%S", time.localtime(self.taken)),
            traffic=self.traffic,
            agent=self.agent,
            agent_problem=self.agent_problem,
            every=self.rows,
            uplinks=self.uplinks,
            rows=choose(self.rows, choice),
            total=self.total,
            loads=self.loads,
        )


class ThreadLoads:
    """How busy polling threads are, from two readings of each, or what the latest one says of the last seconds."""

    def __init__(self) -> None:
        self._former: dict[tuple[int, int], PollingThread] = {}

    def take(self, traffic: Traffic) -> dict[tuple[int, int], float | None]:
        """The load (0 to 1) by NUMA node and core, None for not known yet."""
        threads = {(each.numa, each.core): each for each in traffic.threads.threads} if traffic.threads else {}
        loads = {}
        for key, thread in threads.items():
            former = self._former.get(key)
            load = thread.load_since(former) if former else None
            loads[key] = thread.recent_load if load is None else load
        self._former = threads
        return loads


class TopSampler:
    """Takes samples of a node. For one thread at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._looks = TrafficLooks(site.drivers, patient)
        self._meter = RateMeter()
        self._loads = ThreadLoads()
        self._boot_id = site.drivers.store.boot_id()
        self._agent = AgentWatch(site.client)
        self.node = site.settings.node_name or socket.gethostname()

    def sample(self) -> TopSample:
        """One sample."""
        traffic = self._looks.look()
        if traffic.counters is None:
            self._meter.lose()
            rates: dict[str, TrafficRates] = {}
        else:
            rates = self._meter.take(traffic.counters)
        rows = tuple(make_rows(traffic, rates, self._boot_id))
        return TopSample(
            traffic,
            rows,
            tuple(find_uplinks(traffic, rates)),
            total(row.rates for row in rows),
            self._loads.take(traffic),
            self._meter.seconds,
            *self._agent.newest(),
            taken=time.time(),
        )


class AgentWatch:
    """Asks the agent how it is every few seconds, on a thread of its own: one that hangs delays the first sample a little, and no
    other. Where no thread can be started there is no answer."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._newest = ("unknown", "it has not answered yet")
        self._answered = threading.Event()
        with suppress(Unavailable):
            start(threading.Thread(target=self._run, name="agent", daemon=True), "asking the agent")

    def newest(self) -> tuple[str, str]:
        """A word of the agent, and more of it."""
        self._answered.wait(_FIRST_ANSWER_S)
        self._answered.set()
        return self._newest

    def _run(self) -> None:
        while True:
            self._newest = self._look()
            self._answered.set()
            time.sleep(RARELY_S)

    def _look(self) -> tuple[str, str]:
        try:
            problems = self._client.about()["problems"]
        except NoAgent:
            return "none", ""
        except DeadAgent:
            return "dead", "nothing listens at its socket"
        except SlowAgent as error:
            return "slow", error.message
        except Unavailable as error:
            return "unknown", error.message
        return ("not ready", "; ".join(problems)) if problems else ("ready", "")


class SamplingThread:
    """Takes a sample each time it is asked, on a thread of its own; then calls `done`."""

    def __init__(self, take: Callable[[], TopSample], done: Callable[[], None]) -> None:
        self._take = take
        self._done = done
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._newest: TopSample | None = None
        self._error: BaseException | None = None
        self.busy = False

    def start(self) -> None:
        """Raises Unavailable where the kernel refuses a thread."""
        start(threading.Thread(target=self._run, name="samples", daemon=True), "looking at the switch")

    def ask(self) -> None:
        """Ask for a sample, unless one is being taken."""
        self.busy = True
        self._asked.set()

    def fetch(self) -> TopSample | None:
        """The newest sample that was not fetched yet. Raises what the thread met."""
        with self._lock:
            newest, self._newest = self._newest, None
            if self._error is not None:
                raise self._error
        return newest

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                sample = self._take()
            except BaseException as error:  # noqa: BLE001 - it is raised where it can be shown
                with self._lock:
                    self._error = error
                self._done()
                return
            with self._lock:
                self._newest, self.busy = sample, False
            self._done()
