"""An examination: `python -m tests.lab.breaking.exam NUMBER` breaks a node in one way of the table, and does not say how.

It starts an OVS-DPDK, an agent and four pods of its own, makes the break, and prints how `userspace-cni` is called on that node.
It ends with Enter or SIGTERM, undoes everything, and then says what it was. `--list` shows the table. Needs root.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.breaking.breakable_node import BreakableNode, breakable
from tests.lab.breaking.every_break import EVERY_BREAK
from tests.lab.breaking.table import Break
from tests.lab.switch.switch import Switch


def main() -> int:
    parser = argparse.ArgumentParser(prog="exam", description=__doc__)
    parser.add_argument("number", nargs="?", type=int, help=f"1 to {len(EVERY_BREAK)}")
    parser.add_argument("--list", action="store_true", help="print all breaks with their numbers, which tells the answers")
    given = parser.parse_args()
    if given.list:
        for number, each in enumerate(EVERY_BREAK, 1):
            print(f"{number:3}  {each.name}: {each.story}")
        return 0
    if given.number is None or not 0 < given.number <= len(EVERY_BREAK):
        parser.error(f"a number from 1 to {len(EVERY_BREAK)} is needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _examine(EVERY_BREAK[given.number - 1])
    return 0


def _examine(broken: Break) -> None:
    with ExitStack() as end:
        switch = end.enter_context(Switch())
        kinds = sorted({broken.kind, "app", "served", "plain"}, key=lambda kind: kind != broken.kind)
        node = end.enter_context(breakable(switch, *kinds))
        broken.make(node, node.pods[broken.kind])
        directory = Path(end.enter_context(TemporaryDirectory(prefix="uc-exam-")))
        _explain(node, broken, directory)
        try:
            select.select([sys.stdin], [], [])
        finally:
            print(f"It was: {broken.name}: {broken.story}", flush=True)


def _explain(node: BreakableNode, broken: Break, directory: Path) -> None:
    """Print how the node is looked at. A shell that reads the file has its settings, and the command itself."""
    environ = {**_added(node.live.environ), "CNI_PATH": str(node.live.bin), "OVS_RUNDIR": node.switch.rundir}
    program = Path(sys.executable).with_name("userspace-cni")
    settings = directory / "node.sh"
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    settings.write_text("\n".join([*lines, f"export PATH={program.parent}:$PATH", ""]))
    asked = f"default/{broken.asks or broken.kind}"
    print(
        f"A node is broken. Its pods are on bridge br-test; its user complains about pod {asked}.\n"
        f"Look at it in a shell of yours, as root:\n\n  source {settings}\n  userspace-cni why {asked}\n\n"
        f"ovs-vsctl and ovs-appctl find its switch too: ovs-vsctl --db={node.switch.ovsdb} show\n"
        "Press Enter here, or send SIGTERM, when you know what it is.",
        flush=True,
    )


def _added(environ: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environ.items() if name != "PATH" and os.environ.get(name) != value}


if __name__ == "__main__":
    sys.exit(main())
