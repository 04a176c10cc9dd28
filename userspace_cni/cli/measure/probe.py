"""`probe`: proves with a port and frames of its own whether bridges move frames."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, INTERRUPTED, UNREACHABLE
from userspace_cni.cli.measure.between import MAKING
from userspace_cni.cli.measure.seconds import SecondsRange
from userspace_cni.cli.name_completion import bridge_names
from userspace_cni.cli.site import NodeCommand, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.probe import histogram
from userspace_cni.probe.bridge_probe import COUNT, TIMEOUT_S, ProbeOptions, Stage, Verdict, probe

if TYPE_CHECKING:
    from userspace_cni.node.probes import ProbePorts
    from userspace_cni.switch.ovsdb.bridges import Bridge

_COLUMNS: Final = (
    "BRIDGE",
    "DATAPATH",
    "PORT",
    "SOCKET",
    "NEGOTIATION",
    "FRAME",
    "RTT MIN",
    "RTT P50",
    "FRAMES",
    "APPLICATIONS",
    "TIME",
)
_STYLES: Final = {"forwards": "green", "dead": "red", "unknown": "yellow"}


@click.command(
    "probe",
    cls=NodeCommand,
    examples=(
        "userspace-cni probe",
        "userspace-cni probe br0 --count 100 --timeout 30 --json",
    ),
)
@click.argument("bridges", nargs=-1, metavar="[BRIDGE]...", shell_complete=bridge_names)
@click.option("--timeout", "timeout_s", type=SecondsRange(0.1, 3600), default=TIMEOUT_S, metavar="SECONDS",
              show_default=True, help="What each stage may take.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 1_000_000), default=COUNT, metavar="N", show_default=True,
              help="How many frames are timed, one after the other.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def probe_command(ctx: click.Context, bridges: tuple[str, ...], timeout_s: float, count: int, as_json: bool) -> None:
    """Test whether bridges move frames: those named, or all for vhost-user ports.

    Each gets a temporary port, on which a frame is sent that the switch must send back. This shows that the switch opens ports,
    connects to sockets, agrees on vhost-user and forwards. Ports of pods are not touched; the output counts those with a
    connected application, and none is not a fault. Nothing stays behind, and leftovers of killed runs are removed.

    With --json: `bridges`, each with `state` (forwards, dead or unknown), `alive`, `problem`, `stages` (`ok` is null for a
    stage that was not reached, `ms`, `problem`), `rtt` (`min_ns`, `p50_ns`; null without frames), `asked`, `frames` and `lost`,
    `applications` (`connected`, `waiting`, `broken`), `seconds` and `memory_bytes`; `removed`, what killed runs had left;
    `interrupted`, whether a signal ended it; and `seconds` of all.

    Exit code: 0 when all bridges forward, 1 when one does not, 2 for one that is missing or not for vhost-user ports, 3 when
    the switch cannot be reached, or a fault on this side prevented the test, such as missing root rights.
    """
    # All that is heavy at once, so that times are those of the switch.
    from userspace_cni.fastpath.rings import generator  # noqa: F401
    from userspace_cni.fastpath.vhost import front_end  # noqa: F401
    from userspace_cni.node import probes  # noqa: F401

    site, began = open_site(ctx), time.monotonic()
    site.require_root(MAKING)
    verdicts: list[Verdict] = []
    removed: list[str] = []
    interrupted = False
    try:
        with view.progress("asking the switch") as tell, site.probe_ports("probe", timeout_s=timeout_s) as ports:
            ports.connect()
            chosen = _chosen(ports, bridges)
            removed += ports.adopt()
            for number, bridge in enumerate(chosen, 1):
                tell(f"probing bridge {bridge.name} ({number} of {len(chosen)})")
                verdicts.append(Verdict.of(bridge, count, stale=ports.is_silent))
                probe(verdicts[-1], ports, ProbeOptions(timeout_s, tell))
            ports.heed()
    except KeyboardInterrupt:
        if not verdicts:
            raise
        interrupted = True
    if as_json:
        found = {"bridges": [each.to_json() for each in verdicts], "removed": removed, "interrupted": interrupted}
        view.show_json({**found, "seconds": round(time.monotonic() - began, 6)})
    else:
        _show(verdicts, removed)
    ctx.exit(INTERRUPTED if interrupted else _code(verdicts))


def _code(verdicts: Sequence[Verdict]) -> int:
    states = {each.state for each in verdicts}
    return FOUND if "dead" in states else UNREACHABLE if "unknown" in states else 0


def _chosen(ports: ProbePorts, names: Sequence[str]) -> list[Bridge]:
    """The bridges named, each once, or all that can have vhost-user ports."""
    if not names:
        return [bridge for bridge in ports.bridges() if bridge.has_vhost]
    return [ports.require_bridge(name) for name in dict.fromkeys(names)]


def _show(verdicts: Sequence[Verdict], removed: Sequence[str]) -> None:
    for name in removed:
        view.note(f"removed what a killed run had left: {name}")
    if not verdicts:
        view.note("no bridge is for vhost-user ports (datapath_type netdev); the first attachment makes one")
        return
    view.show_table(_COLUMNS, [_row(verdict) for verdict in verdicts])
    for verdict in verdicts:
        if verdict.problem:
            view.say(Cell(verdict.bridge, f"bold {_STYLES[verdict.state]}"), ": ", verdict.problem)
        elif verdict.frames < verdict.asked:
            view.note(f"{verdict.bridge}: {verdict.frames} of {verdict.asked} frames were timed when it was ended")


def _row(verdict: Verdict) -> list[Cell | str]:
    ordered = sorted(verdict.times)
    times = [ordered[0], histogram.percentile(ordered, 0.5)] if ordered else []
    shown: list[Cell | str] = [view.make_printable(histogram.format_time(time_ns)) for time_ns in times] or ["-", "-"]
    came_back = f"{verdict.frames - verdict.lost}/{verdict.frames}" if verdict.frames else "-"
    return [
        verdict.bridge,
        Cell(verdict.state, _STYLES[verdict.state]),
        *map(_stage_cell, verdict.stages),
        *shown,
        Cell(came_back, "red" if verdict.lost else ""),
        _applications(verdict.applications),
        f"{verdict.seconds * 1000:.0f} ms",
    ]


def _stage_cell(stage: Stage) -> Cell:
    if stage.ok is None:
        return Cell("-", "dim")
    return Cell(f"{stage.ms:.{0 if stage.ms >= 10 else 1}f} ms", "green") if stage.ok else Cell("failed", "red")


def _applications(counts: dict[str, int] | None) -> str:
    """How many of the attachments have their application connected."""
    if counts is None:
        return "unknown"
    of = sum(counts.values())
    broken = f", {counts['broken']} broken" if counts["broken"] else ""
    return f"{counts['connected']} of {of}{broken}" if of else "none attached"
