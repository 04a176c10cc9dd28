"""A connection to a bridge's management socket, `<ovs_rundir>/<bridge>.mgmt`, on which the bridge speaks OpenFlow.

ovs-vswitchd makes that socket for every bridge, whatever controllers an administrator has set. This module must never wait
without a deadline, and leaves nothing open.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.linux.closing import Closing
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.openflow_messages import OpenflowMessage

T = TypeVar("T")


def connect(connection: socket.socket, path: str) -> None:
    """Connect by the directory's descriptor, because a socket's address has room for 107 bytes of path only. Raises OSError."""
    at = Path(path)
    directory = os.open(at.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{at.name}")
    finally:
        os.close(directory)


class Management(Closing):
    """A connection to the bridge whose management socket is `path`, in one of these versions of OpenFlow; a context manager.

    Every method raises Unavailable when there is no answer before the deadline, and SwitchRefused with the switch's own words
    when it rejects a request.
    """

    def __init__(self, path: str, deadline: Deadline, versions: frozenset[int] = openflow_messages.VERSIONS) -> None:
        self.path = path
        self.xids = itertools.count(1)
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise self._broken(error) from error
        try:
            self._limit(deadline)
            self._connect()
            self.send(openflow_messages.encode_hello(next(self.xids), versions), deadline)
            self.version = self._agree(versions, deadline)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The socket's descriptor: it can be read when a message has come, for nothing that has come is kept here."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _connect(self) -> None:
        try:
            connect(self._socket, self.path)
        except TimeoutError as error:
            raise self._broken(error) from error
        except OSError as error:
            raise Unavailable(
                f"OpenFlow at {self.path}: {error.strerror or error}",
                "is ovs-vswitchd running, and setting ovs_rundir right?",
            ) from error

    def _agree(self, versions: frozenset[int], deadline: Deadline) -> int:
        while True:
            answer = self.receive(deadline)
            if answer.kind == openflow_messages.ERROR:
                raise openflow_messages.explain_refusal(answer, f"OpenFlow at {self.path}")
            if answer.kind == openflow_messages.HELLO:
                return openflow_messages.negotiate_version(answer, versions)

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send whole messages."""
        self._limit(deadline)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def receive(self, deadline: Deadline) -> OpenflowMessage:
        """Wait for the next message but an ECHO_REQUEST, which is answered here."""
        while True:
            head, left = openflow_messages.decode_header(self._exactly(openflow_messages.HEADER.size, deadline))
            received = OpenflowMessage(head.version, head.kind, head.xid, self._exactly(left, deadline))
            if received.kind != openflow_messages.ECHO_REQUEST:
                return received
            self.send(
                openflow_messages.encode_message(received.version, openflow_messages.ECHO_REPLY, received.xid, received.body),
                deadline,
            )

    def collect(
        self,
        encode: Callable[[int, int], bytes],
        read: Callable[[OpenflowMessage], tuple[T, bool]],
        what: str,
        deadline: Deadline,
    ) -> list[T]:
        """What `read` makes of each message of the answer, up to the last, to the request that `encode` makes of version and
        transaction id. `what`: what is asked for, for the message of a refusal."""
        xid, found, last = next(self.xids), list[T](), False
        self.send(encode(self.version, xid), deadline)
        while not last:
            answer = self.receive(deadline)
            if answer.kind == openflow_messages.ERROR:
                raise openflow_messages.explain_refusal(answer, f"{what} at {self.path}")
            if answer.xid == xid:
                some, last = read(answer)
                found.append(some)
        return found

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._limit(deadline)
            try:
                part = self._socket.recv(size - len(data))
            except OSError as error:
                raise self._broken(error) from error
            if not part:
                raise Unavailable(f"OpenFlow at {self.path}: the switch closed the connection", "see the log of ovs-vswitchd")
            data += part
        return bytes(data)

    def _limit(self, deadline: Deadline) -> None:
        self._socket.settimeout(deadline.require(f"OpenFlow at {self.path}"))

    def _broken(self, error: OSError) -> Unavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Unavailable(f"OpenFlow at {self.path}: {reason}", "does ovs-vswitchd hang, or was it ended? see its log")
