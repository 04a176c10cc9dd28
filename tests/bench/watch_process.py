"""The controller of logical ports, Services and policies as a process of its own: what it says, and what it uses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final, Self

import psutil

from tests.lab.switch.switch import wait_until

LONG_S: Final = 1800.0
_MIB: Final = 1 << 20


class Watch:
    """`ovn watch` as a process, from its start to its end. `remote`: the northbound database's."""

    def __init__(self, remote: str, kubeconfig: str, **settings: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        environ = {
            "USERSPACE_CNI_OVN_NB": remote,
            "USERSPACE_CNI_KUBECONFIG": kubeconfig,
            "USERSPACE_CNI_CONTROLLER_NAMESPACE": "system",
            "USERSPACE_CNI_METRICS_LISTEN": f"127.0.0.1:{self._port}",
            "USERSPACE_CNI_LOG_LEVEL": "warning",
        }
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "userspace_cni", "ovn", "watch"], env=os.environ | environ | settings
        )
        self._seen = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def metric(self, name: str) -> float | None:
        """A metric's value; None while there is no page, or no value."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as page:
                lines = page.read().decode().splitlines()
        except OSError:
            return None
        found = (line.rpartition(" ")[2] for line in lines if line.startswith(f"userspace_cni_controller_{name} "))
        return float(next(found, "nan"))

    def await_metric(self, name: str, least: float) -> float:
        """Wait until the metric has at least this value; when that was (time.monotonic)."""
        wait_until(lambda: (self.metric(name) or 0.0) >= least, LONG_S, f"{name} of {least}", pause=0.2)
        return time.monotonic()

    def cpu_s(self) -> float:
        used = self._seen.cpu_times()
        return float(used.user + used.system)

    def memory(self) -> dict[str, float]:
        """MiB: resident, the most of that so far, and of it its own."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [most] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        found = self._seen.memory_full_info()
        return {"resident": round(found.rss / _MIB), "own": round(found.uss / _MIB), "most": round(int(most) / 1024)}
