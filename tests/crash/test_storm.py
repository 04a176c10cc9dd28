"""A short storm with every kind of fault: the node has what was promised, and nothing at the end.

A long one is `python -m tests.crash.storm --operations 10000 --seed 7`.
"""

from __future__ import annotations

import pytest

from tests.crash.storm import Plan, Storm
from tests.crash.storm_faults import DEALT, OF_CALLERS
from tests.lab.switch.switch import Switch


@pytest.mark.timeout(300)
def test_a_short_storm(switch: Switch) -> None:
    """Every answer is kept amid all kinds of faults: nothing promised is lost, and nothing is left after the last DEL."""
    told: list[str] = []
    plan = Plan(seed=7, operations=300, burst=300, faults=9, pods=5)
    outcome = Storm(plan, switch, told.append).run()
    assert outcome.violations == [], "\n".join(told)
    assert outcome.calls >= plan.operations
    missing = [kind for kind in (*DEALT, OF_CALLERS) if not outcome.happened[f"fault: {kind}"]]
    assert missing == []
    assert all(outcome.happened[f"{verb} 0"] for verb in ("ADD", "DEL", "CHECK", "GC")), str(outcome)
