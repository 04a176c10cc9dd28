"""`tap`: a vhost-user socket as a link of the kernel, for a pod whose program does not use DPDK.

The bridge works on a thread of its own; this one handles signals and shows the counters. The tap ends with the command, whatever
ends that.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from userspace_cni.base.signals import Signals, waking
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.measure.seconds import SecondsRange
from userspace_cni.cli.name_completion import directory_names, file_names
from userspace_cni.cli.site import CommandRefused, NodeCommand, require_net_admin
from userspace_cni.pod.waiting import Waiting

if TYPE_CHECKING:
    from userspace_cni.fastpath.tap import PumpCounts
    from userspace_cni.tap.tap_forwarding import DesiredTap, TapBridge, TapNews

_SHOWN_S: Final = 0.5
"""Seconds between two looks at the counters."""
_LEAVE_S: Final = 2.0
"""How long a stop waits for an attach that is under way; what is left then goes with the process."""
_DOCUMENT_S: Final = 120.0
"""Kubelet refreshes a pod's annotations file at the latest every 60 to 90 s."""
_MTU: Final = click.IntRange(68, 65517)
_MAC: Final = re.compile(r"[0-9A-Fa-f][02468ACEace](?::[0-9A-Fa-f]{2}){5}")

_OCTAL: Final = re.compile(r"0?[0-7]{3}")


def _mac(_: click.Context, __: click.Parameter, text: str) -> str:
    if text and not _MAC.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a MAC address of one station, such as 02:00:00:00:00:01")
    return text.lower()


def _addresses(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        try:
            ipaddress.ip_interface(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        if "/" not in text:
            raise click.BadParameter(f"{text!r} has no prefix length, as 10.1.1.2/24")
    return texts


def _octal(_: click.Context, __: click.Parameter, text: str) -> int:
    if not _OCTAL.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a mode of a file, such as 0660 or 0666")
    return int(text, 8)


@click.command(
    "tap",
    cls=NodeCommand,
    examples=(
        "userspace-cni tap /run/vhost/net1.sock --name net1 --address 10.1.1.2/24",
        "userspace-cni tap",
    ),
)
@click.argument("socket", required=False, default="", metavar="[SOCKET]", shell_complete=file_names)
@click.option("--interface", default="", metavar="NAME", help="Without SOCKET: which of the pod's interfaces, if it has several.")
@click.option(
    "--wait",
    "wait_s",
    default=_DOCUMENT_S,
    type=SecondsRange(0, 86400),
    metavar="SECONDS",
    help="Without SOCKET: how long to wait to be told of it.",
)
@click.option(
    "--annotations",
    default="",
    shell_complete=file_names,
    metavar="FILE",
    help="Without SOCKET: the pod's annotations (downward API).",
)
@click.option(
    "--dir",
    "directory",
    default="",
    shell_complete=directory_names,
    metavar="DIR",
    help="Without SOCKET: where sockets and configData-*.json files are.",
)
@click.option("--name", default="", metavar="NAME", help="The link's name; by default the interface's, else the kernel chooses.")
@click.option(
    "--mode",
    type=click.Choice(["auto", "client", "server"]),
    default="auto",
    help="server: we make the socket (OVS port of type dpdkvhostuserclient); client: the switch has (dpdkvhostuser); "
    "auto: what the pod was told, else client if a process listens there.",
)
@click.option("--mac", default="", callback=_mac, metavar="MAC", help="The link's MAC address.")
@click.option("--mtu", type=_MTU, metavar="BYTES", help="The link's MTU; the port's has to be as large.")
@click.option("--address", "addresses", multiple=True, callback=_addresses, metavar="CIDR", help="An address for it; repeatable.")
@click.option(
    "--socket-mode",
    default="0660",
    callback=_octal,
    metavar="OCTAL",
    show_default=True,
    help="server: who may connect to the socket; 0666 for an OVS that does not run as root.",
)
@click.option("--force", is_flag=True, help="client: take the port from a program that is connected to it, which is cut off.")
@click.option(
    "--no-offloads",
    "offloads",
    flag_value=False,
    default=True,
    help="Have the kernel send and receive each TCP segment as a frame of its own, with its checksum.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each change, a line each.")
def tap_command(as_json: bool, **options: Any) -> None:
    """Carry frames between a link of the kernel and a vhost-user SOCKET, until SIGTERM or Ctrl-C.

    Run it in the pod, with the capability NET_ADMIN and /dev/net/tun; neither DPDK nor hugepages are needed. Without SOCKET it
    takes socket, role, name, MAC address, MTU and addresses from the pod's own annotations; options override them.

    A line on stdout says when traffic can flow, and again after an interruption: it attaches again to a switch that restarts,
    and the link has no carrier until then. Stderr says what it waits for. It does not take a port to which a program of this
    network namespace is connected. Exit code: 0 when it was stopped, 1 when link or socket cannot be made or used, 2 for usage,
    3 when the pod's annotations do not name the interface in time.
    """
    require_net_admin("making a link of the kernel")
    with _stopped_by_signals(sys.exit):
        reporter = _Reporter(as_json)
        bridge = _bridge(options, reporter)
    failure = _run(bridge, reporter)
    if failure is not None:
        from userspace_cni.fastpath.fastpath_errors import FastPathError

        if isinstance(failure, FastPathError):
            raise CommandRefused(str(failure), FOUND) from failure
        raise failure
    if as_json:
        click.echo(json.dumps({"state": "ended", **_numbers(bridge.carried)}))


class _Reporter:
    """Shows people or scripts the tap's changes and, in lines, what it still waits for.

    It is called on the bridge's thread; `ends` waits on the main thread, where a signal's handler may call `end`. The kernel may
    give the signal to another thread, or just before the main one waits: `waking` has it wake nevertheless.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._waiting: Waiting | None = None
        self._missing = ""
        self.bridge: TapBridge | None = None
        self._ended = False
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        for fd in (self._news, waking()):
            self._poller.register(fd, select.POLLIN)

    def __call__(self, news: TapNews) -> None:
        assert self.bridge is not None  # noqa: S101 - for mypy
        bridge, state = self.bridge, news.state.value
        with self._lock:
            if view.is_screen():  # the line with the counters is there
                click.echo("\r\x1b[2K", nl=False, err=True)
            if self._as_json:
                facts = {"state": state, "name": bridge.name, "socket": bridge.wanted.socket, "mode": bridge.mode.value}
                click.echo(json.dumps({**facts, "text": news.text}))
            text = f"{bridge.name}: traffic can flow; {bridge.wanted.socket}, we are the {bridge.mode.value}, {news.text}"
            if state != "ready":
                self._missing = f"{bridge.name}: {news.text}; waiting"
                self._waiting = self._waiting or Waiting(_tell)
                self._waiting.still(self._missing)
            elif not self._as_json:
                view.say(text)
            elif self._waiting:
                self._waiting.over(text)
            if state == "ready":
                self._waiting = None
        os.eventfd_write(self._news, 1)

    def remind(self) -> float | None:
        """Say again what is missing if a line is due; seconds until the next may be due, None while nothing is missing."""
        with self._lock:
            return self._waiting.still(self._missing) if self._waiting else None

    def end(self) -> None:
        """Say that there will be no more news."""
        self._ended = True
        os.eventfd_write(self._news, 1)

    def ends(self, seconds: float | None) -> bool:
        """Whether the end comes before this time is over, or before any other news."""
        for fd, _ in self._poller.poll(None if seconds is None else math.ceil(seconds * 1000)):
            os.read(fd, 64)
        return self._ended


def _tell(text: str) -> None:
    """Write a line to stderr; the tap goes on when that has no reader any more."""
    try:
        view.note(text)
    except OSError:
        # What could not be written stays in the interpreter's buffer, and fails its end (exit code 120) unless it goes somewhere.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, 2)
            os.close(nowhere)


def _bridge(options: dict[str, Any], reporter: _Reporter) -> TapBridge:
    """Make the bridge that the options and the pod's document ask for."""
    from userspace_cni.tap.tap_forwarding import DesiredTap, TapBridge, TapMode, of_pod, sources_of

    given = ("socket", "name", "mac", "mtu", "addresses", "socket_mode", "force", "offloads")
    wanted: DesiredTap = DesiredTap(mode=TapMode(options["mode"]), **{key: options[key] for key in given})
    told_by = {
        option: options[key] for option, key in (("interface", "interface"), ("annotations", "annotations"), ("dir", "directory"))
    }
    if wanted.socket and any(told_by.values()):
        named = next(f"--{option}" for option, value in told_by.items() if value)
        raise CommandRefused(f"{named} is for a pod's own interfaces: give either it or SOCKET", USAGE)
    if not wanted.socket:
        sources = sources_of(options["annotations"], options["directory"])
        wait_s = options["wait_s"]
        waited = Waiting(_tell, bound_s=wait_s)
        with view.waiting("waiting to be told of this pod's interface", waited) as tell:
            found = of_pod(options["interface"], wait_s, sources, lambda missing: tell(f"waiting: {missing}"))
        waited.over(f"{found.name}: told of it, {found.socket}")
        wanted = wanted.overriding(found)
    reporter.bridge = TapBridge(wanted, reporter)
    return reporter.bridge


def _run(bridge: TapBridge, reporter: _Reporter) -> Exception | None:
    """Run the bridge until it ends or is stopped; what ended it."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            bridge.run()
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that waits
            failures.append(error)
        finally:
            reporter.end()

    def stop() -> None:
        bridge.stop()
        reporter.end()

    thread = threading.Thread(target=work, name="tap", daemon=True)
    with _stopped_by_signals(stop):
        thread.start()
        if view.is_screen():
            _show(bridge, reporter)
        else:
            while not reporter.ends(reporter.remind()):
                pass
        thread.join(_LEAVE_S)
        bridge.abandon()
    return failures[0] if failures else None


def _show(bridge: TapBridge, reporter: _Reporter) -> None:
    """Show the counters in a line that is rewritten, until the end."""
    with view.progress("") as show:
        before, at = bridge.carried, time.monotonic()
        while not reporter.ends(_SHOWN_S):
            carried, now = bridge.carried, time.monotonic()
            if now - at >= _SHOWN_S / 2:  # not just after other news
                show(_rates(bridge.name, before, carried, now - at))
                before, at = carried, now


def _rates(name: str, before: PumpCounts, after: PumpCounts, seconds: float) -> str:
    out = (after.to_ring.frames - before.to_ring.frames) / seconds
    back = (after.to_tap.frames - before.to_tap.frames) / seconds
    dropped = after.to_ring.dropped + after.to_tap.dropped
    lost = f", {dropped:,} dropped" if dropped else ""
    total = f"{after.to_ring.frames:,} out and {after.to_tap.frames:,} in so far"
    return f"{name}: {out:,.0f} frames/s out, {back:,.0f} in; {total}{lost}"


def _numbers(carried: PumpCounts) -> dict[str, Any]:
    return {"to_switch": asdict(carried.to_ring), "from_switch": asdict(carried.to_tap)}


def _stopped_by_signals(stop: Callable[[], None]) -> Signals:
    """Within this block each signal that ends a process calls `stop`."""
    return Signals(lambda _number, _frame: stop(), ignored_too=True)
