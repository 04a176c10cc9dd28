"""What a call of pytest has to tell: a plugin writes it down while the call runs, so that a call that dies has told it, too.

One JSON object a line: `{"collected": [ID…]}` once it is known what is to run; `{"began": ID}` when a test begins; and
`{"id", "when", "outcome", "seconds", "text"}` for each part of a test that is over, `when` being "setup", "call" or "teardown",
"collect" for a file that cannot be read, or "???" for a test that ended its worker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LONGEST_TEXT = 20_000
"""Characters that are kept of a failure: its end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file is named by who calls pytest."""
    parser.addoption("--reports", metavar="FILE", help="write down what is collected and each test's outcome, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Workers report to the process that started them, and that one writes."""
    if config.getoption("--reports") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(config.getoption("--reports"))), "reports-writer")


class Writer:
    """Writes each line as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: dict[str, Any]) -> None:
        """Add one object to the file."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Where there are no workers, the session has the tests."""
        if session.items:
            self.write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Workers have them, and each collects the same."""
        self.write({"collected": ids})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails."""
        if report.failed:
            self._report(report.nodeid, "collect", "failed", 0.0, report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.write({"began": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test is over."""
        text = (
            "\n".join([report.longreprtext, *(f"--- {name}\n{what}" for name, what in report.sections)]) if report.failed else ""
        )
        self._report(report.nodeid, report.when, report.outcome, report.duration, text)

    def _report(self, test: str, when: str, outcome: str, seconds: float, text: str) -> None:
        self.write({"id": test, "when": when, "outcome": outcome, "seconds": round(seconds, 3), "text": text[-LONGEST_TEXT:]})
