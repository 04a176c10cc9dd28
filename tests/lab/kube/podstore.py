"""The pods of the API server for tests, with the real one's rules for writing them. Nothing in here knows HTTP."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any

from tests.lab.kube.store import NAMES, Refusal, Store, check_preconditions, copied, merged

ANNOTATIONS_LIMIT = 256 * 1024
GRACE_S = 30


class PodStore(Store):
    """Pods by namespace and name."""

    def __init__(self) -> None:
        super().__init__("v1", "Pod", NAMES | {"spec.nodeName"})

    def add(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace a pod, with what the server sets (uid, resourceVersion, namespace) when absent. Returns a copy."""
        with self.changed:
            made = copied(dict(pod))
            metadata = made.setdefault("metadata", {})
            metadata.setdefault("namespace", "default")
            metadata.setdefault("uid", str(uuid.uuid4()))
            made = {"kind": "Pod", "apiVersion": "v1", **made}
            made.setdefault("spec", {})
            made.setdefault("status", {"phase": "Pending"})
            return self.put(made)

    def merge(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into the pod, whatever part it touches."""
        with self.changed:
            self.put(merged(self.things[namespace, name], patch))

    def mark_deleted(self, namespace: str, name: str) -> dict[str, Any]:
        """Begin the deletion, as of a pod whose containers have a grace period to end in."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.merge(namespace, name, {"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": GRACE_S}})
        return self.get(namespace, name)

    def write(self, old: Mapping[str, Any], new: Mapping[str, Any], sent: Mapping[str, Any], status: bool) -> dict[str, Any]:
        """Store `new` over `old` as a request `sent` may: metadata and status, or metadata and spec. Raises Refusal."""
        with self.changed:
            check_preconditions("pods", old["metadata"], sent.get("metadata") or {})
            stored = copied(dict(old))
            for key in ("annotations", "labels", "finalizers"):
                stored["metadata"].pop(key, None)
                if (new.get("metadata") or {}).get(key):
                    stored["metadata"][key] = new["metadata"][key]
            _check_annotations(stored["metadata"])
            part = "status" if status else "spec"
            stored[part] = new.get(part) or {}
            return self.put(stored)


def _check_annotations(metadata: Mapping[str, Any]) -> None:
    annotations = metadata.get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise Refusal(
            400, "BadRequest", "json: cannot unmarshal into Go struct field ObjectMeta.metadata.annotations of type string"
        )
    if sum(len(key) + len(value) for key, value in annotations.items()) > ANNOTATIONS_LIMIT:
        raise Refusal(422, "Invalid", "metadata.annotations: Too long: must have at most 262144 bytes")
