"""The thread that keeps the flows of the bridge that this node shares with OVN's gateway router.

It writes only while a record names the flows, so that they can be undone. What it cannot read it does not take away: NodePorts
stay while the API server is not reached. When it ends the flows stay; who asked for them undoes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import GatewayFlows
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.node.gateway_services import GatewayServices
from userspace_cni.switch.gateway_flows import GatewayFlowKeeper

if TYPE_CHECKING:
    from userspace_cni.kube.credentials import ApiSession
    from userspace_cni.node.local_node import LocalNode
    from userspace_cni.switch.openflow.gateway_entries import ServicePort
    from userspace_cni.switch.switch_view import SwitchView

LOOK_S: Final = 2.0
"""Seconds between two looks at the flows; another program's changes are mended then."""
_SHARE: Final = 20
"""Where a look takes long, because there are many flows, so many times that pass until the next one."""


class GatewayHelper(Loop):
    """The thread. `recorded`: the step in the record, None for none. `services`: the ports of Services, None while they are not
    known. `ask` it when either has changed."""

    failing = "the flows of the gateway's bridge cannot be kept now: "
    back_off = BackOff(0.25, LOOK_S)
    apart_s = 0.1
    settle_s = 0.1

    def __init__(
        self,
        ports: SwitchView,
        recorded: Callable[[], GatewayFlows | None],
        services: Callable[[], Collection[ServicePort] | None],
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__("gateway-helper", "keeps the flows of the gateway's bridge")
        self._ports = ports
        self._recorded = recorded
        self._services = services
        self._look_s = look_s
        self._step: GatewayFlows | None = None
        self._keeper: GatewayFlowKeeper | None = None

    def _round(self) -> float:
        begun = time.monotonic()
        step = self._recorded()
        if step != self._step or self._keeper is None:
            self._leave()
            self._keeper = GatewayFlowKeeper(self._ports, step) if step else None
            self._step = step
        try:
            done = self._keeper.keep(self._services()) if self._keeper else ""
        except UserspaceError as error:
            if self.problem and str(error) != self.problem:  # the first one may be that a port is not open yet
                say("warning", f"{self.failing}{error}")
            raise
        if done and step:
            say("info", "flows of the gateway's bridge were changed", bridge=step.bridge, flows=done)
        return self._look_s if done else max(self._look_s, _SHARE * (time.monotonic() - begun))

    def _end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._keeper:
            self._keeper.close()
        self._keeper = None


class GatewayService(Supervisor):
    """The thread, and the watch of Services that it follows. `session`: with the API server; None without an account, then no
    flow of a Service is made or removed."""

    def __init__(self, node: LocalNode, recorded: Callable[[], GatewayFlows | None], session: ApiSession | None) -> None:
        super().__init__()
        self._helper = GatewayHelper(node.switch.ports, recorded, self._read_ports)
        place = node.installation.settings.switch_netns, node.installation.root
        self._services = GatewayServices(session, *place, self._helper.ask) if session else None

    def start(self) -> None:
        """Keep the flows from now on. Raises UserspaceError."""
        if self._services:
            self.begin(self._services)
        else:
            say("warning", "the gateway gets no NodePorts of Services", problem="no credentials; see the setting kubeconfig")
        self.begin(self._helper)

    def ask(self) -> None:
        """The record has changed. Never waits."""
        self._helper.ask()

    @property
    def problem(self) -> str:
        """Why flows are not as they are to be, "" while they are, as far as is known."""
        return " | ".join(filter(None, (self._helper.problem, self._services.problem if self._services else "")))

    def _read_ports(self) -> Collection[ServicePort] | None:
        return self._services.read_ports() if self._services else None
