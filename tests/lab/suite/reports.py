"""What a call of pytest has to tell: a plugin writes it down while the call runs, so that a call that dies has told it, too.

One JSON object a line: `{"collected": [ID…]}` once it is known what is to run; `{"began": ID}` when a test begins; and
`{"id", "when", "outcome", "seconds", "text"}` for each part of a test that is over, `when` being "setup", "call" or "teardown",
"collect" for a file that cannot be read, or "???" for a test that ended its worker; `{"ended": true}` when nothing is left to do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LONGEST_TEXT = 20_000
"""How many characters of a failure are kept, from its end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file is named by who calls pytest."""
    parser.addoption("--reports", metavar="FILE", help="write down what is collected and each test's outcome, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Workers report to the process that started them; only that one writes."""
    if config.getoption("--reports") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(config.getoption("--reports"))), "reports-writer")


class Writer:
    """Writes each line as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = False

    def write(self, line: dict[str, Any]) -> None:
        """Add one object to the file."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """The tests are over, and no plugin has failed at that."""
        self._over = True

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """All plugins have cleaned up, and none has failed."""
        if self._over:
            self.write({"ended": True})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Workers have them, and each collects the same."""
        self.write({"collected": ids})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails, and so does one that is skipped."""
        if not report.passed:
            self._report(report.nodeid, "collect", report.outcome, 0.0, report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write({"began": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = (
            "" if report.passed else "\n".join([report.longreprtext, *(f"--- {name}\n{what}" for name, what in report.sections)])
        )
        self._report(report.nodeid, report.when, report.outcome, report.duration, text)

    def _report(self, test: str, when: str, outcome: str, seconds: float, text: str) -> None:
        told = f"it was skipped: {text}" if outcome == "skipped" else text[-LONGEST_TEXT:]
        self.write({"id": test, "when": when, "outcome": outcome, "seconds": round(seconds, 3), "text": told})
