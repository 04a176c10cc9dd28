"""Images, Kubernetes and a virtual machine's kernel, which tests need, are made while other tests run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from tests.lab.suite.groups import Bed


class Making:
    """Makes beds one after another, in a thread, and keeps what they print."""

    def __init__(self, beds: Sequence[Bed]) -> None:
        self._beds = beds
        self._told: list[str] = []
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._make)
        self._thread.start()

    def wait(self) -> str:
        """Wait for all; a line for each, and the output of one that failed."""
        self._thread.join()
        return "\n".join(self._told)

    def stop(self) -> None:
        """End the one that is being made and begin no other."""
        self._stopped = True
        if (running := self._running) and running.poll() is None:
            running.terminate()
        self._thread.join()

    def _make(self) -> None:
        for bed in self._beds:
            if self._stopped:
                return
            began = time.monotonic()
            command = (sys.executable, "-m", bed.module, bed.kind)
            self._running = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            text, _ = self._running.communicate()
            code = self._running.returncode
            self._told.append(f"{bed.what}: {f'failed with {code}' if code else 'made'} ({time.monotonic() - began:.0f} s)")
            if code:
                self._told.append(text)
