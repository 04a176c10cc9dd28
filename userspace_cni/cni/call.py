"""One call of a runtime: an environment and stdin in, an exit code and the bytes for stdout out.

It reads the call and words the answer; what a verb does is `serve`'s. It imports nothing that serves a verb, so that a process
pays for none when it answers VERSION or refuses a call. A verb that has to wait for a pod may say so instead of waiting: then its
caller decides where the call waits, and has it go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from userspace_cni.base.errors import UNEXPECTED, UserspaceError
from userspace_cni.base.log import bind, learn, say
from userspace_cni.base.notices import give_failure
from userspace_cni.cni.request import Request, decode_words, read_environment, read_network, read_verb, subject_of, version_of
from userspace_cni.cni.result import LATEST, error_json, version_answer

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline


@dataclass(frozen=True)
class CniAnswer:
    """What the runtime is given: the exit code and all of stdout. `error` is the CNI code of a failure, 0 without one."""

    code: int
    output: bytes
    error: int = 0


class Awaited(Protocol):
    """What a call waits for: something that a pod's author, or a program of theirs, does or never does."""

    pod: tuple[str, str]
    """Namespace and name of the pod."""
    until: Deadline
    """When the call goes on without it."""
    text: str
    """What is lacking, for people."""

    def begin(self, changed: Callable[[], None]) -> None:
        """Begin to look, in the background; `changed` is called when `over` may have become true. Raises Unavailable.

        Called at most once, by a process that is told of changes of the pods that it knows beside.
        """
        ...

    def over(self) -> bool:
        """Whether there is nothing more to wait for, as far as is known without asking."""
        ...

    def end(self) -> None:
        """Have what `begin` began end, soon: the call has gone on. Never waits."""
        ...

    @property
    def runs(self) -> bool:
        """Whether what `begin` began still has a thread of its own, though the call may have gone on."""
        ...

    def settle(self) -> None:
        """Wait here, unless `begin` was called. Raises UserspaceError for what kept it from being known."""
        ...


class PostponedCall(Exception):
    """The call has to wait: it has changed nothing and holds nothing. `proceed` goes on with it, and gives its output.

    `attachment`: container ID and interface name.
    """

    def __init__(self, attachment: tuple[str, str], awaited: Awaited, proceed: Callable[[], bytes]) -> None:
        super().__init__(awaited.text)
        self.attachment = attachment
        self.awaited = awaited
        self.proceed = proceed


def answer(environ: Mapping[str, str], read_stdin: Callable[[], bytes], serve: Callable[[Request], bytes]) -> CniAnswer:
    """Answer one call. Raises nothing but Postponed: every failure is one JSON error object and exit code 1.

    `read_stdin` raises UnreadableInput. `serve` gives the output of a call whose input is good, and raises UserspaceError or
    Postponed; it sees no VERSION and no call whose input is refused.
    """
    verb, stdin = "", b""
    with bind(verb=environ.get("CNI_COMMAND", ""), **subject_of(environ)):
        try:
            verb = read_verb(environ)
            if verb == "VERSION":
                return CniAnswer(0, _version(read_stdin))
            environment = read_environment(environ, verb)
            stdin = read_stdin()
            request = Request(environment, read_network(stdin, verb), stdin)
            learn(network=request.network.name)
            return CniAnswer(0, serve(request))
        except PostponedCall:
            raise
        except UserspaceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 -- the contract with the runtime: JSON, never a traceback
            failure = UserspaceError(f"unexpected {type(error).__name__}: {error}", _where(error), code=UNEXPECTED)
        say("error", failure.message, details=failure.details, code=failure.code)
        if verb == "ADD":
            give_failure(failure)
        output = error_json(failure, version_of(stdin) if stdin else LATEST, for_del=verb == "DEL")
        return CniAnswer(1, output, failure.code)


def _version(read_stdin: Callable[[], bytes]) -> bytes:
    """VERSION repeats the version that it can read, and fails for nothing."""
    try:
        return version_answer(decode_words(read_stdin()).get("cniVersion"))
    except UserspaceError:
        return version_answer(None)


def _where(error: Exception) -> str:
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else "unknown place"
    return f"a bug in userspace-cni at {place}; please report it with this line"
