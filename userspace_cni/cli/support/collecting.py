"""Collects one thing after the other, each within its own time, and remembers what did not answer.

What is asked of a process of the node (agent, ovs-vswitchd, OVSDB) is not asked of it again once it has let one question run out
of time: a switch that hangs costs the time of one question, not of thirty. Our own commands run beside that, as processes of
their own, which are killed at their time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Literal

from userspace_cni.base.threads import start

ITEM_MAX: Final = 8 << 20
"""Bytes of one thing; the end of a longer one is cut off, of a log its beginning."""
TOTAL_MAX: Final = 96 << 20
_TOGETHER: Final = 3
_COMMAND_BYTES: Final = 64 << 20
"""Of memory that one of our commands takes, and more."""
_COMMANDS_S: Final = 30.0
"""For all commands: on a busy node each waits longer for agent and switch."""
_ENDED_S: Final = 2.0
Source = Literal["", "agent", "ovs-vswitchd", "OVSDB"]


@dataclass(frozen=True)
class SupportItem:
    """One thing to collect: `path` in the archive, `what` it is. `source`: which process of the node answers.

    `collect` returns JSON values or a text, and raises UserspaceError, OSError or ValueError, which are noted.
    """

    path: str
    what: str
    collect: Callable[[], Any]
    source: Source = ""
    seconds: float = 5.0


@dataclass(frozen=True)
class CommandItem:
    """The JSON of one of our own commands."""

    path: str
    what: str
    arguments: Sequence[str]
    seconds: float = 20.0


@dataclass
class Collected:
    """What came of an item. `value`: JSON values, a text, or None; `problem`: why it is not there or not whole, "" if it is."""

    path: str
    what: str
    value: Any = None
    seconds: float = 0.0
    problem: str = ""
    code: int | None = None
    cut: bool = False


@dataclass
class SupportCollector:
    """Collects items; `environ` is that of our own commands. `tell` is called with what is collected now."""

    environ: Mapping[str, str]
    tell: Callable[[str], None]
    _silent: dict[str, str] = field(default_factory=dict)

    def collect(self, items: Iterable[SupportItem], commands: Sequence[CommandItem]) -> list[Collected]:
        """All of them, in this order, commands last."""
        with ThreadPoolExecutor(commands_at_once(), "command") as pool:
            until = time.monotonic() + _COMMANDS_S
            running = [pool.submit(_run, each, self.environ, until) for each in commands]
            found = [self._item(each) for each in items]
            for each, command in zip(commands, running, strict=True):
                self.tell(f"waiting for userspace-cni {' '.join(each.arguments)}")
                found.append(command.result())
        return found

    def _item(self, item: SupportItem) -> Collected:
        self.tell(f"collecting {item.what}")
        done = Collected(item.path, item.what)
        if item.source in self._silent:
            done.problem = f"not asked: {item.source} did not answer before ({self._silent[item.source]})"
            return done
        began = time.monotonic()
        _within(item, done)
        done.seconds = time.monotonic() - began
        return done if not done.problem else self._judged(item, done)

    def _judged(self, item: SupportItem, done: Collected) -> Collected:
        if item.source and done.seconds >= min(_ENDED_S, item.seconds / 2):
            self._silent[item.source] = item.what
        return done


def commands_at_once(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """How many commands may run beside each other. In the agent's container memory is the agent's, too: where the limit is hit
    the kernel ends all of the container."""
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # "max", or the root of all
        return _TOGETHER
    return max(1, min(_TOGETHER, (limit - used) // _COMMAND_BYTES - 1))


def _within(item: SupportItem, done: Collected) -> None:
    """Collect it on a thread of its own, which is left behind if it does not come back: a file of a dead server may never."""
    answer: list[Any] = []

    def work() -> None:
        try:
            answer.append(item.collect())
        except Exception as error:  # noqa: BLE001 - one thing that fails must not keep the others from the archive
            answer.append(error)

    thread = threading.Thread(target=work, name="collecting", daemon=True)
    start(thread, "collecting for the archive")
    thread.join(item.seconds)
    if not answer:
        done.problem = f"no answer within {item.seconds:g} s"
    elif isinstance(answer[0], OSError):
        done.problem = f"{answer[0].filename or item.what}: {answer[0].strerror or answer[0]}"
    elif isinstance(answer[0], Exception):
        done.problem = str(answer[0]) or type(answer[0]).__name__
    else:
        done.value = answer[0]


def _run(item: CommandItem, environ: Mapping[str, str], until: float) -> Collected:
    """Run a command of ours, `until` that time at most; what it says on stderr is kept, too."""
    done, began = Collected(item.path, item.what), time.monotonic()
    seconds = min(item.seconds, until - began)
    if seconds <= 0:
        done.problem = f"not run: the {_COMMANDS_S:g} s for all commands were over"
        return done
    with TemporaryFile() as out, TemporaryFile() as err:
        argv = [sys.executable, "-m", "userspace_cni", *item.arguments]
        with subprocess.Popen(argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process:
            try:
                done.code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                done.problem = f"no answer within {seconds:.0f} s"
        said = [_content(each) for each in (out, err)]
    done.seconds = time.monotonic() - began
    text, notes = (each.decode("utf-8", "replace") for each in said)
    try:
        answer: Any = json.loads(text) if text.strip() else None
    except ValueError:
        answer = text
    done.value = {"command": " ".join(item.arguments), "exit code": done.code, "answer": answer, "stderr": notes.splitlines()}
    done.cut = any(len(each) >= ITEM_MAX for each in said)
    return done


def _content(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read(ITEM_MAX))
