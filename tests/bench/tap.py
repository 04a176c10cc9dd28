"""What the tap bridge costs, beside a Python loop that does the same with the API of `bytes`.

`python tests/bench/tap.py [--json] [--seconds S] [--rounds N] [--switch]`, as root. A tap in a network namespace is bridged to
our own back-end, which is another process, as are the programs that send: what is measured is the bridge, and not a switch. Both
are measured in one run, in turns, and compared as ratios: the machine's own speed drifts between runs.

    out     the kernel's UDP datagrams, to the ring (sent with UDP_SEGMENT, so that the sender is not the limit)
    in      frames of the ring, to a UDP socket of the kernel that is not read

    switch  two `userspace-cni tap` at a real OVS-DPDK whose thread polls: TCP one way, and the time of a UDP echo (`--switch`)

CPU is that of the bridging thread for a frame, the kernel's work in its system calls included: for `in` that is the whole way up
to the socket. There is no comparison with virtio_user on vhost-net here: it needs /dev/vhost-net.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.frames.taps import TapProcess, echoes, entered, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.fastpath_errors import Disconnected
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.tap import Pump, Tap
from userspace_cni.fastpath.vhost.back_end import BackEndListener
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
from userspace_cni.host.netlink.own_link import LinkSettings, set_up

OURS, THEIRS = "10.9.0.1", "10.9.0.2"
MAC, PEER_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
SIZES = (64, 1500)
HEADERS = 14 + 20 + 8
UDP_SEGMENT = 103
SEGMENTS = 60
SPAWN = get_context("spawn")


@dataclass
class Rate:
    """Frames in a time, and the processor time of the bridging thread."""

    frames: int
    seconds: float
    cpu: float

    def kpps(self) -> float:
        """Thousand frames a second."""
        return self.frames / self.seconds / 1000

    def nanoseconds(self) -> float:
        """Processor time of a frame."""
        return self.cpu / max(self.frames, 1) * 1e9


def datagram(size: int) -> bytes:
    """A frame with a UDP datagram for the tap's address, without a UDP checksum."""
    ip = bytearray.fromhex("4500 0000 0000 4000 4011 0000") + socket.inet_aton(THEIRS) + socket.inet_aton(OURS)
    ip[2:4] = (size - 14).to_bytes(2, "big")
    total = sum(int.from_bytes(ip[at : at + 2], "big") for at in range(0, 20, 2))
    ip[10:12] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    udp = (9000).to_bytes(2, "big") * 2 + (size - 34).to_bytes(2, "big") + bytes(2)
    return (MAC + PEER_MAC + b"\x08\x00" + bytes(ip) + udp).ljust(size, b"x")


def be_back_end(path: str, orders: Connection) -> None:
    """Another process: drains what comes, or feeds frames of a size, as it is told, until the bridge hangs up."""
    with BackEndListener(path) as listener:
        orders.send("listening")
        with listener.accept() as back, suppress(Disconnected):
            back.wait_started()
            orders.send("started")
            drain_and_feed(back.pairs[0], orders)


def drain_and_feed(pair: QueuePair, orders: Connection) -> None:
    """Send or receive as ordered, until the order is None."""
    drain, feed, size = Burst(32, 2048), Burst(32, 2048), 0
    while True:
        if orders.poll():
            size = orders.recv()
            if size is None:
                return
            feed.fill([datagram(size)] * 32 if size else [])
        moved = pair.receive(drain)
        if size:
            moved += pair.send(feed, 32)
        if not moved and size:
            os.sched_yield()
        elif not moved:
            pair.wait(0.01)


def be_sender(namespace: str, orders: Connection) -> None:
    """Another process: sends UDP datagrams in frames of a size as fast as it can, as it is told."""
    with socket_in(namespace, kind=socket.SOCK_DGRAM) as sock:
        sock.connect((THEIRS, 9000))
        payload = b""
        orders.send("started")
        while True:
            if orders.poll(None if not payload else 0):
                order = orders.recv()
                if order is None:
                    return
                step = max(order - HEADERS, 0)
                sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, step)
                payload = bytes(step * min(SEGMENTS, 60000 // step)) if order else b""
                continue
            with suppress(BlockingIOError, TimeoutError):
                sock.send(payload)


@contextmanager
def process(work: Callable[..., None], *arguments: str) -> Iterator[Connection]:
    """A process that takes orders: a frame size, 0 to be quiet, None to end."""
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=work, args=(*arguments, theirs), daemon=True)
    child.start()
    assert ours.poll(30)
    ours.recv()
    try:
        yield ours
    finally:
        with suppress(OSError):
            ours.send(None)
        child.join(5)
        if child.is_alive():
            child.terminate()


def pumped(pump: Pump, pair: QueuePair, seconds: float, direction: str) -> Rate:
    def count() -> int:
        carried = pump.carried
        return carried.to_ring.frames if direction == "out" else carried.to_tap.frames

    before, began, used = count(), time.perf_counter(), time.thread_time()
    pump.run(pair, seconds)
    return Rate(count() - before, time.perf_counter() - began, time.thread_time() - used)


def looped(tap: Tap, pair: QueuePair, seconds: float, direction: str) -> Rate:
    """The same in Python: reads and writes of the tap, lists of bytes."""
    fd, moved = tap.fileno(), 0
    began, used = time.perf_counter(), time.thread_time()
    ends = began + seconds
    while time.perf_counter() < ends:
        out: list[bytes] = []
        with suppress(BlockingIOError):
            while len(out) < 32:
                out.append(os.read(fd, 2048))
        sent = pair.send_frames(out) if out else 0
        back = pair.receive_frames()
        for frame in back:
            os.write(fd, frame)
        moved += sent if direction == "out" else len(back)
        if not out and not back:
            select.select([fd], [], [], 0.0001)
    return Rate(moved, time.perf_counter() - began, time.thread_time() - used)


def compare(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Each direction and size, pump and loop in turns; medians."""
    rows = []
    with ExitStack() as stack:
        namespace = stack.enter_context(netns())
        path = stack.enter_context(TemporaryDirectory(prefix="uc-")) + "/s"
        tap = stack.enter_context(entered(namespace, lambda: Tap("net1")))
        settings = LinkSettings(MAC.hex(":"), 1500, (f"{OURS}/24",))
        entered(namespace, lambda: set_up("net1", settings))
        tap.set_carrier(present=True)
        neighbour = ["ip", "neigh", "add", THEIRS, "lladdr", PEER_MAC.hex(":"), "dev", "net1"]
        subprocess.run(["nsenter", f"--net={namespace}", *neighbour], check=True)
        stack.enter_context(socket_in(namespace, kind=socket.SOCK_DGRAM)).bind((OURS, 9000))
        back = stack.enter_context(process(be_back_end, path))
        front = stack.enter_context(FrontEnd.connect(path, FrontEndOptions(room=1518, mergeable=True)))
        back.recv()
        sender = stack.enter_context(process(be_sender, namespace))
        pump = stack.enter_context(Pump(tap, 1500))
        pair = front.pairs[0]
        for direction, source in (("out", sender), ("in", back)):
            for size in SIZES:
                source.send(size)
                pumped(pump, pair, 0.2, direction)
                pumps, loops = [], []
                for _ in range(rounds):
                    pumps.append(pumped(pump, pair, seconds, direction))
                    loops.append(looped(tap, pair, seconds, direction))
                source.send(0)
                pumped(pump, pair, 0.2, direction)
                rows.append({"direction": direction, "bytes": size, "pump": _medians(pumps), "python": _medians(loops)})
    return rows


def _medians(rates: list[Rate]) -> dict[str, float]:
    kpps, cpu = statistics.median(map(Rate.kpps, rates)), statistics.median(map(Rate.nanoseconds, rates))
    return {
        "kpps": round(kpps, 1),
        "cpu_ns": round(cpu),
        "busy": round(statistics.median(rate.cpu / rate.seconds for rate in rates), 2),
    }


def through_switch(rounds: int) -> list[dict[str, Any]]:
    """Two taps on two ports of a switch of our own, by MTU; medians."""
    rows = []
    with ExitStack() as stack:
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        left, right = stack.enter_context(netns()), stack.enter_context(netns())
        switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")
        for mtu in ("1500", "9000"):
            with ExitStack() as pair:
                taps: list[TapProcess] = []
                for namespace, address in ((left, OURS), (right, THEIRS)):
                    path = f"{switch.dir}/{len(taps)}-{mtu}"
                    options = ["--mode", "server", "--name", "net1", "--address", f"{address}/24", "--mtu", mtu]
                    taps.append(pair.enter_context(TapProcess(namespace, path, *options)))
                    wait_until(Path(path).exists)
                    port = [f"t{path[-6:]}", "--", "set", "Interface", f"t{path[-6:]}", "type=dpdkvhostuserclient"]
                    switch.vsctl("add-port", "br-tap", *port, f"options:vhost-server-path={path}", f"mtu_request={mtu}")
                    taps[-1].until("ready")
                wait_until(lambda: echoes(left, THEIRS))
                echo = statistics.median(echo_times(left, right))
                used = [tap.cpu_seconds() for tap in taps]
                rates = [transfer(left, right, 256 << 20) for _ in range(rounds)]
                moved = rounds * (256 << 20) / 1e9
                cpu = [(tap.cpu_seconds() - before) / moved for tap, before in zip(taps, used, strict=True)]
                numbers = {"gbit_s": statistics.median(rates), "echo_us": echo * 1e6, "out_cpu": cpu[0], "in_cpu": cpu[1]}
                rows.append({"mtu": int(mtu), **{name: round(value, 2) for name, value in numbers.items()}})
    return rows


def transfer(left: str, right: str, size: int) -> float:
    """Gbit/s of one TCP connection."""
    with socket_in(right) as server, ThreadPoolExecutor(1) as other:
        server.bind((THEIRS, 0))
        server.listen()
        began = time.perf_counter()
        other.submit(send, left, server.getsockname(), size)
        client, _ = server.accept()
        with client:
            client.settimeout(30)
            while client.recv(1 << 20):
                pass
        return size * 8 / (time.perf_counter() - began) / 1e9


def send(left: str, address: tuple[str, int], size: int) -> None:
    """So many bytes to a TCP server."""
    block = bytes(1 << 20)
    with socket_in(left) as client:
        client.connect(address)
        for _ in range(size >> 20):
            client.sendall(block)


def echo_times(left: str, right: str, count: int = 2000) -> list[float]:
    """Seconds of UDP datagrams there and back, one after the other."""
    times = []
    with socket_in(left, kind=socket.SOCK_DGRAM) as one, socket_in(right, kind=socket.SOCK_DGRAM) as two:
        two.bind((THEIRS, 0))

        def answer() -> None:
            for _ in range(count):
                two.sendto(*two.recvfrom(100))

        with ThreadPoolExecutor(1) as other:
            other.submit(answer)
            for _ in range(count):
                began = time.perf_counter()
                one.sendto(b"x", two.getsockname())
                one.recv(100)
                times.append(time.perf_counter() - began)
    return times


def show(report: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table(title="Tap bridge: thousand frames a second, processor time of a frame, share of a core", title_justify="left")
    for column in ("direction", "bytes", "pump kpps", "Gbit/s", "ns CPU", "core", "Python kpps", "ns CPU", "core", "CPU ratio"):
        table.add_column(column, justify="right")
    for row in report["compared"]:
        pump, loop = row["pump"], row["python"]
        gbit = pump["kpps"] * row["bytes"] * 8 / 1e6
        numbers = [f"{pump['kpps']:.0f}", f"{gbit:.1f}", f"{pump['cpu_ns']}", f"{pump['busy']:.2f}"]
        numbers += [f"{loop['kpps']:.0f}", f"{loop['cpu_ns']}", f"{loop['busy']:.2f}"]
        table.add_row(row["direction"], str(row["bytes"]), *numbers, f"{loop['cpu_ns'] / max(pump['cpu_ns'], 1):.1f}x")
    console.print(table)
    if report["switch"]:
        table = Table(title="Two taps at OVS-DPDK: TCP, CPU seconds of the taps for a GB, UDP echo", title_justify="left")
        for column in ("MTU", "Gbit/s", "CPU out", "CPU in", "echo us"):
            table.add_column(column, justify="right")
        for row in report["switch"]:
            table.add_row(*(str(row[name]) for name in ("mtu", "gbit_s", "out_cpu", "in_cpu", "echo_us")))
        console.print(table)
    console.print(report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--switch", action="store_true", help="also through a real OVS-DPDK")
    options = parser.parse_args()
    report = {
        "machine": machine(),
        "rounds": options.rounds,
        "compared": compare(options.seconds, options.rounds),
        "switch": through_switch(options.rounds) if options.switch else [],
    }
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
