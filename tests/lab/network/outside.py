"""A node's NIC and the network beyond it: the switch's namespace is the node, a veth is the NIC, its other end is in "outside".

It never uses a NIC, an address or a rule of the machine itself. Traffic comes from outside and counts what it notices.
"""

from __future__ import annotations

import itertools
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.lab.frames.taps import SECONDS, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import inside, veth

NIC: Final = "nic0"
BEYOND: Final = "out0"
QUEUES: Final = 2
PING_S: Final = 0.02
LOST_MAX: Final = 50
"""How many one-second pings in a row may be lost: more are, when a NIC's addresses move in the usual order."""
STREAM_BITS: Final = 20_000_000
_TICK_S = 0.01
_RETRANSMITS = struct.Struct("=100xI")
"""tcpi_total_retrans of linux/tcp.h, struct tcp_info."""
_REPLY: Final = re.compile(r"^\[([0-9.]+)\] .*icmp_seq=([0-9]+) ttl=.*?(\(DUP!\))?$", re.MULTILINE)


@dataclass(frozen=True)
class Wire:
    """The NIC `nic` of the namespace `node`, wired to the link `beyond` of the namespace `outside`."""

    node: str
    outside: str
    nic: str
    beyond: str

    def on_node(self, *argv: str) -> str:
        """The output of a command on the node."""
        return inside(self.node, *argv)

    def on_outside(self, *argv: str) -> str:
        """The output of a command beyond the NIC."""
        return inside(self.outside, *argv)

    def answers(self, address: str, seconds: float = SECONDS) -> bool:
        """Whether the node answers one of the pings that are sent from outside, ten a second, for at most so long."""
        argv = ["nsenter", f"--net={self.outside}", "ping", "-n", "-q", "-c", "1", "-i", "0.1", "-w", f"{seconds:g}", address]
        return subprocess.run(argv, capture_output=True, timeout=2 * SECONDS, check=False).returncode == 0


@contextmanager
def wired(
    node: str,
    nic_addresses: tuple[str, ...] = ("192.0.2.11/24",),
    beyond_addresses: tuple[str, ...] = ("192.0.2.1/24",),
    *,
    nic: str = NIC,
    beyond: str = BEYOND,
) -> Iterator[Wire]:
    """A NIC in the namespace at the path `node`, with addresses, wired to a new "outside" with others; removed afterwards.

    The NIC has two queues. Frames from outside have checksums and are no larger than the MTU, like those that a real NIC without
    GRO receives.
    """
    with netns() as outside:
        veth(node, nic, outside, beyond, *beyond_addresses, queues=QUEUES)
        inside(outside, "ethtool", "-K", beyond, "tx", "off")
        try:
            for address in nic_addresses:
                inside(node, "ip", "address", "add", address, "dev", nic, *(["nodad"] if ":" in address else ["brd", "+"]))
            yield Wire(node, outside, nic, beyond)
        finally:
            with suppress(subprocess.CalledProcessError):
                inside(node, "ip", "link", "delete", nic)


@dataclass
class Noticed:
    """What traffic from outside has noticed; complete when it has ended.

    `answered`: how many of `sent` echo requests; `lost_in_a_row`: the most requests in a row without an answer; `longest_gap_s`:
    the longest time between two answers, which a busy machine may lengthen; `received` bytes of the stream's `sent_bytes`;
    `broken`: why the stream ended, "" if it was ended from here.
    """

    sent: int = 0
    answered: int = 0
    lost_in_a_row: int = 0
    duplicates: int = 0
    longest_gap_s: float = 0.0
    retransmits: int = 0
    sent_bytes: int = 0
    received: int = 0
    broken: str = ""


@dataclass
class _Stream:
    """20 Mbit/s of TCP from outside to the node, by two threads."""

    wire: Wire
    address: str
    noticed: Noticed
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self._listener = socket_in(self.wire.node, family)
        self._listener.bind((self.address, 0))
        self._listener.listen(1)
        self._sender = socket_in(self.wire.outside, family)
        self._sender.connect(self._listener.getsockname()[:2])
        self._receiver, _ = self._listener.accept()
        self._receiver.settimeout(SECONDS)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End it, and wait until everything that was sent has arrived or is lost."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)
        for each in (self._sender, self._receiver, self._listener):
            each.close()

    def _send(self) -> None:
        chunk = bytes(int(STREAM_BITS / 8 * _TICK_S))
        due = time.monotonic()
        try:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                self._sender.sendall(chunk)
                self.noticed.sent_bytes += len(chunk)
                due += _TICK_S
            self.noticed.retransmits = _RETRANSMITS.unpack_from(
                self._sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            )[0]
            self._sender.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.noticed.broken = f"sending: {error}"

    def _receive(self) -> None:
        try:
            while data := self._receiver.recv(1 << 20):
                self.noticed.received += len(data)
        except OSError as error:
            self.noticed.broken = f"receiving: {error}"


@contextmanager
def traffic(wire: Wire, *addresses: str, streams: bool = True, every_s: float = PING_S) -> Iterator[dict[str, Noticed]]:
    """During the block, numbered pings and a TCP stream of 20 Mbit/s from outside to each address of the node; the results by
    address.

    It begins when each address has answered, and the results are complete when it has ended.
    """
    noticed = {address: Noticed() for address in addresses}
    with ExitStack() as stack:
        for address in addresses:
            stack.enter_context(_pinging(wire, address, noticed[address], every_s))
        running = [_Stream(wire, address, noticed[address]) for address in addresses] if streams else []
        try:
            yield noticed
        finally:
            for each in running:
                each.end()


@contextmanager
def _pinging(wire: Wire, address: str, noticed: Noticed, every_s: float) -> Iterator[None]:
    argv = ["nsenter", f"--net={wire.outside}", "stdbuf", "-oL", "ping", "-n", "-D", "-i", f"{every_s:g}", address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(2)]
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=SECONDS)
            said = "".join(lines) + rest
            replies = [(float(at), int(number)) for at, number, again in _REPLY.findall(said) if not again]
            noticed.duplicates = said.count("(DUP!)")
            noticed.sent = int(re.findall(r"([0-9]+) packets transmitted", said)[-1])
            answered = sorted({number for _, number in replies})
            noticed.answered = len(answered)
            around = itertools.pairwise([0, *answered, noticed.sent + 1])
            noticed.lost_in_a_row = max(later - earlier - 1 for earlier, later in around)
            pairs = itertools.pairwise(at for at, _ in replies)
            noticed.longest_gap_s = max((later - earlier for earlier, later in pairs), default=0.0)
