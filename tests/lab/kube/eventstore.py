"""The Events of the API server for tests, with the real one's rules for making, changing and forgetting them.

A name is taken once per namespace (409), an Event is about an object of its own namespace, in `default` also about one of the
cluster (422), and a merge patch keeps what it does not name. Nothing in here knows HTTP or the code under test.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from tests.lab.kube.store import Refusal, merged


class EventStore:
    """Events by namespace and name. `ending`: namespaces that are being deleted, in which nothing can be made."""

    def __init__(self) -> None:
        self.ending: set[str] = set()
        self._guard = threading.Lock()
        self._events: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 0

    def create(self, namespace: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """Make an Event; returns it as it is stored. Raises Refusal."""
        with self._guard:
            metadata = event.get("metadata") or {}
            name = metadata.get("name")
            if not name:
                raise Refusal(422, "Invalid", "metadata.name: Required value")
            if metadata.get("namespace", namespace) != namespace:
                raise Refusal(400, "BadRequest", "the namespace of the object does not match the namespace on the request")
            if (event.get("involvedObject") or {}).get("namespace", "default") != namespace:
                raise Refusal(422, "Invalid", "involvedObject.namespace: Invalid value: does not match event.namespace")
            if namespace in self.ending:
                text = f"unable to create new content in namespace {namespace} because it is being terminated"
                causes = [{"reason": "NamespaceTerminating", "message": text, "field": "metadata.namespace"}]
                raise Refusal(403, "Forbidden", text, {"causes": causes})
            if (namespace, name) in self._events:
                raise Refusal(409, "AlreadyExists", f'events "{name}" already exists')
            made = copy.deepcopy(dict(event))
            made["metadata"] = {**metadata, "namespace": namespace, "uid": str(uuid.uuid4())}
            return self._store(made)

    def patch(self, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a merge patch; returns the Event as it is stored. Raises Refusal."""
        with self._guard:
            if (namespace, name) not in self._events:
                raise Refusal(404, "NotFound", f'events "{name}" not found')
            return self._store(merged(self._events[namespace, name], patch))

    def expire(self) -> None:
        """Forget all Events, as the real server does after an hour."""
        with self._guard:
            self._events.clear()

    def of(self, pod: str, namespace: str = "default") -> dict[str, dict[str, Any]]:
        """The Events about a pod, or an object of the cluster, by reason. Raises AssertionError when there are two of one."""
        with self._guard:
            about = [event for event in self._events.values() if event["involvedObject"]["name"] == pod]
            found = [event for event in about if event["metadata"]["namespace"] == namespace]
        by_reason = {event["reason"]: copy.deepcopy(event) for event in found}
        assert len(by_reason) == len(found), f"several of one reason: {found}"
        return by_reason

    def _store(self, event: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        event["metadata"]["resourceVersion"] = str(self._version)
        self._events[event["metadata"]["namespace"], event["metadata"]["name"]] = event
        return copy.deepcopy(event)
