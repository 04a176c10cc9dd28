"""Where the network namespaces of this node's pods are: from our own records, the runtime's cache, and the runtime itself.

Each source is only as good as what wrote it: a path is a name, and what it leads to is proven where it is used. The runtime is
asked for the pods of which the others do not tell, for each of these is a request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from userspace_cni.base.errors import UserspaceError
from userspace_cni.host.cni_cache import CniCache, Sandbox
from userspace_cni.host.pod_routes import Place

if TYPE_CHECKING:
    from userspace_cni.node.local import LocalNode

Source = Literal["records", "cache", "cri"]


class Runtime(Protocol):
    """What is asked of the container runtime."""

    def sandboxes(self, wanted: Collection[str] | None = None) -> Sequence[Sandbox]:
        """Every sandbox with a network namespace of its own; `wanted`: only these pods' UIDs. Raises UserspaceError."""
        ...


@dataclass(frozen=True)
class Located:
    """A sandbox and its namespace. `uid` "" outside of a cluster. `source`: what tells of it."""

    place: Place
    namespace: str
    name: str
    uid: str
    source: Source


class Places:
    """The sources. For one thread at a time."""

    def __init__(self, node: LocalNode, runtime: Runtime | None) -> None:
        self._node = node
        self._cache = CniCache(node.settings.cni_cache_dir, node.root)
        self._runtime = runtime
        self._socket = node.root.path(node.settings.cri_socket) if node.settings.cri_socket else ""
        self._last: tuple[Located, ...] = ()
        self.problems: Mapping[Source, str] = {}
        """Which sources cannot be read now, and why."""

    @property
    def unreadable(self) -> int:
        """How many files of the runtime's cache could not be used by the last look."""
        return self._cache.unreadable

    def located(self, wanted: Collection[str] | None = None) -> list[Located]:
        """The sandboxes, each once. `wanted`: the UIDs of pods for which the runtime is asked if need be; None for all."""
        problems: dict[Source, str] = {}
        found: dict[str, Located] = {}
        sources: tuple[tuple[Source, Callable[[], Iterable[Located]]], ...] = (
            ("records", self._of_records),
            ("cache", lambda: [_located(each, "cache") for each in self._cache.sandboxes()]),
            ("cri", lambda: self._of_runtime(wanted, {each.uid for each in found.values()})),
        )
        for source, read in sources:
            try:
                told = list(read())
            except UserspaceError as error:
                problems[source] = str(error)
                told = [each for each in self._last if each.source == source]  # what it has told before counts on
            for each in told:
                had = found.get(each.place.sandbox)
                if had is None or (each.uid and not had.uid):
                    found[each.place.sandbox] = each
        self.problems = problems
        self._last = tuple(found.values())
        return list(self._last)

    def _of_records(self) -> Iterator[Located]:
        boot_id = self._node.boot_id()
        for record in self._node.journal.records():
            if record.netns and record.boot_id == boot_id:
                place = Place(record.container_id, record.netns, record.netns_inode)
                yield Located(place, record.pod_namespace, record.pod_name, record.pod_uid, "records")

    def _of_runtime(self, wanted: Collection[str] | None, known: Collection[str]) -> list[Located]:
        """Those of which no other source tells."""
        missing = None if wanted is None else set(wanted) - set(known)
        if not self._runtime or missing == set() or not os.path.exists(self._socket):  # noqa: PTH110 - as the host calls it
            return []
        return [_located(each, "cri") for each in self._runtime.sandboxes(missing)]


def _located(sandbox: Sandbox, source: Source) -> Located:
    return Located(Place(sandbox.id, sandbox.path), sandbox.namespace, sandbox.name, sandbox.uid, source)
