"""The switch of a node in memory: what it reports of its ports and itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from userspace_cni.attachment.port_now import NOTHING, PortNow
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing
from userspace_cni.base.polling import PollingReading

if TYPE_CHECKING:
    from tests.lab.node.world import World


@dataclass(frozen=True)
class Seen:
    """A port as the switch reports it."""

    name: str
    bridge: str = "br0"
    interface_type: str = "dpdkvhostuserclient"
    link_state: str = "up"
    status: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    installed: str = ""
    now: PortNow = NOTHING


@dataclass(frozen=True)
class Alive:
    """What ovs-vswitchd reports of itself."""

    state: str = "alive"
    reason: str = "ovs-vswitchd 3.1.0"
    pid: int | None = None

    @property
    def process(self) -> str:
        return f"pid {self.pid or 1}" if self.state == "alive" else ""


@dataclass(frozen=True)
class Facts:
    """The settings of the switch."""

    other_config: Mapping[str, str] = field(default_factory=dict)
    mtus: Mapping[str, int] = field(default_factory=dict)


@dataclass
class MemoryPorts:
    """The switch of a World: every port that is true there."""

    world: World
    serving_error: NotServing | None = None
    errors: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=lambda: {"mode": "client", "status": "connected"})
    alive: Alive = field(default_factory=Alive)
    told: Facts = field(default_factory=Facts)
    polling: PollingReading = field(default_factory=lambda: PollingReading((), 0))

    sessions: int = 1

    def announce(self, name: str) -> AbstractContextManager[None]:
        """Ports are made one by one here."""
        return nullcontext()

    def connect(self, deadline: Deadline) -> None:
        if self.world.unreachable:
            raise self.world.unreachable

    def list_ports(self) -> list[Seen]:
        """With what their records say."""
        names = [each.removeprefix("port:") for each in self.world.true if each.startswith("port:")]
        steps = {step.name: step for each in self.world.journal.records() if (step := each.port)}
        had = {name: PortNow(step.vlan, step.interface.mtu, limits=step.limits) for name, step in steps.items()}
        return [Seen(name, status=self.status, error=self.errors.get(name, ""), now=had.get(name, NOTHING)) for name in names]

    def list_bridges(self) -> dict[str, str]:
        return {each.bridge: "netdev" for each in self.list_ports()}

    def watch_liveness(self) -> Alive:
        return self.alive

    def read_settings(self, deadline: Deadline) -> Facts:
        return self.told

    def read_polling_threads(self, deadline: Deadline, *, lately: bool = False) -> PollingReading:
        return self.polling

    def require_serving(self, bridge: str, deadline: Deadline) -> None:
        if self.serving_error:
            raise self.serving_error

    def close(self) -> None: ...


class MemoryLifeline:
    """A connection to a daemon that never ends."""

    def hold(self) -> None: ...

    def let_go(self) -> None: ...
