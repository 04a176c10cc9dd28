"""DPDK's testpmd as the application in a pod: in namespaces of its own, with the pod's volume where its container has it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.kube.pods import MAPPED_DIR

MEMORY_MIB = 64
"""The memory of each application, in hugepages of 2 MiB."""
_LEFT_TO_CLOSE = 60.0


def in_pod(netns: str, volume: Path) -> list[str]:
    """The beginning of a command that runs as a container of the pod would; nothing of it is left on the host."""
    script = f'mount -t tmpfs none /var/lib && mkdir -p {MAPPED_DIR} && mount --rbind {volume} {MAPPED_DIR} && exec "$@"'
    return ["nsenter", f"--net={netns}", "unshare", "--mount", "bash", "-c", script, "pod"]


def eal_arguments(netns: str, volume: Path, *options: str) -> list[str]:
    """What `python -m userspace_cni.pod` prints in the pod."""
    argv = [*in_pod(netns, volume), sys.executable, "-I", "-m", "userspace_cni.pod", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


class Testpmd:
    """A running testpmd. Both of its threads share the first core: the second is the switch's."""

    __test__ = False

    def __init__(self, netns: str, volume: Path, eal: list[str], forward: str) -> None:
        argv = [*in_pod(netns, volume), "dpdk-testpmd", "--lcores=0@0,1@0", "--no-pci", "-m", str(MEMORY_MIB), *eal, "--"]
        argv += ["--total-num-mbufs=4096", "--no-mlockall", f"--forward-mode={forward}"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def finish(self) -> dict[str, int]:
        """Stop it in an orderly way; its counters over all ports: "RX-packets" and "TX-packets"."""
        output, _ = self._process.communicate("\n", timeout=_LEFT_TO_CLOSE)
        counters = dict(re.findall(r"([RT]X-packets): (\d+)", output.partition("Accumulated forward statistics")[2]))
        assert self._process.returncode == 0, output
        assert counters, output
        return {name: int(value) for name, value in counters.items()}

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def run_testpmd(netns: str, volume: Path, eal: list[str], forward: str) -> Iterator[Testpmd]:
    """testpmd with these EAL arguments; it is killed at the end if it still runs."""
    started = Testpmd(netns, volume, eal, forward)
    try:
        yield started
    finally:
        started.close()
