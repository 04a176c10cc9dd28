"""`userspace-cni capture` on real ports has each frame once, in both directions, of existing flows, too, and leaves nothing."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.frames.idle import SECONDS, Idle, Pods, pods_on
from tests.lab.node.links import pings
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener

_TYPE, _OTHER_TYPE = bytes.fromhex("88b5"), bytes.fromhex("88b6")
"""Local experimental ethertypes (IEEE 802)."""


@pytest.fixture
def pods(warm: None, node: Node, switch: Switch, sandbox: str) -> Iterator[Pods]:
    with pods_on(node, switch, sandbox) as made:
        yield made


@dataclass(frozen=True)
class Talkers:
    """Two pods with applications of ours, and their addresses."""

    a: Idle
    b: Idle
    fronts: tuple[FrontEnd, FrontEnd]
    macs: tuple[bytes, bytes]

    def frame(self, number: int, *, back: bool = False, kind: bytes = _TYPE) -> bytes:
        """The frame of that number, from `a` to `b` or back."""
        source, target = self.macs[::-1] if back else self.macs
        return (target + source + kind + struct.pack(">I", number)).ljust(60 + number % 40, b"\0")

    def send(self, frames: list[bytes], *, back: bool = False) -> None:
        """Send them, and wait until the other application has received all."""
        source, target = self.fronts[::-1] if back else self.fronts
        assert source.pairs[0].send_frames(frames) == len(frames)
        left = set(frames)

        def arrived() -> bool:
            left.difference_update(target.pairs[0].receive_frames())
            return not left

        wait_until(arrived, SECONDS, "the frames at the other pod")


@contextmanager
def talkers(pods: Pods, **bridge: Any) -> Iterator[Talkers]:
    """Two pods whose applications are connected and have learned each other's MAC."""
    a, b = pods.attach("a", **bridge), pods.attach("b", **bridge)
    with ExitStack() as stack:
        listeners = [stack.enter_context(FrontEndListener(str(idle.socket))) for idle in (a, b)]
        for idle in (a, b):
            idle.socket.chmod(0o666)
        fronts = [stack.enter_context(listener.accept(SECONDS)) for listener in listeners]
        macs = [
            bytes.fromhex(pods.switch.interface(idle.port)["external_ids"]["attached-mac"].replace(":", "")) for idle in (a, b)
        ]
        made = Talkers(a, b, (fronts[0], fronts[1]), (macs[0], macs[1]))
        for idle in (a, b):
            pods.wait_link(idle, "up")
        for back in (True, False):
            made.send([made.frame(0, back=back)], back=back)
        yield made


def capture(pods: Pods, *arguments: str, **kinds: Any) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "userspace_cni", "capture", *arguments]
    usual = {"env": pods.node.environ, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, **{**usual, **kinds})


@contextmanager
def capturing(pods: Pods, *arguments: str, file: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The running command, once it captures; it is killed at the end.

    `file` is what it writes; without one, stdout is read up to the stream's head.
    """
    with capture(pods, *arguments, *(["--write", str(file)] if file else [])) as process:
        try:
            if file:
                wait_until(
                    lambda: (file.exists() and file.stat().st_size) or process.poll() is not None, SECONDS, "the file's head"
                )
            else:
                assert process.stdout
                assert process.stdout.read(24)[:4] == bytes.fromhex("4d3cb2a1")
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes], code: int = 0) -> str:
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, (out[-200:], err)
    assert b"Traceback" not in err
    return err.decode()


def frames_of(pcap: bytes) -> list[bytes]:
    """The frames in a pcap file, which has to be complete."""
    at, found = 24, []
    while at < len(pcap):
        _, _, kept, _ = struct.unpack_from("<IIII", pcap, at)
        found.append(pcap[at + 16 : at + 16 + kept])
        assert len(found[-1]) == kept
        at += 16 + kept
    return found


def at_rest(pods: Pods) -> bool:
    """Whether no mirror and no port but those of the pods is left."""
    ports = [port for bridge in pods.switch.bridges() for port in pods.switch.ports(bridge)]
    return not pods.switch.rows("Mirror") and sorted(ports) == sorted(idle.port for idle in pods.made)


@pytest.mark.parametrize("bridge", [{}, {"vlanId": 100}], ids=["untagged", "vlan"])
def test_each_frame_once(pods: Pods, tmp_path: Path, bridge: dict[str, int]) -> None:
    """Frames of both directions are captured once each, as the pod sends and receives them, even of flows that existed before."""
    file = tmp_path / "frames.pcap"
    with talkers(pods, **bridge) as two, capturing(pods, two.a.name, "--json", file=file) as process:
        there = [two.frame(number) for number in range(1, 201)]
        back = [two.frame(number, back=True) for number in range(1, 101)]
        for start in range(0, 200, 50):
            two.send(there[start : start + 50])
            two.send(back[start // 2 : start // 2 + 25], back=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        told = json.loads(out)
        assert process.returncode == 0, err
        assert sorted(frames_of(file.read_bytes())) == sorted(there + back)
        assert (told["frames"], told["seen"], told["dropped"], told["ended"], told["problem"]) == (300, 300, 0, "signal", "")
        assert (told["name"], told["port"], told["bridge"]) == (f"default/{two.a.name}", two.a.port, "br-test")
        assert at_rest(pods)
        two.send([two.frame(300)])


@pytest.fixture
def two(pods: Pods) -> Iterator[Talkers]:
    with talkers(pods) as made:
        yield made


def test_a_pipe_and_its_end(pods: Pods, two: Talkers) -> None:
    """A reader gets each frame at once; the capture ends with its reader, even if no further frame comes."""
    with capturing(pods, two.a.name) as process:
        assert process.stdout
        two.send([two.frame(1)])
        assert process.stdout.read(16 + 61)[16:] == two.frame(1)
        process.stdout.close()
        process.stdout = None
        assert "1 frame, 61 bytes" in ended(process)
    assert at_rest(pods)


@pytest.mark.parametrize("way", ["count", "seconds"])
def test_ends_by_itself(pods: Pods, two: Talkers, tmp_path: Path, way: str) -> None:
    """It ends after so many frames, of which it keeps lengths and first bytes, or after so much time."""
    limits = {"count": ("--count", "3", "--snaplen", "20"), "seconds": ("--seconds", "0.1")}[way]
    file = tmp_path / "frames.pcap"
    with capture(pods, two.b.name, *limits, "--write", str(file)) as process:
        if way == "count":
            wait_until(lambda: file.exists() and file.stat().st_size, SECONDS, "the file's head")
            two.send([two.frame(number) for number in range(1, 11)])
        ended(process)
    expected = [two.frame(number)[:20] for number in (1, 2, 3)] if way == "count" else []
    assert frames_of(file.read_bytes()) == expected
    assert file.stat().st_mode & 0o777 == 0o600
    assert at_rest(pods)


def test_a_filter(pods: Pods, two: Talkers, tmp_path: Path) -> None:
    """Only frames that match the expression are kept and counted; a wrong expression is refused before anything is made."""
    refused = pods.run("capture", two.a.name, "--write", str(tmp_path / "no.pcap"), "ether", "prot", code=2)
    assert "ether prot" in refused.stderr
    assert not (tmp_path / "no.pcap").exists()
    file = tmp_path / "frames.pcap"
    with capturing(pods, two.a.name, "ether", "proto", "0x88b6", "or", "greater", "95", file=file) as process:
        numbers = range(1, 101)
        two.send([two.frame(number, kind=_OTHER_TYPE if number % 10 == 0 else _TYPE) for number in numbers])
        process.send_signal(signal.SIGTERM)
        told = ended(process)
    wanted = [number for number in numbers if number % 10 == 0 or 60 + number % 40 >= 95]
    # the switch may carry a flow's first frames after later ones of another flow
    assert sorted(struct.unpack_from(">I", frame, 14)[0] for frame in frames_of(file.read_bytes())) == wanted
    assert f"{len(wanted)} frames of 100 seen" in told


def test_killed(pods: Pods, two: Talkers) -> None:
    """`gc` reports and removes what a killed capture left, and so does the next capture.

    Another program's mirror of the port stays.
    """
    mirror = ["--id=@p", "get", "Port", two.a.port, "--", "--id=@m", "create", "Mirror", "name=theirs", "select_dst_port=@p"]
    pods.switch.vsctl("--", *mirror, "--", "add", "Bridge", "br-test", "mirrors", "@m")

    def names() -> list[str]:
        return sorted(row["name"] for row in pods.switch.rows("Mirror"))

    for remove in (["gc"], ["capture", two.b.name, "--seconds", "0.1", "--write", "/dev/null"]):
        with capturing(pods, two.a.name) as process:
            assert len(names()) == 2
            process.send_signal(signal.SIGKILL)
            process.wait(SECONDS)
        if remove[0] == "gc":
            assert "capture" in pods.run("gc", "--dry-run", code=1).stdout
            # the port goes by another hand: the mirror is found without it
            pods.switch.vsctl("del-port", next(name for name in pods.switch.ports("br-test") if name.startswith("probe-")))
            assert "capture" in pods.run("gc", "--dry-run", code=1).stdout
        pods.run(*remove)
        assert names() == ["theirs"]
        assert sorted(pods.switch.ports("br-test")) == sorted(idle.port for idle in pods.made)


def test_two_at_once(pods: Pods, two: Talkers, tmp_path: Path) -> None:
    """Two captures of one port have each frame once each, and one goes on when the other ends."""
    files = [tmp_path / "first.pcap", tmp_path / "second.pcap"]
    with capturing(pods, two.a.name, file=files[0]) as first, capturing(pods, two.a.name, file=files[1]) as second:
        two.send([two.frame(1)])
        first.send_signal(signal.SIGHUP)
        ended(first)
        two.send([two.frame(2)])
        second.send_signal(signal.SIGINT)
        ended(second)
    assert [frames_of(file.read_bytes()) for file in files] == [[two.frame(1)], [two.frame(1), two.frame(2)]]
    assert at_rest(pods)


def test_a_reader_that_rests(pods: Pods, two: Talkers) -> None:
    """A signal ends a capture whose reader does not read, even when more frames came than a pipe holds."""
    with capturing(pods, two.a.name) as process:
        for start in range(0, 2048, 64):
            two.send([two.frame(number) for number in range(start, start + 64)])
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
        assert "none dropped" in ended(process)
    assert at_rest(pods)


def test_the_port_goes_away(pods: Pods, two: Talkers, tmp_path: Path) -> None:
    """A DEL during a capture is not kept waiting; the capture ends, and says why."""
    file = tmp_path / "frames.pcap"
    with capturing(pods, two.a.name, file=file) as process:
        pods.detach(two.a)
        assert f"port {two.a.port} was removed" in ended(process, code=1)
    assert at_rest(pods)


def test_a_kernel_port(pods: Pods, sandbox: str, tmp_path: Path) -> None:
    """In a capture of an ordinary pod in a VLAN each echo request and reply is there once, without the VLAN tag."""
    ipam = {"type": "host-local", "dataDir": str(pods.node.ipam_dir), "subnet": "10.56.0.0/24"}
    host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test", "vlanId": 100}}
    network = {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "ipam": ipam}
    file = tmp_path / "frames.pcap"
    with netns() as other:
        places = {f"{number:x}" * 64: place for number, place in enumerate((sandbox, other), 10)}
        try:
            calls = [pods.node.run("ADD", network, place, container, ifname="eth0") for container, place in places.items()]
            assert [call.status for call in calls] == [0, 0], calls
            address = calls[1].document["ips"][0]["address"].split("/")[0]
            assert pings(sandbox, address) == 3
            with capturing(pods, f"{'a' * 12}/eth0", "icmp", file=file) as process:
                assert pings(sandbox, address, 10) == 10
                process.send_signal(signal.SIGINT)
                ended(process)
        finally:
            for container, place in places.items():
                assert pods.node.run("DEL", network, place, container, ifname="eth0").status == 0
    kinds = [(frame[12:14], frame[34]) for frame in frames_of(file.read_bytes())]
    assert sorted(kinds) == [(b"\x08\x00", 0)] * 10 + [(b"\x08\x00", 8)] * 10
    assert at_rest(pods)


@pytest.mark.parametrize("program", ["tcpdump", ""], ids=["tcpdump", "alone"])
def test_on_a_terminal(pods: Pods, two: Talkers, program: str) -> None:
    """On a terminal there is a line for each frame at once, by tcpdump where it is installed; Ctrl-C ends it with the totals."""
    near, far = pty.openpty()
    path = os.environ["PATH"] if program else str(Path(sys.executable).parent)
    shown = ""

    def read() -> str:
        nonlocal shown
        if select.select([near], [], [], 0.1)[0]:
            shown += os.read(near, 65536).decode()
        return shown

    try:
        with capture(pods, two.a.name, stdout=far, env={**pods.node.environ, "PATH": path}) as process:
            assert process.stderr
            assert any(b"capturing" in line for line in process.stderr)  # a slow step before that has a line, too
            two.send([two.frame(1)])
            wait_until(lambda: "0x88b5" in read(), SECONDS, "the frame's line")
            process.send_signal(signal.SIGINT)
            assert "1 frame, 61 bytes" in ended(process)
    finally:
        os.close(near)
        os.close(far)
    assert two.macs[0].hex(":") in shown or program
    assert at_rest(pods)


def test_what_is_refused(pods: Pods, tmp_path: Path) -> None:
    """An unknown attachment, a directory as file, and JSON together with frames are errors; nothing is made."""
    assert "no attachment" in pods.run("capture", "none/net1", code=1).stderr
    idle = pods.attach("a")
    assert "--write FILE" in pods.run("capture", idle.name, "--json", code=2).stderr
    assert "No space left" in pods.run("capture", idle.name, "--write", "/dev/full", code=1).stderr
    done = pods.run("capture", idle.name, "--write", str(tmp_path), "--json", code=1)
    assert "Is a directory" in json.loads(done.stdout)["error"]
    mirrors = [f"--id=@m{number} create Mirror name=m{number}" for number in range(32)]
    words = " -- ".join([*mirrors, "set Bridge br-test mirrors=" + ",".join(f"@m{number}" for number in range(32))])
    pods.switch.vsctl("--", *words.split())
    assert "has 32 mirrors" in pods.run("capture", idle.name, code=3).stderr
    pods.switch.vsctl("clear", "Bridge", "br-test", "mirrors")
    assert at_rest(pods)
