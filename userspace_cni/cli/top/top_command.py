"""`top`: what the attachments of this node carry now, on a screen that follows keys, or sample by sample. It changes nothing."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import time
from collections import deque
from dataclasses import replace
from typing import Final

import click

from userspace_cni.cli.exit_codes import UNREACHABLE
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.cli.top.top_figures import ASCII, Line
from userspace_cni.cli.top.top_json import to_json
from userspace_cni.cli.top.top_keys import Keys
from userspace_cni.cli.top.top_layout import draw_batch, draw_screen
from userspace_cni.cli.top.top_rows import DEFAULT_SORT, SORT_KEYS, RowChoice, choose
from userspace_cni.cli.top.top_samples import SamplingThread, TopSample, TopSampler
from userspace_cni.cli.top.top_screen import Screen, TerminalGone
from userspace_cni.cli.top.top_state import DELAY_MAX, DELAY_MIN, TopState, press
from userspace_cni.cli.view import is_unicode

_UNFOLDED: Final = 4096
"""Columns of an output that is no terminal."""
_LOGGED_MAX: Final = 20
_ESCAPE_S: Final = 0.1
"""Seconds after which Escape is the key and not the beginning of another key's sequence."""


@click.command(
    "top",
    cls=NodeCommand,
    examples=(
        "userspace-cni top",
        "userspace-cni top --json -n 1 --filter web",
        "userspace-cni top --batch -n 1 -d 0.5 --sort drops",
    ),
)
@click.option(
    "-d",
    "--delay",
    type=click.FloatRange(DELAY_MIN, DELAY_MAX),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="From one refresh to the next.",
)
@click.option("-b", "--batch", is_flag=True, help="Print samples one after the other; so without a terminal.")
@click.option("-n", "--iterations", type=click.IntRange(1), metavar="N", help="End after so many samples.")
@click.option(
    "-o",
    "--sort",
    "sort",
    type=click.Choice([key.name for key in SORT_KEYS]),
    default=DEFAULT_SORT,
    show_default=True,
    help="What to sort by.",
)
@click.option(
    "-f",
    "--filter",
    "text",
    default="",
    metavar="TEXT",
    help="Only names, networks, bridges and ports that contain it; after !: that do not.",
)
@click.option("--by-network", is_flag=True, help="Put the attachments of each network together, with their sum.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per sample, one a line; as --batch.")
@click.pass_context
def top_command(ctx: click.Context, /, delay: float, iterations: int | None, sort: str, text: str, **flags: bool) -> None:
    """Show what the attachments of this node carry now: frames and bits per second in both directions, drops, limits, and the
    polling thread that works for them. h lists the keys; top changes nothing.

    The counters are those of ovs-vswitchd at the moment of the look. Without a terminal it prints samples one after the other.

    Exit code: 0, or 3 when records or the switch could not be read for the last sample of a batch.
    """
    site = open_site(ctx)
    site.require_root("reading records and asking the switch")
    state = TopState(RowChoice(sort=sort, text=text, grouped=flags["by_network"]), delay=delay)
    sampler = TopSampler(site)
    if flags["as_json"] or flags["batch"] or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_samples(sampler, state, iterations, as_json=flags["as_json"])
    else:
        _run_screen(sampler, state, iterations)


def _print_samples(sampler: TopSampler, state: TopState, iterations: int | None, *, as_json: bool) -> None:
    """Print samples until there were enough; the first one has rates, too, of the second before it."""
    sample = sampler.sample()
    due = time.monotonic() + min(state.delay, 1.0)
    for number in itertools.count(1):
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - state.delay) + state.delay
        sample = sampler.sample()
        try:
            _print_sample(sampler, sample, state, first=number == 1, as_json=as_json)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes what is left at its end
            return
        if number == iterations:
            break
    traffic = sample.traffic
    if traffic.counters is None or "records" in traffic.problems:
        reason = "; ".join(traffic.problems.values()) or f"ovs-vswitchd is {traffic.vswitchd}: {traffic.reason}"
        raise CommandRefused(f"the node cannot be asked: {reason}", UNREACHABLE)


def _print_sample(sampler: TopSampler, sample: TopSample, state: TopState, *, first: bool, as_json: bool) -> None:
    if as_json:
        text = json.dumps(to_json(sample, sampler.node, choose(sample.rows, replace(state.choice, grouped=False))))
    else:
        width = int(columns) if (columns := os.environ.get("COLUMNS", "")).isdecimal() else _UNFOLDED
        lines = draw_batch(sample.picture(sampler.node, state.choice), state, max(1, width))
        text = ("" if first else "\n") + "\n".join(_plain(line) for line in lines)
    click.echo(text)
    sys.stdout.flush()


def _plain(line: Line) -> str:
    text = "".join(piece.text for piece in line).rstrip()
    return text if is_unicode(sys.stdout) else text.translate(ASCII)


class _Live:
    """The screen while it follows keys and samples."""

    def __init__(self, sampler: TopSampler, state: TopState, screen: Screen, iterations: int | None) -> None:
        self._sampler = sampler
        self._state = state
        self._screen = screen
        self._left = iterations
        self._samples = SamplingThread(sampler.sample, screen.wake)
        self._keys = Keys()
        self._sample: TopSample | None = None
        self._asked = self._due = 0.0
        self._page = 1

    def run(self) -> None:
        """Until a key or a signal ends it. Raises TerminalGone, and what a look raises."""
        self._samples.start()
        self._ask(min(self._state.delay, 1.0))
        while not (self._state.quits or self._screen.ended_by or self._screen.interrupted):
            self._draw()
            if self._left == 0:
                return
            typed = self._screen.wait(self._patience())
            for key in self._keys.feed(typed) if typed else self._keys.flush():
                self._press(key)
            if (sample := self._samples.fetch()) is not None:
                self._sample = sample
                self._left = None if self._left is None else self._left - 1
            if time.monotonic() >= self._due and not self._samples.busy:
                self._ask(self._state.delay)

    def _ask(self, delay: float) -> None:
        self._asked = time.monotonic()
        self._due = self._asked + delay
        self._samples.ask()

    def _patience(self) -> float:
        if self._keys.begun:
            return _ESCAPE_S
        return 1.0 if self._samples.busy else self._due - time.monotonic()

    def _press(self, key: str) -> None:
        former = self._state
        self._state = press(former, key, self._page)
        if self._state.redraws:
            self._screen.forget()
        if self._state.refreshes or self._state.delay != former.delay:
            self._due = 0.0

    def _draw(self) -> None:
        asking_s = time.monotonic() - self._asked if self._samples.busy else 0.0
        picture = self._sample.picture(self._sampler.node, self._state.choice) if self._sample else None
        size = self._screen.size()
        lines, self._page = draw_screen(picture, self._state, size, asking_s)
        last = max(0, len(picture.rows) - self._page) if picture else 0
        self._state = replace(self._state, offset=min(self._state.offset, last))
        self._screen.show(lines, size[0])


class LogTail(io.TextIOBase):
    """The last lines of what is logged while the screen is in use."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque(maxlen=_LOGGED_MAX)

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def text(self) -> str:
        return "".join(self._parts)


def _run_screen(sampler: TopSampler, state: TopState, iterations: int | None) -> None:
    """Follow keys on the terminal; what is logged meanwhile is shown when it is left."""
    colours = "NO_COLOR" not in os.environ
    screen = Screen(sys.stdin.fileno(), sys.stdout.fileno(), colours=colours, unicode=is_unicode(sys.stdout))
    logged = LogTail()
    try:
        with contextlib.redirect_stderr(logged), screen, contextlib.suppress(TerminalGone):
            _Live(sampler, state, screen, iterations).run()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.write(logged.text())
    screen.die()
