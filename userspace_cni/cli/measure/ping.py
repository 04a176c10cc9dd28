"""`ping`: measures how long a frame takes through the switch to another port and back. It needs no DPDK and no application."""

from __future__ import annotations

from typing import Any

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.measure import between
from userspace_cni.cli.measure.between import PairOptions
from userspace_cni.cli.measure.seconds import SecondsRange
from userspace_cni.cli.site import NodeCommand, open_site
from userspace_cni.cli.view import Bar, Cell
from userspace_cni.probe import cores, histogram, round_trips
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.histogram import Bucket
from userspace_cni.probe.opening import Frames
from userspace_cni.probe.round_trips import Echo, PingOptions


@click.command(
    "ping",
    cls=NodeCommand,
    examples=(
        "userspace-cni ping a/net1 b/net1",
        "userspace-cni ping --count 100 --interval 0.001 --sleep --size 1500",
    ),
)
@click.option("--count", default=1000, show_default=True, type=click.IntRange(1, 1_000_000), help="Round trips.")
@click.option("--interval", default=0.0, show_default=True, type=SecondsRange(0, 3600), help="Seconds from one to the next.")
@click.option("--sleep/--poll", default=False, help="Sleep until a frame comes, or look all the time (the default).")
@between.between_ports
@click.pass_context
def ping_command(ctx: click.Context, /, names: tuple[str, ...], bridge: str | None, as_json: bool, **course: Any) -> None:
    """Send frames from A through the switch to B and back, and show how long that takes.

    A and B are attachments whose applications are not connected, as POD/IFNAME, NAMESPACE/POD/IFNAME or
    CONTAINERID-PREFIX/IFNAME, on one bridge: their own ports are measured, with their VLANs and the bridge's own flows. One that
    is connected is refused. Without A and B two temporary ports are made, and removed again.

    Ctrl-C ends it, and shows what was measured so far. Exit code: 0 when frames came back, 1 when none did or the ports cannot
    be used, 2 for a mistake in the call, 3 when the switch cannot be reached, and for another user than root.
    """
    # All that is heavy at once: no signal is lost in an import then.
    from userspace_cni.fastpath.rings import generator  # noqa: F401
    from userspace_cni.node import probes  # noqa: F401

    site = open_site(ctx)
    wanted = PairOptions(names, bridge, Frames(course["size"], single=True))
    way = PingOptions(**course)
    echo = Echo()
    with EndingSignals() as ending:
        try:
            with (
                view.progress("looking at the ports") as tell,
                between.open_pair(site, wanted, tell, ending) as pair,
                cores.avoid_polling_cores() as seat,
            ):
                echo.pair = pair.endpoints
                try:
                    round_trips.measure(pair, way, echo, seat, lambda: tell(_progress(echo, way)), ending)
                finally:
                    ending.settle()
        except KeyboardInterrupt:
            if not echo.sent:
                raise
            echo.interrupted = True
    warnings = round_trips.warnings(echo, way, seat)
    if as_json:
        view.show_json(to_json(echo, way, warnings))
    else:
        show(echo, way, warnings)
    if not echo.times or echo.problem:
        ctx.exit(FOUND)


def to_json(echo: Echo, way: PingOptions, warnings: list[str]) -> dict[str, Any]:
    """The JSON object of `--json`. Keys are added, never renamed. Where nothing could be measured it has `error` alone.

    a, b             name, port, bridge, mac, mtu, vlan of each end
    size             bytes of a frame
    mode             "poll" or "sleep"
    count, received, lost, foreign     round trips asked for, done and lost; frames of others that came
    nanoseconds      min, p50, p90, p99, max, mean; null when nothing came back
    buckets          from_ns, below_ns, count of each, without a gap
    interrupted      whether a signal ended it
    problem          why it ended early, or ""
    warnings         why the figures may not be those of a busy switch with a core to spare
    """
    spread = histogram.spread(echo.times) if echo.times else None
    names = ("min", "p50", "p90", "p99", "max", "mean")
    return {
        **{key: end.to_json() for key, end in zip("ab", echo.pair or (), strict=False)},
        "size": way.size,
        "mode": "sleep" if way.sleep else "poll",
        "count": way.count,
        "received": len(echo.times),
        "lost": echo.lost,
        "foreign": echo.foreign,
        "nanoseconds": {name: getattr(spread, name) for name in names} if spread else None,
        "buckets": [{"from_ns": each.start, "below_ns": each.end, "count": each.count} for each in histogram.buckets(echo.times)],
        "interrupted": echo.interrupted,
        "problem": echo.problem,
        "warnings": warnings,
    }


def show(echo: Echo, way: PingOptions, warnings: list[str]) -> None:
    """A line of what was done, the figures, and where the times lie."""
    assert echo.pair is not None  # noqa: S101 - something was measured
    a, b = echo.pair
    how = "sleeping until they came" if way.sleep else "polling"
    view.say(Cell(view.make_printable(f"{a.name} ↔ {b.name}"), "bold"), f" on {a.bridge}, {way.size} bytes, {how}")
    if echo.times:
        spread = histogram.spread(echo.times)
        figures = [("min", spread.min), ("p50", spread.p50), ("p90", spread.p90), ("p99", spread.p99), ("max", spread.max)]
        view.say("")
        view.show_bars(_bars(histogram.buckets(echo.times)))
        view.say("")
        view.say_figures([(name, view.make_printable(histogram.format_time(value))) for name, value in figures])
    lost = f", {echo.lost / echo.sent:.2%}" if echo.lost else ""
    view.say(
        f"  {view.format_count(len(echo.times), 'round trip')}, ",
        Cell(f"{echo.lost} lost{lost}", "red" if echo.lost else "green"),
        f", {view.format_count(echo.foreign, 'frame')} of others" if echo.foreign else "",
        f"; ended by a signal before {way.count}" if echo.interrupted else "",
    )
    if echo.problem:
        view.say(Cell(echo.problem, "red"))
    for warning in warnings:
        view.note(f"warning: {warning}")


def _progress(echo: Echo, way: PingOptions) -> str:
    return f"{echo.sent} of {view.format_count(way.count, 'round trip')}, {echo.lost} lost"


def _bars(found: list[Bucket]) -> list[Bar]:
    most, total = max(each.count for each in found), sum(each.count for each in found)
    return [
        Bar(histogram.format_range(each), each.count / most, (str(each.count), f"{each.count / total:.1%}")) for each in found
    ]
