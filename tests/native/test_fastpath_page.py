"""The programs of docs/fastpath.md do what the page says of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.lab.pages import ROOT, blocks
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath import BackEnd, FrontEnd

PROGRAMS = [block.text for block in blocks(ROOT / "docs" / "fastpath.md") if block.language == "python"]


def start(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_first_two(place: Path) -> None:
    """The first sends back what the second sends, which prints it; then it says that the other side has gone."""
    path = place / "s"
    with start(PROGRAMS[0], path) as switch:
        wait_until(path.exists, what="a socket")
        with start(PROGRAMS[1], path) as driver:
            assert driver.communicate() == ("64 bytes: 02 00 00 00 00 01 02 00 00 00 00 02 08 00\n", "")
        assert switch.communicate() == ("the other side has gone\n", "")


def test_bursts(place: Path) -> None:
    """The program with bursts sends a jumbo frame back with its addresses exchanged."""
    path = place / "s"
    program = PROGRAMS[2].replace("/run/app/vhost.sock", str(path)).replace("timeout_s=10", "timeout_s=60")
    assert program.count(str(path)) == program.count("timeout_s=60") == 1
    frame = bytes(range(14)) + bytes(9_000)
    with start(program, path) as echo:
        wait_until(path.exists, what="a socket")
        with BackEnd.connect(path) as port:
            port.wait_started(60)
            port.send([frame])
            assert port.receive(60) == [frame[6:12] + frame[:6] + frame[12:]]
        _, told = echo.communicate()
        assert "Disconnected" in told


def test_the_generator(place: Path) -> None:
    """The program that sends at a rate prints figures of frames that came back, from the first program."""
    path = place / "s"
    with start(PROGRAMS[0], path) as switch:
        wait_until(path.exists, what="a socket")
        with start(PROGRAMS[3], path) as generator:
            out, wrong = generator.communicate()
        assert (switch.communicate()[0], wrong) == ("the other side has gone\n", "")
    found = re.match(r"StreamFigures\(sent=(\d+), .* received=(\d+), .*latency=LatencyFigures\(count=(\d+)", out)
    assert found, out
    sent, received, timed = map(int, found.groups())
    assert 0 < received == timed <= sent


def test_what_a_port_takes(place: Path) -> None:
    """The memory of a port is about what the page says: twice the product of queue size and room."""
    path = place / "s"
    with start(PROGRAMS[0], path) as switch:
        wait_until(path.exists, what="a socket")
        with FrontEnd.connect(path) as port:
            product = 2 * port.options.queue_size * port.options.room
            assert product < port.memory_bytes < 1.2 * product
        switch.communicate()
