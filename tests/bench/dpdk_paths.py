"""The ten paths of DPDK's own test suite through virtio_user, and `dpdk_loop.c`, which runs one of them.

DPDK's test suite (DTS, "loopback virtio_user" and "pvp virtio_user") calls a path what a split or a packed ring is with mergeable
buffers or not, in order or not, and vectorized. A path is asked for, and DPDK may take another without an error: so its log is
read for what was negotiated and which functions it took.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO, Any, Final, NamedTuple

from tests.bench.frame_runs import Case, Run
from tests.bench.loss_free import Trial
from userspace_cni.fastpath.vhost.vhost_messages import Feature

_RUN_SECONDS: Final = 60
_LOG_LEVELS: Final = ("--log-level=.*:error", "--log-level=pmd.net.virtio.init:debug")
_EAL: Final = ("--in-memory", "--single-file-segments", "--no-pci", "--no-telemetry", "-m", "64")
_WIDE: Final = "--force-max-simd-bitwidth=512"
"""A packed ring is vectorized by AVX-512 alone, which DPDK does not use unless it is told to."""


class DpdkPath(NamedTuple):
    """A path, by what virtio_user is asked for."""

    name: str
    packed: bool
    mergeable: bool
    in_order: bool
    vectorized: bool = False

    @property
    def devargs(self) -> str:
        asked = {"packed_vq": self.packed, "mrg_rxbuf": self.mergeable, "in_order": self.in_order, "vectorized": self.vectorized}
        return ",".join(f"{key}={value:d}" for key, value in asked.items())

    @property
    def asked_at_least(self) -> int:
        """The fewest frames that its receive function gives any for: that of a vectorized split ring goes by eight."""
        return 8 if self.vectorized and not self.packed else 1

    @property
    def features(self) -> Feature:
        """Those of the negotiated features that make the path."""
        made = {Feature.RING_PACKED: self.packed, Feature.NET_MRG_RXBUF: self.mergeable, Feature.IN_ORDER: self.in_order}
        return Feature(sum(feature for feature, wanted in made.items() if wanted))


DPDK_PATHS: Final = tuple(
    path
    for packed, ring in ((False, "split"), (True, "packed"))
    for path in (
        DpdkPath(f"{ring} mergeable", packed, mergeable=True, in_order=False),
        DpdkPath(f"{ring} non-mergeable", packed, mergeable=False, in_order=False),
        DpdkPath(f"{ring} in-order mergeable", packed, mergeable=True, in_order=True),
        DpdkPath(f"{ring} in-order non-mergeable", packed, mergeable=False, in_order=True),
        # a packed ring is vectorized in order alone; a split one is not vectorized when it is in order
        DpdkPath(f"{ring} vectorized", packed, mergeable=False, in_order=packed, vectorized=True),
    )
)


class Taken(NamedTuple):
    """What DPDK took: its functions in its own words, and in what this is not what was asked for; "" if it is."""

    functions: str
    unlike: str


def read_taken(path: DpdkPath, log: str) -> Taken:
    """What the log says was taken; ValueError if it does not say it."""
    features = re.findall(r"features after negotiate = ([0-9a-f]+)", log)
    functions = {way: re.findall(rf"virtio: using (.*?) {way} path", log) for way in ("Rx", "Tx")}
    if not features or not all(functions.values()):
        raise ValueError(f"DPDK's log does not say which path it took: {log[-2000:]}")
    of_paths = Feature.RING_PACKED | Feature.NET_MRG_RXBUF | Feature.IN_ORDER
    unlike = []
    if differs := (Feature(int(features[-1], 16) & of_paths) ^ path.features):
        unlike.append(f"not as asked: {differs!r}")
    if path.vectorized and not all("vectorized" in each for each in functions["Rx"]):
        unlike.append("not vectorized: " + "; ".join(re.findall(r"disabled .*", log) or ["DPDK does not say why"]))
    taken = ", ".join(f"{way} {' and '.join(dict.fromkeys(names))}" for way, names in functions.items())
    return Taken(taken, "; ".join(unlike))


class DpdkLoop:
    """A running loop at both ports, through which a frame has gone each way."""

    def __init__(self, path: DpdkPath, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._answer(until="ready")
        self.taken = read_taken(path, log.read_text(errors="replace"))

    def run(self, case: Case, seconds: float) -> Run:
        """As many frames as are taken."""
        told = self._order(case, seconds, 0)
        return Run(told["windows"], told["received"] / told["seconds"])

    def trial(self, case: Case, seconds: float, rate: float) -> Trial:
        """So many frames a second."""
        told = self._order(case, seconds, rate)
        return Trial(rate, seconds, told["sent"], told["received"], told["seconds"])

    def round_trip(self) -> float:
        """Microseconds of a single frame there and back, polling."""
        nanoseconds: float = self._ask("bounce")["nanoseconds"]
        return round(nanoseconds / 1000, 2)

    def _order(self, case: Case, seconds: float, rate: float) -> dict[str, Any]:
        words = (seconds, rate, case.length, case.batch, case.ways, int(case.touch))
        return self._ask(" ".join(map(str, words)))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._answer())
        return told

    def _answer(self, until: str = "") -> str:
        """The next line, or the next that is `until`; RuntimeError when the loop ends, or is ended because it hangs."""
        stdout: IO[str] | None = self._process.stdout
        assert stdout
        timer = Timer(_RUN_SECONDS, self._process.kill)
        timer.start()
        try:
            for line in stdout:
                if not until or line.strip() == until:
                    return line
        finally:
            timer.cancel()
        raise RuntimeError(f"dpdk_loop: exit {self._process.wait()}: {self._log.read_text(errors='replace')[-4000:]}")


def build(directory: Path) -> Path:
    """The compiled loop."""
    source, program = Path(__file__).with_name("dpdk_loop.c"), directory / "dpdk_loop"
    flags, libraries = (shlex.split(_pkg_config(what)) for what in ("--cflags", "--libs"))
    subprocess.run(["gcc", "-O3", "-march=native", *flags, "-o", program, source, *libraries], check=True)
    return program


def dpdk_version() -> str:
    """Of the DPDK that the loop is compiled with."""
    return _pkg_config("--modversion").strip()


@contextmanager
def looping(program: Path, path: DpdkPath, sockets: Sequence[str], core: int, queues: int = 1) -> Iterator[DpdkLoop]:
    """The loop as the server of both sockets; OVS comes to each within a second."""
    for name in sockets:
        Path(name).unlink(missing_ok=True)
    device = f"queue_size=256,queues={queues},{path.devargs},server=1"
    devices = [f"--vdev=net_virtio_user{index},path={name},{device}" for index, name in enumerate(sockets)]
    eal = [*_EAL, "-l", str(core), *_LOG_LEVELS, *([_WIDE] if path.vectorized else []), *devices]
    argv = [str(program), *eal, "--", str(queues), str(path.asked_at_least)]
    log = program.with_suffix(".log")
    with (
        log.open("w") as written,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, text=True) as process,
    ):
        try:
            yield DpdkLoop(path, process, log)
        finally:
            assert process.stdin
            process.stdin.close()
            timer = Timer(_RUN_SECONDS, process.kill)
            timer.start()
            process.wait()
            timer.cancel()


def _pkg_config(what: str) -> str:
    return subprocess.run(["pkg-config", what, "libdpdk"], check=True, capture_output=True, text=True).stdout
