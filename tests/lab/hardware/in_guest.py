"""The first process of the guest with a full kernel: runs what comes by its virtio-serial port, one request after another.

It is copied into the guest as it is, and uses the standard library alone. A request is a line of JSON, and so is its answer:

    {"argv": [...], "stdin": "", "seconds": 60}            -> {"code": 0, "stdout": "", "stderr": ""}; code 124: it took too long
    {"page": "/api/v1/network", "method": "GET", "seconds": 60}  -> {"status": 200, "body": ""}, as the agent's socket answers

What it cannot do is answered with {"failed": "why"}. A snapshot is taken while it waits for a request.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

AGENT = "/run/userspace-cni/agent.sock"
_PAUSE_S = 0.05
_BOOT_S = 60.0
_TIMED_OUT = 124


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(AGENT)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return _page(request) if "page" in request else _command(request)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return {"failed": repr(error)}


def _command(request: dict[str, Any]) -> dict[str, Any]:
    given = request.get("stdin", "")
    try:
        done = subprocess.run(
            request["argv"],
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=request["seconds"],
        )
    except subprocess.TimeoutExpired as error:
        return {"code": _TIMED_OUT, "stdout": "", "stderr": str(error)}
    return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def _page(request: dict[str, Any]) -> dict[str, Any]:
    connection = _Connection("agent", timeout=request["seconds"])
    try:
        connection.request(request.get("method", "GET"), request["page"])
        reply = connection.getresponse()
        return {"status": reply.status, "body": reply.read().decode(errors="replace")}
    finally:
        connection.close()


def requests(port: int) -> Iterator[dict[str, Any]]:
    """The requests as they come, for ever. While no program has opened the other end nothing can be read.

    Half a line is dropped with its sender.
    """
    kept = b""
    while True:
        part = os.read(port, 1 << 16)
        if not part:
            kept = b""
            select.select([], [], [], _PAUSE_S)
            continue
        *lines, kept = (kept + part).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                yield json.loads(line)


def _opened(end: float) -> int:
    """The port. The kernel makes its file a moment before the port can be opened."""
    while True:
        for path in Path("/dev").glob("vport*p*"):
            try:
                return os.open(path, os.O_RDWR)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
        assert time.monotonic() < end, "no port of the host"
        select.select([], [], [], _PAUSE_S)


def main() -> None:
    """Load the modules that the port needs, and serve it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    subprocess.run(["/usr/sbin/modprobe", "-a", "virtio_console"], check=True)
    port = _opened(time.monotonic() + _BOOT_S)
    for request in requests(port):
        left = memoryview(json.dumps(answer(request)).encode() + b"\n")
        while left:
            left = left[os.write(port, left) :]


if __name__ == "__main__":
    main()
