"""The library in the hands of who makes mistakes: errors that tell, no crash, nothing left. No switch, no hugepages."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.node.belongings import nothing_left
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath import (
    BackEnd,
    BackEndListener,
    BackEndOptions,
    Burst,
    Closed,
    Disconnected,
    FastPathError,
    FrameRefused,
    FrontEnd,
    FrontEndOptions,
    Pump,
    PumpEnd,
    SocketRefused,
    Tap,
    VhostPort,
)

FRAME = bytes.fromhex("02000000000b02000000000a88b5") + bytes(46)
LONG = 60.0  # seconds: more than anything here takes


@pytest.fixture
def ends(place: Path) -> Iterator[tuple[FrontEnd, BackEnd]]:
    with ExitStack() as stack:
        yield made(place / "s", stack)


def made(path: Path, stack: ExitStack, pairs: int = 1) -> tuple[FrontEnd, BackEnd]:
    """A front-end and a back-end that are connected and started."""
    listener = stack.enter_context(BackEndListener(path, BackEndOptions(queue_pairs=pairs)))
    with ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, LONG)
        front = stack.enter_context(FrontEnd.connect(path, FrontEndOptions(queue_pairs=pairs), LONG))
        back = stack.enter_context(accepted.result())
    back.wait_started(LONG, pairs)
    return front, back


def test_frames_as_bytes(ends: tuple[FrontEnd, BackEnd]) -> None:
    """`send` and `receive` carry frames as bytes both ways, and receive waits until there are some, or time is over."""
    for one, other in (ends, ends[::-1]):
        sender: VhostPort = one
        receiver: VhostPort = other
        assert receiver.receive(timeout_s=0) == []
        assert sender.send([FRAME, FRAME[:20]]) == 2
        assert receiver.receive(LONG) == [FRAME, FRAME[:20]]
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(receiver.receive)
            sender.send([FRAME])
            assert waiting.result() == [FRAME]
        assert receiver.receive(timeout_s=0.001) == []
    assert ends[0].longest == 1536


def test_all_pairs_are_received_from(place: Path) -> None:
    """A frame on any queue pair wakes who waits for the port, also when it has as many as there can be."""
    with ExitStack() as stack:
        front, back = made(place / "s", stack, pairs=128)
        for number in (0, 64, 127):
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(back.receive)
                front.pairs[number].send_frames([FRAME])
                assert waiting.result() == [FRAME]


def test_frames_that_are_too_long_end_no_wait(place: Path) -> None:
    """A frame longer than `receive` takes is dropped and counted, and who waits goes on to wait for the next one."""
    path = place / "s"
    with BackEndListener(path) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, LONG)
        with FrontEnd.connect(path, FrontEndOptions(room=20_000), LONG) as front, accepted.result() as back:
            back.wait_started(LONG)
            front.send([bytes(20_000)])
            waiting = pool.submit(back.receive)
            wait_until(lambda: back.pairs[0].counters.rx_oversize, what="a dropped frame")
            assert not waiting.done()
            front.send([FRAME])
            assert waiting.result() == [FRAME]


def test_wrong_arguments(ends: tuple[FrontEnd, BackEnd], place: Path) -> None:
    """A frame instead of a list of frames, text, wrong lengths, wrong paths: each is an error that says what it was."""
    front, _ = ends
    with pytest.raises(TypeError, match=r"as a sequence, \[frame\] for a single one, and not as bytes"):
        front.send(FRAME)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes-like"):
        front.send(["frame of text"])  # type: ignore[list-item]
    with pytest.raises(FrameRefused, match="a frame of 1537 bytes, which must have 14 to 1536; the MTU of the port"):
        front.send([bytes(1537)])
    with pytest.raises(ValueError, match="5 frames of a burst of 4"):
        Burst(4).frames(5)
    assert front.receive(-1) == front.receive(float("nan")) == []
    with pytest.raises(ValueError, match="limit=0: 1 frame or more"):
        front.receive(0, limit=0)
    (place / "file").touch()
    for path, found in ((place / "absent", "nothing is there"), (place / "file", "not a socket"), (place, "not a socket")):
        with pytest.raises(SocketRefused, match=f"connecting to {path}: .*{found}.*; "):
            FrontEnd.connect(path)


def test_the_other_side_is_gone(ends: tuple[FrontEnd, BackEnd]) -> None:
    """Who receives is told that the other side hung up and where to look, in a wait that began before, too."""
    front, back = ends
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(front.receive)
        back.close()
        with pytest.raises(Disconnected, match="the back-end hung up; whether ovs-vswitchd runs"):
            waiting.result()
    with pytest.raises(Disconnected):
        front.receive(timeout_s=0)
    assert front.send([FRAME]) in (0, 1)
    assert not front.is_alive()


def test_used_after_close(ends: tuple[FrontEnd, BackEnd]) -> None:
    """Closed twice, and used afterwards: each use says that it was closed by us, and the counters can still be read."""
    for port in ends[::-1]:
        pair = port.pairs[0]
        port.close()
        port.close()
        for use in (port.receive, lambda port=port: port.send([FRAME]), pair.wait, pair.receive_frames):
            with pytest.raises(Closed, match="closed by us"):
                use()
        assert pair.counters.tx_frames == 0
        assert str(port.why_failed()).endswith("it was closed by us")


def test_a_child_cannot_use_the_port_of_its_parent(ends: tuple[FrontEnd, BackEnd]) -> None:
    """After fork each call of the child raises Closed, closing does nothing, and the parent's port goes on."""
    child = os.fork()
    if not child:
        try:
            for port in ends:
                for use in (port.receive, lambda port=port: port.send([FRAME]), port.pairs[0].wait):
                    with pytest.raises(Closed, match="not inherited over fork"):
                        use()
                port.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    front, back = ends
    assert front.send([FRAME]) == 1
    assert back.receive(LONG) == [FRAME]
    assert front.is_alive()
    assert back.is_alive()


def test_who_forgets_to_close_is_warned(place: Path) -> None:
    """A front-end and a listener that were forgotten warn, and leave no descriptor, no memory and no socket."""
    path = place / "s"
    with nothing_left():
        listener = BackEndListener(path)
        with ThreadPoolExecutor() as pool:
            accepted = pool.submit(listener.accept, LONG)
            front = FrontEnd.connect(path, timeout_s=LONG)
            back = accepted.result()
        back.wait_started(LONG)
        del front
        with pytest.warns(ResourceWarning, match=f"unclosed FrontEnd {path}: use `with`"):
            gc.collect()
        with pytest.raises(Disconnected):
            back.receive()
        back.close()
        gone = [listener]
        del listener
        with pytest.warns(ResourceWarning, match=f"unclosed socket {path}: use `with`"):
            gone.clear()
        assert not path.exists()


def test_a_hang_up_never_meets_another_file(ends: tuple[FrontEnd, BackEnd], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes a back-end hangs up under a lock, and its thread closes the descriptor under it: no number is used later."""
    back = ends[1]
    held: list[bool] = []

    def is_held() -> bool:
        if free := back._changed.acquire(blocking=False):
            back._changed.release()
        return not free

    def spied(method: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            with ThreadPoolExecutor() as pool:
                held.append(pool.submit(is_held).result())
            method()

        return call

    for name in ("shutdown", "close"):
        monkeypatch.setattr(back._channel, name, spied(getattr(back._channel, name)))
    back.close()
    assert held == [True, True]


def test_the_collector_takes_a_port_in_any_order(place: Path) -> None:
    """A forgotten front-end that is collected after its queues still closes them, and their counters can be read (sanitizers)."""
    path = place / "s"

    def age() -> None:
        gc.collect(0)  # what has survived one collection comes behind what is newer in the next full one

    with BackEndListener(path) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, LONG)
        front = FrontEnd.connect(path, timeout_s=LONG, connected=age)
        with accepted.result() as back:
            back.wait_started(LONG)
            del front
            with pytest.warns(ResourceWarning, match="unclosed FrontEnd") as warned:
                gc.collect()
            [forgotten] = [warning.source for warning in warned if isinstance(warning.source, FrontEnd)]
            assert forgotten.pairs[0].counters.tx_frames == 0
            with pytest.raises(Closed):
                forgotten.send([FRAME])


def test_a_finalizer_can_ask_closed_ports(place: Path) -> None:
    """A `__del__` of a program's own object reads the counts of ports and of a pump that are collected with it (sanitizers)."""
    seen: list[int] = []

    class Program:
        def __init__(self, *ports: VhostPort, pump: Pump) -> None:
            self.ports, self.pump, self.itself = ports, pump, self

        def __del__(self) -> None:
            seen.extend(port.pairs[0].counters.tx_frames for port in self.ports)
            seen.append(self.pump.carried.to_ring.frames)

    def run() -> None:
        with ExitStack() as stack:
            front, back = made(place / "s", stack)
            pump = stack.enter_context(Pump(stack.enter_context(Tap())))
            assert front.send([FRAME]) == 1
            Program(front, back, pump=pump)

    run()
    gc.collect()
    assert seen == [1, 0, 0]


def test_a_program_that_ends_with_open_ports(place: Path) -> None:
    """It ends as any program: no crash, no complaint, no hanging thread."""
    program = """
import sys, threading
from userspace_cni.fastpath import BackEndListener, FrontEnd
listener = BackEndListener(sys.argv[1])
made = []
threading.Thread(target=lambda: made.append(listener.accept())).start()
front = FrontEnd.connect(sys.argv[1])
while not made: pass
made[0].wait_started()
threading.Thread(target=front.receive, daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", program, place / "s"], capture_output=True, text=True, timeout=LONG)  # noqa: PLW1510
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_pump_has_one_thread(ends: tuple[FrontEnd, BackEnd]) -> None:
    """A second thread that runs the same pump is told so; the first one goes on until it is stopped."""

    def is_told() -> bool:
        try:
            pump.run(ends[0].pairs[0], slice_s=0)
        except FastPathError as error:
            return "runs already, in another thread" in str(error)
        return False

    with Tap() as tap, Pump(tap) as pump, ThreadPoolExecutor() as pool:
        first = pool.submit(pump.run, ends[0].pairs[0], LONG)
        wait_until(is_told, what="the first thread in the pump")
        pump.stop()
        assert first.result() is PumpEnd.STOPPED
