#!/usr/bin/env python3
"""Route IPv4 between two vhost-user ports: answers ARP, lowers the TTL, mends the checksum. A table of neighbours, no more.

    route_packets.py --port /run/a.sock,02:00:00:00:0a:01,10.0.1.1/24 --port /run/b.sock,02:00:00:00:0b:01,10.0.2.1/24
                     --neighbour 10.0.1.2,02:00:00:00:00:01 --neighbour 10.0.2.2,02:00:00:00:00:02

Sockets are ours (--listen) for ports of type dpdkvhostuserclient, else the switch's. A thread for each port waits for its frames
and sends them out of the other one. It waits for a switch that restarts, up to --wait seconds, and ends with Ctrl-C.
"""

import argparse
import signal
import sys
import threading
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface
from queue import SimpleQueue

from userspace_cni.fastpath import Closed, Disconnected, FastPathError, FrontEnd, FrontEndListener

ARP, IPV4 = b"\x08\x06", b"\x08\x00"
REQUEST = bytes.fromhex("0001080006040001")  # for IPv4 on Ethernet


class RouterPort:
    """A port with its MAC and IP address, and the other ports of the router."""

    def __init__(self, text: str) -> None:
        self.path, mac, address = text.split(",")
        self.mac, self.address = bytes.fromhex(mac.replace(":", "")), IPv4Interface(address)
        self.forwarded = self.dropped = 0

    def attach(self, stack: ExitStack, listen: bool, wait_s: float) -> None:
        if listen:
            self.front = stack.enter_context(stack.enter_context(FrontEndListener(self.path)).accept(wait_s))
        else:
            self.front = stack.enter_context(FrontEnd.connect(self.path, timeout_s=wait_s))


def answer_arp(frame: bytes, port: RouterPort) -> bytes | None:
    """The reply to a request for the port's own address; None for anything else. RFC 826."""
    if frame[14:22] != REQUEST or frame[38:42] != port.address.ip.packed:
        return None
    reply = REQUEST[:7] + b"\x02" + port.mac + port.address.ip.packed + frame[22:32]
    return (frame[6:12] + port.mac + ARP + reply).ljust(60, b"\0")


def route(frame: bytes, ports: list[RouterPort], table: dict[IPv4Address, bytes]) -> tuple[RouterPort, bytes] | None:
    """Out of which port a frame goes, and as what; None when it is to be dropped. RFC 1812, and 1624 for the checksum."""
    if len(frame) < 34 or frame[14] >> 4 != 4 or frame[22] <= 1:
        return None
    target = IPv4Address(frame[30:34])
    out = next((port for port in ports if target in port.address.network), None)
    if out is None or target not in table:
        return None
    checksum = int.from_bytes(frame[24:26], "big") + 0x0100  # the TTL is the high byte of its word, and lower by one
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    changed = bytes([frame[22] - 1, frame[23]]) + checksum.to_bytes(2, "big")
    return out, table[target] + out.mac + IPV4 + frame[14:22] + changed + frame[26:]


def serve(port: RouterPort, ports: list[RouterPort], table: dict[IPv4Address, bytes], wait_s: float) -> None:
    """Carry the frames that arrive at `port`, until it is closed."""
    while True:
        try:
            for frame in port.front.receive():
                kind = frame[12:14]
                if kind == ARP and (reply := answer_arp(frame, port)):
                    port.front.send([reply])
                elif kind == IPV4 and frame[:6] == port.mac and (found := route(frame, ports, table)):
                    port.forwarded += found[0].front.send([found[1]])
                else:
                    port.dropped += 1
        except Disconnected as error:
            print(f"{error}; waiting {wait_s:g} s for it", file=sys.stderr)
            port.front.reattach(wait_s)
            print(f"{port.path}: attached again", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", action="append", required=True, type=RouterPort, metavar="SOCKET,MAC,ADDRESS/PREFIX")
    parser.add_argument("--neighbour", action="append", default=[], metavar="ADDRESS,MAC")
    parser.add_argument("--listen", action="store_true", help="make the sockets; OVS connects")
    parser.add_argument("--wait", type=float, default=60, metavar="SECONDS", help="for the switch (default: 60)")
    options = parser.parse_args()
    pairs = [each.split(",") for each in options.neighbour]
    table = {IPv4Address(address): bytes.fromhex(mac.replace(":", "")) for address, mac in pairs}
    ended: list[FastPathError] = []
    done: SimpleQueue[None] = SimpleQueue()  # which a signal's handler may fill, too

    def work(port: RouterPort) -> None:
        try:
            serve(port, options.port, table, options.wait)
        except Closed:
            pass
        except FastPathError as error:
            ended.append(error)
        done.put(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.put(None))
    with ExitStack() as stack:
        try:
            for port in options.port:
                port.attach(stack, options.listen, options.wait)
        except FastPathError as error:
            print(error, file=sys.stderr)
            return 1
        threads = [threading.Thread(target=work, args=(port,)) for port in options.port]
        for thread in threads:
            thread.start()
        print("routing", file=sys.stderr)
        done.get()
    for thread in threads:  # the ports are closed: each thread ends
        thread.join()
    for port in options.port:
        print(f"{port.path}: {port.forwarded} forwarded, {port.dropped} dropped")
    for failure in ended:
        print(failure, file=sys.stderr)
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main())
