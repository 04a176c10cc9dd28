"""cnitool as a caller: the command line of libcni's own authors, with their order of calls and their cache of results."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.lab.runtimes.containerd_host import RuntimeHost

NETWORK, IFNAME = "net", "net1"
"""The network of its calls."""
_RESULTS = Path("/var/lib/cni/results")
"""libcni's own place, which cnitool cannot be told to change."""
_CALL_S = 120.0


class CnitoolError(Exception):
    """What cnitool printed when a call failed."""


class Cnitool:
    """The cnitool `program` on `host`, with the host's networks and plugins. Releases differ in the verbs that theirs has."""

    def __init__(self, host: RuntimeHost, program: Path) -> None:
        self._host = host
        self._program = program

    @cached_property
    def verbs(self) -> frozenset[str]:
        """The verbs that it knows, by its own description."""
        said = subprocess.run([self._program], capture_output=True, text=True, timeout=_CALL_S, check=False).stderr
        return frozenset(words[1] for line in said.splitlines() if (words := line.split())[2:] == ["<net>", "<netns>"])

    def call(self, verb: str, netns: str, capabilities: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The output of a call for the namespace's interface: the result of an ADD, else {}. CnitoolError has its words."""
        own = {"NETCONFPATH": str(self._host.networks_dir), "CNI_PATH": str(self._host.bin), "CNI_IFNAME": IFNAME}
        own |= {"CAP_ARGS": json.dumps(capabilities)} if capabilities else {}
        argv = self._host.command(str(self._program), verb, NETWORK, netns)
        environ = self._host.environ | own
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=_CALL_S, check=False)
        if done.returncode:
            raise CnitoolError(f"cnitool {verb}: exit {done.returncode}: {done.stderr}")
        return dict(json.loads(done.stdout or "{}"))

    def cached(self, netns: str) -> dict[str, Any]:
        """The result that libcni keeps of the interface; {} when it keeps none."""
        file = _RESULTS / f"{NETWORK}-{container_of(netns)}-{IFNAME}"
        return dict(json.loads(file.read_text())["result"]) if file.exists() else {}


def container_of(netns: str) -> str:
    """The ID that cnitool gives to the container of a namespace."""
    return f"cnitool-{hashlib.sha512(netns.encode()).hexdigest()[:20]}"


@contextmanager
def forgotten(netns: str) -> Iterator[None]:
    """Remove at the end what libcni has kept of the namespace, whatever the test left."""
    try:
        yield
    finally:
        for file in _RESULTS.glob(f"*-{container_of(netns)}-*"):
            file.unlink()
