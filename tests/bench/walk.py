"""How far it is from a call's bytes to OVSDB: the functions, files and crossings of one warm ADD.

`python tests/bench/walk.py [--json] [--list]`, as root. The agent runs under `sys.setprofile`, so nothing here is a time.

    chain       the distinct functions of ours on the way from the request's bytes to the transaction: those that are being called
                when the server's thread gives the call to a worker, when the worker gives its rows to a group, and when the group
                commits; with the files that they are in. --list prints them
    crossings   calls of ours, of the whole ADD and on all threads, from a function in one file to a function in another
    calls       all calls of ours; they vary with how often ovs-vswitchd tells something while its port is awaited
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

from tests.bench.calls import Shim
from tests.bench.report import arguments, machine, tell
from tests.lab.node.agent import Agent, install_shim
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

ROOT: Final = Path(__file__).parents[2]
OURS: Final = (f"{ROOT}/userspace_cni/", f"{ROOT}/localdb/")
HOPS: Final = {"Workers.submit": "the server's thread", "Session.transact": "the worker", "Commit._commit": "the commit"}
"""The functions at which a thread hands the call on, or ends, and which thread that is."""
BEGINS: Final = {"Server._read", "Calls._serve", "Commit.run"}
"""Where a thread begins with a call: functions below it on the stack run with and without a call."""
WARM: Final = 3
"""ADDs before those that are recorded: the first ones import modules and open sessions."""
LOOKED_AT: Final = 7
"""The one with the fewest calls is reported: while it ran, unrelated threads did the least."""


class Walk:
    """The profile of a process during the calls since `begin`."""

    def __init__(self) -> None:
        self._on = False
        self._ours: dict[CodeType, str] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.stacks: dict[str, list[str]] = {}

    def begin(self) -> None:
        """Forget what was recorded, and record from now on."""
        self.calls.clear()
        self.stacks.clear()
        self._on = True

    def end(self) -> dict[str, Any]:
        """Stop recording; what was recorded."""
        self._on = False
        crossings = sum(count for (caller, called), count in self.calls.items() if caller and caller != called)
        return {"stacks": self.stacks, "crossings": crossings, "calls": sum(self.calls.values())}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """A profile function (sys.setprofile)."""
        if not self._on or event != "call":
            return
        if called := self._file(frame):
            self.calls[self._caller(frame), called] += 1
            hop = HOPS.get(frame.f_code.co_qualname)
            if hop and hop not in self.stacks:
                self.stacks[hop] = self._stack(frame)

    def _file(self, frame: FrameType) -> str:
        """The file of a function of ours, "" for another's."""
        code = frame.f_code
        if code not in self._ours:
            name = code.co_filename
            self._ours[code] = name[len(f"{ROOT}/") :] if name.startswith(OURS) else ""
        return self._ours[code]

    def _caller(self, frame: FrameType) -> str:
        """The file of the nearest function of ours that called it, "" without one."""
        before = frame.f_back
        while before is not None:
            if found := self._file(before):
                return found
            before = before.f_back
        return ""

    def _stack(self, frame: FrameType) -> list[str]:
        """The functions of ours that are being called, outermost first, from where the thread has begun with the call."""
        found: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            if file := self._file(at):
                found.insert(0, f"{file}:{at.f_code.co_qualname}")
                if at.f_code.co_qualname in BEGINS:
                    break
            at = at.f_back
        return found


def serve() -> int:
    """The agent, looked at: a line on stdin begins, the next one ends and has the result written to stdout."""
    import _thread

    from userspace_cni.__main__ import main as agent
    from userspace_cni.agent import workers

    walk = Walk()

    class Started:
        """The module _thread, whose threads are looked at too: threading does not know of them."""

        allocate_lock = staticmethod(_thread.allocate_lock)

        @staticmethod
        def start_new_thread(function: Any, arguments: tuple[Any, ...]) -> int:
            def run(*given: Any) -> None:
                sys.setprofile(walk)
                function(*given)

            return _thread.start_new_thread(run, arguments)

    def obey() -> None:
        for number, _ in enumerate(sys.stdin):
            if number % 2 == 0:
                walk.begin()
            sys.stdout.write(json.dumps({} if number % 2 == 0 else walk.end()) + "\n")
            sys.stdout.flush()

    vars(workers)["_thread"] = Started
    _thread.start_new_thread(obey, ())
    threading.setprofile(walk)
    sys.argv[1:] = ["agent"]
    return agent()


class Observed(Agent):
    """An agent that runs under `serve`."""

    def start(self, *, wait: bool = True) -> Agent:
        environ = {**self.node.environ, **self._settings, "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-c", "import sys; from tests.bench.walk import serve; sys.exit(serve())"]
        pipe = subprocess.PIPE
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe, stderr=log)
        wait_until(self.answers, 60, "the agent to serve")
        return self

    def tell(self) -> dict[str, Any]:
        """Begin, or end: what was seen."""
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


def measure(node: Node, shim: Shim) -> dict[str, Any]:
    """Some ADDs after others."""
    agent = Observed(node)
    agent.start()
    looked_at: list[dict[str, Any]] = []
    try:
        shim.prepare(range(WARM + LOOKED_AT))
        for number in range(WARM):
            shim.call("ADD", number)
        for number in range(WARM, WARM + LOOKED_AT):
            agent.tell()
            shim.call("ADD", number)
            looked_at.append(agent.tell())
        for number in range(WARM + LOOKED_AT):
            shim.call("DEL", number)
    finally:
        agent.close()
    seen = min(looked_at, key=lambda each: each["calls"])
    chain = list(dict.fromkeys(function for hop in HOPS.values() for function in seen["stacks"].get(hop, ())))
    files = list(dict.fromkeys(function.partition(":")[0] for function in chain))
    return {"chain": chain, "functions": len(chain), "files": len(files), **{key: seen[key] for key in ("crossings", "calls")}}


def show(report: Mapping[str, Any], *, chain: bool) -> None:
    if chain:
        print("\n".join(report["chain"]))
    print(f"{report['functions']} functions in {report['files']} files")
    print(f"{report['crossings']} of {report['calls']} calls cross from file to file")
    print(report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--list", action="store_true", help="the functions of the chain")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        node = stack.enter_context(clean(Node(place / "n", stack.enter_context(Switch()))))
        shim = Shim(node, [stack.enter_context(netns())], place / "calls")
        install_shim(node)
        report = {"machine": machine(), **measure(node, shim)}
    return tell(report, chosen.json, lambda shown: show(shown, chain=chosen.list))


if __name__ == "__main__":
    sys.exit(main())
