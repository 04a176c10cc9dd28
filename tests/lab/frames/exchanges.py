"""Traffic of two pods over the kernel's sockets: TCP and UDP, of which every byte has to arrive unchanged."""

from __future__ import annotations

import hashlib
import os
import socket
import threading

from tests.lab.frames.taps import SECONDS, socket_in

PORT = 5000


def transfer(left: str, right: str, address: str, size: int, *, dialled: tuple[str, int] | None = None) -> None:
    """Send random bytes by TCP from the namespace `left` to the address of `right`, at least 1 MiB, and compare them.

    `dialled`: the address and port to which the client connects, if something translates them.
    """
    block = os.urandom(1 << 20)
    sent, received = hashlib.sha256(), hashlib.sha256()
    carried = 0

    def send() -> None:
        with socket_in(left, _family(address)) as client:
            client.connect(dialled or (address, PORT))
            for _ in range(size >> 20):
                client.sendall(block)
                sent.update(block)

    with socket_in(right, _family(address)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, PORT))
        server.listen()
        thread = threading.Thread(target=send)
        thread.start()
        client, _ = server.accept()
        with client:
            client.settimeout(SECONDS)
            while data := client.recv(1 << 20):
                received.update(data)
                carried += len(data)
        thread.join()
    assert carried == size >> 20 << 20  # a client that failed has sent less, and its thread has said why
    assert sent.digest() == received.digest()


def datagrams(left: str, right: str, address: str, sizes: range) -> None:
    """Send UDP datagrams of these sizes, in as many fragments as needed, and receive them back unchanged."""
    kind = socket.SOCK_DGRAM
    with socket_in(left, _family(address), kind) as one, socket_in(right, _family(address), kind) as other:
        other.bind((address, PORT))
        for size in sizes:
            data = os.urandom(size)
            one.sendto(data, (address, PORT))
            got, sender = other.recvfrom(65536)
            other.sendto(got, sender)
            assert one.recv(65536) == data


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
