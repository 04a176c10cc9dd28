"""The reason why a connection was refused is found by a second one, which is closed however it ends."""

from __future__ import annotations

import gc
import select
import socket
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.ovn.database import Authority
from userspace_cni.ovsdb import streams
from userspace_cni.ovsdb.database import Tls

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close resets the connection."""
LONG_RECORD = b"\x16\x03\x03\x40\x00"
"""The header of a record of TLS of the largest size, 16 KiB."""
SLOW_MAX = 4000


@contextmanager
def accepting(how: str) -> Iterator[int]:
    """A server on the port returned, which resets what it accepts, ends it, or sends the bytes of a handshake one by one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                if how == "reset":
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                elif how == "slow":
                    _send_slowly(accepted)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(60)


def _send_slowly(accepted: socket.socket) -> None:
    """The beginning of a long record, and a byte of it every hundredth of a second until the client goes."""
    poll = select.poll()
    poll.register(accepted, select.POLLRDHUP)
    accepted.sendall(LONG_RECORD)
    for _ in range(SLOW_MAX):
        accepted.sendall(b"\0")
        if poll.poll(10):
            return
    raise AssertionError(f"the client has waited for {SLOW_MAX} bytes")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_peer_that_sends_a_byte_now_and_then(tmp_path: Path) -> None:
    """The look ends in its time, which does not begin anew with each byte: calls that need the database wait for it."""
    authority = Authority(tmp_path / "authority")
    with accepting("slow") as port:
        remote = f"ssl:127.0.0.1:{port}"
        streams.trust(remote, Tls(*authority.sign("client"), authority.certificate))
        why = streams.why_refused(remote)
        streams.trust(remote, None)
    assert why == "the TLS handshake does not end"


@pytest.mark.parametrize("how", ["reset", "ended"])
def test_a_peer_that_leaves_before_the_handshake(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket is left open, and the reason is returned."""
    authority = Authority(tmp_path / "authority")
    connected = socket.create_connection

    def left(address: tuple[str, int], timeout: float) -> socket.socket:
        made = connected(address, timeout=timeout)
        poll = select.poll()
        poll.register(made, select.POLLIN | select.POLLHUP)
        assert poll.poll(60_000)  # the peer has gone
        return made

    monkeypatch.setattr(socket, "create_connection", left)
    with accepting(how) as port, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        remote = f"ssl:127.0.0.1:{port}"
        streams.trust(remote, Tls(*authority.sign("client"), authority.certificate))
        why = streams.why_refused(remote)
        streams.trust(remote, None)
        gc.collect()
    assert ("Connection reset" in why or "EOF" in why, [str(each.message) for each in told]) == (True, [])
