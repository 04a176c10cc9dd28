"""docs/cni-conformance.md is complete and true: every item has a row, every row a test that exists or a reason why not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ITEMS = 120
_ROW = re.compile(r"\| (\d{3}) \| (.+?) \| (.+?) \|")
_NAME = re.compile(r"`(test_\w+)`")


@pytest.fixture(scope="module")
def rows() -> list[tuple[int, str, str]]:
    """Item, statement and test column of the rows before the table of decisions."""
    text = (ROOT / "docs" / "cni-conformance.md").read_text(encoding="utf-8").partition("## Decisions")[0]
    matches = [_ROW.fullmatch(line) for line in text.splitlines()]
    return [(int(match[1]), match[2], match[3]) for match in matches if match]


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all black-box tests."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests" / "cni").glob("test_*.py")]
    functions = (node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {name for name in functions if name.startswith("test_")}


def test_every_item_has_one_row(rows: list[tuple[int, str, str]]) -> None:
    """Items 1 to 120 are listed once each, in order."""
    assert [item for item, _, _ in rows] == list(range(1, ITEMS + 1))


def test_every_row_has_a_test_or_a_reason(rows: list[tuple[int, str, str]], tests: set[str]) -> None:
    """The tests that a row names exist and have its number; a row without any says why."""
    for item, statement, column in rows:
        assert statement
        names = _NAME.findall(column)
        assert set(names) <= tests, (item, set(names) - tests)
        if not column.startswith("No test: "):
            assert names, item
            assert all(name.startswith(f"test_{item:03d}_") for name in names), names


def test_every_numbered_test_is_listed(rows: list[tuple[int, str, str]], tests: set[str]) -> None:
    """No test of an item is missing in the table."""
    listed = {name for _, _, column in rows for name in _NAME.findall(column)}
    assert {name for name in tests if re.match(r"test_\d{3}_", name)} <= listed
