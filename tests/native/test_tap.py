"""A tap of the kernel, the pump at it, and the command, without a switch: our own back-end is at the other end of the socket."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.lab.frames.taps import SECONDS, TapProcess, entered, links, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.base.errors import UserspaceError
from userspace_cni.fastpath.fastpath_errors import Closed
from userspace_cni.fastpath.tap import ETHERNET, Pump, PumpEnd, Tap, TapRefused
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
from userspace_cni.host.netlink.own_link import LinkSettings, set_up

MTU = 9000
ETHERTYPE = 0x88B5
HEAD = bytes.fromhex("ffffffffffff 020000000001 88b5")


@pytest.fixture(scope="module")
def pod() -> Iterator[str]:
    with netns() as path:
        yield path


@pytest.fixture
def tap(pod: str) -> Iterator[Tap]:
    """A tap in the namespace, up, with jumbo frames."""
    with entered(pod, lambda: Tap("net1")) as tap:
        entered(pod, lambda: set_up("net1", LinkSettings(mtu=MTU)))
        yield tap


@pytest.fixture
def ends(place: Path) -> Iterator[tuple[FrontEnd, BackEnd]]:
    with BackEndListener(f"{place}/s") as listener, ExitStack() as stack:
        accepted: list[BackEnd] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
        thread.start()
        front = stack.enter_context(FrontEnd.connect(listener.path, FrontEndOptions(room=MTU + ETHERNET, mergeable=True)))
        thread.join()
        back = stack.enter_context(accepted[0])
        back.wait_started()
        yield front, back


class Running:
    """A pump in a thread of its own, until `with` ends or `end` is asked for."""

    def __init__(self, tap: Tap, front: FrontEnd) -> None:
        tap.set_carrier(present=True)
        self.pump = Pump(tap, MTU)
        self._found: list[PumpEnd | Exception] = []
        self._thread = threading.Thread(target=self._run, args=(front,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pump.stop()
        self._thread.join()
        self.pump.close()

    def end(self) -> PumpEnd | Exception:
        """How the run ended, after its end."""
        self._thread.join(SECONDS)
        return self._found[0]

    def _run(self, front: FrontEnd) -> None:
        try:
            while (end := self.pump.run(front.pairs[0])) is PumpEnd.SLICE:
                pass
            self._found.append(end)
        except Exception as error:
            self._found.append(error)


def packet_socket(pod: str) -> socket.socket:
    """A socket that sends and receives frames of our own EtherType at the tap, once the kernel takes frames for it.

    It does a moment after the link has its carrier; what is sent before is lost.
    """
    wait_until(lambda: links(pod)["net1"]["operstate"] == "UP", SECONDS, "a link that sends")
    made = socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    made.bind(("net1", ETHERTYPE))
    return made


def taken(back: BackEnd) -> list[bytes]:
    """Our frames that came to the back-end; the kernel sends others, of IPv6."""
    return [frame for frame in back.pairs[0].receive_frames() if frame[12:14] == HEAD[12:14]]


def frame(length: int) -> bytes:
    """A frame of so many bytes."""
    return HEAD + os.urandom(length - len(HEAD))


def test_frames_of_every_length(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Frames from the kernel arrive unchanged at the back-end, and the reverse, from a bare header to a jumbo frame."""
    front, back = ends
    with Running(tap, front) as running, packet_socket(pod) as packets:
        for length in (*range(14, 130), *range(130, MTU + 14, 173), MTU + 14):
            sent = frame(length)
            packets.send(sent)
            (got,) = wait_until(lambda: taken(back), SECONDS, "a frame of the kernel's")
            assert got == sent
            assert back.pairs[0].send_frames([sent]) == 1
            assert packets.recv(65536) == sent
        carried = running.pump.carried
        assert carried.to_ring.frames >= carried.to_tap.frames > 100
        assert (carried.to_ring.dropped, carried.to_tap.dropped) == (0, 0)


def test_room_for_two_tags(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Behind two VLAN tags a frame has the whole MTU, both ways; a byte more is dropped and counted."""
    front, back = ends
    entered(pod, lambda: set_up("net1", LinkSettings(mtu=MTU + 9)))  # a packet socket gets no room for a second tag
    with Running(tap, front) as running, packet_socket(pod) as packets:
        longest = frame(MTU + 14 + 2 * 4)
        packets.send(longest)
        assert wait_until(lambda: taken(back), SECONDS, "a frame of the kernel's") == [longest]
        assert back.pairs[0].send_frames([longest]) == 1
        assert packets.recv(65536) == longest
        packets.send(longest + b"x")
        wait_until(lambda: running.pump.carried.to_ring.dropped == 1, SECONDS, "a frame that is too long")


def test_both_ways_at_once(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Nothing is lost, changed or out of order while frames go both ways, more than the ring holds."""
    front, back = ends
    frames = [frame(60 + number % 1400) for number in range(2000)]
    came: list[bytes] = []
    with Running(tap, front), packet_socket(pod) as packets:

        def send_and_receive() -> None:
            for each in frames:
                packets.send(each)
                came.append(packets.recv(65536))

        thread = threading.Thread(target=send_and_receive)
        thread.start()
        arrived: list[bytes] = []
        left = frames
        while len(arrived) < len(frames):
            if len(frames) - len(left) - len(came) < 30:  # what the packet socket has room for, however slow its thread is
                left = left[back.pairs[0].send_frames(left[:7]) :]
            if not (got := taken(back)):
                assert back.pairs[0].wait(SECONDS)
            arrived += got
        thread.join()
    assert arrived == frames
    assert came == frames


def test_frames_longer_than_the_mtu(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Frames of a switch's port with a larger MTU are lost and counted, and no others."""
    front, back = ends
    with Running(tap, front) as running, packet_socket(pod) as packets:
        sent = frame(64)
        assert back.pairs[0].send_frames([frame(MTU + 500), sent]) == 2
        assert packets.recv(65536) == sent
        assert running.pump.carried.to_tap.dropped == 1


def test_carrier(pod: str, tap: Tap) -> None:
    """The link has no carrier until we set it."""
    assert links(pod)["net1"]["operstate"] == "DOWN"
    tap.set_carrier(present=True)
    wait_until(lambda: links(pod)["net1"]["operstate"] == "UP", SECONDS, "carrier")


def test_link_that_is_down(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Frames for a link that is down are dropped and counted; it carries again when it is up."""
    front, back = ends
    subprocess.run(["nsenter", f"--net={pod}", "ip", "link", "set", "net1", "down"], check=True)
    with Running(tap, front) as running:
        back.pairs[0].send_frames([frame(64)])
        wait_until(lambda: running.pump.carried.to_tap.dropped == 1, SECONDS, "a dropped frame")
        entered(pod, lambda: set_up("net1", LinkSettings()))
        with packet_socket(pod) as packets:
            sent = frame(64)
            back.pairs[0].send_frames([sent])
            assert packets.recv(65536) == sent


def test_hang_up(tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """A back-end that hangs up ends the run of a pump that sleeps."""
    front, back = ends
    with Running(tap, front) as running:
        wait_until(lambda: running.pump.carried.sleeps, SECONDS, "a pump that sleeps")
        back.close()
        assert running.end() is PumpEnd.HANGUP


def test_deleted_tap(pod: str, tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """Deleting the tap ends the run."""
    with Running(tap, ends[0]) as running:
        wait_until(lambda: running.pump.carried.sleeps, SECONDS, "a pump that sleeps")
        subprocess.run(["nsenter", f"--net={pod}", "ip", "link", "delete", "net1"], check=True)
        assert running.end() is PumpEnd.TAP_GONE


def test_stopped_and_closed(tap: Tap, ends: tuple[FrontEnd, BackEnd]) -> None:
    """A stop ends this run and every later one; closing the front-end ends it too, with the reason at the next."""
    front, _ = ends
    with Running(tap, front) as running:
        wait_until(lambda: running.pump.carried.sleeps, SECONDS, "a pump that sleeps")
        running.pump.stop()
        assert running.end() is PumpEnd.STOPPED
        assert running.pump.run(front.pairs[0], 60.0) is PumpEnd.STOPPED
    with pytest.raises(Closed):
        running.pump.run(front.pairs[0])
    with Running(tap, front) as running:
        wait_until(lambda: running.pump.carried.sleeps, SECONDS, "a pump that sleeps")
        front.close()
        assert running.end() is PumpEnd.CLOSED


def test_stopped_while_it_is_closed(tap: Tap) -> None:
    """A stop while another thread closes the pump does no harm: it writes to no descriptor that is not the pump's."""
    raised: list[Exception] = []

    def stop(pump: Pump, together: threading.Barrier) -> None:
        together.wait()
        try:
            pump.stop()
        except OSError as error:
            raised.append(error)

    for _ in range(300):
        pump, together = Pump(tap), threading.Barrier(2)
        thread = threading.Thread(target=stop, args=(pump, together))
        thread.start()
        together.wait()
        pump.close()
        thread.join()
    assert raised == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("lo", "a link of this name exists"), ("a/b", "does not take the name"), ("x" * 16, "longer than 15 bytes")],
)
def test_names_that_are_refused(pod: str, name: str, words: str) -> None:
    """A name that is taken, or not allowed for a link, is refused in words; the kernel chooses the name when it may."""
    with pytest.raises(TapRefused, match=words):
        entered(pod, lambda: Tap(name))
    with entered(pod, lambda: Tap("vhost%d")) as chosen:
        assert chosen.name == "vhost0"
    assert set(links(pod)) == {"lo"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LinkSettings(mac="01:00:00:00:00:01"), "MAC address 01:00:00:00:00:01: Cannot assign"),
        (LinkSettings(mtu=9_000_000), "MTU 9000000: Invalid"),
        (LinkSettings(addresses=("10.1.1.1/24", "10.1.1.1/24")), "address 10.1.1.1/24: File exists"),
        (LinkSettings(addresses=("10.1.1/24",)), "10.1.1/24"),
    ],
)
def test_settings_that_are_refused(pod: str, tap: Tap, settings: LinkSettings, words: str) -> None:
    """A setting that the kernel refuses is named, with the reason."""
    with pytest.raises(UserspaceError, match=words):
        entered(pod, lambda: set_up(tap.name, settings))


def test_link_that_is_not_there(pod: str) -> None:
    """A link that vanished before it could be set up is named."""
    with pytest.raises(UserspaceError, match="net1: it is not there any more"):
        entered(pod, lambda: set_up("net1", LinkSettings()))


# -- the command -----------------------------------------------------------------------------------------------------------


def failing(pod: str, *arguments: str, around: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and stderr of a command that ends by itself."""
    command = ["nsenter", f"--net={pod}", *around, sys.executable, "-m", "userspace_cni", "tap", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stderr


def test_name_in_use(pod: str, tap: Tap, place: Path) -> None:
    """A second tap of the same name is refused and leaves no socket."""
    code, words = failing(pod, f"{place}/s", "--name", tap.name)
    assert code == 1
    assert "a link of this name exists" in words
    assert list(place.iterdir()) == []


def test_socket_in_use(pod: str, place: Path) -> None:
    """A socket at which a program listens is neither replaced nor removed, and no link is left."""
    with TapProcess(pod, f"{place}/s", "--mode", "server") as first:
        wait_until((place / "s").exists, SECONDS, "a socket")
        code, words = failing(pod, f"{place}/s", "--mode", "server")
        assert code == 1
        assert f"listening at {place}/s" in words
        assert (place / "s").exists()
        assert first.end(signal.SIGTERM) == 0
        assert [line for line in first.errors().splitlines() if "no switch has connected to" not in line] == []
    assert (list(place.iterdir()), set(links(pod))) == ([], {"lo"})


def test_without_the_device(pod: str, place: Path) -> None:
    """Without /dev/net/tun the error says to look at the container's devices."""
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh")
    code, words = failing(pod, f"{place}/s", around=hidden)
    assert code == 1
    assert "/dev/net/tun is not there" in words


def test_without_the_capability(pod: str, place: Path) -> None:
    """Without CAP_NET_ADMIN the error names it, with the code of all commands for a user who may not."""
    code, words = failing(pod, f"{place}/s", around=("setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin"))
    assert code == 3
    assert "NET_ADMIN" in words


def test_setting_that_the_kernel_refuses(pod: str, place: Path) -> None:
    """An address that is given twice: the setting is named, and neither link nor socket is left."""
    code, words = failing(pod, f"{place}/s", "--address", "10.1.1.1/24", "--address", "10.1.1.1/24")
    assert code == 1
    assert "adding the address 10.1.1.1/24: File exists" in words
    assert (list(place.iterdir()), set(links(pod))) == ([], {"lo"})


def test_link_deleted_under_the_command(pod: str, place: Path) -> None:
    """Deleting the link ends the command with 1; its socket is gone too."""
    with BackEndListener(f"{place}/s") as listener, TapProcess(pod, listener.path, "--name", "net1") as tap:
        with listener.accept() as back:
            back.wait_started()
            assert tap.until("ready")["mode"] == "client"
            subprocess.run(["nsenter", f"--net={pod}", "ip", "link", "delete", "net1"], check=True)
            assert tap.finished() == 1
        assert "net1: it is gone" in tap.errors()


def test_directory_that_is_not_there(pod: str, place: Path) -> None:
    """A socket in a missing directory: the error names the directory, and says nothing about ports."""
    code, words = failing(pod, f"{place}/missing/s")
    assert code == 1
    assert f"listening at {place}/missing/s: its directory is not there" in words
    assert set(links(pod)) == {"lo"}


@pytest.mark.parametrize("accepted", [True, False])
def test_port_of_another_program(pod: str, place: Path, accepted: bool) -> None:
    """A port stays with a pod's program that is connected to it, before and after the switch has accepted it."""
    path = f"{place}/s"
    with socket.socket(socket.AF_UNIX) as switch, socket_in(pod, socket.AF_UNIX) as application, ExitStack() as stack:
        switch.bind(path)
        switch.listen()
        application.connect(path)
        if accepted:
            stack.enter_context(switch.accept()[0])
        code, words = failing(pod, path)
        assert code == 1
        assert f"{path}: another program is connected to it, and would be cut off; ss -xp shows that program; --force" in words
        assert set(links(pod)) == {"lo"}
        switch.setblocking(False)
        if accepted:
            with pytest.raises(BlockingIOError):
                switch.accept()


def test_port_taken_by_force(pod: str, place: Path) -> None:
    """With --force it connects although another program is connected."""
    with BackEndListener(f"{place}/s") as listener, socket_in(pod, socket.AF_UNIX) as application:
        application.connect(listener.path)
        with listener.accept(), TapProcess(pod, listener.path, "--force") as tap, listener.accept() as back:
            back.wait_started()
            tap.until("ready")
            assert tap.end(signal.SIGTERM) == 0


def test_port_that_is_left_just_now(pod: str, place: Path) -> None:
    """The command waits for a program that is just leaving the port."""
    with BackEndListener(f"{place}/s") as listener, socket_in(pod, socket.AF_UNIX) as application:
        application.connect(listener.path)
        with listener.accept(), TapProcess(pod, listener.path, "--name", "net1") as tap:
            wait_until(lambda: "net1" in links(pod), SECONDS, "a link")
            application.close()
            with listener.accept() as back:
                back.wait_started()
                assert tap.until("ready")["mode"] == "client"


def test_listener_that_is_no_switch(pod: str, place: Path) -> None:
    """When a listener accepts and says nothing, the command says after a while that it may be another front-end."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{place}/s")
        other.listen()
        with TapProcess(pod, f"{place}/s") as tap:
            words = tap.until("waiting")["text"]
            assert f"{place}/s: the listener has not answered" in words
            assert "another front-end" in words


def test_log_without_a_reader(pod: str, place: Path) -> None:
    """A tap whose stderr is a pipe without a reader waits on, and carries frames as soon as a switch comes."""
    with TapProcess(pod, f"{place}/s", "--mode", "server") as tap:
        assert tap.news.get(timeout=SECONDS)["state"] == "waiting"
        tap.close_errors()
        for _ in range(2):
            with BackEnd.connect(f"{place}/s") as back:
                back.wait_started()
                tap.until("ready")
            tap.until("lost")
        assert tap.end(signal.SIGTERM) == 0


def test_another_front_end(pod: str, place: Path) -> None:
    """Two taps at one socket find out that neither is a switch; with the switch the first goes on."""
    with TapProcess(pod, f"{place}/s", "--mode", "server") as first:
        assert f"no switch has connected to {place}/s yet" in first.until("waiting")["text"]
        with TapProcess(pod, f"{place}/s") as second:
            for tap in (first, second):
                assert "an application or another tap" in tap.until("waiting")["text"]
            assert second.end(signal.SIGTERM) == 0
        with BackEnd.connect(f"{place}/s") as back:
            back.wait_started()
            first.until("ready")
            assert first.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("gone", ["file", "directory"])
def test_socket_that_is_removed(pod: str, place: Path, gone: str) -> None:
    """A socket that is removed while no front-end is connected is made again, with its mode, and so is one in a new directory."""
    path = place / "sub" / "s"
    path.parent.mkdir()
    with TapProcess(pod, str(path), "--mode", "server", "--socket-mode", "0666") as tap:
        assert "no switch has connected" in tap.until("waiting")["text"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        if gone == "file":
            path.unlink()
        else:
            shutil.rmtree(path.parent)
            assert "its directory is not there" in tap.until("waiting")["text"]
            path.parent.mkdir()
        assert "had been removed and was made again" in tap.until("waiting")["text"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        with BackEnd.connect(str(path)) as back:
            back.wait_started()
            tap.until("ready")
            path.unlink()
        tap.until("lost")
        assert "had been removed and was made again" in tap.until("waiting")["text"]
        with BackEnd.connect(str(path)) as back:
            back.wait_started()
            tap.until("ready")
            assert tap.end(signal.SIGTERM) == 0
    assert (list(path.parent.iterdir()), set(links(pod))) == ([], {"lo"})


def test_waits_for_a_switch_that_is_not_there(pod: str, place: Path) -> None:
    """As a client the command waits for the switch's socket, says so once, and attaches when there is one."""
    with TapProcess(pod, f"{place}/s", "--mode", "client") as tap:
        assert "nothing is there" in tap.until("waiting")["text"]
        with BackEndListener(f"{place}/s") as listener, listener.accept() as back:
            tap.until("ready")
            back.close()
            tap.until("lost")
            with listener.accept():
                tap.until("ready")
                assert tap.end(signal.SIGINT) == 0
        assert tap.until("ended")["to_switch"]["dropped"] == 0


def test_a_signal_that_another_thread_gets(pod: str, place: Path) -> None:
    """The kernel may give a signal to any thread: the command ends, though its main thread sleeps and is not interrupted."""
    with TapProcess(pod, f"{place}/s", "--mode", "client") as tap:
        tap.until("waiting")
        with BackEndListener(f"{place}/s") as listener, listener.accept():
            tap.until("ready")
            threads = Path(f"/proc/{tap.pid}/task")
            looks: deque[str] = deque(maxlen=10)

            def sleeps() -> bool:
                status = (threads / str(tap.pid) / "status").read_text()
                looks.append(status.partition("voluntary_ctxt_switches")[2].split()[1])
                return looks.count(looks[0]) == looks.maxlen

            wait_until(sleeps, SECONDS, "a main thread that sleeps")
            other = next(int(each.name) for each in threads.iterdir() if int(each.name) != tap.pid)
            assert ctypes.CDLL(None).tgkill(tap.pid, other, signal.SIGTERM) == 0
            assert tap.finished() == 0


def test_stopped_amid_an_attach(pod: str, place: Path) -> None:
    """A program that connects and never answers does not delay a stop, and no socket is left."""
    with TapProcess(pod, f"{place}/s", "--mode", "server") as tap, socket.socket(socket.AF_UNIX) as mute:
        wait_until((place / "s").exists, SECONDS, "a socket")
        mute.connect(f"{place}/s")
        mute.settimeout(SECONDS)
        assert mute.recv(1)
        assert tap.end(signal.SIGTERM) == 0
    assert (list(place.iterdir()), set(links(pod))) == ([], {"lo"})


def test_counters_on_a_terminal(pod: str, place: Path) -> None:
    """On a terminal a line shows the frames that go through."""
    controller, terminal = pty.openpty()
    command = ["nsenter", f"--net={pod}", sys.executable, "-m", "userspace_cni", "tap", f"{place}/s", "--mode", "server"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(terminal)
        seen = b""
        while b"frames/s out" not in seen:
            assert select.select([controller], [], [], SECONDS)[0]
            seen += os.read(controller, 65536)
        process.send_signal(signal.SIGTERM)
        while select.select([controller], [], [], SECONDS)[0]:
            try:
                os.read(controller, 65536)
            except OSError:  # EIO: no process has the terminal open any more
                break
        assert process.wait(SECONDS) == 0
    os.close(controller)
