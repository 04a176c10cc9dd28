"""A collection of the API server, followed by a list and a watch that never end.

An `ObjectStore` decides what to keep: only what it reads from a thing stays in memory. The rules: a list that fails half-way,
is of other things or has no version changes nothing; a thing that a list lacks stays until a second one lacks it, too
(`kube.lacking`), and that second list is requested here; a version that the server has forgotten (410), or a line that is not
an event, causes a new list; after failures the pauses grow; and no error ends the thread, because without it the known state
would age unnoticed.

The `kubernetes` library's SharedInformer is not used: it needs the typed models (20 MiB), reads the first list in one piece, does
not back off between failing watches, and does not tell whether its list was complete. Here things are the raw JSON of
`kube.credentials`' connection.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Collection as Keys
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import ObjectRefused, Unavailable, UserspaceError
from userspace_cni.base.loops import Loop, TryAgain
from userspace_cni.kube.credentials import REQUEST_LIMIT_S, ApiSession, Stream, TooLong
from userspace_cni.kube.lacking import CONFIRM_S, MissingObjects
from userspace_cni.kube.list_pages import page_of, require_kind, text
from userspace_cni.kube.resources import ApiResource

STOP_S: Final = 1.0
_EVENTS: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class WatchTimes:
    """How long a watch lasts and waits, in seconds, and how many things are listed at once.

    A watch is asked for `watch_s` at most (a random part less, to spread the nodes) and given up when it is still open `slack_s`
    later. A watch that was open for `good_s` begins the back-off anew.
    Knowledge is fresh for `fresh_s`: servers send a bookmark about every minute. `confirm_s`: as `MissingObjects`.
    """

    watch_s: float = 240.0
    slack_s: float = 15.0
    back_off: BackOff = BackOff(0.5, 30.0, spread=0.5)
    good_s: float = 10.0
    fresh_s: float = 90.0
    page: int = 10
    confirm_s: float = CONFIRM_S


@dataclass(frozen=True)
class Collection:
    """What is followed. `fields`: the field selector, "" for all of the resource; `title` names the things for messages.

    `needed`: what the account must be allowed; `meanwhile`: what happens while they are not watched; `absent`: what to look at
    when the server knows no such resource (404), "" where every server has it. `optional`: that is no problem. `former`: the same
    resource in another version, which is asked for then.
    """

    resource: ApiResource
    title: str
    needed: str
    meanwhile: str
    fields: str = ""
    absent: str = ""
    optional: bool = False
    former: ApiResource | None = None

    @property
    def other(self) -> Collection:
        """The same in the other version, where there is one."""
        return replace(self, resource=self.former, former=self.resource) if self.former else self


class ObjectStore(Protocol[Key, T]):
    """What is kept of a collection. All of it is called by the one thread that follows, without a lock."""

    def read(self, thing: Mapping[str, Any]) -> tuple[Key, T]:
        """Of one thing, how it is told from the others, and what is kept of it.

        Raises KeyError, TypeError, AttributeError or ValueError for what is no such thing.
        """
        ...

    def keys(self) -> Keys[Key]: ...

    def take_over(self, listed: Sequence[tuple[Key, T]], gone: Keys[Key]) -> None:
        """Take a complete list over. What it lacks stays, but for what is `gone`."""
        ...

    def change(self, kind: str, thing: tuple[Key, T]) -> None:
        """Take one event over: "ADDED", "MODIFIED" or "DELETED"."""
        ...


class _Forgotten(Exception):
    """The server no longer knows our version: only a new list helps."""


class _AbsentObject(Exception):
    """The server knows no such resource, and need not."""


class ListWatch(Loop):
    """One daemon thread from `start` to `stop` that follows a collection for a store; it cannot be started again.

    `listed` is called when the first list is complete, and when what is known is `confirmed`; it must not wait.

    Safe to use from any thread; all but `stop` and `wait_synced` return at once.
    """

    end_s = STOP_S

    def __init__(
        self,
        session: ApiSession,
        collection: Collection,
        store: ObjectStore[Any, Any],
        times: WatchTimes,
        listed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(f"watch of {collection.title}", f"watches {collection.title}")
        self._session = session
        self._collection = collection
        self._store = store
        self._times = times
        self.back_off = times.back_off
        self.failing = f"{collection.title} are not watched now, {collection.meanwhile}: "
        self._listed = listed
        self._contact = 0.0
        self.problem = "watching has not begun"
        self.tried = False
        """Whether there was a first list, or a failure to get one."""
        self._synced = threading.Event()
        self._confirmed = threading.Event()
        self._stream: Stream | None = None
        # only the thread uses these
        self._lacking = MissingObjects(times.confirm_s)
        self._version = ""
        self._opened: float | None = None
        self._page = times.page

    def stop(self, within_s: float = threading.TIMEOUT_MAX) -> None:
        """End the thread; waits 1 s at most: a thread that hangs in a request ends by itself."""
        with self._wake:
            self._stopping = True
            if self._stream is not None:
                self._stream.interrupt()
        super().stop(within_s)

    @property
    def synced(self) -> bool:
        """Whether there was a complete list; once true it stays so."""
        return self._synced.is_set()

    @property
    def confirmed(self) -> bool:
        """Whether what is not known does not exist: two lists have told what there is. Once true it stays so."""
        return self._confirmed.is_set()

    @property
    def fresh(self) -> bool:
        """Whether what is known is complete, and the server confirmed it within `fresh_s`."""
        with self._wake:
            return self._synced.is_set() and time.monotonic() - self._contact <= self._times.fresh_s

    def wait_synced(self, deadline: Deadline) -> bool:
        """Wait for the first complete list; False when there was none by `deadline`."""
        return self._synced.wait(deadline.remaining())

    def _round(self) -> float:
        """Watch until that ends, after a list where one is needed."""
        self._opened = None
        try:
            self._list_and_watch()
        except UserspaceError:
            raise
        except Exception as error:
            self._version = ""
            raise Unavailable(f"{self._doing('watching')}: {type(error).__name__}: {error}", "it is tried again") from error
        finally:
            self.tried = True
            if good := self._opened is not None and time.monotonic() - self._opened >= self._times.good_s:
                self._pause_s = 0.0
        self._note("")
        if not good:
            raise TryAgain
        return 0.0

    def _list_and_watch(self) -> None:
        listed = not self._version or self._lacking.is_due
        try:
            if not self._version:
                self._list()
            elif listed:
                self._list_again()
            if not self._lacking.is_due:
                self._watch()
        except _Forgotten:
            self._version = ""
            if listed and self._opened is None:  # a new list alone does not help
                what = f"{self._doing('listing')}: the server forgot the version (410) before the watch was open"
                raise Unavailable(what, "it is tried again") from None
        except _AbsentObject:
            self._collection = self._collection.other

    def _list_again(self) -> None:
        """Have the list that is to tell whether what another one lacked is gone."""
        try:
            self._list()
        except UserspaceError:
            self._lacking.put_off()  # what happens is followed meanwhile
            raise

    def _list(self) -> None:
        """Have the store take over a complete list. A list that fails changes nothing."""
        asked_at = time.monotonic()
        things: list[tuple[Any, Any]] = []
        first, token = "", ""
        while True:
            body = self._read_page(token)
            try:
                page = page_of(body, self._collection.resource)
                things += [self._store.read(item) for item in page.items]
            except (KeyError, TypeError, AttributeError, ValueError):
                raise ObjectRefused(f"{self._doing('listing')}: the answer is no list of them", self._who()) from None
            first, token = first or page.version, page.token
            if not token:
                break
        gone = self._lacking.note_list(self._store.keys(), {key for key, _ in things}, first, asked_at)
        self._store.take_over(things, gone)
        if math.isinf(self._lacking.due):
            self._page = self._times.page
        before = self.synced, self.confirmed
        with self._wake:
            self._contact = time.monotonic()
            self._synced.set()
            if self._lacking.confirmed:
                self._confirmed.set()
        self.tried = True
        if before != (self.synced, self.confirmed):
            self._listed()
        self._version = first

    def _read_page(self, token: str) -> dict[str, Any]:
        path = self._path(limit=str(self._page), **({"continue": token} if token else {}))
        try:
            answer = self._session.request("GET", path, Deadline.after(REQUEST_LIMIT_S))
        except TooLong:
            self._page = max(1, self._page // 2)
            raise
        self._require_ok(answer.status, "listing")
        return answer.body

    def _watch(self) -> None:
        """Follow the events from our version on, until the server ends them, or a list is due."""
        seconds = random.SystemRandom().uniform(0.75, 1.0) * self._times.watch_s  # spreads nodes
        seconds = max(1, math.ceil(min(seconds, self._lacking.due - time.monotonic())))
        path = self._path(watch="1", allowWatchBookmarks="true", resourceVersion=self._version, timeoutSeconds=str(seconds))
        limit = seconds + self._times.slack_s
        stream = self._session.stream(path, Deadline.after(REQUEST_LIMIT_S), limit)
        try:
            with self._wake:
                self._stream = stream
            if self._stopping:
                return
            self._require_ok(stream.status, "watching")
            self._opened = time.monotonic()
            self._note("")
            for line in stream.lines(Deadline.after(limit)):
                self._event(line)
        finally:
            with self._wake:
                self._stream = None
            stream.close()

    def _event(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, thing = event["type"], event["object"]
            if kind == "ERROR":
                self._refused(thing)
            if kind not in _EVENTS:
                raise ValueError(kind)
            version = text(thing["metadata"]["resourceVersion"])
            require_kind(thing, self._collection.resource)
            read = None if kind == "BOOKMARK" else self._store.read(thing)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            self._version = ""
            raise Unavailable(f"{self._doing('watching')}: a line that is no event", self._who()) from None
        # after a silence only a bookmark proves that no event is outstanding
        confirmed = kind == "BOOKMARK" or self.fresh
        if read is not None:
            self._lacking.note_event(read[0])
            self._store.change(kind, read)
        if confirmed:
            with self._wake:
                self._contact = time.monotonic()
        self._version = version

    def _refused(self, status: Mapping[str, Any]) -> None:
        """Raise for an error event. The version may be its cause, so a list comes next."""
        self._version = ""
        if status.get("code") == 410:
            raise _Forgotten
        raise Unavailable(f"{self._doing('watching')}: the server ended it with {status.get('code')}", self._who())

    def _require_ok(self, status: int, doing: str) -> None:
        if status == 200:
            return
        if status == 410:
            raise _Forgotten
        if status in (401, 403):
            raise ObjectRefused(
                f"{self._doing(doing)}: not allowed ({status}) with {self._session.account}",
                f"the account needs {self._collection.needed}",
            )
        self._version = ""
        if status == 404 and self._collection.optional:
            raise _AbsentObject
        if status == 404 and self._collection.absent:
            raise ObjectRefused(f"{self._doing(doing)}: the API server has no such resource (404)", self._collection.absent)
        raise ObjectRefused(f"{self._doing(doing)}: unexpected answer {status}", self._who())

    def _path(self, **options: str) -> str:
        """The collection's path with these options, and its selector."""
        chosen = {"fieldSelector": self._collection.fields} if self._collection.fields else {}
        return f"{self._collection.resource.path()}?{urlencode({**chosen, **options})}"

    def _doing(self, what: str) -> str:
        return f"{what} {self._collection.title}"

    def _who(self) -> str:
        return f"does {self._session.account} name an API server?"
