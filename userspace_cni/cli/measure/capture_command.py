"""`capture`: shows the frames of a port, as tcpdump does of a link: vhost-user ports have none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.measure import between, outputs, tcpdump
from userspace_cni.cli.measure.seconds import SecondsRange
from userspace_cni.cli.name_completion import attachment_names, file_names
from userspace_cni.cli.site import CommandRefused, NodeCommand, open_site
from userspace_cni.probe import capture
from userspace_cni.probe.capture import CaptureFigures, CaptureOptions
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.pcap import SNAPLEN_MAX

_SNAPLEN_MIN: Final = 14


@click.command(
    "capture",
    cls=NodeCommand,
    examples=(
        "userspace-cni capture a/net1 --seconds 1 --write frames.pcap",
        "userspace-cni capture a/net1 --seconds 1 | tcpdump -ner -",
        "userspace-cni capture web-1/net1 icmp",
        "userspace-cni capture web-1/net1 'host 10.0.0.1 and tcp port 80' | wireshark -k -i -",
    ),
)
@click.argument("name", metavar="POD/IF", shell_complete=attachment_names)
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@click.option("--write", metavar="FILE", shell_complete=file_names, help="Write a pcap file; - for stdout.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many frames.")
@click.option("--seconds", type=SecondsRange(0.1, 86400), help="End after so long.")
@click.option("--snaplen", type=click.IntRange(_SNAPLEN_MIN, SNAPLEN_MAX), default=SNAPLEN_MAX, metavar="BYTES",
              help="Keep only the beginning of each frame.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The summary as a JSON object; with --write FILE.")
@click.pass_context
def capture_command(
    ctx: click.Context, /, name: str, words: tuple[str, ...], write: str | None, as_json: bool, **limits: float | None
) -> None:
    """Show the frames that an attachment's port sends and gets, while its application runs: of vhost-user ports, and of others.

    POD/IF is its name as for show: POD/IFNAME, NAMESPACE/POD/IFNAME or CONTAINERID-PREFIX/IFNAME. FILTER is an expression of
    pcap-filter(7), as "icmp" or "host 10.0.0.1 and tcp port 80"; it needs tcpdump, which compiles it.

    On a terminal tcpdump prints the frames, or this command if it is not installed. Into a pipe it writes a pcap stream:

    \b
      userspace-cni capture web-1/net1 | tcpdump -ner -
      userspace-cni capture web-1/net1 | wireshark -k -i -

    The switch copies the frames to a port of ours, by a mirror that exists while this runs. It ends on Ctrl-C, with its reader,
    after --count frames or --seconds. Nothing stays behind; leftovers of a killed run are removed by the next one, by gc and by
    the agent. Frames that we were too slow to take are counted as dropped.

    With --json: name, port, bridge; frames and bytes that were kept; seen, the frames before the filter; dropped; seconds;
    ended (count, seconds, signal, reader or problem); problem, why it ended early, or "". If nothing could be captured, only
    error.

    Exit code: 0 when it was stopped, 1 when the port cannot be captured or went away meanwhile, 2 for a mistake in the call, 3
    when the switch cannot be reached, and for another user than root.
    """
    # All that is heavy at once: no signal is lost in an import then.
    from userspace_cni.fastpath.rings import burst  # noqa: F401
    from userspace_cni.fastpath.vhost import front_end  # noqa: F401
    from userspace_cni.node import probes  # noqa: F401

    if as_json and write in (None, outputs.STDOUT):
        raise CommandRefused("--json needs --write FILE: stdout has the frames", USAGE)
    outputs.require_possible(write)
    keep = tcpdump.compile_filter(" ".join(words)) if words else None
    taken = _capture(ctx, name, write, CaptureOptions(**limits, keep=keep))  # type: ignore[arg-type]
    if as_json:
        view.show_json(taken.to_json())
    else:
        _say(taken)
    if taken.problem:
        ctx.exit(FOUND)


def _capture(ctx: click.Context, name: str, write: str | None, course: CaptureOptions) -> CaptureFigures:
    from userspace_cni.fastpath.fastpath_errors import FastPathError

    site = open_site(ctx)
    site.require_root(between.MAKING)
    record = between.attachment(site, name)
    with EndingSignals() as ending, ExitStack() as stack:
        shown = stack.enter_context(ExitStack())
        tell = shown.enter_context(view.progress(f"looking at {name}"))
        try:
            mirror = stack.enter_context(capture.mirror(site, record, tell, between.tell_removed, ending))
            taken = CaptureFigures(mirror.source)
            report = _reported(taken, tell)
            if write in (None, outputs.STDOUT):
                shown.close()  # frames are shown on the same terminal, perhaps
                report = _nothing
                view.note(f"{taken.source.name}: capturing; Ctrl-C ends it")
            sink = stack.enter_context(outputs.open_output(write, course.snaplen, lambda: ending.asked))
            capture.capture(mirror, course, sink, taken, ending, report)
        except FastPathError as error:
            raise CommandRefused(str(error), FOUND) from error
        except capture.ReaderGone:
            taken.ended = "reader"
    return taken


def _reported(taken: CaptureFigures, tell: Callable[[str], None]) -> Callable[[], None]:
    return lambda: tell(f"{taken.source.name}: {view.format_count(taken.frames, 'frame')}, {taken.bytes:,} bytes")


def _nothing() -> None: ...


def _say(taken: CaptureFigures) -> None:
    """The summary, as notes: stdout has the frames."""
    of = f" of {taken.seen:,} seen" if taken.seen != taken.frames else ""
    lost = (
        f"{view.format_count(taken.dropped, 'frame')} dropped, because they were not read fast enough"
        if taken.dropped
        else "none dropped"
    )
    kept = f"{view.format_count(taken.frames, 'frame')}{of}, {taken.bytes:,} bytes"
    view.note(f"{taken.source.name}: {kept} in {taken.seconds:.1f} s; {lost}")
    if taken.problem:
        view.note(f"ended: {taken.problem}")
