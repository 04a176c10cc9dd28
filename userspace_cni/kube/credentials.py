"""Credentials for the API server, and bounded requests and streams made with them.

`kube.account` says what they are, and whose code makes the connections. The rules:

- No call outlasts its caller's deadline. Exec plugins and name resolution have no time-out, so each request and each loading of
  credentials runs in a thread of its own, which is abandoned when the time is up. Only one thread loads at a time: later callers
  wait for the same one instead of starting another hanging plugin.
- Credentials are loaded again when the kubeconfig file changed, after an answer of 401 (rotated token, expired plugin token) and
  after a TLS failure (rotated certificates); never by a timer. A kubeconfig is never written.
- A network's configuration names the kubeconfig, and a root process reads it and sends its token to the server in it:
  `kube.kubeconfig` says which files are taken, and what may be done for them.
- A kubeconfig's text, a token, a body or a server's words must never be part of a message.

Libraries are imported when the first request is made: a verb that writes no note pays nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import PASSING, Unavailable, UserspaceError
from userspace_cni.base.threads import start
from userspace_cni.kube.account import Account, of_kubeconfig, of_service_account
from userspace_cni.kube.given_account import GivenAccount
from userspace_cni.kube.kubeconfig import Kubeconfig, Signature

T = TypeVar("T")

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REQUEST_LIMIT_S = 10.0
"""One request may take this long, so that a lost connection does not use up a verb's whole deadline."""

ANSWER_LIMIT = 8 << 20
"""Bytes of one answer, and of one line of a stream."""

_SAID_MAX: Final = 1000
"""Characters of what a server says."""
MERGE_PATCH: Final = "application/merge-patch+json"
"""RFC 7386."""
APPLY_PATCH: Final = "application/apply-patch+yaml"
"""Server-side apply. JSON is YAML, as it is written here (`_encoded`)."""
_NEVER_BARE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON may have as they are, and YAML only escaped."""


def load_library() -> None:
    """Import what a request needs, for callers whose time limit is for the server alone.

    Never fails: after an error, as without descriptors, the request imports it again and reports the error.
    """
    with suppress(ImportError, OSError):
        import urllib3  # noqa: F401


@dataclass(frozen=True)
class _Body:
    """What a request sends, and of which kind it is."""

    text: bytes
    kind: str


@dataclass(frozen=True)
class ApiAnswer:
    """Status code and decoded body of an answer; `body` is empty when it was no JSON object."""

    status: int
    body: dict[str, Any]

    @property
    def said(self) -> str:
        """What the server says of a refusal (`message` of a Status), for the end of a sentence: with a colon, or ""."""
        said = self.body.get("message")
        return f": {' '.join(said.split())[:_SAID_MAX]}" if isinstance(said, str) and said.strip() else ""

    def close(self) -> None:
        """Do nothing: the answer was read whole."""


class Stream:
    """An answer that is read line by line while the server sends it."""

    def __init__(self, what: str, answer: Any) -> None:
        self.status: int = answer.status
        self._what = what
        self._answer = answer

    def lines(self, deadline: Deadline) -> Iterator[bytes]:
        """Yield the lines as they come, without the empty ones, until the server ends them or `deadline` has passed.

        Raises Unavailable when the connection breaks, the server is silent, or a line is too long.
        """
        from urllib3.exceptions import HTTPError

        left = bytearray()
        try:
            while deadline.remaining() and (piece := self._answer.read1(65536)):
                left += piece
                if b"\n" in piece:
                    *whole, rest = left.split(b"\n")
                    left = rest
                    yield from (bytes(line) for line in whole if line.strip())
                if len(left) > ANSWER_LIMIT:
                    raise Unavailable(f"{self._what}: a line of more than {ANSWER_LIMIT} bytes", "is this an API server?")
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # AttributeError: the library raises it when another thread has shut the connection down
            raise Unavailable(f"{self._what}: the connection broke: {_reason(error)}", "it is made again") from None

    def interrupt(self) -> None:
        """End the stream from another thread, also while its own waits for a line (with urllib3 before 2.3 that waits on)."""
        with suppress(OSError, ValueError, RuntimeError, AttributeError):
            self._answer.shutdown()

    def close(self) -> None:
        """Close the connection; for the thread that reads."""
        with suppress(OSError, ValueError):
            self._answer.close()
            self._answer.release_conn()


R = TypeVar("R", ApiAnswer, Stream)


class ApiSession:
    """Requests to one API server under one account; safe to use from several threads.

    `kubeconfig`: None for the service account of the pod that this process runs in.
    """

    def __init__(self, kubeconfig: Kubeconfig | GivenAccount | None, service_account: str = SERVICE_ACCOUNT) -> None:
        self._kubeconfig = kubeconfig
        self._service_account = service_account
        self._lock = threading.Lock()
        self._connection: _ApiConnection | None = None
        self._loading: _AbandonableCall[_ApiConnection] | None = None
        self._loading_of: Signature = ()
        self._abandons = True

    def for_own_threads(self) -> ApiSession:
        """Another session of this account, for threads that do nothing else: a request is made by the thread that asks.

        That saves a thread for each request. A name that is not resolved holds its thread up longer than the deadline.
        """
        session = ApiSession(self._kubeconfig, self._service_account)
        session._abandons = False
        return session

    @property
    def account(self) -> str:
        return str(self._kubeconfig) if self._kubeconfig else "the pod's service account"

    def prepare(self, what: str, deadline: Deadline) -> None:
        """Load the credentials, for callers whose time limit is for the server alone. Raises as `request`."""
        self._connect(what, deadline)

    def request(
        self, method: str, path: str, deadline: Deadline, body: Mapping[str, Any] | None = None, patch: str = MERGE_PATCH
    ) -> ApiAnswer:
        """Make one request; the answer has any status below 500 except 429. `patch`: of which kind the body of a PATCH is.

        Raises Unavailable for everything transient and InvalidConfig for credentials that cannot be used; for a kubeconfig that
        is not there see `Kubeconfig.unusable`.
        """
        what = f"{method} {path}"
        kind = patch if method == "PATCH" else "application/json"
        sent = None if body is None else _Body(_encoded(body), kind)
        return self._authorised(what, deadline, lambda connection, limit: connection.send(what, sent, limit))

    def stream(self, path: str, deadline: Deadline, silence_s: float) -> Stream:
        """Begin a GET whose answer comes line by line; `deadline` is for its begin. The caller closes it.

        It ends when the server sends nothing for `silence_s` seconds. Answers and errors as of `request`.
        """
        what = f"GET {path}"
        return self._authorised(what, deadline, lambda connection, limit: connection.open(what, limit, silence_s))

    def _authorised(self, what: str, deadline: Deadline, ask: Callable[[_ApiConnection, Deadline], R]) -> R:
        """Return the answer of `ask`; when it is 401, ask once more with fresh credentials."""
        connection = self._connect(what, deadline)
        answer = self._bounded(connection, what, deadline, ask)
        if answer.status == 401:
            answer.close()
            self._forget(connection)
            answer = self._bounded(self._connect(what, deadline), what, deadline, ask)
        if answer.status == 429 or answer.status >= 500:
            answer.close()
            raise Unavailable(f"{what}: the API server answered {answer.status}", f"with {self.account}")
        return answer

    def _bounded(
        self, connection: _ApiConnection, what: str, deadline: Deadline, ask: Callable[[_ApiConnection, Deadline], R]
    ) -> R:
        limit = deadline.within(REQUEST_LIMIT_S)
        try:
            if not self._abandons:
                return ask(connection, limit)
            return _AbandonableCall(lambda: ask(connection, limit)).outcome(what, limit, f"with {self.account}")
        except _TlsFailed as error:
            self._forget(connection)
            raise Unavailable(f"{what}: TLS with the API server failed: {error}", f"with {self.account}") from None

    def _connect(self, what: str, deadline: Deadline) -> _ApiConnection:
        with self._lock:
            if self._connection is not None and self._is_current(self._connection):
                return self._connection
            signature = self._kubeconfig.signature() if self._kubeconfig else ()
            if self._loading is None or self._loading.done or self._loading_of != signature:
                self._loading, self._loading_of = _AbandonableCall(self._load), signature
            loading = self._loading
        connection = loading.outcome(f"{what}: loading credentials", deadline, f"{self.account}; does its exec plugin hang?")
        with self._lock:
            self._connection = connection
        return connection

    def _forget(self, connection: _ApiConnection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None

    def _is_current(self, connection: _ApiConnection) -> bool:
        """Whether the files of its credentials have not changed since they were read."""
        kubeconfig = self._kubeconfig
        if not isinstance(kubeconfig, Kubeconfig):
            return True
        return all(kubeconfig.signature(path) == seen for path, seen in connection.files.items())

    def _load(self) -> _ApiConnection:
        try:
            return _ApiConnection(self._account())
        except UserspaceError:
            raise
        except Exception as error:  # noqa: BLE001 -- parsers' and programs' errors quote what they read
            reason, passes = type(error).__name__, isinstance(error, OSError) and error.errno in PASSING
        message = f"credentials for the API server cannot be used ({reason})"
        if passes:
            raise Unavailable(message, "try again later")
        if not self._kubeconfig:
            raise Unavailable(message, f"the token and the certificate in {self._service_account}")
        raise self._kubeconfig.unusable(f"{self.account}: {message}")

    def _account(self) -> Account:
        if self._kubeconfig:
            return of_kubeconfig(self._kubeconfig.load())
        return of_service_account(self._service_account)


def _encoded(body: Mapping[str, Any]) -> bytes:
    """The body as JSON that is YAML, too, as which a server reads what is to be applied: YAML takes no escaped halves of a
    character, and neither control characters nor its own ends of lines as they are. A half alone becomes a question mark.
    """
    text = json.dumps(body, ensure_ascii=False)
    return _NEVER_BARE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "replace")


class _ApiConnection:
    """Requests with an account."""

    def __init__(self, account: Account) -> None:
        self.files = account.files
        self._server, self._pool = account.server, account.pool
        self._headers = {"Accept": "application/json", "User-Agent": "userspace-cni"}
        if account.authorization:
            self._headers["Authorization"] = account.authorization

    def send(self, what: str, sent: _Body | None, deadline: Deadline) -> ApiAnswer:
        with _translated(what):
            answer = self._request(what, sent, deadline)
            try:
                return ApiAnswer(answer.status, _decoded(_read(answer, what, deadline)))
            finally:
                answer.release_conn()

    def open(self, what: str, deadline: Deadline, silence_s: float) -> Stream:
        with _translated(what):
            answer = self._request(what, None, deadline)
            stream = Stream(what, answer)
            connection = answer.connection
            if connection is not None and connection.sock is not None:
                connection.sock.settimeout(silence_s)
            if not deadline.remaining():
                stream.close()  # its caller waits no longer
            return stream

    def _request(self, what: str, sent: _Body | None, deadline: Deadline) -> Any:
        import urllib3

        method, _, path = what.partition(" ")
        headers = self._headers if sent is None else {**self._headers, "Content-Type": sent.kind}
        body = sent.text if sent else None
        options = {"preload_content": False, "redirect": False, "retries": False}
        timeout = urllib3.Timeout(total=deadline.require(what))
        return self._pool.request(method, self._server + path, body=body, headers=headers, timeout=timeout, **options)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

    try:
        yield
    except SSLError as error:
        raise _TlsFailed(_reason(error)) from None
    except (HTTPError, OSError, ValueError) as error:
        late = isinstance(error, TimeoutError | ConnectTimeoutError | ReadTimeoutError)
        if late and not isinstance(error, NewConnectionError):  # the library counts "refused" among the time-outs
            raise _late(what, "is the API server up, and its name resolved?") from None
        raise Unavailable(
            f"{what}: the API server cannot be reached: {_reason(error)}", "is it up, and its name resolved?"
        ) from None


def _late(what: str, look_at: str) -> Unavailable:
    """The error of a request whose time is over: the same whether its own thread notices first, or the one that waits for it."""
    return Unavailable(f"{what}: no answer in time", look_at)


class TooLong(Unavailable):
    """An answer of more than ANSWER_LIMIT bytes; a request for less may succeed."""


class _TlsFailed(Exception):
    """TLS could not be set up; the message is the TLS library's short reason."""


class _AbandonableCall(Generic[T]):
    """A function that runs in a thread of its own, which callers may abandon. Raises Unavailable when no thread starts."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="api-server")
        start(self._thread, "asking the API server")

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def outcome(self, what: str, deadline: Deadline, look_at: str) -> T:
        """Return or raise what the function did. Raises Unavailable when that takes longer than `deadline`."""
        self._thread.join(deadline.require(what))
        if not self.done:
            raise _late(what, look_at)
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 -- handed to the thread that asked
            self._error = error


def _read(answer: Any, what: str, deadline: Deadline) -> bytes:
    """Read the body piece by piece: urllib3's time-out is per read, and a slow server would never exceed it."""
    pieces = bytearray()
    while piece := answer.read1(65536):
        pieces += piece
        if not deadline.remaining():
            raise _late(what, "an answer began, and came too slowly")
        if len(pieces) > ANSWER_LIMIT:
            raise TooLong(f"{what}: the answer is longer than {ANSWER_LIMIT} bytes", "is this an API server?")
    return bytes(pieces)


def _decoded(text: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        body = json.loads(text)
        return body if isinstance(body, dict) else {}
    return {}


def _reason(error: BaseException) -> str:
    """The system's text for the lowest OSError of a chain of exceptions, else the name of the lowest exception."""
    lowest, below = error, _below(error)
    while below is not None:
        lowest, below = below, _below(below)
        if isinstance(lowest, OSError) and lowest.strerror and not lowest.filename:
            return lowest.strerror
    return type(lowest).__name__


def _below(error: BaseException) -> BaseException | None:
    nested = getattr(error, "reason", None)
    return error.__cause__ or error.__context__ or (nested if isinstance(nested, BaseException) else None)
