"""Groups of tests that run, and those that run one after another while others run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Final, TextIO

from tests.lab.lanes.programs import NotMade, programs
from tests.lab.lanes.table import lane
from tests.lab.suite.beds import Making
from tests.lab.suite.calls import Call, Result
from tests.lab.suite.groups import Group
from tests.lab.suite.table import Row

SLOWEST: Final = "--durations=10"


class GroupRun:
    """A group that runs. One on a lane that could not be made does not, and has not failed unless the lane is required."""

    def __init__(self, group: Group, output: TextIO | None = None) -> None:
        """Begin it; what it prints goes to `output`, else to where ours goes."""
        self._group = group
        self._inside: tuple[str, ...] = ()
        self._call: Call | None = None
        self._not_made = ""
        if group.lane:
            try:
                self._inside = programs(lane(group.lane)).inside
            except NotMade as error:
                self._not_made = f"{group.name}: not made: {error}"
                print(self._not_made, file=output, flush=True)
                return
        self._call = Call(group.files, (*group.options, SLOWEST), output, inside=self._inside)

    def row(self) -> Row:
        """Wait for its end."""
        if self._call:
            return Row(self._group.name, self._call.result(), inside=self._inside)
        failures = {"the lane": self._not_made} if lane(self._group.lane).always else {}
        return Row(f"{self._group.name}: not made", Result(failures=failures))

    def stop(self) -> None:
        """End it, if it runs."""
        if self._call:
            self._call.stop()


class Line:
    """Runs groups in a thread, each when what it needs has been made, and keeps what they print."""

    def __init__(self, groups: Sequence[Group], making: Making) -> None:
        self._groups = [group for group in groups if group.files]
        self._making = making
        self._output = TemporaryFile("w+", errors="replace")  # noqa: SIM115 - `rows` closes it
        self._rows: list[Row] = []
        self._running: GroupRun | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def rows(self) -> list[Row]:
        """Wait for all, and print what they printed. A group that was not run has failed."""
        self._thread.join()
        with self._output:
            self._output.seek(0)
            print(self._output.read(), flush=True)
        lost = Result(failures={"pytest": "it could not be started; the trace above says why"})
        return [*self._rows, *(Row(group.name, lost) for group in self._groups[len(self._rows) :])]

    def stop(self) -> None:
        """End what runs and begin no other."""
        self._stopped = True
        if running := self._running:
            running.stop()
        self._thread.join()

    def _run(self) -> None:
        for group in self._groups:
            if group.beds:
                self._making.wait()
            if self._stopped:
                return
            self._running = GroupRun(group, self._output)
            if self._stopped:  # while it was started
                self._running.stop()
            self._rows.append(self._running.row())
