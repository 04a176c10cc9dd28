"""The tables of docs/kubernetes-cases.md, made from the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.lab.judge.cases import FAILED, LEFT_OUT, PASSED, SKIPPED, Result
from tests.lab.suite.exercised import ROOT

PAGE: Final = ROOT / "docs" / "kubernetes-cases.md"
BEGIN: Final = "<!-- made by tests/run.sh judge -->\n"
END: Final = "<!-- made: end -->\n"
_OTHERS: Final = "Others"
_GROUPS: Final = {
    "NetworkPolicy": "Network policy",
    "Services ": "Services",
    "Networking ": "Pods and Services, by HTTP and UDP",
    "[Feature:IPv6DualStack": "Dual stack",
}
"""How the names of cases begin -> the section of the page."""
_BEFORE: Final = ("NetworkPolicy between server and client ",)
"""What each name of a section repeats."""
_LONGEST: Final = 300
_RESULTS: Final = (PASSED, FAILED, SKIPPED, LEFT_OUT)


@dataclass(frozen=True)
class Run:
    """The results of all cases; `versions`: what ran, in words; `when`: the month; `seconds`: of the whole run."""

    results: Sequence[Result]
    versions: str
    when: str
    seconds: float


def with_results(page: str, run: Run) -> str:
    """The page with these results. ValueError: it has no place for them."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has not the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{tables(run)}{END}{after}"


def tables(run: Run) -> str:
    """The sums by section, then each case that ran with its result, then those that were left out, by their reasons."""
    sections = {section: [each for each in run.results if _section(each.name) == section] for section in _sections()}
    took = f"{run.seconds / 60:.0f} minutes, {run.when}; {run.versions}."
    text = [f"{took}\n\n", _row("", *_RESULTS), _row("---", *["---:"] * len(_RESULTS))]
    for section, results in sections.items():
        counted = Counter(each.result for each in results)
        text.append(_row(section, *(str(counted[each]) for each in _RESULTS)))
    total = Counter(each.result for each in run.results)
    text.append(_row("All", *(str(total[each]) for each in _RESULTS)))
    for section, results in sections.items():
        if ran := [each for each in results if each.result != LEFT_OUT]:
            text += [f"\n### {section}\n\n", _row("Case", "Result", "s"), _row("---", "---", "---:")]
            text += [_row(_short(each.name), _told(each), f"{each.seconds:.0f}") for each in ran]
    text += ["\n### Left out\n\n", _row("Case", "It"), _row("---", "---")]
    left_out = sorted((each for each in run.results if each.result == LEFT_OUT), key=lambda each: (each.reason, each.name))
    text += [_row(f"`{each.name.strip()}`", _cell(each.reason)) for each in left_out]
    return "".join(text)


def _told(each: Result) -> str:
    return each.result + (f": {_cell(each.reason)}" if each.reason else "")


def _cell(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return short.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _short(name: str) -> str:
    for each in _BEFORE:
        name = name.partition(each)[2] or name
    for prefix in _GROUPS:
        if prefix.endswith(" "):
            name = name.removeprefix(prefix)
    return f"`{name.strip()}`"


def _sections() -> tuple[str, ...]:
    return (*_GROUPS.values(), _OTHERS)


def _section(name: str) -> str:
    return next((section for prefix, section in _GROUPS.items() if name.startswith(prefix)), _OTHERS)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
