"""What the demo says of its node, with any width of the terminal, and on a busy machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy import demo, demo_frames, demo_node, demo_run
from deploy.demo_frames import Look
from userspace_cni.cli.node_load import NodeLoad

STEPS = ["directory", "socket-file", "pod-mount", "port", "config-file"]
WRAPPED = """\
demo/pod-a/net1  network dpdk-net  ready

pod     demo/pod-a, interface net1

steps, in the order of ADD
  1 directory    the directory in which the application makes its socket, which
  2 shows the folded half of a line that begins with a number
"""
"""The output of `show` where its lines have to be folded."""


class Told(demo_node.Demo):
    """A node whose commands were run on a narrow terminal."""

    def command(self, *args: str, **environ: str) -> str:
        return WRAPPED

    def told(self, *args: str) -> Any:
        names = "abc" if args[0] == "list" else "a"
        steps = [{"step": each} for each in STEPS]
        return [{"name": f"demo/pod-{each}/net1", "port": f"{each * 12}-net1", "steps": steps} for each in names]

    def vsctl(self, *args: str) -> str:
        """Only the third pod has no application."""
        return ("connected" if "status:status" in args else "up") if "cccccccccccc-net1" not in args else "down"


def test_facts_are_not_read_from_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo takes the steps from the record, and not from the output, which is folded at 80 columns."""
    monkeypatch.setattr(demo_node.console, "width", 80)
    pods = [demo_node.Pod(f"pod-{each}", "uid", each * 64, tmp_path, tmp_path) for each in "abc"]
    with demo_node.console.capture() as captured:
        demo.show_node(Told(tmp_path), pods)
    fact = " ".join(captured.get().partition("The record has these steps")[2].split())
    assert fact == f", and DEL undoes them from the last to the first: {', '.join(STEPS)}."


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
