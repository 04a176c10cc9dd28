"""Lanes: the result of a run on one is recorded and shown on the page; what fails on one is rerun on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.lanes import page, record
from tests.lab.lanes.programs import NotMade, Programs
from tests.lab.lanes.record import Ran, Record
from tests.lab.lanes.table import LANES, Lane
from tests.lab.suite import __main__ as suite
from tests.lab.suite import lines, seconds
from tests.lab.suite.calls import Call, Result, again
from tests.lab.suite.exercised import ROOT
from tests.lab.suite.groups import CORES, LANE, SAMPLE, files, samples
from tests.lab.suite.table import Row, summary

ON_A_LANE = """
import os
from pathlib import Path

def test_fails_once_on_the_lane():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert not first and os.environ["LANE"] == "yes"
"""
LONGEST_S = 150
OWN = {"Debian": "12", "Open vSwitch": "3.1.0", "containerd": "1.6.20"}
RAN = Ran(
    {"Open vSwitch": "3.5.0", "containerd": "1.7.24", "cnitool": "1.2.3"}, {"ovs": 1234}, ("tests/ovs/test_ports.py::test_a",)
)
PAGE = f"# Title\n\n{page.BEGIN}an older table\n{page.END}\nafter it\n"


def test_the_page_tells_what_ran() -> None:
    """Only existing lanes have a record; the page is up to date, and does not call "by hand" what a lane runs."""
    known = record.read()
    assert known.lanes.keys() <= {each.name for each in LANES}
    text = page.PAGE.read_text()
    assert page.with_table(text, known) == text, "python -m tests.lab.lanes.page"
    assert list(page.tried_by_hand(text, known)) == []


def test_a_record_is_kept_and_told(tmp_path: Path) -> None:
    """It takes the place of the lane's former one; others stay, and the page has each version, count and failure by lane."""
    file = tmp_path / "record.json"
    file.write_text('{"own": {}, "lanes": {}}\n')
    for lane, ran in (("trixie", replace(RAN, tests={})), ("forky", replace(RAN, failed=())), ("trixie", RAN)):
        record.keep(lane, ran, OWN, file)
    known = Record(OWN, {"forky": replace(RAN, failed=()), "trixie": RAN})
    assert record.read(file) == known
    told = page.with_table(PAGE, known)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if "|" in line]
    rows = {head: cells for head, *cells in lines}
    assert rows[""] == ["Debian 12", "trixie", "forky"]
    assert rows["containerd"] == ["1.6.20", "1.7.24", "1.7.24"]
    assert rows["cnitool"] == ["none", "1.2.3", "1.2.3"]
    assert rows["Tests: Open vSwitch"] == ["", "1,234", "1,234"]
    assert rows["Failed"][1:] == ["`tests/ovs/test_ports.py::test_a`", "none"]
    assert "an older table" not in told
    assert told.endswith(f"{page.END}\nafter it\n")
    with pytest.raises(ValueError, match="no place for the table"):
        page.with_table("# Title\n", Record())


def test_what_a_lane_runs_was_not_tried_by_hand() -> None:
    """A line that says so of a version that a lane has is found; one of another version, or of another way, is not."""
    line = "| containerd | 1.7.24 | by hand |"
    others = ["| containerd | 2.9 | by hand |", "| containerd | 1.7.24 | tests |"]
    assert list(page.tried_by_hand("\n".join([*others, line]), Record(OWN, {"trixie": RAN}))) == [line]


def test_tests_are_told_by_what_they_are_about() -> None:
    """Tests count by their directory, except those that replay recorded calls; the page has each kind that runs."""
    told = {record.kind_of(file) for file in (*files(*LANE), suite.DEMO)}
    assert told == set(page.KINDS)
    assert record.kind_of("tests/cni/test_recordings.py") == record.RECORDINGS


def test_what_failed_on_a_lane_runs_once_more_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported with the lane's name, because a test of that name runs on this machine's own programs, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "test_written.py").write_text(ON_A_LANE)
    inside = ("env", "LANE=yes")
    row = Row("lane forky", Call(("test_written.py",), place=tmp_path, inside=inside).result(), inside=inside)
    row.judge(again(row.result.failures, tmp_path, inside))
    text, passed = summary([row, Row("shared", Result(1, 1.0, {"test_written.py::test_fails_once_on_the_lane": "here"}))])
    assert not passed
    assert "flaky: lane forky: test_written.py::test_fails_once_on_the_lane\n" in text
    assert "failed: test_written.py::test_fails_once_on_the_lane\n" in text


@pytest.mark.parametrize("always", [True, False])
def test_a_lane_that_is_not_made(always: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run reports it with the reason, and fails only for a required lane; `lane NAME` fails for any."""

    def not_made(_: Lane) -> Programs:
        raise NotMade("apt-get update: exit 100: the archive has no such release")

    for module in (suite, lines):
        monkeypatch.setattr(module, "programs", not_made)
        monkeypatch.setattr(module, "lane", lambda name: Lane(name, (name,), always))
    monkeypatch.setattr(suite, "prepare", lambda _: None)
    row = lines.GroupRun(samples()[0]).row()
    assert (bool(row.failed), row.result.tests) == (always, 0)
    assert suite.run_lane(LANES[0].name) == 1
    told = f"lane {LANES[0].name}: not made: apt-get update: exit 100: the archive has no such release\n"
    assert capsys.readouterr() == (told, told)


def test_what_runs_on_a_lane() -> None:
    """A sample is of what the whole lane has, some of each kind of it, and takes three minutes at most; every file is there."""
    every = set(files())
    assert set(SAMPLE) < set(files(*LANE)) <= every
    assert {record.kind_of(file) for file in files(*LANE)} == {record.kind_of(file) for file in SAMPLE}
    assert [group.lane for group in samples()] == [each.name for each in LANES]
    assert all(group.beds for group in samples())
    known = seconds.read()
    taken = [known[file] for file in SAMPLE]
    assert sum(taken) / CORES + max(taken) <= LONGEST_S
