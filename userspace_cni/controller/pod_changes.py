"""The pods of the cluster, and which of them have changed since they were last looked at.

A cluster has some ten thousand pods, and a change of one must not cost a look at all. Of a pod only what decides about logical
ports is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Keys
from dataclasses import dataclass
from functools import partial
from typing import Any

from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_pages import text
from userspace_cni.kube.list_watch import Collection, ListWatch, WatchTimes
from userspace_cni.kube.object_watch import USUALLY
from userspace_cni.kube.resources import PODS
from userspace_cni.kube.versions import is_older
from userspace_cni.ovn.cluster_pods import ClusterPod, keep_pod


@dataclass(frozen=True, slots=True)
class _Known:
    version: str
    pod: ClusterPod


class PodChanges(ListWatch):
    """All pods, by "namespace/name". `on_change` is called when something kept has changed; it must not wait."""

    def __init__(self, session: ApiSession, on_change: Callable[[], None], times: WatchTimes | None = None) -> None:
        self._pods = _ChangingPods(on_change)
        collection = Collection(
            resource=PODS,
            title="pods",
            needed="the verbs list and watch on pods",
            meanwhile="and new ones get no logical port",
        )
        super().__init__(session, collection, self._pods, times or USUALLY, on_change)

    def take(self, *, everything: bool = False) -> Mapping[str, ClusterPod | None]:
        """The pods that have changed since the last call, None for one that is gone; or all, with those that are gone since."""
        return self._pods.take(0, everything)

    def read_apart(self) -> Callable[[bool], Mapping[str, ClusterPod | None]]:
        """A `take` of one's own, of everything or not: what it gives does not depend on when others take theirs."""
        return partial(self._pods.take, self._pods.add_reader())

    def __len__(self) -> int:
        return len(self._pods)


class _ChangingPods:
    """The store of the watch."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._changed: list[set[str]] = [set()]
        """By reader."""

    def __len__(self) -> int:
        return len(self._known)

    def add_reader(self) -> int:
        with self._lock:
            self._changed.append(set(self._known))
            return len(self._changed) - 1

    def take(self, reader: int, everything: bool) -> Mapping[str, ClusterPod | None]:
        with self._lock:
            keys, self._changed[reader] = self._changed[reader], set()
            found = {key: self._known.get(key) for key in ({*keys, *self._known} if everything else keys)}
        return {key: known.pod if known else None for key, known in found.items()}

    def read(self, thing: Mapping[str, Any]) -> tuple[str, _Known]:
        metadata = thing["metadata"]
        key = f"{text(metadata['namespace'])}/{text(metadata['name'])}"
        return key, _Known(text(metadata["resourceVersion"]), keep_pod(thing))

    def keys(self) -> Keys[str]:
        with self._lock:
            return set(self._known)

    def take_over(self, listed: Sequence[tuple[str, _Known]], gone: Keys[str]) -> None:
        """Take a complete list over; what it lacks stays, but for what is gone."""
        with self._lock:
            changed = [self._put(key, now) for key, now in listed]
            for key in gone:
                del self._known[key]
            self._note(gone)
        if gone or any(changed):
            self._on_change()

    def change(self, kind: str, thing: tuple[str, _Known]) -> None:
        key, now = thing
        with self._lock:
            if kind == "DELETED":
                known = self._known.get(key)
                is_changed = known is not None and known.pod.uid == now.pod.uid
                if is_changed:
                    del self._known[key]
                    self._note((key,))
            else:
                is_changed = self._put(key, now)
        if is_changed:
            self._on_change()

    def _put(self, key: str, now: _Known) -> bool:
        """Keep a pod, unless a newer one is known; whether what is kept of it has changed."""
        known = self._known.get(key)
        if known is not None and known.pod.uid == now.pod.uid and is_older(now.version, known.version):
            return False
        self._known[key] = now
        if known is not None and known.pod == now.pod:
            return False
        self._note((key,))
        return True

    def _note(self, keys: Keys[str]) -> None:
        for changed in self._changed:
            changed.update(keys)
