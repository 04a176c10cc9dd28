"""How a demo is run: its directory, signals, what is printed when it ends early, and that nothing of it stays."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.text import Text

from deploy.demo_node import INDENT, Demo, DemoFailed, Stopped, console, execute, mounts, note_signal
from userspace_cni.cli import node_load

D = TypeVar("D", bound=Demo)


def perform(make: Callable[[Path], D], play: Callable[[D], None], rest: str) -> int:
    """Run `play`; 0 when everything it promises was seen, 128 and the signal's number when it was told to stop.

    `make` gets the directory of the demo. `rest` is printed behind the time that it took: what was restored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note_signal)
    demo = make(Path(tempfile.mkdtemp(prefix="demo-")))
    code = 0
    load = node_load.look()
    if load.is_busy:
        tell_line((f"{load}: what is timed here takes longer than it does on a machine with less to do", "yellow"))
    try:
        play(demo)
    except (DemoFailed, OSError, ValueError, LookupError) as error:
        tell_end(str(error) if isinstance(error, DemoFailed) else repr(error))
        tell_load(node_load.look())
        for log in sorted(demo.directory.rglob("agent.log")):
            show_log(log)
        code = 1
    except Stopped:
        tell_end("stopped by a signal")
        code = 128 + Stopped.noted
    finally:
        for mount in mounts(demo):
            execute(["umount", "--lazy", mount])
        shutil.rmtree(demo.directory, ignore_errors=True)
    if not code and demo.directory.exists():
        tell_end(f"{demo.directory} is still there")
        code = 1
    if not code:
        took = time.monotonic() - demo.began
        console.print(Text.assemble((f"\nDone in {took:.0f} s.", "bold green"), f" {rest}"))
    return code


def tell_line(*parts: str | tuple[str, str]) -> None:
    """Print a fact, indented; a part may have a style."""
    _print_indented(Text.assemble(*parts))


def show_prompt(command: str, remark: str = "") -> None:
    """Print a command as it is typed at a prompt."""
    tell_line(("$", "dim"), f" {command}", (remark and f"   {remark}", "dim"))


def show_output(text: str) -> None:
    """Print a command's output on this console."""
    _print_indented(Text.from_ansi(text))


def _print_indented(text: Text) -> None:
    """Print it below the title of the stage, without blanks at the ends of its lines."""
    for line in text.wrap(console, console.width - INDENT):
        line.rstrip()
        console.print(Text(" " * INDENT).append_text(line) if line else "")


def tell_end(why: str) -> None:
    """Print why the demo ends early."""
    console.print(Text.assemble(("demo: ", "bold red"), why))


def tell_load(load: node_load.NodeLoad) -> None:
    """Print that the machine is too busy, if it is: then what the demo waited for may only have been late."""
    if load.is_busy:
        console.print(Text.assemble(("demo: ", "bold red"), f"{load}; that alone may be why: try again when it has less to do"))


def show_log(path: Path) -> None:
    """Print the end of the agent's log, which may show why the demo failed."""
    if path.exists():
        for line in path.read_text(errors="replace").splitlines()[-8:]:
            console.print(Text(f"agent: {line}", "dim"))
