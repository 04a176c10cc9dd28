"""The objects of one resource, known from a list and a watch that never end.

The caller chooses what is kept of an object; nothing else stays in memory. It must never claim what it cannot know. Before the
first complete list it knows nothing. While the server is away, does not allow the list or has no such resource, known objects
stay. An object is gone only when the server reports its deletion, or when two lists lack it (`kube.lacking`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Keys
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_pages import text
from userspace_cni.kube.list_watch import Collection, ListWatch, WatchTimes
from userspace_cni.kube.resources import (
    ENDPOINT_SLICES,
    FORMER_ENDPOINT_SLICES,
    GROUP,
    MULTI_NETWORK_POLICIES,
    NETWORK_DEFINITIONS,
    RESOURCE_SLICES,
    ROUTES,
    SERVICE_CIDRS,
    ApiResource,
)

USUALLY: Final = WatchTimes(page=100)
RARELY: Final = replace(USUALLY, back_off=replace(USUALLY.back_off, most_s=600.0))
"""For a resource that servers may lack: it is asked for again after ten minutes at most."""
_OPTIONAL: Final = (SERVICE_CIDRS, NETWORK_DEFINITIONS, MULTI_NETWORK_POLICIES)
_FORMER: Final = {ENDPOINT_SLICES: FORMER_ENDPOINT_SLICES}
"""Resources that older servers have in another version alone."""

_OF_MANIFESTS: Final = "kubectl get crd; they come with deploy/cluster"
_ABSENT: Final = {
    GROUP: _OF_MANIFESTS,
    ROUTES.group: _OF_MANIFESTS,
    RESOURCE_SLICES.group: "kubectl api-resources; servers have them from Kubernetes 1.34 on",
}
"""What to look at where the server lacks resources of a group."""

Keep = Callable[[Mapping[str, Any]], Any]


def without_managers(thing: Mapping[str, Any]) -> dict[str, Any]:
    """Keep a whole object but for metadata.managedFields, which may be the longest part of it."""
    metadata = {key: value for key, value in thing["metadata"].items() if key != "managedFields"}
    return {**thing, "metadata": metadata}


class ObjectWatch(ListWatch):
    """The objects of a resource, by name. Safe to use from any thread.

    One daemon thread from `start` to `stop`; a stopped watch cannot be started again. `keep` gets an object as the server sends
    it, and returns the part to keep. If it raises KeyError, TypeError, AttributeError or ValueError, that is a `problem`, and
    all known objects stay as they were. `on_change` is called when something kept has changed, after the first complete list,
    and when that is `confirmed`, without a lock; it must not wait.
    """

    def __init__(
        self,
        session: ApiSession,
        resource: ApiResource,
        *,
        field_selector: str = "",
        keep: Keep = without_managers,
        on_change: Callable[[], None] = lambda: None,
        times: WatchTimes | None = None,
    ) -> None:
        self._objects = _WatchedObjects(keep, on_change)
        collection = Collection(
            resource=resource,
            title=resource.title,
            needed=f"the verbs list and watch on {resource.title}",
            meanwhile="and what is known of them stays",
            fields=field_selector,
            absent=_ABSENT.get(resource.group, ""),
            optional=resource in _OPTIONAL or resource in _FORMER,
            former=_FORMER.get(resource),
        )
        super().__init__(session, collection, self._objects, times or (RARELY if resource in _OPTIONAL else USUALLY), on_change)

    @property
    def complete(self) -> bool:
        """Whether there was a complete list; once true it stays so, for what came after it is known by events or a later list."""
        return self.synced

    def objects(self) -> Mapping[str, Any] | None:
        """What is kept, by name, as of one moment; None before the first complete list.

        Objects in namespaces are by "namespace/name".
        """
        return self._objects.objects() if self.complete else None


class _WatchedObjects:
    """What is kept of the objects: the store of their watch. A mapping that was given out never changes."""

    def __init__(self, keep: Keep, on_change: Callable[[], None]) -> None:
        self._keep = keep
        self._on_change = on_change
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}
        self._given: Mapping[str, Any] | None = None
        """What was given out of it as it is now; None when it has changed since: an event does not copy all objects."""
        self._listed = False

    def objects(self) -> Mapping[str, Any]:
        with self._lock:
            if self._given is None:
                self._given = MappingProxyType(dict(self._kept))
            return self._given

    def read(self, thing: Mapping[str, Any]) -> tuple[str, Any]:
        metadata = thing["metadata"]
        name, namespace = text(metadata["name"]), metadata.get("namespace")
        return f"{namespace}/{name}" if namespace else name, self._keep(thing)

    def keys(self) -> Keys[str]:
        with self._lock:
            return set(self._kept)

    def take_over(self, listed: Sequence[tuple[str, Any]], gone: Keys[str]) -> None:
        """Take a complete list over; what it lacks stays, but for what is gone."""
        with self._lock:
            now = {**{name: kept for name, kept in self._kept.items() if name not in gone}, **dict(listed)}
            changed = self._listed and self._kept != now  # of the first list the watch itself tells, once it counts as complete
            self._kept, self._given, self._listed = now, None, True
        if changed:
            self._on_change()

    def change(self, kind: str, thing: tuple[str, Any]) -> None:
        name, kept = thing
        with self._lock:
            known = name in self._kept
            changed = known if kind == "DELETED" else not known or self._kept[name] != kept
            if changed:
                self._given = None
                if kind == "DELETED":
                    del self._kept[name]
                else:
                    self._kept[name] = kept
        if changed:
            self._on_change()
