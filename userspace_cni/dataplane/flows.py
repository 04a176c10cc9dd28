"""Flows of test ports on one bridge, over its management socket `<ovs_rundir>/<bridge>.mgmt`.

ovs-vswitchd makes that socket for every bridge, whatever controllers an administrator has set. It must never touch a flow whose
cookie is not ours, run a program, or wait without a deadline.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from userspace_cni.dataplane import openflow
from userspace_cni.dataplane.openflow import ALL_BITS, Flow, Message
from userspace_cni.deadline import Deadline
from userspace_cni.errors import SwitchRefused, Unavailable


def forget(path: str, cookies: Iterable[int], deadline: Deadline, mask: int = ALL_BITS) -> None:
    """Return when the bridge whose management socket is `path` has no flow of these cookies any more, in the bits of `mask`.

    Where nobody listens there are none: they were in the process that did. A bridge that speaks no version of ours was never
    given any. Raises Unavailable and SwitchRefused as Flows does: then nobody knows.
    """
    try:
        flows = Flows(path, deadline)
    except SwitchRefused:
        return
    except Unavailable as error:
        if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
            return
        raise
    with flows:
        for cookie in cookies:
            flows.delete(cookie, deadline, mask)


class Flows:
    """A connection to the bridge whose management socket is `path`; a context manager.

    Everything raises Unavailable when nobody answers before the deadline, SwitchRefused with the switch's own words when it does
    not do what it is asked.
    """

    def __init__(self, path: str, deadline: Deadline) -> None:
        self._path = path
        self._xids = itertools.count(1)
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise self._broken(error) from error
        try:
            self._limit(deadline)
            self._connect()
            self._send(openflow.hello(next(self._xids)), deadline)
            self.version = self._agree(deadline)
        except BaseException:
            self._socket.close()
            raise

    def add(self, flow: Flow, deadline: Deadline) -> None:
        """Add the flow; it is in force when this returns."""
        xid = next(self._xids)
        self._carry_out(openflow.add_flow(self.version, xid, flow), f"adding a flow from port {flow.in_port}", deadline)

    def delete(self, cookie: int, deadline: Deadline, mask: int = ALL_BITS) -> None:
        """Delete all flows of that cookie."""
        xid = next(self._xids)
        self._carry_out(openflow.delete_flows(self.version, xid, cookie, mask), f"deleting flows {cookie:#x}", deadline)

    def close(self) -> None:
        """End the connection; the flows stay."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _connect(self) -> None:
        """However long the path is: that of a socket has room for 107 bytes."""
        path = Path(self._path)
        try:
            directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
            try:
                self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        except TimeoutError as error:
            raise self._broken(error) from error
        except OSError as error:
            raise Unavailable(
                f"OpenFlow at {self._path}: {error.strerror or error}",
                "is ovs-vswitchd running, and setting ovs_rundir right?",
            ) from error

    def _agree(self, deadline: Deadline) -> int:
        while True:
            came = self._receive(deadline)
            if came.kind == openflow.ERROR:
                raise openflow.refusal(came, f"OpenFlow at {self._path}")
            if came.kind == openflow.HELLO:
                return openflow.agreed(came)

    def _carry_out(self, request: bytes, what: str, deadline: Deadline) -> None:
        """Send it with a barrier after it; an error that comes before the barrier's answer is about it."""
        xid = next(self._xids)
        self._send(request + openflow.barrier(self.version, xid), deadline)
        while True:
            came = self._receive(deadline)
            if came.kind == openflow.ERROR:
                raise openflow.refusal(came, f"{what} at {self._path}")
            if openflow.is_barrier_reply(came) and came.xid == xid:
                return

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self._limit(deadline)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def _receive(self, deadline: Deadline) -> Message:
        """The next message that is for us; a question whether we live is answered on the way."""
        while True:
            head, left = openflow.header(self._exactly(openflow.HEADER.size, deadline))
            came = Message(head.version, head.kind, head.xid, self._exactly(left, deadline))
            if came.kind != openflow.ECHO_REQUEST:
                return came
            self._send(openflow.message(came.version, openflow.ECHO_REPLY, came.xid, came.body), deadline)

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._limit(deadline)
            try:
                part = self._socket.recv(size - len(data))
            except OSError as error:
                raise self._broken(error) from error
            if not part:
                raise Unavailable(f"OpenFlow at {self._path}: the switch closed the connection", "see the log of ovs-vswitchd")
            data += part
        return bytes(data)

    def _limit(self, deadline: Deadline) -> None:
        self._socket.settimeout(deadline.require(f"OpenFlow at {self._path}"))

    def _broken(self, error: OSError) -> Unavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Unavailable(f"OpenFlow at {self._path}: {reason}", "does ovs-vswitchd hang, or was it ended? see its log")
