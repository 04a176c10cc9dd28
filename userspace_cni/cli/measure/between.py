"""What the commands between two ports share: their options, and opening the two endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import click

from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.records import Record
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.name_completion import attachment_names, bridge_names
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.probe import opening
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import SIZE_MAX, SIZE_MIN, Pair, meet
from userspace_cni.probe.opening import Tell

MAKING: Final = "making ports and sockets of our own for a moment"
"""What only root may do, for the error."""
_TIDY_S: Final = 5.0


def between_ports(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command between two ports: `names`, `bridge`, `size`, `as_json`."""
    options = (
        click.argument("names", nargs=-1, metavar="[A B]", shell_complete=attachment_names),
        click.option(
            "--bridge",
            shell_complete=bridge_names,
            metavar="BRIDGE",
            help="Without A and B: two temporary ports on this bridge, not on one made for them.",
        ),
        click.option(
            "--size",
            default=64,
            show_default=True,
            type=click.IntRange(SIZE_MIN, SIZE_MAX),
            help="Bytes of a frame, without its checksum.",
        ),
        click.option("--json", "as_json", is_flag=True, help="As a JSON object."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True)
class PairOptions:
    """What the caller asked for: two names or none, then a bridge or None for a temporary one; and the frames."""

    names: tuple[str, ...]
    bridge: str | None
    frames: opening.Frames

    def require_possible(self) -> None:
        """Raise Refused for a mistake in the call."""
        if len(self.names) not in (0, 2):
            raise CommandRefused("two attachments are needed, or none for two temporary ports", USAGE)
        if self.names and self.bridge is not None:
            raise CommandRefused("--bridge is for temporary ports: two attachments are on the bridge that they are on", USAGE)


@contextmanager
def open_pair(site: Site, wanted: PairOptions, tell: Tell, ending: EndingSignals) -> Iterator[Pair]:
    """Both endpoints, with frames on their way; everything is put back at the end. Raises Refused, UserspaceError, Ended."""
    from userspace_cni.fastpath.fastpath_errors import FastPathError

    wanted.require_possible()
    if not wanted.names:
        site.require_root(MAKING)
    with ExitStack() as stack:
        try:
            pair = stack.enter_context(_pair(site, wanted, tell, ending))
            tell("sending the first frames")
            meet(pair, wanted.frames.size)
        except FastPathError as error:
            raise CommandRefused(str(error), FOUND) from error
        yield pair


def _pair(site: Site, wanted: PairOptions, tell: Tell, ending: EndingSignals) -> AbstractContextManager[Pair]:
    if not wanted.names:
        return opening.temporary(site, wanted.bridge, wanted.frames, tell, tell_removed, ending)
    tell("reading the records and asking the switch")
    records = [attachment(site, name) for name in wanted.names]
    return opening.of_attachments(site, records, wanted.frames, tell, lambda: _tidy(site))


def attachment(site: Site, name: str) -> Record:
    """The one attachment of that name. Raises Refused for none, and for several."""
    found = site.records((name,))
    if len(found) != 1:
        raise CommandRefused(
            f"{name!r} has several interfaces; name one of {view.join([name_of(each) for each in found])}", USAGE
        )
    return found[0]


def _tidy(site: Site) -> None:
    """Remove what killed runs left: that may be a socket at one of these ports, or a probe on their bridge."""
    from userspace_cni.attachment import runs

    deadline = Deadline.after(_TIDY_S)
    try:
        for record in runs.list_ended_runs(site.node.store, site.node.switch, deadline):
            if runs.undo_ended(record, site.node.store, site.node.driver, deadline):
                tell_removed(view.join([step.summary for step in record.steps], "its record"))
    except UserspaceError as error:
        view.note(f"what a killed run left stays for now: {error}")


def tell_removed(left: str) -> None:
    """Tell a person of what is not there any more."""
    view.note(f"removed what a killed run had left: {left}")
