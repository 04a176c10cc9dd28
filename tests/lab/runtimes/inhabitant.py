"""A process in a pod as a runtime makes it: in the pod's network namespace, with a root and mounts of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.runtimes.images import unpack_image
from tests.lab.switch.switch import wait_until

# As runc does: no mount leaves the namespace, and later mounts in a volume come in according to its propagation
_ENTER = """
set -e
root=$1 volume=$2 inside=$3 propagation=$4
mount --bind "$root" "$root"
mkdir -p "$root$inside"
mount --rbind "$volume" "$root$inside"
mount "--make-$propagation" "$root$inside"
exec chroot "$root" /bin/sleep 1000
"""


class Inhabitant:
    """The process `pid`; `root` is its root directory, as it is seen from outside."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.root = Path(f"/proc/{pid}/root")

    def sees(self, path: str) -> Path:
        return self.root / path.lstrip("/")


@contextmanager
def inhabitant(netns: str, volume: Path, inside: str, propagation: str) -> Iterator[Inhabitant]:
    """A process that has `volume` at `inside`; `propagation` is "rprivate", Kubernetes' default, or "rslave"."""
    with TemporaryDirectory(prefix="uc-pod-") as directory:
        root = Path(directory) / "root"
        unpack_image(root)
        enter = ["nsenter", f"--net={netns}", "unshare", "--mount", "--propagation", "slave"]
        arguments = [str(root), str(volume), inside, propagation]
        process = subprocess.Popen([*enter, "sh", "-c", _ENTER, "sh", *arguments], stdin=subprocess.DEVNULL)
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            wait_until(lambda: comm.read_text() == "sleep\n", what=f"process {process.pid} in its root")
            yield Inhabitant(process.pid)
        finally:
            process.kill()
            process.wait()
