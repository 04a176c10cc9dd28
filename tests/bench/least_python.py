"""The least that Python takes for what an ADD leaves: a model of the agent without threads, locks, checks and plans.

One thread reads a request, writes the record (flushed) and its three files in memory, mounts the pod's directory, makes the port
by a transaction that it writes by hand, writes the pod's file and answers. What the agent takes beyond that is for what the model
does not do: it cannot be undone, refuses nothing, and serves one call at a time.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.attach import BRIDGE
from tests.bench.floor import Floor

_MS_BIND = 4096
_MEMORY = Path("/dev/shm")
_EACH, _ONE = "a transaction each", "one transaction"
_LIBC = ctypes.CDLL(None, use_errno=True)
_RECORD = {"steps": [{"step": "port", "columns": {f"column{number}": f"value {number}" for number in range(60)}}] * 2}


def _write(path: Path, value: Any, *, flushed: bool = False) -> None:
    """A whole file, by a rename; flushed with its directory."""
    with Path(f"{path}.new").open("w") as file:
        file.write(json.dumps(value))
        if flushed:
            file.flush()
            os.fsync(file.fileno())
    Path(f"{path}.new").rename(path)
    if flushed:
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def _add(number: int, request: bytes, disk: Path, memory: Path) -> bytes:
    """One ADD but for its port."""
    call = json.loads(request)
    _write(disk / f"record{number}", _RECORD, flushed=True)
    for kind in ("state", "place", "ready"):
        _write(memory / f"{kind}{number}", _RECORD["steps"][0])
    pod, point = disk / f"pod{number}", memory / f"mount{number}"
    pod.mkdir()
    point.mkdir()
    assert _LIBC.mount(bytes(pod), bytes(point), None, _MS_BIND, None) == 0, os.strerror(ctypes.get_errno())
    _write(pod / "configData", call)
    return json.dumps({"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/run/netns/x"}]}).encode()


def least(ovsdb: str, directory: Path, network: object, count: int, rounds: int) -> dict[str, float]:
    """Milliseconds of this thread's processor time for each of `count` ADDs, the median of the rounds: with a transaction each,
    and one for all; with record and volume in `directory`, and in memory, because a disk's file system looks for free inodes
    for longer the more of them were freed lately."""
    places = {"": directory, ", in memory": _MEMORY}
    found: dict[str, list[float]] = {f"{kind}{place}": [] for place in places for kind in (_EACH, _ONE)}
    floor, request = Floor(ovsdb, BRIDGE, directory), json.dumps(network).encode()
    names = [f"least{number}" for number in range(count)]
    for _ in range(rounds):
        for kind, taken in found.items():
            place = places[kind.removeprefix(_EACH).removeprefix(_ONE)]
            with TemporaryDirectory(dir=place) as disk, TemporaryDirectory(dir=_MEMORY) as memory:
                began = time.thread_time()
                for number, name in enumerate(names):
                    _add(number, request, Path(disk), Path(memory))
                    if kind.startswith(_EACH):
                        floor.add([name])
                if kind.startswith(_ONE):
                    floor.add(names)
                taken.append((time.thread_time() - began) / count)
                for number in range(count):
                    assert _LIBC.umount2(bytes(Path(memory) / f"mount{number}"), 0) == 0
                floor.delete(names)
    floor.close()
    return {kind: round(statistics.median(taken) * 1000, 2) for kind, taken in found.items()}
