"""Counters as OVSDB writes them."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.base.errors import SwitchRefused
from userspace_cni.switch.counters import Counters, read


def row(name: str, **statistics: int) -> dict[str, Any]:
    """A row as ovsdb-server sends it."""
    marks = ["map", [["owner", "userspace-cni"], ["ifname", 'é{}"\\']]]
    return {"name": name, "external_ids": marks, "statistics": ["map", list(statistics.items())]}


def test_rows_are_read() -> None:
    """Each row is one port with its marks and counters; a port that is not open has no counters."""
    marks = {"owner": "userspace-cni", "ifname": 'é{}"\\'}
    two = [Counters("a", marks, {"rx_packets": 7}, of_now=False), Counters("b", marks, {}, of_now=False)]
    assert read([row("a", rx_packets=7), row("b")]) == two
    assert read([]) == []


@pytest.mark.parametrize(
    "said", [{"name": "a"}, {**row("a"), "statistics": ["set", []]}, {**row("a"), "statistics": 7}, {}, "a", None]
)
def test_another_answer(said: Any) -> None:
    """A row of another shape is an error that names the database and shows the row."""
    with pytest.raises(SwitchRefused, match=r"OVSDB: reading counters: "):
        read([said])
