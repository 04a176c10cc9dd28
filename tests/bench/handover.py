"""What a call of the plugin as a process costs, with an agent to hand it to and without.

`python tests/bench/handover.py [--json] [--rounds N] [--at-once N] [--before FILE]`, as root. Everything is measured in one run
on one private switch, in turns: one call at a time on a rested switch, and then many at once.

    floor       the interpreter that the launcher starts, doing nothing: `python -I -c pass`
    binary      through the static binary and the agent
    handed      the launcher, which hands the call to the agent
    alone       the launcher with hand_over = false: it serves the call itself
    before      another launcher, as of an earlier release, if one is given; it has hand_over = false, too
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.attach import UID, Samples, existing_ports, measured, settle
from tests.bench.report import arguments, machine
from tests.lab.node.agent import running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import call, netns
from tests.lab.switch.switch import Switch

VERBS = ("ADD", "DEL")


class Caller:
    """Calls of one kind for numbered containers: what is executed, and with what beside the node's own environment."""

    def __init__(self, node: Node, sandbox: str, program: str, **environ: str) -> None:
        self._node = node
        self._sandbox = sandbox
        self._program = program
        self._environ = environ
        self._stdin = json.dumps(node.network()).encode()

    def __call__(self, verb: str, number: int) -> bool:
        """One call; False when it was out of time."""
        environ = self._node.variables(
            verb, self._sandbox, f"{number:012x}{'b' * 52}", CNI_ARGS=f"IgnoreUnknown=1;K8S_POD_UID={UID}", **self._environ
        )
        done = call(self._program, verb, environ, self._stdin)
        assert done.code in (None, 11), (done.stdout, done.stderr)
        return done.status == 0


def floor(verb: str, number: int) -> bool:
    """The interpreter's start and end."""
    return not subprocess.run([sys.executable, "-I", "-c", "pass"], stdin=subprocess.DEVNULL, check=False).returncode


def one_at_a_time(switch: Switch, callers: dict[str, Callable[[str, int], bool]], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of each kind and verb, in turns."""
    samples = {(name, verb): Samples() for verb in VERBS for name in callers}
    for number in range(rounds + 1):
        for name, caller in callers.items():
            for verb in VERBS:
                settle(switch)
                taken = measured(partial(_require, caller, verb, number))
                if number:  # the first round warms up
                    samples[name, verb].add(*taken)
    return [{"verb": verb, **{name: samples[name, verb].summary() for name in callers}} for verb in VERBS]


def _require(caller: Callable[[str, int], bool], verb: str, number: int) -> None:
    assert caller(verb, number), f"{verb} was out of time"


def at_once(switch: Switch, callers: dict[str, Callable[[str, int], bool]], count: int, rounds: int) -> list[dict[str, Any]]:
    """From the first start to the last end of so many calls, and their processor time without the agent's: medians, milliseconds.

    `late`: how many calls in all were out of time.
    """
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {(name, verb): [] for verb in VERBS for name in callers}
    late = dict.fromkeys(taken, 0)
    with ThreadPoolExecutor(count) as threads:
        for number in range(rounds):
            for name, caller in callers.items():
                for verb in VERBS:
                    settle(switch)
                    calls = [partial(caller, verb, 1000 * (number + 1) + index) for index in range(count)]

                    def all_of_them(key: tuple[str, str] = (name, verb), calls: list[partial[bool]] = calls) -> None:
                        late[key] += [each.result() for each in [threads.submit(one) for one in calls]].count(False)

                    taken[name, verb].append(measured(all_of_them))

    def median(name: str, verb: str) -> dict[str, float]:
        wall, cpu = (statistics.median(each) for each in zip(*taken[name, verb], strict=True))
        return {"wall": round(wall * 1000), "cpu": round(cpu * 1000), "late": late[name, verb]}

    return [{"verb": verb, **{name: median(name, verb) for name in callers}} for verb in VERBS]


def show(report: dict[str, Any]) -> None:
    console = Console(width=120)
    names = [name for name in report["single"][0] if name != "verb"]
    for title, rows, form in (
        ("One at a time: p50 / p95 / CPU, milliseconds", report["single"], "{p50:.1f} / {p95:.1f} / {cpu:.1f}"),
        (
            f"{report['count']} at once: all of them / CPU, milliseconds / calls out of time",
            report["at once"],
            "{wall} / {cpu} / {late}",
        ),
    ):
        table = Table(title=title, title_justify="left")
        for column in ("verb", *names):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(row["verb"], *(form.format(**row[name]) for name in names))
        console.print(table)
    console.print(report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=40)
    parser.add_argument("--before", metavar="FILE", help="another launcher, to be measured beside")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch())
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        node.empty_dir(UID)
        launcher = shutil.copy(node.plugin, directory / "launcher")
        stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30"))
        stack.enter_context(existing_ports(switch, node.directory, 0))
        caller = partial(Caller, node, stack.enter_context(netns()))
        callers: dict[str, Callable[[str, int], bool]] = {
            "floor": floor,
            "binary": caller(node.plugin),
            "handed": caller(str(launcher)),
            "alone": caller(str(launcher), USERSPACE_CNI_HAND_OVER="false"),
        }
        if options.before:
            callers["before"] = caller(options.before, USERSPACE_CNI_HAND_OVER="false")
        report = {
            "machine": machine(),
            "count": options.at_once,
            "single": one_at_a_time(switch, callers, options.rounds),
            "at once": at_once(switch, callers, options.at_once, 3),
        }
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
