"""Single frames between a process and a port of a bridge, over the bridge's management socket: out of the port, and from it.

No port is made for them and no row of OVSDB is written, so the switch configures nothing anew. What the port sends to one MAC
address is taken off the bridge meanwhile and reaches no other port. The flow that does it goes by itself if this process dies.
"""

from __future__ import annotations

import struct
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.flows import Flows
from userspace_cni.switch.openflow.openflow_messages import CONTROLLER, VERSION_10, Flow, OpenflowMessage

_VERSIONS: Final = openflow_messages.VERSIONS - {0x06}
"""Without 1.5, which has another PACKET_OUT."""
_SET_CONFIG, _PACKET_IN, _PACKET_OUT = 9, 10, 13
_NO_BUFFER, _WHOLE = 0xFFFF_FFFF, 0xFFFF
_FROM_CONTROLLER_10: Final = 0xFFFD
_IN_LENGTH: Final = struct.Struct("!4xH")
"""The buffer's number and the frame's length, with which every version begins."""
FLOW_S: Final = 10
"""Seconds after which the flow ends in any case."""


class PortFrames(Flows):
    """A connection that has frames to `mac` (six bytes) from port `port` of the bridge to itself, until `release`.

    Raises as Management does, at the beginning and in each method. `cookie` names the flow.
    """

    def __init__(self, path: str, port: int, mac: bytes, cookie: int, deadline: Deadline) -> None:
        super().__init__(path, deadline, _VERSIONS)
        try:
            self._port, self._mac, self._cookie = port, mac, cookie
            self.send(
                openflow_messages.encode_message(self.version, _SET_CONFIG, next(self.xids), struct.pack("!HH", 0, _WHOLE)),
                deadline,
            )
            self.send(openflow_messages.claim_frames(self.version, next(self.xids)), deadline)
            self.add(Flow(port, CONTROLLER, cookie, hard_s=FLOW_S, eth_dst=mac), deadline)
        except BaseException:
            self.close()
            raise

    def release(self, deadline: Deadline) -> None:
        """Take the flow away; it is gone when this returns."""
        self.delete(self._cookie, deadline)

    def hand(self, frame: bytes, deadline: Deadline) -> None:
        """Send the frame out of the port, without a tag. A refusal comes with the next `read_frame`."""
        action = openflow_messages.encode_output(self.version, self._port)
        if self.version == VERSION_10:
            head = struct.pack("!IHH", _NO_BUFFER, _FROM_CONTROLLER_10, len(action))
        else:
            head = struct.pack("!IIH6x", _NO_BUFFER, CONTROLLER, len(action))
        self.send(openflow_messages.encode_message(self.version, _PACKET_OUT, next(self.xids), head + action + frame), deadline)

    def read_frame(self, deadline: Deadline) -> bytes:
        """Read one message; the frame in it, b"" for anything else than a frame of the flow's."""
        answer = self.receive(deadline)
        if answer.kind == openflow_messages.ERROR:
            raise openflow_messages.explain_refusal(answer, f"sending a frame at {self.path}")
        frame = _frame(answer)
        return frame if frame[:6] == self._mac else b""


def _frame(answer: OpenflowMessage) -> bytes:
    """The frame that ends a PACKET_IN, b"" for any other message."""
    if answer.kind != _PACKET_IN or len(answer.body) < _IN_LENGTH.size:
        return b""
    (length,) = _IN_LENGTH.unpack_from(answer.body)
    return answer.body[-length:] if 0 < length <= len(answer.body) - _IN_LENGTH.size else b""
