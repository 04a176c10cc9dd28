"""One call of pytest, and its result, however it ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

from tests.lab.suite.exercised import ROOT

SILENCE_S: Final = 900.0
"""A call that reports no test for so long hangs: no test may take longer."""
_ENDING_S: Final = 60.0
_LOOK_S: Final = 0.5
_ALWAYS: Final = ("-q", "--continue-on-collection-errors")
_PASSED_OR_FAILED: Final = (0, 1)
"""Exit codes of pytest unless it was interrupted, had an internal error, or was called wrongly."""
_WORKER: Final = re.compile(r"gw\d+")


@dataclass
class Result:
    """The result of one call: how many tests it had; failures by test (or by file that cannot be read) with their text; what had
    not begun when the call died.

    Also whether pytest came to its end, or to a test that it died of, which counts as failed; and how many tests each file had,
    and the seconds that set-up, tests and teardown of it took together.
    """

    tests: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    understood: bool = True
    files: Counter[str] = field(default_factory=Counter)
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def read(cls, lines: Iterable[str], files: Iterable[str], ended: str, *, in_order: bool = True) -> Result:
        """Read the reports on these files; a test that began and did not end counts as a failure, with `ended` as its text.

        `in_order`: pytest was not ended from outside, and its exit code says that tests passed or failed.
        """
        collected: dict[str, None] = {}
        began: set[str] = set()
        over: set[str] = set()
        made = cls(understood=False)
        for line in lines:
            try:
                told: dict[str, Any] = json.loads(line)
            except ValueError:  # its writer was killed amid it
                continue
            collected.update(dict.fromkeys(told.get("collected", ())))
            began.add(told.get("began", ""))
            if told.get("outcome") in ("failed", "skipped"):  # a test that cannot run is a failure
                made.failures[told["id"]] = "\n".join(filter(None, (made.failures.get(told["id"]), told["text"])))
            if told.get("when") in ("teardown", "???"):
                over.add(told["id"])
            if "seconds" in told:
                made.spent[told["id"].partition("::")[0]] += told["seconds"]
            made.understood |= told.get("when") == "???" or ("ended" in told and in_order)
        for test in began & collected.keys() - over:
            made.failures.setdefault(test, f"it did not end: {ended}")
            made.understood = True
        made.missed = tuple(test for test in collected if test not in began | over)
        made.tests = len(collected)
        made.files = Counter(test.partition("::")[0] for test in collected)
        if set(made.failures) - (workers := set(filter(_WORKER.fullmatch, made.failures))):
            for worker in workers:  # it collected other tests than a worker that could not read a file
                del made.failures[worker]
        if collected:
            silent = set(files) - {each.partition("::")[0] for each in (*collected, *made.failures)}
            made.failures.update(dict.fromkeys(silent, "no test was found in it"))
        return made


class Call:
    """A running pytest for some files or tests, in a directory for what it keeps of its own."""

    def __init__(
        self,
        what: Sequence[str],
        options: Sequence[str] = (),
        output: TextIO | None = None,
        place: Path = ROOT,
        inside: Sequence[str] = (),
    ) -> None:
        """Begin in the directory `place`; what it prints goes to `output`, else to where ours goes.

        `inside`: what it is started by, to have other programs than this machine's own.
        """
        self._directory = TemporaryDirectory(prefix="uc-suite-")
        self._reports = Path(self._directory.name) / "reports"
        self._files = tuple(each.partition("::")[0] for each in what)
        listed = Path(self._directory.name) / "tests"
        listed.write_text("".join(f"{each}\n" for each in what))
        own = ("-p", "tests.lab.suite.reports", f"--reports={self._reports}", "-o", f"cache_dir={self._directory.name}/cache")
        self._began = time.monotonic()
        # A terminal signals Ctrl-C and its own end to all processes in its foreground. In a session of its own pytest gets
        # only the signal of `stop`, once, and is awaited; if this process is killed, the kernel ends it.
        command = [*inside, "setpriv", "--pdeathsig", "INT", sys.executable, "-m", "pytest"]
        command += [*_ALWAYS, *own, *options, f"@{listed}"]
        self._process = subprocess.Popen(
            command, stdout=output, stderr=output and subprocess.STDOUT, cwd=place, start_new_session=True
        )

    def result(self) -> Result:
        """Wait for its end, and end it when it hangs."""
        try:
            ended, in_order = self._end()
            lines = self._reports.read_text().splitlines() if self._reports.exists() else []
        finally:
            self.stop()
        made = Result.read(lines, self._files, ended, in_order=in_order)
        made.seconds = time.monotonic() - self._began
        unexplained = (self._process.returncode or made.missed or not made.tests) and not made.failures
        if unexplained or not made.understood:  # a rerun of its tests would not show why
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

    def _end(self) -> tuple[str, bool]:
        told, size = time.monotonic(), -1
        while self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)
            now = self._reports.stat().st_size if self._reports.exists() else 0
            if now != size:
                told, size = time.monotonic(), now
            elif time.monotonic() - told > SILENCE_S:
                return f"pytest told of no test for {SILENCE_S:.0f} s, and was ended", False
        return f"pytest ended with {self._process.returncode}", self._process.returncode in _PASSED_OR_FAILED


def again(tests: Iterable[str], place: Path = ROOT, inside: Sequence[str] = ()) -> dict[str, Result]:
    """Rerun each of these tests, or files: the tests of a file in a pytest of their own, one file after another."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return {file: Call([file] if file in its else its, place=place, inside=inside).result() for file, its in files.items()}
