"""One call of pytest, and what came of it, however it ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

from tests.lab.suite.exercised import ROOT

SILENCE_S: Final = 900.0
"""A call that tells of no test for so long hangs: no test may take longer."""
_ENDING_S: Final = 60.0
_LOOK_S: Final = 0.5


@dataclass
class Result:
    """What came of one call: how many tests it had; what failed, by test (or file, where it cannot be read), with its text; what
    had not begun when the call died."""

    tests: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)
    missed: tuple[str, ...] = ()

    @classmethod
    def read(cls, lines: Iterable[str], ended: str) -> Result:
        """What the reports tell; a test that began and did not end counts as a failure, with `ended` as its text."""
        collected: dict[str, None] = {}
        began: set[str] = set()
        over: set[str] = set()
        made = cls()
        for line in lines:
            try:
                told: dict[str, Any] = json.loads(line)
            except ValueError:  # its writer was killed amid it
                continue
            collected.update(dict.fromkeys(told.get("collected", ())))
            began.add(told.get("began", ""))
            if told.get("outcome") == "failed":
                made.failures[told["id"]] = "\n".join(filter(None, (made.failures.get(told["id"]), told["text"])))
            if told.get("when") in ("teardown", "???"):
                over.add(told["id"])
        for test in began & collected.keys() - over:
            made.failures.setdefault(test, f"it did not end: {ended}")
        made.missed = tuple(test for test in collected if test not in began | over)
        made.tests = len(collected)
        return made


class Call:
    """A running pytest for some files or tests, in a directory for what it keeps of its own."""

    def __init__(
        self, what: Sequence[str], options: Sequence[str] = (), output: TextIO | None = None, place: Path = ROOT
    ) -> None:
        """Begin in the directory `place`; what it prints goes to `output`, else to where ours goes."""
        self._directory = TemporaryDirectory(prefix="uc-suite-")
        self._reports = Path(self._directory.name) / "reports"
        listed = Path(self._directory.name) / "tests"
        listed.write_text("".join(f"{each}\n" for each in what))
        own = ("-p", "tests.lab.suite.reports", f"--reports={self._reports}", "-o", f"cache_dir={self._directory.name}/cache")
        self._began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", *own, *options, f"@{listed}"]
        self._process = subprocess.Popen(command, stdout=output, stderr=output and subprocess.STDOUT, cwd=place)

    def result(self) -> Result:
        """Wait for its end, and end it when it hangs."""
        try:
            ended = self._end()
            lines = self._reports.read_text().splitlines() if self._reports.exists() else []
        finally:
            self.stop()
        made = Result.read(lines, ended)
        made.seconds = time.monotonic() - self._began
        if self._process.returncode and not (made.failures or made.missed):  # also where no test was found
            made.failures["pytest"] = f"{ended}; its own lines above say why"
        return made

    def stop(self) -> None:
        """End it, if it runs, and remove its directory."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_ENDING_S)
        self._directory.cleanup()

    def _end(self) -> str:
        told, size = time.monotonic(), -1
        while self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)
            now = self._reports.stat().st_size if self._reports.exists() else 0
            if now != size:
                told, size = time.monotonic(), now
            elif time.monotonic() - told > SILENCE_S:
                return f"pytest told of no test for {SILENCE_S:.0f} s, and was ended"
        return f"pytest ended with {self._process.returncode}"


def again(tests: Iterable[str], place: Path = ROOT) -> dict[str, Result]:
    """Run each of these tests, or files, once more: the tests of a file in a pytest of their own, one file after another."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return {file: Call([file] if file in its else its, place=place).result() for file, its in files.items()}
