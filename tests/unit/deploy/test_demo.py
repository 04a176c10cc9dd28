"""What the demo says of its node, with any width of the terminal, and on a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import demo, demo_frames, demo_node, demo_run
from deploy.demo_frames import Look
from userspace_cni.cli.node_load import NodeLoad

LONG = "A sentence of so many words that a terminal of eighty columns has no room for all of them, with 72:ff:b6:4a:4d:23 behind."


def test_the_picture_is_for_any_terminal() -> None:
    """It has ASCII characters alone, and fits into sixty columns: under `script`, and in a file, it is as it is here."""
    assert demo.PICTURE.isascii()
    assert max(map(len, demo.PICTURE.splitlines())) <= 60


def test_what_is_told_stays_below_its_title(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At 80 columns a long sentence is folded below the title of its stage, and no line has blanks at its end."""
    monkeypatch.setattr(demo_node.console, "width", 80)
    monkeypatch.setenv(demo_node.MARK, "")  # which a demo sets
    with demo_node.console.capture() as captured:
        demo_node.Demo(tmp_path).announce("A title")
        demo_run.tell_line(LONG)
        demo_run.show_output(f"{LONG}\n\nthe end")
    title, *lines = captured.get().splitlines()
    assert title == "  0.0 s  A title"
    assert " ".join(line.strip() for line in lines if line) == f"{LONG} {LONG} the end"
    for line in lines:
        assert len(line) <= 80
        assert line == line.rstrip()
        assert line.startswith(" " * demo_node.INDENT) or not line


@pytest.mark.parametrize(
    ("frames", "pause"),
    [
        ([(1, 1), (2, 2), (3, 3)], 1.0),
        ([(1, 1), (1, 1), (1, 1), (2, 2)], 3.0),
        ([(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)], 3.0),
        ([(1, 1), (2, 2), (2, 2), (2, 2)], 2.0),
        ([(1, 1), (1, 1)], 1.0),
    ],
)
def test_frames_that_stand_still_for_a_moment_are_a_pause(frames: list[tuple[int, int]], pause: float) -> None:
    """Both pods have to have sent, by readings of each second; a standstill is reported with its duration, and ends nothing."""
    looks = [Look(float(second), list(counted)) for second, counted in enumerate(frames)]
    assert demo_frames.longest_pause(looks) == pause


@pytest.mark.parametrize(("load", "told"), [(NodeLoad(9.0, 2), True), (NodeLoad(1.0, 2), False)])
def test_a_machine_that_is_too_busy_is_named(load: NodeLoad, told: bool) -> None:
    """On a busy machine the demo says that lateness may come from that; on another one it does not."""
    with demo_node.console.capture() as captured:
        demo_run.tell_load(load)
    assert ("9 processes for 2 CPUs" in captured.get()) == told
