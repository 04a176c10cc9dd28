"""The driver as a thread of the agent: keeps it registered with the kubelet, and looks after the devices of claims.

A kubelet that is away is waited for; nothing of this may keep the agent from serving verbs, or make it not ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.dra.dra_sockets import DraSockets

if TYPE_CHECKING:
    from userspace_cni.dra.claim_keeper import ClaimKeeper

STOP_S: Final = 3.0
LOOK_S: Final = 30.0
AGAIN_S: Final = 1.0
RENEW_S: Final = 20.0
"""Seconds for devices of another boot before the kubelet can call: with a switch that hangs each takes long, and pods that end
must not wait for all of them."""


class DraDriver(Loop):
    """The driver. `keeper` makes devices of another boot anew before the first call of the kubelet. `end` is called last."""

    failing = "the driver of devices could not be registered; it is tried again: "
    end_s = STOP_S
    back_off = BackOff(1.0, 30.0)

    def __init__(self, sockets: DraSockets, keeper: ClaimKeeper, end: Callable[[], None] = lambda: None) -> None:
        super().__init__("dra", "serves claims of devices")
        self._sockets = sockets
        self._keeper = keeper
        self._finish = end
        self._said = ""

    @property
    def registered(self) -> int:
        """1 while the kubelet knows the driver."""
        return int(self._sockets.known and self._sockets.whole)

    def look(self) -> None:
        """Wake the thread if a socket has gone or a kubelet has come; end calls that hang. Called once a second; never waits."""
        self._sockets.end_late()
        if self._sockets.has_kubelet and not self._sockets.whole:
            self.ask()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _round(self) -> float:
        if not self._sockets.has_kubelet:
            self._tell("the kubelet has no directory for drivers of devices; the agent waits for it")
            return LOOK_S
        if not self._sockets.whole:
            try:
                self._keeper.renew(RENEW_S)
            except UserspaceError as error:
                say("warning", "devices of claims of another boot are made anew later", error=error)
            if not self._sockets.serve():
                self._tell("another agent is the driver of devices of this kubelet; the agent waits for it")
                return AGAIN_S
        self._tell("")
        return LOOK_S

    def _end(self) -> None:
        self._sockets.close()
        self._finish()

    def _tell(self, text: str) -> None:
        """Log a state in which it waits, unless it was the last one."""
        if text and text != self._said:
            say("info", text)
        self._said = text
