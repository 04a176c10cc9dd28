"""A storm: random ADDs, DELs, CHECKs and GCs from several threads amid faults, and the check of what must be there afterwards.

    python -m tests.crash.storm --operations 10000 --seed 7

Calls go through the shim and in-process by turns, for several networks, bridges and volumes in both modes of OVS, while daemons
are killed, the disk of the records is full or read-only, callers are killed and sandboxes vanish. Now and then the storm calms
down: faults end, the agent has its passes, and all that is on the node must be what the answers have promised (`storm_model`).
At the end all is deleted, and nothing may be left.

Every choice comes from the seed. The order in which threads come to their turns does not: the same seed makes the same kind of
storm, not the same one. So what is wrong is told with the history of the attachments that it concerns.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from tests.agent.living import LiveNode
from tests.crash import storm_faults
from tests.crash.storm_callers import Callers, Worker
from tests.crash.storm_calm import Calm
from tests.crash.storm_faults import Clock, Faults, disk
from tests.crash.storm_model import Model, Violation
from tests.crash.storm_pods import ADMINS_BRIDGE, NETWORKS, Pods
from tests.lab.node.agent import get
from tests.lab.node.node import clean
from tests.lab.switch.switch import Switch

PROGRESS_S = 5.0


@dataclass(frozen=True)
class Plan:
    """Size of a storm. `operations`: calls; `burst`: calls between two calms; `pods`: how many there are at a time.

    `kinds` of faults and names of `networks`: with fewer of them it is easier to see what a violation needs.
    """

    seed: int = 0
    operations: int = 10_000
    seconds: float = 3600.0
    faults: int = 240
    threads: int = 4
    pods: int = 10
    burst: int = 500
    keep_going: bool = False
    kinds: tuple[str, ...] = storm_faults.DEALT
    networks: tuple[str, ...] = tuple(network.name for network in NETWORKS)


@dataclass
class Outcome:
    """Results of a storm."""

    calls: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """Faults by kind, and answers by verb and code."""
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        counted = "\n".join(f"  {times:6}  {what}" for what, times in sorted(self.happened.items()))
        return f"{self.calls} calls, {len(self.violations)} violations\n{counted}"


class Storm:
    """A storm on a switch. `tell` gets a line about its progress, and each violation at once."""

    def __init__(self, plan: Plan, switch: Switch, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._switch = switch
        self._tell = tell
        self._began = time.monotonic()
        self._rounds = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run until all calls are made, the time is over, or a violation stops the storm."""
        while not self._is_over():
            self._rounds += 1
            with self._node() as node:
                self._on(node, random.Random(f"{self._plan.seed}:{self._rounds}"))
            if self.outcome.violations and not self._plan.keep_going:
                break
        return self.outcome

    def _is_over(self) -> bool:
        plan = self._plan
        return self.outcome.calls >= plan.operations or time.monotonic() - self._began >= plan.seconds

    @contextmanager
    def _node(self) -> Iterator[LiveNode]:
        """A node with an agent, whose records have a small disk."""
        settings = {"USERSPACE_CNI_DEADLINE_S": "15"}
        with TemporaryDirectory(prefix="uc-") as directory, ExitStack() as stack:
            path = Path(directory) / "n"
            node = stack.enter_context(clean(LiveNode(path, self._switch, settings)))
            assert isinstance(node, LiveNode)
            node.settings["USERSPACE_CNI_DEVICE_INFO_DIR"] = f"{path}/devinfo"
            stack.enter_context(disk(node.state))
            for path in Path(self._switch.rundir).glob("*-net?"):
                path.unlink()  # of a former node whose ports were lost with ovs-vswitchd
            self._switch.vsctl("add-br", ADMINS_BRIDGE, "--", "set", "Bridge", ADMINS_BRIDGE, "datapath_type=netdev")
            stack.callback(node.close)
            yield node.start()

    def _on(self, node: LiveNode, rng: random.Random) -> None:
        """Run bursts and calms on one node, to the end or until a violation."""
        with ExitStack() as stack:
            plan, model, pods = self._plan, Model(), Pods(node, self._rounds)
            stack.callback(pods.close)
            self._tell(f"node {self._rounds} begins at {datetime.now(UTC):%H:%M:%S.%f}, in {node.directory}")
            clock = Clock(plan.seconds - (time.monotonic() - self._began))
            callers = stack.enter_context(Callers(pods, model, clock, self.outcome.happened, plan.threads))
            callers.populate(rng, plan.pods, plan.networks)
            calm = Calm(pods, callers.calling, callers.plugins[0], rng)
            before, sound = self.outcome.calls, True
            while sound and not clock.is_over and self.outcome.calls < plan.operations:
                told = self._burst(node, callers, clock, rng)
                self.outcome.calls = before + clock.calls
                last = clock.is_over or self.outcome.calls >= plan.operations
                self._progress(clock, "calm")
                found = calm.settle(empty=last or rng.random() < 0.25) + _complaints(node)
                for violation in told + found:
                    self._tell(self._described(violation, node))
                self.outcome.violations += told + found
                sound = not found and (plan.keep_going or not told)

    def _burst(self, node: LiveNode, callers: Callers, clock: Clock, rng: random.Random) -> list[Violation]:
        plan, first = self._plan, clock.calls
        last = min(first + plan.burst, first + plan.operations - self.outcome.calls)
        share = max(1, round(plan.faults * (last - first) / max(1, plan.operations)))
        faults = Faults(node, callers.model, clock, callers.vanish, self._count)
        faults.begin(
            storm_faults.deal(rng, share, plan.kinds), range(first, first + max(1, (last - first) * 4 // 5)), str(rng.random())
        )
        workers = [Worker(callers, number, random.Random(rng.random())) for number in range(plan.threads)]
        for worker in workers:
            worker.start()
        while not clock.is_over and (clock.calls < last or faults.alive) and not faults.found:
            clock.wait(clock.calls + 1_000_000, PROGRESS_S / 10 if clock.calls >= last else PROGRESS_S)
            self._progress(clock, "storm")
        callers.pause(workers)
        faults.join()
        for error in [*faults.errors, *callers.errors]:
            for violation in callers.found + faults.found:
                self._tell(self._described(violation, node))
            raise RuntimeError(f"the storm of seed {plan.seed} cannot go on; {node.log.read_text()[-2000:]}") from error
        found = callers.found + faults.found
        callers.found.clear()
        return found

    def _count(self, kind: str) -> None:
        self.outcome.happened[f"fault: {kind}"] += 1

    def _progress(self, clock: Clock, phase: str) -> None:
        faults = sum(times for what, times in self.outcome.happened.items() if what.startswith("fault: "))
        done = f"{clock.calls} calls on this node, {faults} faults, {len(self.outcome.violations)} violations"
        self._tell(f"[{phase} {self._rounds}] {done}; {max(0, clock.left):.0f} s left")

    def _described(self, violation: Violation, node: LiveNode) -> str:
        """The violation with the seed, and with the log lines of agents and switch about it."""
        said = [f"VIOLATION, seed {self._plan.seed}, node {self._rounds}: {violation}"]
        for who, path in (("agent", node.log), ("switch", Path(self._switch.rundir) / "ovs-vswitchd.log")):
            log = path.read_text(errors="replace").splitlines()
            log = [line for line in log if "assigned port" not in line]  # of its polling threads
            lines = dict.fromkeys(line for line in log if any(name.container[:12] in line for name in violation.names))
            said += [f"    {who}: {line}" for line in list(lines)[-30:]]
        return "\n".join(said)


def _complaints(node: LiveNode) -> list[Violation]:
    """Violations that the agent itself reports."""
    status, body = get(node.socket, "/healthz")
    found = [] if status == 200 else [Violation(f"the agent is not well: {body.decode()}")]
    log = node.log.read_text(errors="replace")
    for words in ("Traceback", "a pass of reconciliation failed", "a bug in userspace-cni"):
        if words in log:
            at = log.index(words)
            found.append(Violation(f"the agent's log has {words!r}: {log[max(0, at - 300) : at + 1500]}"))
    return found


def main() -> int:
    """Run the command line: 0 when all is as promised, 1 when something is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.storm", description=(__doc__ or "").partition("\n")[0])
    default = Plan()
    parser.add_argument("--seed", type=int, default=default.seed, help="of all choices")
    parser.add_argument("--operations", type=int, default=default.operations, help="calls (%(default)s)")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="no longer than this (%(default)s)")
    parser.add_argument("--faults", type=int, help="of daemons, disks and sandboxes; callers are killed beside them")
    parser.add_argument("--threads", type=int, default=default.threads, help="that call (%(default)s)")
    parser.add_argument("--pods", type=int, default=default.pods, help="at a time (%(default)s)")
    parser.add_argument("--burst", type=int, default=default.burst, help="calls between two calms (%(default)s)")
    parser.add_argument("--keep-going", action="store_true", help="after a violation go on, on a new node")
    parser.add_argument("--kinds", type=_listed, default=default.kinds, help=f"of faults: {', '.join(default.kinds)}")
    parser.add_argument("--networks", type=_listed, default=default.networks, help=f"{', '.join(default.networks)}")
    given = vars(parser.parse_args())
    given["faults"] = given["faults"] or max(len(storm_faults.DEALT), given["operations"] // 40)
    plan = Plan(**given)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(2))  # what was started is ended
    with Switch() as switch:
        outcome = Storm(plan, switch, lambda line: _print(line, sys.stderr)).run()
    _print(f"seed {plan.seed}: {outcome}", sys.stdout)
    return 1 if outcome.violations else 0


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


_printing = threading.Lock()


def _print(line: str, stream: TextIO) -> None:
    with _printing:
        stream.write(f"{line}\n")
        stream.flush()


if __name__ == "__main__":
    sys.exit(main())
