"""`python -m userspace_cni.pod`: what a container runs to learn of its vhost-user interfaces.

Prints and waits; `source` decides which entries are valid. Writes to stdout only what was asked for, so that
`dpdk-testpmd $(python -m userspace_cni.pod --wait) -- …` works, and everything else to stderr, as what it waits for. It changes
one thing only: where the application makes the socket, it removes a dead one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from . import eal
from .document import DEFAULT_MAPPED_DIR, DocumentError
from .interface import Interface
from .name import free_name
from .source import ANNOTATIONS_FILES, Sources, is_of, own_sandbox_ids
from .waiting import Waiting

DEFAULT_WAIT_S = 120
"""Kubelet refreshes a downward-API file at the latest once per sync, every 60 to 90 s."""

POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Print the interfaces; the exit code: 0 printed, 1 not found or not in time, 2 wrong usage."""
    options = _parser().parse_args(argv)
    sources = _sources(options)
    ends = time.monotonic() + (options.wait or 0)
    waiting = Waiting(_say, bound_s=options.wait)
    while True:
        chosen, trouble = _choose(sources, options)
        if not trouble:
            waiting.over(f"found {', '.join(interface.ifname for interface in chosen)}")
            own = own_sandbox_ids()
            _free_names([interface for interface in chosen if is_of(interface.container_id, own)])
            return _print(chosen, options.json)
        if time.monotonic() >= ends:
            return _complain(trouble, options)
        waiting.still(f"waiting: {trouble}")
        time.sleep(min(POLL_S, max(0.0, ends - time.monotonic())))


def _choose(sources: Sources, options: argparse.Namespace) -> tuple[list[Interface], str]:
    """Choose the interfaces to print, or say why they cannot be printed yet."""
    found = sources.look()
    if not found.interfaces:
        return [], found.trouble
    names = options.interface or [interface.ifname for interface in found.interfaces]
    chosen = [interface for interface in found.interfaces if interface.ifname in names]
    missing = sorted(set(names) - {interface.ifname for interface in chosen})
    if missing:
        return [], f"{found.source}: no interface {', '.join(missing)}"
    if options.expect and len(chosen) < options.expect:
        return [], f"{found.source}: {len(chosen)} of {options.expect} interfaces"
    if options.wait and not options.expect and not options.interface and not found.settled:
        return [], f"{found.source}: {found.trouble}"
    return chosen, ""


def _free_names(own: list[Interface]) -> None:
    """Remove this sandbox's dead sockets, so that the application can bind after the one before it was killed."""
    for interface in own:
        said = free_name(interface.path) if interface.mode == "server" else ""
        if said:
            _say(f"{interface.path}: {said}")


def _print(chosen: list[Interface], as_json: bool) -> int:
    if as_json:
        text = json.dumps([interface.facts() for interface in chosen], indent=2)
    else:
        try:
            text = " ".join(shlex.quote(argument) for argument in eal.for_interfaces(chosen))
        except DocumentError as error:
            _say(f"{error}; --json shows what was found")
            return 1
    sys.stdout.write(text + "\n")
    return 0


def _complain(trouble: str, options: argparse.Namespace) -> int:
    waited = f"after {options.wait:g} s: " if options.wait else ""
    hint = "" if options.wait else "; the file is refreshed some time after the start: --wait waits for it"
    _say(f"no complete answer: {waited}{trouble}{hint}")
    return 1


def _say(text: str) -> None:
    """Write a line to stderr, without control characters of a pod's files. A closed stderr is no error."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"userspace_cni.pod: {shown}\n")
        sys.stderr.flush()


def _sources(options: argparse.Namespace) -> Sources:
    annotations, directories = list(ANNOTATIONS_FILES), [DEFAULT_MAPPED_DIR]
    if options.annotations or options.dir:
        annotations = [options.annotations] if options.annotations else []
        directories = [options.dir] if options.dir else []
    own = frozenset() if options.any_sandbox or options.container_id else own_sandbox_ids()
    return Sources(annotations, directories, options.container_id, own)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m userspace_cni.pod",
        description="Print the DPDK EAL arguments for this container's vhost-user interfaces.",
        epilog="Examples:\n"
        "  dpdk-testpmd -l 2,3 $(python -m userspace_cni.pod --wait) -- --forward-mode=mac\n"
        "  python -m userspace_cni.pod --json --interface net1\n\n"
        "The dead socket of an application that was killed is removed, where the application makes it and the interface is\n"
        "of this sandbox; what keeps the application from binding is told on stderr.\n\n"
        "Exit status: 0 printed, 1 nothing found or not in time, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of interfaces instead")
    parser.add_argument(
        "--annotations", metavar="FILE", help=f"the downward-API file (default: {' or '.join(ANNOTATIONS_FILES)})"
    )
    parser.add_argument(
        "--dir", metavar="DIR", help=f"a directory with configData-*.json files and the sockets (default: {DEFAULT_MAPPED_DIR})"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        const=DEFAULT_WAIT_S,
        type=_seconds,
        help="wait until the interfaces are there and agree with the pod's network-status "
        f"({DEFAULT_WAIT_S} s when no number is given)",
    )
    parser.add_argument(
        "--expect",
        metavar="N",
        type=_positive,
        help="fewer than N interfaces are not enough; with N given, network-status is not looked at",
    )
    parser.add_argument("--interface", metavar="NAME", action="append", help="only this interface; can be given several times")
    parser.add_argument(
        "--container-id",
        metavar="ID",
        default="",
        help="only entries of the sandbox whose ID starts with ID (default: this one's)",
    )
    parser.add_argument("--any-sandbox", action="store_true", help="also entries that were made for a former sandbox of the pod")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
