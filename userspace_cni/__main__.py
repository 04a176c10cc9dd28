"""What a runtime executes with CNI_COMMAND set, and what people execute with arguments.

`python -m userspace_cni`. With CNI_COMMAND it is the plugin as a process: an agent of the same directories serves the call, and
without one this process does. With arguments, or as the program of people, it is the command line, and where a shell asks it how
to complete one; else it prints what it is. It must never write anything but the answer to stdout. The command line is imported
once Ctrl-C ends the process without a traceback. Until it is known that no agent serves, nothing slow is imported: not `signal`
(it makes enums; `_signal` does not), nor `contextlib`.
"""

from __future__ import annotations

import os
import sys

from userspace_cni.agent.handover import NotServed, ProcessCalled, Unanswered, hand_over
from userspace_cni.base.signals import Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from types import FrameType

    from userspace_cni.attachment.node import Node
    from userspace_cni.base.errors import UserspaceError
    from userspace_cni.cni.request import Request
else:
    import _signal as signal


def main() -> int:
    """Serve the runtime's call or the command line, and return the exit code."""
    if os.environ.get("CNI_COMMAND"):
        code = plugin()
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.stderr = None  # the interpreter would flush it once more, and exit with 120 when that fails
        return code
    # a shell that completes a command gives the words in the environment; the launcher's own name has no directory
    if len(sys.argv) > 1 or "_USERSPACE_CNI_COMPLETE" in os.environ or sys.argv[0].endswith("/userspace-cni"):
        Signals(signal.SIG_DFL, (signal.SIGINT,)).hear()  # imports do not catch KeyboardInterrupt; `run` handles it again
        _find_packages()
        from userspace_cni.cli.main import run

        return run()
    from userspace_cni.cni.result import SUPPORTED_VERSIONS

    sys.stderr.write(
        "userspace-cni: CNI plugin for vhost-user interfaces on OVS-DPDK (type 'userspace')\n"
        f"CNI protocol versions supported: {', '.join(SUPPORTED_VERSIONS)}\n"
        "A container runtime runs it with CNI_COMMAND set; for people: userspace-cni --help\n"
    )
    return 0


def plugin() -> int:
    """Serve one CNI call: read environment and stdin, write stdout, return the exit code."""
    stdin = _Stdin()
    answer: tuple[int, bytes] | None = None
    try:
        Signals(_interrupt, ignored_too=True).hear()
        answer = _answer(os.environ, stdin)
        _write_stdout(answer[1])
    except Exception as error:
        from userspace_cni.base.errors import Interrupted
        from userspace_cni.base.log import bind, say
        from userspace_cni.cni.request import subject_of

        if answer is None and isinstance(error, Interrupted):  # before the verb began, as it ended, or while the agent had it
            _write_error(error)
            return 1
        if not isinstance(error, (OSError, Interrupted)):
            raise
        with bind(verb=os.environ["CNI_COMMAND"], **subject_of(os.environ)):
            say("error", "the answer could not be written to stdout; an ADD is undone", error=error)
        if answer and answer[0] == 0 and os.environ["CNI_COMMAND"] == "ADD":
            # the runtime saw no result and takes the attachment for failed
            _answer({**os.environ, "CNI_COMMAND": "DEL"}, stdin)
        return 1
    return answer[0]


def _answer(environ: Mapping[str, str], stdin: _Stdin) -> tuple[int, bytes]:
    """Have the call served, by the agent or here: exit code and output."""
    called = ProcessCalled()
    reason = ""
    try:
        handed = hand_over(environ, stdin.content, called)
        if handed:
            _repeat_warnings(handed.headers, stdin)
            return int(handed.status >= 300), handed.body
    except NotServed as error:
        reason = str(error)
    except Unanswered as error:
        if environ["CNI_COMMAND"] == "ADD":
            return _unknown(str(error), stdin)
        reason = str(error)  # the other verbs change nothing, or can be served twice
    return _serve(environ, stdin, called, reason)


def _repeat_warnings(headers: Mapping[str, str], stdin: _Stdin) -> None:
    """Write the warnings of the agent's answer to stderr; without warnings nothing is imported."""
    if any(name.startswith("userspace-cni-warning-") for name in headers):
        from contextlib import suppress

        from userspace_cni.base.errors import UserspaceError
        from userspace_cni.base.log import bind, say
        from userspace_cni.cni import protocol
        from userspace_cni.cni.request import read_network, subject_of

        verb, network = os.environ["CNI_COMMAND"], ""
        with suppress(UserspaceError):
            network = read_network(stdin.read(), "DEL").name
        with bind(verb=verb, **subject_of(os.environ), network=network):
            for text in protocol.warnings_of(protocol.Headers(headers)):
                say("warning", text)


def _serve(environ: Mapping[str, str], stdin: _Stdin, called: ProcessCalled, reason: str) -> tuple[int, bytes]:
    """Serve the call in this process. `reason`: why the agent does not serve it, "" where there is no agent."""
    from userspace_cni.cni.call import answer

    if reason:
        from userspace_cni.base.log import say
        from userspace_cni.cni.request import subject_of

        say("info", "this process serves the call itself", verb=environ["CNI_COMMAND"], **subject_of(environ), reason=reason)

    def serve(request: Request) -> bytes:
        from userspace_cni.attachment import verbs
        from userspace_cni.cni.request import Called as Moment

        then = Moment(called.boot_id, called.boottime_ns) if called.boot_id else None
        return verbs.serve(request, _node(), then)

    served = answer(environ, stdin.read, serve)
    return served.code, served.output


def _unknown(reason: str, stdin: _Stdin) -> tuple[int, bytes]:
    """Answer an ADD that the agent may have served or not: the agent, the runtime's DEL or the next call undoes it."""
    from userspace_cni.base.errors import Unavailable
    from userspace_cni.base.log import say
    from userspace_cni.cni.request import subject_of, version_of
    from userspace_cni.cni.result import error_json

    error = Unavailable(reason, "what it did is undone, by it or by the runtime's DEL; see the agent's log, try again later")
    say("error", error.message, verb="ADD", **subject_of(os.environ), details=error.details, code=error.code)
    return 1, error_json(error, version_of(stdin.read()))


def _interrupt(number: int, _: FrameType | None) -> None:
    """Turn the first signal into an error that undoes the verb. Further signals do not interrupt the undoing.

    Where the agent has the call, the error ends the connection: the agent sees that and undoes an ADD.
    """
    from signal import Signals as Named

    from userspace_cni.base.errors import Interrupted

    Signals(signal.SIG_IGN).hear()
    raise Interrupted(f"stopped by {Named(number).name}", "the call was undone; try again later")


class _Stdin:
    """The content of stdin, read once and whole."""

    def __init__(self) -> None:
        self._content: bytes | None = None
        self._error: OSError | None = None

    def content(self) -> bytes | None:
        """All of it; None when it cannot be read."""
        if self._content is None and self._error is None:
            try:
                with os.fdopen(0, "rb", closefd=False) as stream:
                    self._content = stream.read()
            except OSError as error:
                self._error = error
        return self._content

    def read(self) -> bytes:
        """All of it. Raises UnreadableInput."""
        content = self.content()
        if content is None:
            from userspace_cni.base.errors import UnreadableInput

            reason = self._error.strerror if self._error else "closed"
            raise UnreadableInput(f"reading the network configuration from stdin: {reason}") from self._error
        return content


def _node() -> Node:
    _find_packages()
    from userspace_cni.base.log import begin
    from userspace_cni.base.settings import load
    from userspace_cni.node.local_node import LocalNode

    settings = load(os.environ)
    begin(settings.log_level, settings.log_format)
    return LocalNode(settings, os.environ)


def _find_packages() -> None:
    """Make installed packages importable: the launcher starts the interpreter without them, as handing over needs none."""
    if sys.flags.no_site:
        import site

        site.main()


def _write_error(error: UserspaceError) -> None:
    from userspace_cni.cni.result import LATEST, error_json

    try:
        _write_stdout(error_json(error, LATEST))
    except OSError:
        return


def _write_stdout(output: bytes) -> None:
    """Write all of `output`, unbuffered: an error here must be seen before the process ends."""
    while output:
        output = output[os.write(1, output) :]


if __name__ == "__main__":
    sys.exit(main())
