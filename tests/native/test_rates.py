"""When `load` declares a path dead: over rings whose other side is in Python."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.lab.frames.wire import Wire
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.probe import rates
from userspace_cni.probe.cores import Cores
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import Endpoint, Pair
from userspace_cni.probe.rates import LoadFigures, LoadOptions

A, B = (Endpoint(name, name, "br-test", mac) for name, mac in (("a", "02:00:00:00:00:0a"), ("b", "02:00:00:00:00:0b")))


class CutWay(Pair):
    """Two endpoints whose rings have no other side: no frame arrives."""

    def __init__(self, ends: tuple[QueuePair, QueuePair]) -> None:
        super().__init__((A, B), cast("Any", ()), cast("Any", None))
        self.__dict__["ends"] = ends

    @property
    def queues(self) -> tuple[QueuePair, QueuePair]:
        return cast("tuple[QueuePair, QueuePair]", self.__dict__["ends"])

    def hung_up(self) -> str:
        """The other side exists; it only does nothing."""
        return ""

    def cut(self, what: str) -> str:
        return what


@pytest.mark.parametrize(("slice_s", "seconds", "problem"), [(0.01, 0.2, ""), (0.2, 3600.0, "no frame arrives any more")])
def test_a_way_is_cut_after_a_second_without_frames(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, seconds: float, problem: str
) -> None:
    """The seconds without a frame count, and not the slices, of which the last may be short."""
    monkeypatch.setattr(rates, "SLICE_S", slice_s)
    flow = LoadFigures()
    with Wire() as wire, EndingSignals() as ending:
        a, b = wire.pairs
        way = LoadOptions(seconds=seconds, size=64, batch=32, both=True)
        rates.measure(CutWay((a, b)), way, flow, Cores(frozenset({0}), frozenset()), lambda: None, ending)
    assert (flow.problem, flow.total.received) == (problem, 0)
