"""The programs of deploy/examples/fastpath at ports of a real OVS-DPDK: their use, and a switch that is away or restarts."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.pages import ROOT
from tests.lab.samples import check_sample, samples
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import CLIENT, SERVER, add_bridge, add_port, join
from userspace_cni.fastpath import FrontEnd, FrontEndListener

PROGRAMS = ROOT / "deploy" / "examples" / "fastpath"
FRAME = bytes.fromhex("02000000000202000000000188b5") + bytes(range(50))
MACS = {name: bytes.fromhex(f"0200000000{number}") for name, number in (("h1", "01"), ("h2", "02"), ("a", "0a"), ("b", "0b"))}
IPS = {"h1": bytes([10, 0, 1, 2]), "a": bytes([10, 0, 1, 1]), "b": bytes([10, 0, 2, 1]), "h2": bytes([10, 0, 2, 2])}


class Started:
    """A program that runs, with what it says on stderr."""

    def __init__(self, stack: ExitStack, name: str, *arguments: object) -> None:
        command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
        self.process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        stack.callback(self.process.kill)

    def says(self, text: str) -> None:
        """Wait until a line on stderr has the text."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line.decode())
            if text in lines[-1]:
                return
        raise AssertionError(f"it ended without {text!r}: {lines}")

    def end(self, number: signal.Signals | None = signal.SIGINT) -> tuple[int, bytes, str]:
        """Send a signal; exit code, stdout and the rest of stderr."""
        if number:
            self.process.send_signal(number)
        out, rest = self.process.communicate()
        return self.process.returncode, out, rest.decode()


@pytest.fixture
def bridge(switch: Switch) -> Switch:
    add_bridge(switch)
    return switch


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def host(stack: ExitStack, switch: Switch, name: str) -> FrontEnd:
    """An application at a new port, which waits for a switch that restarts."""
    listener = stack.enter_context(FrontEndListener(f"{switch.rundir}/{name}"))
    add_port(switch, name, CLIENT)
    return stack.enter_context(listener.accept(60))


def exchanged(source: FrontEnd, frame: bytes, sink: FrontEnd, expected: bytes) -> None:
    """Send until the frame arrives: OVS drops frames for a port for a moment after it was attached."""

    def arrives() -> bool:
        source.send([frame])
        return expected in sink.receive(timeout_s=0.05)

    wait_until(arrives, what="the frame")


@pytest.mark.parametrize("kind", [CLIENT, SERVER])
def test_traffic_comes_back(bridge: Switch, stack: ExitStack, kind: str) -> None:
    """At a port that reflects, a count of frames of many flows and sizes is sent at a rate, comes back and is timed."""
    path = f"{bridge.rundir}/gen"
    if kind == SERVER:
        add_port(bridge, "gen", kind)
        join(bridge, ("gen", "gen"))
    options = ("--rate", 5000, "--sizes", "imix", "--flows", 5, "--count", 2000, "--json")
    program = Started(stack, "send_traffic", path, *options, *(("--listen",) if kind == CLIENT else ()))
    if kind == CLIENT:
        wait_until(Path(path).exists, what="a socket")
        add_port(bridge, "gen", kind)
        join(bridge, ("gen", "gen"))
    code, out, rest = program.end(None)
    assert (code, rest) == (0, "")
    figures = json.loads(out)
    assert (figures["sent"], figures["problem"]) == (2000, "")
    assert 0 < figures["received"] <= 2000
    assert figures["latency"]["count"] == figures["received"]


def test_the_figures_on_the_page(bridge: Switch, stack: ExitStack) -> None:
    """The generator prints for people what docs/fastpath.md shows of it."""
    path = add_port(bridge, "gen", SERVER)
    join(bridge, ("gen", "gen"))
    page = ROOT / "docs" / "fastpath.md"
    [sample] = samples(page)
    _, name, _, *options = sample.command.split()
    assert name == f"deploy/examples/fastpath/{Path(name).name}"
    code, out, rest = Started(stack, Path(name).stem, path, *options[:-2], "--count", 2000).end(None)
    assert (code, rest) == (0, "")
    check_sample(page, sample.command, out.decode())


def test_traffic_is_stopped(bridge: Switch, stack: ExitStack) -> None:
    """Ctrl-C ends a generator without an end, and it prints its figures."""
    sink = host(stack, bridge, "sink")
    path = add_port(bridge, "gen", SERVER)
    join(bridge, ("gen", "sink"))
    program = Started(stack, "send_traffic", path, "--bits", 1e6)
    assert sink.receive(60)
    code, out, rest = program.end()
    assert (code, rest) == (0, "")
    assert out.startswith(b"sent ")


def test_traffic_without_a_switch(bridge: Switch, stack: ExitStack) -> None:
    """An absent port is an error; a switch that dies meanwhile ends the generator with its figures and the reason."""
    code, out, rest = Started(stack, "send_traffic", f"{bridge.rundir}/none").end(None)
    assert (code, out) == (1, b"")
    assert f"connecting to {bridge.rundir}/none: nothing is there; the port: " in rest
    sink = host(stack, bridge, "sink")
    path = add_port(bridge, "gen", SERVER)
    join(bridge, ("gen", "sink"))
    program = Started(stack, "send_traffic", path, "--rate", 1000, "--json")
    assert sink.receive(60)
    bridge.restart_vswitchd()
    code, out, _ = program.end(None)
    figures = json.loads(out)
    assert (code, figures["sent"] > 0) == (1, True)
    assert "the back-end hung up; whether ovs-vswitchd runs" in figures["problem"]


def test_packets_are_logged(bridge: Switch, stack: ExitStack) -> None:
    """tcpdump reads the stream, before and after a restart of the switch; the logger ends with Ctrl-C."""
    sender = host(stack, bridge, "sender")
    path = f"{bridge.rundir}/log"
    program = Started(stack, "log_packets", path, "--listen")
    wait_until(Path(path).exists, what="a socket")
    add_port(bridge, "log", CLIENT)
    program.says("logging")
    join(bridge, ("sender", "log"))
    reader = subprocess.Popen(["tcpdump", "-U", "-w", "-", "-r", "-"], stdin=program.process.stdout, stdout=subprocess.PIPE)
    with reader:
        assert reader.stdout is not None
        stack.callback(reader.kill)
        reader.stdout.read(24)
        for _ in range(2):
            wait_until(lambda: sender.send([FRAME]), what="a frame sent")
            _, _, kept, length = struct.unpack("<IIII", reader.stdout.read(16))
            assert (kept, length) == (64, 64)
            assert reader.stdout.read(64) == FRAME
            if not _:
                bridge.restart_vswitchd()
                program.says("attached again")
                sender.reattach(60)
                join(bridge, ("sender", "log"))
        assert program.end()[0] == 0


def test_logging_without_a_switch(bridge: Switch, stack: ExitStack) -> None:
    """A port that is absent, and one to which no switch comes, are errors that say where to look."""
    code, out, rest = Started(stack, "log_packets", f"{bridge.rundir}/none").end(None)
    assert (code, out) == (1, b"")
    assert "nothing is there" in rest
    code, _, rest = Started(stack, "log_packets", f"{bridge.rundir}/none", "--listen", "--wait", 0.1).end(None)
    assert (code, "no connection came before the deadline" in rest) == (1, True)
    assert not Path(f"{bridge.rundir}/none").exists()


def arp(operation: int, sender: str, target: str, target_mac: bytes = bytes(6)) -> bytes:
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + MACS[sender] + IPS[sender] + target_mac + IPS[target]
    return ((target_mac if any(target_mac) else b"\xff" * 6) + MACS[sender] + b"\x08\x06" + body).ljust(60, b"\0")


def packet(source: str, target: str, ttl: int, ends: tuple[str, str] = ("h1", "h2")) -> bytes:
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 46, 7, 0, ttl, 253, 0, IPS[ends[0]], IPS[ends[1]])
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", ~total & 0xFFFF) + header[12:]
    return MACS[target] + MACS[source] + b"\x08\x00" + header + bytes(26)


def test_packets_are_routed(bridge: Switch, stack: ExitStack) -> None:
    """ARP is answered, TTL and checksum are right, what must be dropped is dropped, and a restart of the switch ends nothing."""
    first, second = host(stack, bridge, "h1"), host(stack, bridge, "h2")
    paths = [f"{bridge.rundir}/{name}" for name in ("ra", "rb")]
    ports = [f"{path},{MACS[name].hex(':')},10.0.{number}.1/24" for path, name, number in zip(paths, "ab", (1, 2), strict=True)]
    table = [f"10.0.{number}.2,{MACS[f'h{number}'].hex(':')}" for number in (1, 2)]
    options = [each for port in ports for each in ("--port", port)] + [each for to in table for each in ("--neighbour", to)]
    program = Started(stack, "route_packets", *options, "--listen")
    for path in paths:
        wait_until(Path(path).exists, what="a socket")
        add_port(bridge, Path(path).name, CLIENT)
    program.says("routing")
    ways = (("h1", "ra"), ("ra", "h1"), ("h2", "rb"), ("rb", "h2"))
    join(bridge, *ways)
    exchanged(first, arp(1, "h1", "a"), first, arp(2, "a", "h1", MACS["h1"]))
    exchanged(second, arp(1, "h2", "b"), second, arp(2, "b", "h2", MACS["h2"]))
    exchanged(first, packet("h1", "a", 64), second, packet("b", "h2", 63))
    exchanged(second, packet("h2", "b", 2, ("h2", "h1")), first, packet("a", "h1", 1, ("h2", "h1")))
    for dropped in (packet("h1", "a", 1), packet("h1", "b", 9), packet("h1", "a", 9, ("h1", "b")), arp(1, "h1", "h2"), FRAME):
        first.send([dropped])
    exchanged(first, packet("h1", "a", 33), second, packet("b", "h2", 32))
    bridge.restart_vswitchd()
    program.says("attached again")
    program.says("attached again")
    for port in (first, second):
        port.reattach(60)
    join(bridge, *ways)
    exchanged(first, packet("h1", "a", 44), second, packet("b", "h2", 43))
    code, out, _ = program.end(signal.SIGTERM)
    assert code == 0
    lines = out.decode().splitlines()
    assert [line.split(":")[0] for line in lines] == paths
    assert int(lines[0].split(",")[1].split()[0]) >= 5


def test_routing_without_a_switch(bridge: Switch, stack: ExitStack) -> None:
    """A port that is absent is an error before anything is routed."""
    port = f"{bridge.rundir}/none,02:00:00:00:00:0a,10.0.1.1/24"
    code, out, rest = Started(stack, "route_packets", "--port", port).end(None)
    assert (code, out) == (1, b"")
    assert "nothing is there" in rest
