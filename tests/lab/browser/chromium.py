"""A browser without a window and without a network, driven over the pipe of its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol: messages are JSON with a zero byte after each. It must not outlive its block.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

ANSWER_S: Final = 60.0
"""Seconds for an answer: a browser that starts on a busy machine needs some."""
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",  # root's browser has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TO, _FROM = 3, 4
"""The descriptors on which the browser reads and writes."""
_HIGH: Final = 10
"""Above these, so that placing one does not overwrite the other."""
_TOLD: Final = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.requestWillBeSent")


class Chromium:
    """The browser with one page. `told`: what the console got since it was opened, and what was requested beside it."""

    def __init__(self, width: int = 1400, height: int = 900) -> None:
        self._size = width, height
        self._ids = itertools.count(1)
        self._received = b""
        self._session = ""
        self._page = ""
        self.told: list[str] = []
        self._seen: list[str] = []

    def __enter__(self) -> Self:
        self._profile = TemporaryDirectory(prefix="uc-browser-", ignore_cleanup_errors=True)
        theirs, self._writing = os.pipe()
        self._reading, answers = os.pipe()
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in (theirs, answers)]
        placing = f'exec "$@" {_TO}<&{high[0]} {_FROM}>&{high[1]}'
        browser = [_program(), *_OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["unshare", "--net", "--", "bash", "-c", placing, "bash", *browser],
            pass_fds=high,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (theirs, answers, *high):
            os.close(each)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._writing)
        os.close(self._reading)
        self._profile.cleanup()

    def resize(self, width: int, height: int) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", _metrics(width, height))

    def open(self, path: Path) -> None:
        """Load a file, to its end."""
        self._page = path.as_uri()
        self._seen.clear()
        self.told.clear()
        self._ask("Page.navigate", {"url": self._page})
        deadline = time.monotonic() + ANSWER_S
        while "Page.loadEventFired" not in self._seen:
            self._receive(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page; AssertionError where it throws."""
        found = self._ask("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._ask("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})

    def turn_wheel(self, x: float, y: float, by: float) -> None:
        self._ask("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": by})

    def type_text(self, text: str) -> None:
        self._ask("Input.insertText", {"text": text})

    def press(self, key: str, code: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code})

    def prefer(self, scheme: str) -> None:
        """Have the page believe that the user prefers this colour scheme."""
        self._ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def photograph(self) -> bytes:
        """A PNG of what is seen."""
        return base64.b64decode(self._ask("Page.captureScreenshot")["data"])

    def print_pdf(self) -> bytes:
        """The page as it is printed, on the paper that it asks for."""
        return base64.b64decode(self._ask("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})["data"])

    def _ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"chromium said nothing for {ANSWER_S} s"
            chunk = os.read(self._reading, 1 << 20)
            assert chunk, f"chromium has ended with {self._process.poll()}"
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method", ""), message.get("params", {})
        self._seen.append(method)
        if method in _TOLD and params.get("request", {}).get("url", "") != self._page:
            self.told.append(f"{method}: {json.dumps(params)[:2000]}")
        return message


def _program() -> str:
    found = shutil.which("chromium")
    assert found, "chromium is not installed: deploy/prepare.sh browser"
    return found


def _metrics(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
