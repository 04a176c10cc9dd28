"""Runs a delegated IPAM plugin by CNI SPEC 1.1.0, section 4: the same stdin, the same environment, another CNI_COMMAND.

A delegate is another vendor's program: it may hang, print anything, leave children behind. So it gets its own session, whose
process group is killed at the deadline, when waiting is interrupted, and when the delegate itself has ended. Its stdout is read
up to a limit, its stderr is passed on to ours, and the end of its process is awaited, never the end of its pipes, which a child
may keep open. It must never get our stdout or stderr: the runtime waits until those are closed.

The descriptor `keep_open` (a lock) stays open in the delegate, so that the lock is held as long as the delegate runs.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, cast

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import (
    PASSING,
    BadEnvironment,
    DelegateBroken,
    DelegateFailed,
    DirectoryRefused,
    InvalidConfig,
    Unavailable,
)
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.linux.thread_processors import anywhere

if TYPE_CHECKING:
    from subprocess import Popen

STDOUT_MAX = 1 << 20
"""Bytes of an answer; host-local's has a few hundred."""
_TAIL = 1024
"""Bytes of stdout and of stderr kept for the details of an error."""
_CODE_MAX = 2**32 - 1
_READ = 1 << 16
"""Bytes read at a time: the usual size of a pipe's buffer."""
CHROOT: Final = "/usr/sbin/chroot"
"""chroot(8), which changes root and directory and becomes the plugin. In a process with threads, Python must not do that between
fork and exec. It is our container's program, because the host's may need other libraries."""
_REAP_S = 1.0
"""A killed process may hang in the kernel; the verb waits for it at most this long."""
_PASSING_ERRNOS = PASSING | {errno.ETXTBSY}
_VERBS_SINCE_1_1 = frozenset({"STATUS", "GC"})


class Delegate:
    """One IPAM plugin and the environment it is run with.

    `plugin` is `ipam.type`, `cni_path` the directories of CNI_PATH, `variables` the complete environment: only CNI_COMMAND is
    replaced. The plugin is looked for in `root`, and runs with it as root. Every call raises InvalidConfig when the plugin is
    missing, DelegateFailed with the plugin's own error, DelegateBroken when it failed without a valid error, and Unavailable
    when it was killed at the deadline.
    """

    def __init__(self, plugin: str, cni_path: Sequence[str], variables: Mapping[str, str], root: HostRoot = HERE) -> None:
        self.plugin = plugin
        self._root = root
        self._cni_path = tuple(cni_path)
        self._variables = dict(variables)
        self._versions: tuple[str, ...] | None = None

    def add(self, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...] = ()) -> dict[str, Any]:
        """Lease; returns the decoded answer, one JSON object, not checked further. Does not DEL when it fails."""
        finished = self._run("ADD", stdin, deadline, keep_open)
        return self._object(finished, "the answer")

    def delete(self, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...] = ()) -> None:
        self._run("DEL", stdin, deadline, keep_open)

    def check(self, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...] = ()) -> None:
        """Verify the lease; `stdin` has the prevResult."""
        self._run("CHECK", stdin, deadline, keep_open)

    def status(self, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...] = ()) -> None:
        """Ask whether it could lease. Only for a delegate that `knows` STATUS."""
        self._run("STATUS", stdin, deadline, keep_open)

    def gc(self, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...] = ()) -> None:
        """Pass on the list of valid attachments. Only for a delegate that `knows` GC."""
        self._run("GC", stdin, deadline, keep_open)

    def versions(self, deadline: Deadline) -> tuple[str, ...]:
        """The versions it supports; asked once. Empty when it refuses VERSION, as plugins older than 0.2.0 do."""
        if self._versions is None:
            try:
                finished = self._run("VERSION", b'{"cniVersion":"1.1.0"}', deadline, ())
            except DelegateFailed:
                self._versions = ()
                return self._versions
            listed = self._object(finished, "the list of versions").get("supportedVersions")
            if not isinstance(listed, list) or not all(isinstance(version, str) for version in listed):
                raise self._broken("VERSION", "supportedVersions is not a list of strings", finished)
            self._versions = tuple(listed)
        return self._versions

    def knows(self, verb: str, deadline: Deadline) -> bool:
        """Whether `verb` may be forwarded: STATUS and GC only to a delegate that lists 1.1.0."""
        return verb not in _VERBS_SINCE_1_1 or "1.1.0" in self.versions(deadline)

    def _run(self, verb: str, stdin: bytes, deadline: Deadline, keep_open: tuple[int, ...]) -> _Finished:
        """Run it to its end; returns only when it exited with 0."""
        what = f"{verb} of the IPAM plugin {self.plugin}"
        path = find(self.plugin, self._cni_path, self._root)
        deadline.require(what)
        conversation = _Conversation(stdin)
        began = time.monotonic()
        process = self._start(path, verb, keep_open)
        try:
            conversation.hold(process, deadline)
        except OSError as error:
            raise Unavailable(f"{what}: talking to it: {error.strerror}") from error
        finally:
            status = _end(process)
        finished = _Finished(verb, status, bytes(conversation.stdout), _text(bytes(conversation.tail)))
        if conversation.timed_out:
            after = f"killed after {time.monotonic() - began:.1f} s without an answer"
            raise Unavailable(f"{what}: {after}", finished.output)
        if conversation.too_much:
            raise self._broken(verb, f"printed more than {STDOUT_MAX} bytes", finished)
        if finished.status != 0:
            self._raise_its_error(finished)
        return finished

    def _start(self, path: str, verb: str, keep_open: tuple[int, ...]) -> Popen[bytes]:
        import subprocess

        environment = {**self._variables, "CNI_COMMAND": verb}
        try:
            with anywhere():
                return subprocess.Popen(
                    [CHROOT, self._root.directory, path] if self._root.elsewhere else [path],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                    pass_fds=keep_open,
                )
        except OSError as error:
            kind = Unavailable if error.errno in _PASSING_ERRNOS else DelegateBroken
            raise kind(f"{verb} of the IPAM plugin {self.plugin}: {path} cannot be run: {error.strerror}") from error
        except ValueError as error:
            raise BadEnvironment(f"{verb} of the IPAM plugin {self.plugin}: its environment: {error}") from error

    def _raise_its_error(self, finished: _Finished) -> NoReturn:
        """Raise the JSON error that it printed, unchanged; DelegateBroken when libcni would not understand what it printed."""
        answer = _decode(finished.stdout)
        if not isinstance(answer, dict) or "code" not in answer:
            raise self._broken(finished.verb, f"{finished.how} without a CNI error on stdout", finished)
        code, message, details = answer["code"], answer.get("msg", ""), answer.get("details", "")
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= _CODE_MAX:
            raise self._broken(finished.verb, f"{finished.how} with the impossible error code {code!r}", finished)
        if not isinstance(message, str) or not isinstance(details, str):
            raise self._broken(finished.verb, f"{finished.how} with an error whose msg or details is no string", finished)
        # CNI SPEC 1.1.0, section 4: we return its error; only an empty part is filled in
        raise DelegateFailed(message, details or f"said by the IPAM plugin {self.plugin}", code=code)

    def _object(self, finished: _Finished, what: str) -> dict[str, Any]:
        answer = _decode(finished.stdout)
        if not isinstance(answer, dict):
            raise self._broken(finished.verb, f"{what} on stdout is not one JSON object", finished)
        return answer

    def _broken(self, verb: str, problem: str, finished: _Finished) -> DelegateBroken:
        return DelegateBroken(f"{verb} of the IPAM plugin {self.plugin}: {problem}", finished.output)


def find(plugin: str, cni_path: Sequence[str], root: HostRoot = HERE) -> str:
    """The host's absolute path of `plugin`: the first executable regular file of that name in `cni_path`, links followed.

    Raises InvalidConfig when there is none, or when the name is no file name.
    """
    from pathlib import Path

    if not plugin or "/" in plugin or "\0" in plugin or plugin in (".", ".."):
        raise InvalidConfig(f"ipam.type {plugin!r} is not the name of a plugin", "it must be a file name without '/'")
    for directory in filter(None, cni_path):
        with suppress(OSError, ValueError, DirectoryRefused):
            candidate = str((Path("/" if root.elsewhere else "") / directory / plugin).absolute())
            seen = root.path(candidate)
            if Path(seen).is_file() and os.access(seen, os.X_OK):
                return candidate
    searched = ":".join(cni_path) or "(empty)"
    raise InvalidConfig(f"ipam.type {plugin!r}: no executable of this name in CNI_PATH", f"CNI_PATH is {searched}")


@dataclass(frozen=True)
class _Finished:
    """A delegate that has ended: exit status (negative: the signal that killed it), stdout, and the end of its stderr."""

    verb: str
    status: int
    stdout: bytes
    tail: str

    @property
    def how(self) -> str:
        return f"killed by signal {-self.status}" if self.status < 0 else f"exit status {self.status}"

    @property
    def output(self) -> str:
        """What it printed, for the details of an error."""
        streams = {"stdout": _text(self.stdout[:_TAIL]), "stderr": self.tail}
        return "; ".join(f"its {name}: {text}" for name, text in streams.items() if text) or "it printed nothing"


class _Conversation:
    """Writes stdin and collects stdout and stderr until the process has ended, the deadline passed or stdout is too long."""

    def __init__(self, stdin: bytes) -> None:
        self.stdout = bytearray()
        self.tail = bytearray()
        self.timed_out = False
        self._unsent = memoryview(stdin)

    @property
    def too_much(self) -> bool:
        """Whether it printed more than an answer can have."""
        return len(self.stdout) > STDOUT_MAX

    def hold(self, process: Popen[bytes], deadline: Deadline) -> None:
        """Return when the process has ended, or with `timed_out` or `too_much` set while the process still runs."""
        to, out, err = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", (process.stdin, process.stdout, process.stderr))
        with to, out, err:
            ended = os.pidfd_open(process.pid)
            try:
                self._exchange(to, {out.fileno(): self._take_stdout, err.fileno(): self._take_stderr}, ended, deadline)
            finally:
                os.close(ended)

    def _exchange(self, to: IO[bytes], takers: Mapping[int, Callable[[bytes], None]], ended: int, deadline: Deadline) -> None:
        sending = to.fileno()
        poll = select.poll()
        poll.register(sending, select.POLLOUT)
        for fd in (*takers, ended):
            poll.register(fd, select.POLLIN)
        for fd in (sending, *takers):
            os.set_blocking(fd, False)
        while not self.too_much:
            ready = {fd for fd, _ in poll.poll(deadline.remaining() * 1000)}
            if sending in ready and self._send(sending):
                poll.unregister(sending)
                to.close()
            for fd in ready & takers.keys():
                if not _read_chunk(fd, takers[fd]):
                    poll.unregister(fd)
            if ended in ready:
                for fd, take in takers.items():
                    _drain(fd, take)
                return
            if deadline.remaining() <= 0:
                self.timed_out = True
                return

    def _send(self, fd: int) -> bool:
        """Write what fits into the pipe; True when all is written, or the delegate has closed its end."""
        try:
            self._unsent = self._unsent[os.write(fd, self._unsent) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        return not self._unsent

    def _take_stdout(self, chunk: bytes) -> None:
        self.stdout += chunk

    def _take_stderr(self, chunk: bytes) -> None:
        """Pass stderr on as it comes; an error of our own stderr is ignored."""
        self.tail = (self.tail + chunk)[-_TAIL:]
        stream = getattr(sys.stderr, "buffer", None)
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.write(chunk)
                stream.flush()


def _read_chunk(fd: int, take: Callable[[bytes], None]) -> int:
    """Read one chunk from the pipe and pass it to `take`; returns its length, 0 at the end of the stream."""
    chunk = os.read(fd, _READ)
    take(chunk)
    return len(chunk)


def _drain(fd: int, take: Callable[[bytes], None]) -> None:
    """Read what an ended process left in its pipe. Bounded, because a child of it may go on writing."""
    with suppress(BlockingIOError):
        for _ in range(STDOUT_MAX // _READ + 1):
            if not _read_chunk(fd, take):
                return


def _end(process: Popen[bytes]) -> int:
    """Kill all that is left of the delegate's process group and reap the delegate; returns its exit status.

    The group is killed before its leader is reaped: until then no other group can have its number.
    """
    from subprocess import TimeoutExpired

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.wait(_REAP_S)
    except TimeoutExpired:
        return -signal.SIGKILL


def _decode(text: bytes) -> object:
    """The JSON document `text`, None when it is not exactly one."""
    from userspace_cni.pod.strict_json import JsonReader

    try:
        return JsonReader().read(text.decode("utf-8"))
    except ValueError:
        return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").strip()
