"""`load`: measures how many frames per second the switch carries between two ports. It needs no DPDK and no application."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.measure import between
from userspace_cni.cli.measure.between import PairOptions
from userspace_cni.cli.measure.seconds import SecondsRange
from userspace_cni.cli.site import NodeCommand, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.probe import cores, rates
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import Pair
from userspace_cni.probe.opening import Frames, Tell
from userspace_cni.probe.rates import WINDOW_NS, LoadFigures, LoadOptions

WIRE_BYTES: Final = 24
"""Bytes of a frame on a wire beside its own: checksum 4, preamble 8, gap 12 (IEEE 802.3)."""


@click.command(
    "load",
    cls=NodeCommand,
    examples=(
        "userspace-cni load a/net1 b/net1 --seconds 1",
        "userspace-cni load --both --batch 32 --size 64 --seconds 1 --json",
    ),
)
@click.option("--seconds", default=5.0, show_default=True, type=SecondsRange(0.1, 86400), help="How long.")
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1, 256), help="Frames of a burst.")
@click.option("--both", is_flag=True, help="Send from B to A too; the figures are the sum.")
@between.between_ports
@click.pass_context
def load_command(ctx: click.Context, /, names: tuple[str, ...], bridge: str | None, as_json: bool, **course: Any) -> None:
    """Send as many frames as the switch takes from A through it to B, and show how many arrive.

    A and B are attachments whose applications are not connected, as POD/IFNAME, NAMESPACE/POD/IFNAME or
    CONTAINERID-PREFIX/IFNAME, on one bridge: their own ports are measured, with their VLANs and the bridge's own flows. One that
    is connected is refused. Without A and B two temporary ports are made, and removed again.

    It keeps one core and the switch's polling threads busy while it runs: other ports on these threads get less. Without a core
    of its own, p95 of the 1 ms windows is the rate while it had one.

    Ctrl-C ends it, and shows what was measured so far. Exit code: 0 when frames arrived, 1 when none did or the ports cannot be
    used, 2 for a mistake in the call, 3 when the switch cannot be reached, and for another user
    than root.
    """
    # All that is heavy at once: no signal is lost in an import then.
    from userspace_cni.fastpath.rings import generator  # noqa: F401
    from userspace_cni.node import probes  # noqa: F401

    site = open_site(ctx)
    wanted = PairOptions(names, bridge, Frames(course["size"]))
    way = LoadOptions(**course)
    flow = LoadFigures()
    with EndingSignals() as ending:
        try:
            with ExitStack() as stack:
                quiet = stack if as_json else stack.enter_context(ExitStack())
                tell = quiet.enter_context(view.progress("looking at the ports"))
                pair = stack.enter_context(between.open_pair(site, wanted, tell, ending))
                seat = stack.enter_context(cores.avoid_polling_cores())  # the switch polls on its cores by now
                flow.pair = pair.endpoints
                if not as_json:
                    quiet.close()  # a line for each second tells the progress from here on
                    _show_head(pair, way)
                try:
                    rates.measure(pair, way, flow, seat, lambda: _tell(flow, way, tell if as_json else None), ending)
                finally:
                    ending.settle()
        except KeyboardInterrupt:
            if not flow.total.sent:
                raise
            flow.interrupted = True
    if as_json:
        view.show_json(to_json(flow, way, seat))
    else:
        show(flow, way, seat)
    if not flow.total.received or flow.problem:
        ctx.exit(FOUND)


def to_json(flow: LoadFigures, way: LoadOptions, seat: cores.Cores) -> dict[str, Any]:
    """The JSON object of `--json`. Keys are added, never renamed. Where nothing could be measured it has `error` alone.

    a, b             name, port, bridge, mac, mtu, vlan of each end
    size, batch, both                  what was asked for
    seconds          how long frames were sent
    sent, received, lost               frames
    loss             lost of sent, 0 to 1
    mpps             millions of frames received per second
    gbps, wire_gbps  thousands of millions of bits received per second: of frames; with checksum, preamble and gap of a wire
    windows          ns of a window, and the rates (Mpps) p5, p50, p95 of all of them
    each_second      seconds, sent, received, lost, mpps of each second
    cores            used, polling (the switch's own), and busy: the part (0 to 1) of the time that the generator had its core
    interrupted      whether a signal ended it
    problem          why it ended early, or ""
    warnings         why the figures may be the scheduler's
    """
    total = flow.total
    return {
        **{key: end.to_json() for key, end in zip("ab", flow.pair or (), strict=False)},
        "size": way.size,
        "batch": way.batch,
        "both": way.both,
        "seconds": round(total.seconds, 6),
        "sent": total.sent,
        "received": total.received,
        "lost": total.lost,
        "loss": total.lost / total.sent if total.sent else 0.0,
        "mpps": total.mpps,
        "gbps": total.gbps(way.size),
        "wire_gbps": total.gbps(way.size + WIRE_BYTES),
        "windows": {"ns": WINDOW_NS, **{f"p{share:.0f}": flow.window(share / 100) for share in (5, 50, 95)}},
        "each_second": [
            {
                "seconds": round(each.seconds, 6),
                "sent": each.sent,
                "received": each.received,
                "lost": each.lost,
                "mpps": each.mpps,
            }
            for each in flow.each_second
        ],
        "cores": {"used": sorted(seat.used), "polling": sorted(seat.polling), "busy": round(seat.busy, 4)},
        "interrupted": flow.interrupted,
        "problem": flow.problem,
        "warnings": seat.warnings(),
    }


def show(flow: LoadFigures, way: LoadOptions, seat: cores.Cores) -> None:
    total = flow.total
    windows = "   ".join(f"p{share} {flow.window(share / 100):.2f}" for share in (5, 50, 95))
    lost = f"{total.lost:,} frames, {total.lost / total.sent:.3%}" if total.lost else "nothing"
    view.say("")
    view.show_facts(
        [
            ("rate", Cell(f"{total.mpps:.2f} Mpps", "bold")),
            ("bits", f"{total.gbps(way.size):.2f} Gbit/s of frames, {total.gbps(way.size + WIRE_BYTES):.2f} Gbit/s on a wire"),
            ("1 ms windows", f"{windows} Mpps" if flow.windows else ""),
            ("sent", f"{total.sent:,} frames in {total.seconds:.1f} s" + (", ended by a signal" if flow.interrupted else "")),
            ("received", f"{total.received:,} frames"),
            ("lost", Cell(lost, "red" if total.lost else "green")),
            ("core", _cores(seat)),
        ]
    )
    if flow.problem:
        view.say(Cell(flow.problem, "red"))
    for warning in seat.warnings():
        view.note(f"warning: {warning}")


def _show_head(pair: Pair, way: LoadOptions) -> None:
    a, b = pair.endpoints
    arrow = view.make_printable("↔" if way.both else "→")
    rest = f" on {a.bridge}, {way.size} bytes, {way.batch} in a burst, {way.seconds:g} s"
    view.say(Cell(f"{a.name} {arrow} {b.name}", "bold"), rest)


def _tell(flow: LoadFigures, way: LoadOptions, tell: Tell | None) -> None:
    """What the last second brought: as progress, or as a line of the table."""
    last = flow.each_second[-1]
    if tell:
        tell(f"{len(flow.each_second)} of {way.seconds:g} s, {last.mpps:.2f} Mpps")
        return
    if len(flow.each_second) == 1:
        view.say("")
        view.say(Cell(f"  {'second':>6}  {'Mpps':>7}  {'Gbit/s':>7}  {'lost':>8}", "bold"))
    lost = last.lost / last.sent if last.sent else 0.0
    figures = f"  {len(flow.each_second):>6}  {last.mpps:>7.2f}  {last.gbps(way.size):>7.2f}  "
    view.say(figures, Cell(f"{lost:>8.3%}", "red" if lost > 0.001 else ""))


def _cores(seat: cores.Cores) -> str:
    used = ", ".join(map(str, sorted(seat.used)))
    polling = ", ".join(map(str, sorted(seat.polling)))
    return f"{used or 'unknown'}, busy {seat.busy:.0%}" + (f"; the switch polls on {polling}" if polling else "")
