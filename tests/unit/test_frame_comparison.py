"""What the benchmark of the fast path makes of its runs: percentiles, the best of several, the rate without loss, DPDK's log."""

from __future__ import annotations

import pytest

from tests.bench.dpdk_paths import DPDK_PATHS, read_taken
from tests.bench.frame_runs import Case, Run, best_of, percentile, report_of
from tests.bench.loss_free import RESOLUTION, Trial, fastest, loss_free_rate
from tests.bench.placement import Turn, comparable, trips_of

PATHS = {path.name: path for path in DPDK_PATHS}
LOG = """virtio_ethdev_negotiate_features(): host_features before negotiate = 110018182
virtio_ethdev_negotiate_features(): features after negotiate = {features:x}
{why}
set_rxtx_funcs(): virtio: using packed ring standard Tx path on port 0
set_rxtx_funcs(): virtio: using packed ring {receives} Rx path on port 0
"""
PACKED_IN_ORDER = 0xD10000000
"""VERSION_1, RING_PACKED, IN_ORDER, and a bit that no path is about."""


def test_percentiles() -> None:
    """The plateau is the value that 95 of 100 windows do not exceed; without a window there is none."""
    assert percentile(list(range(100)), 0.95) == 95
    assert (percentile([3, 1, 2], 0.0), percentile([3, 1, 2], 0.5), percentile([7], 0.99)) == (1, 2, 7)
    assert Run([12_000] * 95 + [14_000] * 5, 0.0).plateau == 14.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_best_is_that_of_the_highest_median() -> None:
    """One lucky round makes no path the best."""
    assert best_of({"steady": [10.0, 10.1, 10.2], "lucky": [9.0, 9.1, 14.0]}) == "steady"


def test_each_case_has_its_best() -> None:
    """Ratios are of the medians, to the best of the references alone; what has no run in a case has no row there."""
    rates = {"slow": [8, 9, 8], "quick": [10, 10, 12], "ours": [11, 11, 30]}
    found = [(Case(), name, Run([each * 1000] * 3, each * 1e6)) for name, mine in rates.items() for each in mine]
    whole, other = report_of([*found, (Case(512), "slow", Run([4000], 4e6))], ["slow", "quick"])
    assert (whole["length"], whole["best"]) == (64, "quick")
    assert {name: row["of best"] for name, row in whole["rows"].items()} == {"slow": 0.8, "quick": 1.0, "ours": 1.1}
    assert (whole["rows"]["ours"]["plateau"], whole["rows"]["ours"]["runs"]) == (11.0, 3)
    assert (other["length"], other["best"], list(other["rows"])) == (512, "slow", ["slow"])


def test_only_turns_of_one_placement_are_compared() -> None:
    """Those of the placement in which the most have a turn; none during which the processors were moved."""
    near = [Turn("a", 0.6, 0.7, 1), Turn("a", 0.7, 0.6, 2), Turn("a", 0.6, 0.6, 3)]
    far = [Turn("a", 1.9, 1.8, 4), Turn("b", 1.7, 1.8, 5)]
    moved = Turn("b", 0.7, 1.8, 6)
    kept = comparable([*near, *far, moved])
    assert [turn.found for turn in kept] == [4, 5]
    assert trips_of(kept) == [1.7, 1.9]
    assert comparable(near) == near


@pytest.mark.parametrize("limit", [0.3e6, 1e6, 6.4e6, 9.99e6])
def test_the_fastest_rate_is_found(limit: float) -> None:
    """It passes, and what is faster by the resolution does not; a search takes seven steps."""
    tried: list[float] = []

    def passes(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = fastest(passes, 10e6)
    assert limit - RESOLUTION * 10e6 <= found <= limit
    assert len(tried) <= 7


def test_the_ends_of_the_search() -> None:
    """What passes at once is not searched; where nothing passes the rate is 0."""
    assert fastest(lambda _: True, 5.0) == 5.0
    assert fastest(lambda _: False, 5.0) == 0.0


def test_what_counts_as_loss() -> None:
    """A frame that did not come, one that was not taken, and a trial that took longer than its time."""
    assert Trial(1e6, 0.1, 100_000, 100_000, 0.1).is_loss_free
    assert not Trial(1e6, 0.1, 100_000, 99_999, 0.1).is_loss_free
    assert not Trial(1e6, 0.1, 99_000, 99_000, 0.1).is_loss_free
    assert not Trial(1e6, 0.1, 100_000, 100_000, 0.102).is_loss_free


def test_a_rate_has_several_tries() -> None:
    """One trial without loss is enough; none of them is not."""
    left = [3]

    def trial(rate: float) -> Trial:
        left[0] -= 1
        return Trial(rate, 1.0, int(rate), int(rate) - (left[0] > 0), 1.0)

    assert loss_free_rate(trial, 1000.0, tries=3) == 1000.0
    assert loss_free_rate(lambda rate: Trial(rate, 1.0, int(rate), 0, 1.0), 1000.0, tries=3) == 0.0


def test_the_ten_paths() -> None:
    """Split and packed, each mergeable or not, in order or not, and vectorized; all are asked for in different words."""
    assert len({path.devargs for path in DPDK_PATHS}) == len(PATHS) == 10
    assert PATHS["split mergeable"].devargs == "packed_vq=0,mrg_rxbuf=1,in_order=0,vectorized=0"
    assert PATHS["packed vectorized"].devargs == "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1"


def test_a_path_that_dpdk_did_not_take() -> None:
    """DPDK falls back without an error: its log tells, and without such lines nothing is taken for granted."""
    path = PATHS["packed vectorized"]
    taken = read_taken(path, LOG.format(features=PACKED_IN_ORDER, why="", receives="vectorized"))
    assert taken == ("Rx packed ring vectorized, Tx packed ring standard", "")
    why = "virtio_dev_configure(): disabled packed ring vectorized path for requirements not met"
    fallen = read_taken(path, LOG.format(features=PACKED_IN_ORDER, why=why, receives="standard"))
    assert fallen.unlike == "not vectorized: disabled packed ring vectorized path for requirements not met"
    assert "IN_ORDER" in read_taken(path, LOG.format(features=0x510000000, why="", receives="vectorized")).unlike
    with pytest.raises(ValueError, match="does not say"):
        read_taken(path, "EAL: nothing")
