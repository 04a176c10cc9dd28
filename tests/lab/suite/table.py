"""The end of a run: failures, failures by chance, and a table of its groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.lab.suite.calls import Result

MOST_FLAKY: Final = 3
"""How many failures by chance a run may have; more fail it. Many tests that failed with the same text count once."""


@dataclass
class Row:
    """A group that has run, and which of its failures passed when they were rerun alone.

    `inside`: the prefix by which it was started on a lane; another group may have a test of the same name.
    """

    group: str
    result: Result
    flaky: dict[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()

    def judge(self, second: dict[str, Result]) -> None:
        """Add the results of the rerun, by file: a test that failed and passes there failed by chance."""
        for test, text in self.result.failures.items():
            if not failed_in(second, test):
                self.flaky[test] = text
        self.result.failures.update({test: "it did not run" for test in self.result.missed if failed_in(second, test)})

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(each for each in self.result.failures if each not in self.flaky)

    def named(self, test: str) -> str:
        return f"{self.group}: {test}" if self.inside else test


def failed_in(runs: dict[str, Result], test: str) -> bool:
    """Whether a test, or any of a file that could not be read, failed in these reruns, or is missing in them."""
    run = runs.get(test.partition("::")[0], Result())
    if "::" not in test:
        return not run.tests or bool(run.failures or run.missed)
    return not run.tests or test in run.failures or test in run.missed or "pytest" in run.failures


def table(rows: list[Row]) -> str:
    """Group, tests, seconds, failed, flaky."""
    lines = [("group", "tests", "seconds", "failed", "flaky")]
    lines += [
        (row.group, f"{row.result.tests:,}", f"{row.result.seconds:,.0f}", str(len(row.failed)), str(len(row.flaky)))
        for row in rows
    ]
    width = max(len(line[0]) for line in lines)
    return "\n".join(f"{name:<{width}}" + "".join(f"{each:>10}" for each in rest) for name, *rest in lines)


def summary(rows: list[Row]) -> tuple[str, bool]:
    """The text at the end of a run, and whether it passed."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        for test, text in row.flaky.items():
            by_text.setdefault(text, []).append(row.named(test))
    failed = [row.named(test) for row in rows for test in row.failed]
    parts = ["\n".join([*(f"flaky: {test}" for test in tests), text]) for text, tests in by_text.items()]
    if by_text:
        parts.append("What failed by chance belongs into tests/flaky.md, with date and cause, and is mended before anything new.")
    if len(by_text) > MOST_FLAKY:
        parts.append(f"There were {len(by_text)} failures by chance, more than {MOST_FLAKY}: that is a failure.")
    parts += [f"failed: {test}" for test in failed]
    return "\n\n".join([*parts, table(rows)]), not failed and len(by_text) <= MOST_FLAKY
