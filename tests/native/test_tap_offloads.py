"""Taps with offloads: TCP between two namespaces over our front-end and our back-end, which offers offloads or not, and lies."""

from __future__ import annotations

import gc
import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab.frames.exchanges import datagrams, transfer
from tests.lab.frames.taps import SECONDS, entered, links, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import FastPathError
from userspace_cni.fastpath.tap import ETHERNET, Pump, PumpEnd, Tap, TapGone
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, OFFLOADS, takes_large
from userspace_cni.fastpath.vhost.vhost_messages import Feature
from userspace_cni.fastpath.vhost.vhost_port import VhostPort
from userspace_cni.host.netlink.own_link import LinkSettings, set_up

MTU = 1500
LEFT, RIGHT = "10.9.0.1", "10.9.0.2"
LEFT6, RIGHT6 = "fd00:9::1", "fd00:9::2"
NET_HEADER = struct.Struct("<BBHHHHH")
PLAIN = bytes(NET_HEADER.size)
ETHERTYPE = 0x88B5
HEAD = bytes.fromhex("ffffffffffff 020000000001 88b5")
CHECKSUMS = Feature.NET_CSUM | Feature.NET_GUEST_CSUM
OFFERS = {"all": OFFLOADS, "none": NO_OFFLOADS, "checksums": CHECKSUMS, "IPv4 alone": CHECKSUMS | Feature.NET_HOST_TSO4}


@pytest.fixture
def pods() -> Iterator[tuple[str, str]]:
    with netns() as left, netns() as right:
        yield left, right


@contextmanager
def attached(path: Path, offers: Feature, **options: int) -> Iterator[tuple[FrontEnd, BackEnd]]:
    """A front-end that wants all offloads, at a back-end that offers these."""
    with BackEndListener(path, BackEndOptions(offloads=offers)) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accept)
        wanted = FrontEndOptions(room=MTU + ETHERNET, mergeable=True, offloads=OFFLOADS, **options)  # type: ignore[arg-type]
        with FrontEnd.connect(path, wanted) as front, accepted.result(60) as back:
            back.wait_started()
            yield front, back


@contextmanager
def pumped(pod: str, port: VhostPort, features: Feature, *addresses: str) -> Iterator[Pump]:
    """A tap with these addresses in the pod, and a pump between it and the port in a thread of its own."""
    with entered(pod, lambda: Tap("net1", headers=port.pairs[0].headers)) as tap, ExitStack() as stack:
        entered(pod, lambda: set_up("net1", LinkSettings(mtu=MTU, addresses=addresses)))
        pump = stack.enter_context(Pump(tap, MTU))
        pump.follow(features)
        tap.set_carrier(present=True)
        ends: list[PumpEnd | FastPathError] = []

        def run() -> None:
            try:
                while (end := pump.run(port.pairs[0])) is PumpEnd.SLICE:
                    pass
                ends.append(end)
            except FastPathError as error:
                ends.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(lambda: links(pod)["net1"]["operstate"] == "UP", SECONDS, "a link that sends")
            yield pump
        finally:
            pump.stop()
            thread.join()
        assert ends == [PumpEnd.STOPPED]


@contextmanager
def two_taps(pods: tuple[str, str], path: Path, offers: Feature) -> Iterator[tuple[Pump, Pump]]:
    """A tap with offloads at the front-end, and one at the back-end that has headers if offloads are offered."""
    with attached(path, offers) as (front, back):
        ours = pumped(pods[0], front, front.features, f"{LEFT}/24", f"{LEFT6}/64")
        theirs = pumped(pods[1], back, front.features, f"{RIGHT}/24", f"{RIGHT6}/64")
        with ours as left, theirs as right:
            wait_until(
                lambda: not any("tentative" in _addresses(pod) for pod in pods), SECONDS, "IPv6 addresses that are settled"
            )
            yield left, right


def _addresses(pod: str) -> str:
    return subprocess.run(["nsenter", f"--net={pod}", "ip", "-6", "address"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("offers", OFFERS)
def test_tcp_and_udp(pods: tuple[str, str], place: Path, offers: str) -> None:
    """TCP and UDP arrive intact both ways over either IP, whatever is offered; large frames pass whole only if all are taken."""
    left, right = pods
    with two_taps(pods, place / "s", OFFERS[offers]) as (ours, _):
        transfer(left, right, RIGHT, 16 << 20)
        sent = ours.carried.to_ring
        whole = takes_large(OFFERS[offers])
        assert (sent.bytes / sent.frames > 5 * MTU) == whole
        transfer(right, left, LEFT, 8 << 20)
        transfer(left, right, RIGHT6, 8 << 20)
        transfer(right, left, LEFT6, 8 << 20)
        datagrams(left, right, RIGHT, range(1, 60000, 7001))
        datagrams(left, right, RIGHT6, range(1, 60000, 7001))


@pytest.mark.parametrize("offers", ["all", "none"])
def test_smaller_mtu_while_tcp_runs(pods: tuple[str, str], place: Path, offers: str) -> None:
    """When one end's MTU becomes smaller, what is sent follows it and arrives."""
    left, right = pods
    with two_taps(pods, place / "s", OFFERS[offers]) as (ours, theirs):
        transfer(left, right, RIGHT, 8 << 20)
        subprocess.run(["nsenter", f"--net={left}", "ip", "link", "set", "net1", "mtu", "1280"], check=True)
        before = ours.carried.to_ring.frames
        transfer(left, right, RIGHT, 8 << 20)
        assert offers == "all" or ours.carried.to_ring.frames - before > (8 << 20) / 1280
        transfer(right, left, LEFT, 8 << 20)
        assert theirs.carried.to_tap.dropped == 0


def test_losses(pods: tuple[str, str], place: Path) -> None:
    """TCP arrives intact when a switch loses every fiftieth frame, large ones with all their segments."""
    left, right = pods
    over = threading.Event()
    with attached(place / "a", OFFLOADS) as (one, near), attached(place / "b", OFFLOADS) as (other, far), ExitStack() as stack:
        lost = [0]

        def switch() -> None:
            count = 0
            while not over.is_set():
                moved = False
                for source, sink in ((near, far), (far, near)):
                    frames = source.pairs[0].receive_frames()
                    moved = moved or bool(frames)
                    for frame in frames:
                        count += 1
                        if count % 50:
                            sink.pairs[0].send_frames([frame])
                        else:
                            lost[0] += 1
                if not moved:
                    select.select([], [], [], 0.0001)

        thread = threading.Thread(target=switch)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        with pumped(left, one, one.features, f"{LEFT}/24"), pumped(right, other, other.features, f"{RIGHT}/24"):
            transfer(left, right, RIGHT, 16 << 20)
        assert lost[0] > 2


def lies() -> dict[str, bytes]:
    """Frames with headers that are not to reach the kernel."""
    ip = bytes.fromhex("0800 45 00") + struct.pack("!HHHBBH", 8986, 1, 0x4000, 64, 6, 0) + bytes(8)
    large = (HEAD[:12] + ip + bytes(12) + b"\x50" + bytes(7)).ljust(9000, b"x")

    def told(*fields: int) -> bytes:
        return NET_HEADER.pack(*fields, 0) + large

    return {
        "segments of nothing": told(1, 1, 54, 0, 34, 16),
        "segments of a byte": told(1, 1, 54, 1, 34, 16),
        "segments longer than the MTU": told(1, 1, 54, 8900, 34, 16),
        "headers beyond the frame": told(1, 1, 9001, 1400, 34, 16),
        "checksum beyond the frame": told(1, 1, 54, 1400, 8999, 16),
        "checksum stored beyond the frame": told(1, 1, 54, 1400, 34, 0xFFFF),
        "no checksum": told(0, 1, 54, 1400, 34, 16),
        "unknown type": told(1, 0x33, 54, 1400, 34, 16),
        "UDP": told(1, 3, 54, 1400, 34, 16),
        "IPv6": told(1, 4, 74, 1400, 54, 16),
        "not cut at all": told(0, 0, 0, 0, 0, 0),
        "small, checksum beyond it": NET_HEADER.pack(1, 0, 0, 0, 60, 6, 0) + large[:60],
        "unknown flags": NET_HEADER.pack(0x40, 0, 0, 0, 0, 0, 0) + large[:60],
    }


def test_lies_do_not_reach_the_kernel(pods: tuple[str, str], place: Path) -> None:
    """Frames whose headers lie are dropped and counted, and the frames beside them arrive; fields without meaning are ignored."""
    pod = pods[0]
    with attached(place / "s", OFFLOADS) as (front, back), pumped(pod, front, front.features) as pump, ExitStack() as stack:
        packets = stack.enter_context(socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)))
        packets.bind(("net1", ETHERTYPE))
        for number, lie in enumerate(lies().values(), 1):
            marked = HEAD + os.urandom(60)
            assert back.pairs[0].send_frames([PLAIN + marked, lie, PLAIN + marked]) == 3
            assert packets.recv(65536) == marked
            assert packets.recv(65536) == marked
            assert pump.carried.to_tap.dropped == number
        noisy = NET_HEADER.pack(0, 0, 0xFFFF, 3, 0xFFFF, 0xFFFF, 7)
        marked = HEAD + os.urandom(60)
        assert back.pairs[0].send_frames([noisy + marked]) == 1
        assert packets.recv(65536) == marked
        assert pump.carried.to_tap.dropped == len(lies())


def test_what_only_the_kernel_refuses(pods: tuple[str, str], place: Path) -> None:
    """A frame that the kernel alone refuses, for a checksum within the IP header, is dropped and counted; the pump goes on."""
    pod = pods[0]
    with attached(place / "s", OFFLOADS) as (front, back), pumped(pod, front, front.features) as pump, ExitStack() as stack:
        packets = stack.enter_context(socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)))
        packets.bind(("net1", ETHERTYPE))
        marked = HEAD + os.urandom(60)
        assert back.pairs[0].send_frames([NET_HEADER.pack(1, 0, 0, 0, 14, 2, 0) + marked, PLAIN + marked]) == 2
        assert packets.recv(65536) == marked
        assert pump.carried.to_tap.dropped == 1
        wait_until(lambda: pump.carried.to_tap.frames == 1, SECONDS, "a counted frame")


def test_headers_on_one_side_alone(pods: tuple[str, str], place: Path) -> None:
    """A pump refuses a tap with headers and a queue pair without them: frames would be taken for headers."""
    with attached(place / "s", OFFLOADS) as (front, _), entered(pods[0], lambda: Tap("net1")) as tap, Pump(tap) as pump:
        pump.follow(front.features)  # does nothing
        with pytest.raises(ValueError, match="headers"):
            pump.run(front.pairs[0])


def test_offloads_of_a_deleted_tap(pods: tuple[str, str]) -> None:
    """A tap that was deleted is named so when its offloads are to be set."""
    with entered(pods[0], lambda: Tap("net1", headers=True)) as tap, Pump(tap) as pump:
        pump.follow(OFFLOADS)
        subprocess.run(["nsenter", f"--net={pods[0]}", "ip", "link", "delete", "net1"], check=True)
        with pytest.raises(TapGone):
            pump.follow(NO_OFFLOADS)


def test_nothing_is_left_of_many_attachments(place: Path) -> None:
    """Descriptors and mappings are as many after a hundred attachments with buffers for large frames as after one."""

    def held() -> tuple[int, int]:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        return len(list(Path("/proc/self/fd").iterdir())), sum("memfd" in line for line in mapped)

    gc.collect()  # what other tests left is not collected amid the attachments
    counts = []
    for number in range(100):
        with attached(place / f"s{number}", OFFLOADS) as (front, back):
            assert front.features & OFFLOADS == OFFLOADS
            with suppress(FastPathError):
                back.pairs[0].send_frames([PLAIN + HEAD + bytes(60)])
        counts.append(held())
    assert counts[0] == counts[-1]
