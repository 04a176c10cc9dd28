"""The list of Kubernetes' cases, what is read of a report, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.judge.cases import (
    FAILED,
    LEFT_OUT,
    PASSED,
    REPORT,
    SKIPPED,
    CaseList,
    CasesDiffer,
    Result,
    focus,
    read_list,
    read_report,
)
from tests.lab.judge.page import BEGIN, END, PAGE, Run, tables, with_results

CASE = "NetworkPolicy [LinuxOnly] NetworkPolicy between server and client should allow a+b on 80 [Feature:NetworkPolicy]"
TESTCASE = '<testcase name="[sig-network] {name}" time="61.5">{told}</testcase>'
FAILURE = """<failure type="Failure">test/e2e/network/network_policy.go:1940
Nov 27 20:00:00.123: Pod client should not be able to connect
vendor/k8s.io/x.go:12</failure>"""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("", (PASSED, "", 61.5)),
        (FAILURE, (FAILED, "Pod client should not be able to connect", 61.5)),
        ("<skipped>Requires at least 2 nodes</skipped>", (SKIPPED, "Requires at least 2 nodes", 61.5)),
    ],
)
def test_what_a_report_says(tmp_path: Path, told: str, expected: tuple[str, str, float]) -> None:
    """Result, reason without places and times, and seconds are those of the case, not of others."""
    others = TESTCASE.format(name=f"{CASE} more", told="<failure>no</failure>")
    (tmp_path / REPORT).write_text(f"<testsuite>{others}{TESTCASE.format(name=CASE, told=told)}</testsuite>")
    assert read_report(CASE, tmp_path) == Result(CASE, *expected)


def test_a_case_without_a_report_has_failed(tmp_path: Path) -> None:
    """When its program ended early, and when the report does not name it."""
    assert read_report(CASE, tmp_path).result == FAILED
    (tmp_path / REPORT).write_text("<testsuite/>")
    assert read_report(CASE, tmp_path).result == FAILED


def test_one_case_at_a_time() -> None:
    """The expression for a case matches it, and no case whose name begins or ends as it."""
    pattern = re.compile(focus(CASE))
    names = [f"Kubernetes e2e suite [sig-network] {each}" for each in (CASE, f"{CASE} more", CASE.replace("a+b", "aab"))]
    assert [bool(pattern.search(name)) for name in names] == [True, False, False]


def test_the_list() -> None:
    """Each case that is left out or fails has a reason; a name that the program does not have is refused."""
    known = read_list()
    assert known.left_out
    assert all({**known.left_out, **known.fails}.values())
    assert known.choose([*known.left_out, *known.fails, CASE]) == sorted([*known.fails, CASE])
    with pytest.raises(CasesDiffer):
        known.choose([CASE])


@pytest.mark.parametrize("kind", ["left_out", "fails"])
def test_a_case_is_named_once(tmp_path: Path, kind: str) -> None:
    """A list that names it with two reasons is refused."""
    path = tmp_path / "cases.toml"
    path.write_text(f'[[left_out]]\nreason = "a"\ncases = ["one"]\n[[{kind}]]\nreason = "b"\ncases = ["one"]\n')
    with pytest.raises(CasesDiffer, match="twice"):
        read_list(path)


def test_what_is_known_to_fail() -> None:
    """It has the list's reason, and is no surprise; one that passes is."""
    known = CaseList({}, {CASE: "no such thing here"})
    failed, passed = Result(CASE, FAILED, "timed out", 9), Result(CASE, PASSED, "", 9)
    assert known.explain(failed) == Result(CASE, FAILED, "no such thing here", 9)
    assert known.explain(passed) == passed
    assert [known.is_expected(each) for each in (failed, passed)] == [True, False]
    others = [Result("another", each) for each in (PASSED, FAILED, SKIPPED)]
    assert [known.is_expected(each) for each in others] == [True, False, False]
    assert known.explain(others[1]) == others[1]


def test_the_page() -> None:
    """It says of each case what became of it, and sums them up; the rest of the page stays."""
    results = [
        Result(CASE, PASSED, "", 61.5),
        Result("Services should work", FAILED, "a | b\n<c>", 3),
        Result("Proxy works", SKIPPED, "two nodes"),
        Result("Services of a cloud", LEFT_OUT, "needs a cloud"),
    ]
    run = Run(results, "Kubernetes 1.20.2", "November 2026", 600)
    page = with_results(PAGE.read_text(), run)
    assert page.startswith(PAGE.read_text().partition(BEGIN)[0])
    assert page.count(BEGIN) == page.count(END) == 1
    lines = tables(run).splitlines()
    assert "| Services | 0 | 1 | 0 | 1 |" in lines
    assert "| All | 1 | 1 | 1 | 1 |" in lines
    assert "| `should allow a+b on 80 [Feature:NetworkPolicy]` | passed | 62 |" in lines
    assert "| `Services of a cloud` | needs a cloud |" in lines
    assert all("a \\| b" in line for line in lines if "failed:" in line)
    with pytest.raises(ValueError, match="made by"):
        with_results("# Another page\n", run)
