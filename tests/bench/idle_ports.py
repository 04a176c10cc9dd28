"""What ports that carry nothing cost a busy pair on the same polling thread, with packed and with split rings.

`python tests/bench/idle_ports.py [--json] [--rounds N] [--idle N]...`, as root, on a machine that does nothing else. Beside so
many idle ports (`--idle`) a busy pair carries frames of 64 bytes one way and both ways, and a single frame there and back. All of
that with packed rings at both ports of the pair and with split ones, and with packed and with split rings at the idle ports.

Mpps at the plateau, µs of a round trip; medians of the rounds. The round trips also tell how the hypervisor had placed the
processors (placement.py); only figures of like round trips without idle ports are to be compared.
"""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench.frame_runs import Case
from tests.bench.our_loads import RINGS, OurLoop
from tests.bench.report import arguments, machine, tell
from tests.bench.switch_pair import BRIDGE, INSTALLED, SwitchPair, switch_pair
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

_IDLE: Final = (0, 2, 4, 8, 16)
_SECONDS: Final = 0.12
_FIGURES: Final = ("one way", "both ways", "round trip")


class IdlePorts:
    """Ports with programs that have given all their buffers and send nothing."""

    def __init__(self, pair: SwitchPair, directory: Path, options: FrontEndOptions, stack: ExitStack) -> None:
        self._pair, self._directory, self._options, self._stack = pair, directory, options, stack
        self._count = 0

    def grow(self, count: int) -> None:
        """Have `count` of them."""
        for number in range(self._count, count):
            path = str(self._directory / f"idle{number}")
            listener = self._stack.enter_context(FrontEndListener(path, self._options, replace_dead=True))
            port = ["add-port", BRIDGE, f"idle{number}", "--", "set", "Interface", f"idle{number}", "type=dpdkvhostuserclient"]
            self._pair.switch.vsctl(*port, f"options:vhost-server-path={path}")
            self._stack.enter_context(listener.accept())
        self._count = count

    def remove(self) -> None:
        """Take them from the switch."""
        for number in range(self._count):
            self._pair.switch.vsctl("del-port", f"idle{number}")


@contextmanager
def idle_ports(pair: SwitchPair, directory: Path, options: FrontEndOptions) -> Iterator[IdlePorts]:
    """None at first."""
    with ExitStack() as stack:
        ports = IdlePorts(pair, directory, options, stack)
        try:
            yield ports
        finally:
            ports.remove()


def carried(pair: SwitchPair, options: FrontEndOptions, rounds: int) -> dict[str, float]:
    """What a busy pair with these rings carries."""
    found: dict[str, list[float]] = {name: [] for name in _FIGURES}
    with pair.attached(options) as ends:
        loop = OurLoop(ends)
        for _ in range(rounds):
            found["round trip"].append(loop.round_trip())
            for name, ways in (("one way", 1), ("both ways", 2)):
                found[name].append(loop.run(Case(ways=ways), _SECONDS).plateau)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def measure(rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    """The report."""
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="uc-") as path, switch_pair(INSTALLED, Path(path)) as pair:
        for kind, options in RINGS.items():
            with idle_ports(pair, Path(path), options) as idle:
                for count in counts:
                    idle.grow(count)
                    for busy, theirs in RINGS.items():
                        rows.append({"idle": count, "idle rings": kind, "busy rings": busy, **carried(pair, theirs, rounds)})
    return {"machine": machine(), "rounds": rounds, "rows": rows}


def show(report: dict[str, Any]) -> None:
    print(f"{report['machine']}; {report['rounds']} rounds\n")
    print(f"{'idle':>4}  {'their rings':14}{'busy rings':14}" + "".join(f"{name:>12}" for name in _FIGURES))
    for row in report["rows"]:
        figures = "".join(f"{row[name]:12.2f}" for name in _FIGURES)
        print(f"{row['idle']:4}  {row['idle rings']:14}{row['busy rings']:14}{figures}")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, action="append", metavar="N", help="so many idle ports; may be given again")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the switch, which polls, ends with it
    return tell(measure(options.rounds, sorted(options.idle or _IDLE)), options.json, show)


if __name__ == "__main__":
    sys.exit(main())
