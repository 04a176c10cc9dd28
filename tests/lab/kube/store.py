"""What the API server for tests keeps of one resource, with the real one's rules for versions, lists and watches.

Every write gives a new resourceVersion and is kept as a change, so that a watch can go on from any version until the history is
compacted. A list is one moment, however many pages it is read in; each has a version of its own, as where other resources, which
share the counter, are written all the time. Nothing in here knows HTTP or the code under test.
"""

from __future__ import annotations

import copy
import marshal
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace ("" for objects of the cluster) and name."""
NAMES: Final = frozenset({"metadata.name", "metadata.namespace"})
"""The fields that every resource can be selected by."""


def copied(thing: T) -> T:
    """A deep copy. What is JSON is copied by the interpreter's own format, in a tenth of the time."""
    try:
        return cast("T", marshal.loads(marshal.dumps(cast("Any", thing))))
    except ValueError:
        return copy.deepcopy(thing)


class Refusal(Exception):
    """An answer other than 200: a status code, and the reason, message and details of the Status object."""

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details = status, reason, message, details or {}

    def body(self) -> dict[str, Any]:
        facts = {"message": self.message, "reason": self.reason, "code": self.status, "details": dict(self.details)}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **facts}


@dataclass(frozen=True)
class Change:
    """One write: the object before (None: it is new) and after (None: it is gone)."""

    version: int
    old: dict[str, Any] | None
    new: dict[str, Any] | None


@dataclass(frozen=True)
class Selection:
    """Which objects a list or a watch is about: a namespace ("" for all), and selectors of `a=b` terms.

    `fields` and `labels` are the selectors; `known` are the fields by which the resource can be selected.
    """

    namespace: str = ""
    fields: str = ""
    labels: str = ""
    known: frozenset[str] = NAMES

    def __post_init__(self) -> None:
        for field, _ in _terms(self.fields):
            if field not in self.known:
                raise Refusal(400, "BadRequest", f"field label not supported: {field}")

    def has(self, thing: Mapping[str, Any] | None) -> bool:
        """Whether the object is one of them."""
        if thing is None or self.namespace not in ("", thing["metadata"].get("namespace", "")):
            return False
        labels = thing["metadata"].get("labels") or {}
        return all(
            thing[field.split(".")[0]].get(field.split(".")[1], "") == value for field, value in _terms(self.fields)
        ) and all(labels.get(name) == value for name, value in _terms(self.labels))

    def event(self, change: Change) -> dict[str, Any] | None:
        """The event of a change on a watch of these objects; None when the change does not concern them."""
        before, after = self.has(change.old), self.has(change.new)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": change.new}
        if not before or change.old is None:
            return None
        metadata = {**change.old["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**change.old, "metadata": metadata}}


class Store:
    """Objects of one kind by namespace and name. `changed` is notified of every write; its lock guards everything."""

    def __init__(self, api_version: str, kind: str, known: frozenset[str] = NAMES) -> None:
        self.api_version, self.kind, self.known = api_version, kind, known
        self.changed = threading.Condition(threading.RLock())
        self.things: dict[Key, dict[str, Any]] = {}
        self._version = 1000
        self._history: list[Change] = []
        self._compacted = self._version
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    @property
    def version(self) -> int:
        with self.changed:
            return self._version

    def get(self, namespace: str, name: str) -> dict[str, Any]:
        """A copy of the object as it is now; KeyError when there is none."""
        with self.changed:
            return copied(self.things[namespace, name])

    def names(self) -> list[Key]:
        """Namespace and name of all objects."""
        with self.changed:
            return sorted(self.things)

    def remove(self, namespace: str, name: str) -> None:
        """Delete the object at once; KeyError when there is none."""
        with self.changed:
            old = self.things.pop((namespace, name))
            self._version += 1
            self._remember(Change(self._version, old, None))

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """What is written in the block is undone at its end, and not seen outside: a dry run."""
        with self.changed:
            things, version, remembered = dict(self.things), self._version, len(self._history)
            try:
                yield
            finally:
                self.things, self._version = things, version
                del self._history[remembered:]

    def compact(self) -> None:
        """Forget the history: a watch from an older version, and the next page of a list, are then answered 410."""
        with self.changed:
            self._history.clear()
            self._pages.clear()
            self._compacted = self._version

    def page(self, selection: Selection, limit: int, token: str) -> dict[str, Any]:
        """A list of at most `limit` objects (0: all) from `token` on. Raises Refusal."""
        with self.changed:
            if token and token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
            if not token:
                self._version += 1
            if token:
                version, things = self._pages.pop(token)
            else:
                version, things = self._version, [each for _, each in sorted(self.things.items()) if selection.has(each)]
            metadata = {"resourceVersion": str(version)}
            if limit and len(things) > limit:
                metadata["continue"] = uuid.uuid4().hex
                self._pages[metadata["continue"]] = (version, things[limit:])
                things = things[:limit]
            return {
                "kind": f"{self.kind}List",
                "apiVersion": self.api_version,
                "metadata": metadata,
                "items": [self.item(each) for each in things],
            }

    def item(self, thing: dict[str, Any]) -> dict[str, Any]:
        """An object as lists have it."""
        return {key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}

    def since(self, version: int) -> list[Change]:
        """The changes after `version`. Raises Refusal when they were compacted."""
        with self.changed:
            if version < self._compacted:
                raise Refusal(410, "Expired", f"too old resource version: {version} ({self._compacted})")
            return self._history[bisect_right(self._history, version, key=lambda change: change.version) :]

    def all(self) -> list[Change]:
        """Every object as if it had just been made, which is what a watch without a version begins with."""
        with self.changed:
            return [Change(self._version, None, each) for _, each in sorted(self.things.items())]

    def put(self, thing: dict[str, Any]) -> dict[str, Any]:
        """Store the object as a new version of itself; returns a copy. The caller has validated it, and holds the lock."""
        key = (thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        if key in self.things and self.things[key]["metadata"]["uid"] != thing["metadata"].get("uid"):
            self.remove(*key)  # an object is deleted before another one of its name is made
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        old = self.things.get(key)
        self.things[key] = thing
        self._remember(Change(self._version, old, thing))
        return copied(thing)

    def _remember(self, change: Change) -> None:
        self._history.append(change)
        self.changed.notify_all()


def merged(thing: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a merge patch (RFC 7386) applied; the arguments stay as they are."""
    return cast("dict[str, Any]", _merged(thing, patch))


def check_preconditions(title: str, stored: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Refuse a write of another object than `stored`, or of another version of it; both are metadata. Raises Refusal."""
    operation = f'Operation cannot be fulfilled on {title} "{stored["name"]}"'
    if sent.get("uid") and sent["uid"] != stored["uid"]:
        precondition = f"UID in precondition: {sent['uid']}, UID in object meta: {stored['uid']}"
        raise Refusal(409, "Conflict", f"{operation}: Precondition failed: {precondition}")
    if sent.get("resourceVersion") and sent["resourceVersion"] != stored["resourceVersion"]:
        modified = "the object has been modified; please apply your changes to the latest version and try again"
        raise Refusal(409, "Conflict", f"{operation}: {modified}")


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = dict(copied(target)) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _terms(selector: str) -> Iterator[tuple[str, str]]:
    for term in filter(None, selector.split(",")):
        field, _, value = term.partition("=")
        yield field, value.removeprefix("=")
