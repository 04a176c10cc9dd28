"""The chart of docs/performance.md shows what the page's tables say."""

from __future__ import annotations

import pytest

from tests.bench.performance_chart import PAGE, PICTURE, draw, rows_of


def test_the_chart_is_drawn_from_the_tables() -> None:
    """The picture is what the program draws now; another figure in a table is another picture."""
    text = PAGE.read_text()
    assert PICTURE.read_text() == draw(text), "run PYTHONPATH=. .venv/bin/python tests/bench/performance_chart.py"
    assert draw(text.replace("| 0 | 2.0 / 5.8 | 6.5", "| 0 | 2.0 / 5.8 | 7.5")) != draw(text)


def test_a_page_without_the_table() -> None:
    """A table that is renamed is named, not left out."""
    with pytest.raises(ValueError, match="no table that begins with 'Pods'"):
        rows_of("| Ports | b |\n|---|---|\n| 1 | 2 |\n", "Pods")
