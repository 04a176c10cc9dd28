"""What our back-end carries with split rings and with packed ones, to and from the same front-end.

`python tests/bench/back_end.py [--json] [--rounds N]`, on a machine that does nothing else, with two cores. Frames of 64 bytes in
batches of 32 go to a front-end and come back; each round tries all of them, and a ratio is the median of the rounds' ratios. The
rate is that of windows of one millisecond, of which the 95th percentile is the plateau.

    virtio_user  DPDK's, in testpmd on the second core, which sends each frame back; by its mode
    own          our front-end, frames both ways in one thread with the back-end: what both cost without a second core
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench.report import arguments, machine, show_parts, tell
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath import BackEndListener, BackEndOptions, FrontEnd, FrontEndOptions
from userspace_cni.fastpath.rings.generator import Load, Slice, blast, blast_both

FRAME: Final = bytes.fromhex("02000000000b02000000000a88b5") + bytes(50)
SECONDS: Final = 0.4
MODES: Final = {
    "mergeable, in order": "mrg_rxbuf=1,in_order=1",
    "mergeable": "mrg_rxbuf=1,in_order=0",
    "vectorized, in order": "mrg_rxbuf=0,in_order=1,vectorized=1",
}
START_S: Final = 30.0


def plateau(found: Slice) -> float:
    """Million frames a second."""
    ordered = sorted(found.windows)
    return ordered[int(len(ordered) * 0.95)] / 1000


def load() -> Load:
    return Load(FRAME, 32, SECONDS, True, True, 1_000_000)


def with_testpmd(path: str, mode: str, packed: bool) -> float:
    """Frames to testpmd's virtio_user and back."""
    argv = ["dpdk-testpmd", "--lcores=0@1,1@1", "--no-huge", "--no-pci", "-m", "128", "--no-telemetry", "--no-shconf"]
    argv += ["--vdev", f"net_virtio_user0,path={path},packed_vq={int(packed)},queue_size=256,{mode}"]
    argv += ["--", "--total-num-mbufs=8192", "--no-mlockall", "--forward-mode=io", "--auto-start"]
    silent = subprocess.DEVNULL
    with (
        BackEndListener(path) as listener,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=silent, stderr=silent) as process,
    ):
        try:
            with listener.accept(START_S) as back_end:
                back_end.wait_started(START_S)
                pair = back_end.pairs[0]
                wait_until(lambda: (pair.send_frames([FRAME]), pair.wait(0.05))[1], START_S, "a frame that comes back")
                return plateau(blast(pair, pair, load()))
        finally:
            process.kill()


def with_ours(path: str, packed: bool) -> float:
    """Frames both ways between our two ends."""
    with BackEndListener(path, BackEndOptions(packed=packed)) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept)
        with FrontEnd.connect(path, FrontEndOptions(packed=packed)) as front_end, accepted.result() as back_end:
            back_end.wait_started(START_S)
            return plateau(blast_both(front_end.pairs[0], back_end.pairs[0], load()))


def measure(rounds: int) -> dict[str, Any]:
    os.sched_setaffinity(0, {0})
    rates: dict[str, list[tuple[float, float]]] = {}
    with TemporaryDirectory(prefix="uc-") as directory:
        path = str(Path(directory) / "s")
        for _ in range(rounds):
            for name, mode in MODES.items():
                split, packed = (with_testpmd(path, mode, kind) for kind in (False, True))
                rates.setdefault(f"virtio_user, {name}", []).append((split, packed))
            rates.setdefault("own", []).append((with_ours(path, False), with_ours(path, True)))
    return {
        "machine": machine(),
        **{
            name: {
                "split, Mpps": round(statistics.median(split for split, _ in found), 1),
                "packed, Mpps": round(statistics.median(packed for _, packed in found), 1),
                "packed to split": round(statistics.median(packed / split for split, packed in found), 2),
            }
            for name, found in rates.items()
        },
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    return tell(measure(asked.rounds), asked.json, lambda report: show_parts("our back-end", report))


if __name__ == "__main__":
    sys.exit(main())
