"""What a runtime executes with CNI_COMMAND set, and what people execute with arguments.

`python -m userspace_cni`. With CNI_COMMAND it is the plugin, in-process; with arguments the command line; with neither it tells
what it is. Nothing but the answer is ever written to stdout. What a person waits for is imported where Ctrl-C is quiet already.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userspace_cni import verbs

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Serve the runtime or the person who called; the exit code."""
    if os.environ.get("CNI_COMMAND"):
        code = plugin()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            return code
        sys.stderr = None  # the interpreter would flush it once more, and answer 120 for the plugin
        return code
    if len(sys.argv) > 1:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # amid imports nobody catches KeyboardInterrupt; `run` hears it again
        from userspace_cni.cli.commands import run

        return run()
    from userspace_cni.result import SUPPORTED_VERSIONS

    sys.stderr.write(
        "userspace-cni: CNI plugin for vhost-user interfaces on OVS-DPDK (type 'userspace')\n"
        f"CNI protocol versions supported: {', '.join(SUPPORTED_VERSIONS)}\n"
        "A container runtime runs it with CNI_COMMAND set; for people: userspace-cni --help\n"
    )
    return 0


def plugin() -> int:
    """One CNI call: environment and stdin in, stdout and exit code out."""
    from userspace_cni import verbs
    from userspace_cni.errors import Interrupted
    from userspace_cni.log import begin, bound, say
    from userspace_cni.request import subject_of
    from userspace_cni.result import LATEST, error_json

    begin("info", os.environ.get("USERSPACE_CNI_LOG_FORMAT", ""))  # until the settings are read
    stdin = _Stdin()
    answer: verbs.Answer | None = None
    try:
        for number in _STOPPING:
            signal.signal(number, _interrupt)
        answer = verbs.answer(os.environ, stdin.read, _node)
        _write_stdout(answer.output)
    except (OSError, Interrupted) as error:
        if answer is None and isinstance(error, Interrupted):  # before the verb began, or as it ended
            with suppress(OSError):
                _write_stdout(error_json(error, LATEST))
            return 1
        with bound(verb=os.environ["CNI_COMMAND"], **subject_of(os.environ)):
            say("error", "the answer could not be written to stdout; an ADD is undone", error=error)
        if answer and answer.code == 0 and os.environ["CNI_COMMAND"] == "ADD":
            # nobody has learned of this attachment: a runtime that saw no result takes it for failed
            verbs.answer({**os.environ, "CNI_COMMAND": "DEL"}, stdin.read, _node)
        return 1
    return answer.code


def _interrupt(number: int, _: FrameType | None) -> None:
    """Turn the first signal into an error that undoes the verb; what undoes it is not interrupted again."""
    from userspace_cni.errors import Interrupted

    for other in _STOPPING:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(f"stopped by {signal.Signals(number).name}", "the call was undone; try again later")


class _Stdin:
    """What came on stdin, read to its end once."""

    def __init__(self) -> None:
        self._content: bytes | None = None

    def read(self) -> bytes:
        """All of it. Raises UnreadableInput."""
        from userspace_cni.errors import UnreadableInput

        if self._content is None:
            try:
                with os.fdopen(0, "rb", closefd=False) as stream:
                    self._content = stream.read()
            except OSError as error:
                raise UnreadableInput(f"reading the network configuration from stdin: {error.strerror}") from error
        return self._content


def _node() -> verbs.Node:
    from userspace_cni.drivers import Drivers
    from userspace_cni.log import begin
    from userspace_cni.settings import load

    settings = load(os.environ)
    begin(settings.log_level, settings.log_format)
    return Drivers(settings, os.environ)


def _write_stdout(output: bytes) -> None:
    """Write all of `output`, unbuffered: an error here must be seen before the process ends."""
    while output:
        output = output[os.write(1, output) :]


if __name__ == "__main__":
    sys.exit(main())
