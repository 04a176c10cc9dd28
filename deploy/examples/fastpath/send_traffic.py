#!/usr/bin/env python3
"""Send UDP frames at a rate to a vhost-user port, and count and time what comes back.

    send_traffic.py SOCKET --listen --rate 10000 --sizes 64,1514 --flows 100 --seconds 10

--listen is for a port of type dpdkvhostuserclient, to which OVS connects; without it we connect, as to a dpdkvhostuser port. It
ends after --seconds, --count or Ctrl-C, with its figures. Frames come back when the switch or an application sends them to this
port. Exit code: 0, or 1 when the port cannot be used or the switch has gone; there are figures then, too.
"""

import argparse
import dataclasses
import json
import signal
import sys
from contextlib import ExitStack

from userspace_cni.fastpath import (
    IMIX,
    FastPathError,
    FrameStream,
    FrontEnd,
    FrontEndListener,
    FrontEndOptions,
    Generator,
    StreamFigures,
    UdpFlows,
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket", help="path of the port's socket")
    parser.add_argument("--listen", action="store_true", help="make the socket; OVS connects")
    parser.add_argument("--wait", type=float, default=15, metavar="SECONDS", help="for the switch (default: 15)")
    parser.add_argument("--rate", type=float, metavar="FRAMES", help="frames per second (default: as many as are taken)")
    parser.add_argument("--bits", type=float, metavar="BITS", help="bits of frames per second, instead of --rate")
    parser.add_argument("--sizes", default="64", help="bytes of frames without checksum, as 64,1514, or imix")
    parser.add_argument("--burst", type=int, metavar="FRAMES", help="frames sent together (default: by the rate, 1 to 32)")
    parser.add_argument("--flows", type=int, default=1, help="UDP flows, of as many source ports (default: 1)")
    parser.add_argument("--source", default="02:00:00:00:00:01", metavar="MAC")
    parser.add_argument("--target", default="02:00:00:00:00:02", metavar="MAC")
    parser.add_argument("--count", type=int, metavar="FRAMES", help="end after so many frames")
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--json", action="store_true", help="the figures as a JSON object")
    return parser.parse_args(arguments)


def send(options: argparse.Namespace) -> tuple[StreamFigures, str]:
    """Attach to the port, run the stream; the figures, also when Ctrl-C ends it, and why it ended early."""
    sizes = IMIX if options.sizes == "imix" else tuple(map(int, options.sizes.split(",")))
    flows = UdpFlows(options.source, options.target, source_port=1024, source_ports=options.flows, sizes=sizes)
    stream = FrameStream(flows.frames(), options.rate, options.bits, options.burst, flows.stamp_at)
    room = FrontEndOptions(room=max(*sizes, 1518), mergeable=True, packed=None)  # they carry more, and cost more when idle
    with ExitStack() as stack:
        if options.listen:
            port = stack.enter_context(stack.enter_context(FrontEndListener(options.socket, room)).accept(options.wait))
        else:
            port = stack.enter_context(FrontEnd.connect(options.socket, room, options.wait))
        generator, problem = Generator(port.pairs[0], stream), ""
        try:
            generator.run(options.seconds, options.count)
            generator.collect(0.1)
        except KeyboardInterrupt:
            pass
        except FastPathError as error:
            problem = str(error)
        return generator.figures, problem


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse()
    try:
        figures, problem = send(options)
    except (FastPathError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({**dataclasses.asdict(figures), "problem": problem}))
        return int(bool(problem))
    print(f"sent      {figures.sent:,} frames in {figures.seconds:.2f} s")
    print(f"rate      {figures.frames_per_s:,.0f} frames/s, {figures.bits_per_s / 1e6:,.1f} Mbit/s")
    print(f"behind    {figures.behind_s:.2f} s in which the switch had no room, or this process no core")
    print(f"received  {figures.received:,}, and {figures.foreign:,} of others; lost {figures.lost:,}")
    if times := figures.latency:
        shown = (times.min_ns, times.p50_ns, times.p99_ns, times.max_ns)
        print("time      min {:.1f}, p50 {:.1f}, p99 {:.1f}, max {:.1f} µs".format(*(each / 1e3 for each in shown)))
    if problem:
        print(problem, file=sys.stderr)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
