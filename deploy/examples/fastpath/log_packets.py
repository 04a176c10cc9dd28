#!/usr/bin/env python3
"""Log the frames that a vhost-user port gets: a pcap stream into a pipe or file, a line for each on a terminal.

    log_packets.py SOCKET --listen | tcpdump -nr -
    log_packets.py SOCKET | wireshark -k -i -

--listen is for a port of type dpdkvhostuserclient, to which OVS connects; without it we connect. It shows what the switch sends
to this port: all of a bridge when the port is the output of a mirror. It waits for a switch that restarts, and ends with Ctrl-C,
with its reader, or with exit code 1 when the switch is away for longer than --wait.
"""

import argparse
import signal
import struct
import sys
import time
from contextlib import ExitStack
from typing import BinaryIO

from userspace_cni.fastpath import Disconnected, FastPathError, FrontEnd, FrontEndListener, FrontEndOptions

JUMBO = FrontEndOptions(room=9022, receive_room=2048, mergeable=True)


def write_pcap(out: BinaryIO, frames: list[bytes], now_ns: int) -> None:
    """Append frames in the form of pcap-savefile(5), with the time at which they were found."""
    seconds, rest = divmod(now_ns, 1_000_000_000)
    out.write(b"".join(struct.pack("<IIII", seconds, rest, len(frame), len(frame)) + frame for frame in frames))
    out.flush()


def write_lines(frames: list[bytes], now_ns: int) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(now_ns // 1_000_000_000))
    for frame in frames:
        target, source, kind = frame[:6].hex(":"), frame[6:12].hex(":"), int.from_bytes(frame[12:14], "big")
        print(f"{clock}.{now_ns // 1000 % 1_000_000:06d} {source} > {target}, ethertype {kind:#06x}, {len(frame)} bytes")


def log(port: FrontEnd, wait_s: float) -> int:
    """Write frames until an exception; waits for the switch when it has gone. Raises FastPathError when it stays away."""
    out = None if sys.stdout.isatty() else sys.stdout.buffer
    if out:  # magic of nanoseconds, version 2.4, no offset, longest frame, Ethernet
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        out.flush()
    while True:
        try:
            frames = port.receive()
        except Disconnected as error:
            print(f"{error}; waiting {wait_s:g} s for it", file=sys.stderr)
            port.reattach(wait_s)
            print("attached again", file=sys.stderr)
            continue
        if out:
            write_pcap(out, frames, time.time_ns())
        else:
            write_lines(frames, time.time_ns())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket", help="path of the port's socket")
    parser.add_argument("--listen", action="store_true", help="make the socket; OVS connects")
    parser.add_argument("--wait", type=float, default=60, metavar="SECONDS", help="for the switch (default: 60)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as any filter: it ends with its reader
    try:
        with ExitStack() as stack:
            if options.listen:
                listener = stack.enter_context(FrontEndListener(options.socket, JUMBO, replace_dead=True))
                port = stack.enter_context(listener.accept(options.wait))
            else:
                port = stack.enter_context(FrontEnd.connect(options.socket, JUMBO, options.wait))
            print(f"logging {options.socket}", file=sys.stderr)
            return log(port, options.wait)
    except KeyboardInterrupt:
        return 0
    except FastPathError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
