"""The pods of the API server for tests, with the real one's rules for writing, listing and watching them.

Every write gives a new resourceVersion and is kept as a change, so that a watch can go on from any version until the history is
compacted. A list is one moment, however many pages it is read in. Nothing in here knows HTTP or the code under test.
"""

from __future__ import annotations

import copy
import datetime as dt
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

ANNOTATIONS_LIMIT = 256 * 1024
GRACE_S = 30

_FIELDS = frozenset({"spec.nodeName", "metadata.name", "metadata.namespace"})


class Refusal(Exception):
    """An answer other than 200: a status code, and the reason, message and details of the Status object."""

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details = status, reason, message, details or {}

    def body(self) -> dict[str, Any]:
        """The Status object."""
        facts = {"message": self.message, "reason": self.reason, "code": self.status, "details": dict(self.details)}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **facts}


@dataclass(frozen=True)
class Change:
    """One write: the pod before (None: it is new) and after (None: it is gone)."""

    version: int
    old: dict[str, Any] | None
    new: dict[str, Any] | None


@dataclass(frozen=True)
class Selection:
    """Which pods a list or a watch is about: a namespace ("" for all) and a field selector of `a=b` terms."""

    namespace: str = ""
    fields: str = ""

    def __post_init__(self) -> None:
        for field, _ in self._terms():
            if field not in _FIELDS:
                raise Refusal(400, "BadRequest", f"field label not supported: {field}")

    def has(self, pod: Mapping[str, Any] | None) -> bool:
        """Whether the pod is one of them."""
        if pod is None or self.namespace not in ("", pod["metadata"]["namespace"]):
            return False
        return all(pod[field.split(".")[0]].get(field.split(".")[1], "") == value for field, value in self._terms())

    def event(self, change: Change) -> dict[str, Any] | None:
        """The event of a change on a watch of these pods; None when the change does not concern them."""
        before, after = self.has(change.old), self.has(change.new)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": change.new}
        if not before or change.old is None:
            return None
        metadata = {**change.old["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**change.old, "metadata": metadata}}

    def _terms(self) -> Iterator[tuple[str, str]]:
        for term in filter(None, self.fields.split(",")):
            field, _, value = term.partition("=")
            yield field, value.removeprefix("=")


class PodStore:
    """Pods by namespace and name. `changed` is notified of every write; its lock guards everything."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 1000
        self._history: list[Change] = []
        self._compacted = self._version
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    @property
    def version(self) -> int:
        """The last write's."""
        with self.changed:
            return self._version

    def add(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace a pod, with what the server sets (uid, resourceVersion, namespace) when absent. Returns a copy."""
        with self.changed:
            made = copy.deepcopy(dict(pod))
            metadata = made.setdefault("metadata", {})
            metadata.setdefault("namespace", "default")
            metadata.setdefault("uid", str(uuid.uuid4()))
            made = {"kind": "Pod", "apiVersion": "v1", **made}
            made.setdefault("spec", {})
            made.setdefault("status", {"phase": "Pending"})
            return self._store(made)

    def get(self, namespace: str, name: str) -> dict[str, Any]:
        """A copy of the pod as it is now; KeyError when there is none."""
        with self.changed:
            return copy.deepcopy(self._pods[namespace, name])

    def names(self) -> list[tuple[str, str]]:
        """Namespace and name of all pods."""
        with self.changed:
            return sorted(self._pods)

    def merge(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into the pod, whatever it touches."""
        with self.changed:
            self._store(cast("dict[str, Any]", _merged(self._pods[namespace, name], patch)))

    def remove(self, namespace: str, name: str) -> None:
        """Delete the pod at once; KeyError when there is none."""
        with self.changed:
            old = self._pods.pop((namespace, name))
            self._version += 1
            self._remember(Change(self._version, old, None))

    def mark_deleted(self, namespace: str, name: str) -> dict[str, Any]:
        """Begin the deletion, as for a pod whose containers are to end within their grace period."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.merge(namespace, name, {"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": GRACE_S}})
        return self.get(namespace, name)

    def compact(self) -> None:
        """Forget the history: a watch from an older version, and the next page of a list, are then answered 410."""
        with self.changed:
            self._history.clear()
            self._pages.clear()
            self._compacted = self._version

    def write(self, old: Mapping[str, Any], new: Mapping[str, Any], sent: Mapping[str, Any], status: bool) -> dict[str, Any]:
        """Store `new` over `old` as a request `sent` may: metadata and status, or metadata and spec. Raises Refusal."""
        with self.changed:
            _check_preconditions(old["metadata"], sent.get("metadata") or {})
            stored = copy.deepcopy(dict(old))
            for key in ("annotations", "labels", "finalizers"):
                stored["metadata"].pop(key, None)
                if (new.get("metadata") or {}).get(key):
                    stored["metadata"][key] = new["metadata"][key]
            _check_annotations(stored["metadata"])
            part = "status" if status else "spec"
            stored[part] = new.get(part) or {}
            return self._store(stored)

    def page(self, selection: Selection, limit: int, token: str) -> dict[str, Any]:
        """A PodList of at most `limit` pods (0: all) from `token` on; its items have no kind, as is real. Raises Refusal."""
        with self.changed:
            if token and token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
            if token:
                version, pods = self._pages.pop(token)
            else:
                version, pods = self._version, [pod for _, pod in sorted(self._pods.items()) if selection.has(pod)]
            metadata = {"resourceVersion": str(version)}
            if limit and len(pods) > limit:
                metadata["continue"] = uuid.uuid4().hex
                self._pages[metadata["continue"]] = (version, pods[limit:])
                pods = pods[:limit]
            items = [{key: value for key, value in pod.items() if key not in ("kind", "apiVersion")} for pod in pods]
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    def since(self, version: int) -> list[Change]:
        """What was written after `version`. Raises Refusal when that was compacted."""
        with self.changed:
            if version < self._compacted:
                raise Refusal(410, "Expired", f"too old resource version: {version} ({self._compacted})")
            return [change for change in self._history if change.version > version]

    def all(self) -> list[Change]:
        """Every pod as if it had just been made: what a watch without a version begins with."""
        with self.changed:
            return [Change(self._version, None, pod) for _, pod in sorted(self._pods.items())]

    def _store(self, pod: dict[str, Any]) -> dict[str, Any]:
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if key in self._pods and self._pods[key]["metadata"]["uid"] != pod["metadata"].get("uid"):
            self.remove(*key)  # a pod is not replaced by another one of its name, it goes first
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        old = self._pods.get(key)
        self._pods[key] = pod
        self._remember(Change(self._version, old, pod))
        return copy.deepcopy(pod)

    def _remember(self, change: Change) -> None:
        self._history.append(change)
        self.changed.notify_all()


def merged(pod: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a merge patch (RFC 7386) applied; the arguments stay as they are."""
    return cast("dict[str, Any]", _merged(pod, patch))


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(copy.deepcopy(target)) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _check_preconditions(stored: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    operation = f'Operation cannot be fulfilled on pods "{stored["name"]}"'
    if sent.get("uid") and sent["uid"] != stored["uid"]:
        precondition = f"UID in precondition: {sent['uid']}, UID in object meta: {stored['uid']}"
        raise Refusal(409, "Conflict", f"{operation}: Precondition failed: {precondition}")
    if sent.get("resourceVersion") and sent["resourceVersion"] != stored["resourceVersion"]:
        modified = "the object has been modified; please apply your changes to the latest version and try again"
        raise Refusal(409, "Conflict", f"{operation}: {modified}")


def _check_annotations(metadata: Mapping[str, Any]) -> None:
    annotations = metadata.get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise Refusal(
            400, "BadRequest", "json: cannot unmarshal into Go struct field ObjectMeta.metadata.annotations of type string"
        )
    if sum(len(key) + len(value) for key, value in annotations.items()) > ANNOTATIONS_LIMIT:
        raise Refusal(422, "Invalid", "metadata.annotations: Too long: must have at most 262144 bytes")
