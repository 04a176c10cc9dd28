"""Where the network namespaces of this node's pods are: from our own records, the runtime's cache, and the runtime itself.

Each source is only as good as what wrote it: a path is a name, and what it leads to is proven where it is used. The runtime is
asked only for pods that the others do not know, because each is a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import UserspaceError
from userspace_cni.host.pod_net.pod_routes import PodNamespace
from userspace_cni.host.runtimes.cni_cache import CniCache, Sandbox
from userspace_cni.routes.cluster_facts import ID_SHOWN, title_of

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.node.installation import Installation

AGAIN: Final = BackOff(1.0, 60.0)
"""After so many seconds a runtime that did not answer is asked again: each such request takes its time from a round."""

Source = Literal["records", "cache", "cri"]


class Runtime(Protocol):
    """What is asked of the container runtime."""

    def sandboxes(self, wanted: Collection[str] | None = None) -> Sequence[Sandbox]:
        """Every sandbox with a network namespace of its own; `wanted`: only these pods' UIDs. Raises UserspaceError."""
        ...


@dataclass(frozen=True)
class LocatedSandbox:
    """A sandbox and its namespace. `uid` "" outside of a cluster. `source`: what tells of it first. `interfaces`: differs from
    before when one of the sandbox was attached meanwhile."""

    place: PodNamespace
    namespace: str
    name: str
    uid: str
    source: Source
    interfaces: tuple[object, ...] = ()

    @property
    def title(self) -> str:
        return title_of(self.namespace, self.name, self.place.sandbox)

    def is_called(self, text: str) -> bool:
        return is_called(text, self.namespace, self.name, self.place.sandbox)


def is_called(text: str, namespace: str, name: str, sandbox: str) -> bool:
    """Whether a sandbox is named so: by its pod, or by the beginning of its id, of 12 characters at least."""
    return text == title_of(namespace, name, sandbox) or (len(text) >= ID_SHOWN and sandbox.startswith(text))


class NamespaceSources:
    """The sources. For one thread at a time."""

    def __init__(self, here: Installation, store: AttachmentStore, runtime: Runtime | None) -> None:
        self._store = store
        self._cache = CniCache(here.settings.cni_cache_dir, here.root)
        self._runtime = runtime
        self._socket = here.root.path(here.settings.cri_socket) if here.settings.cri_socket else ""
        self._told: dict[Source, list[LocatedSandbox]] = {}
        """What each source has told last."""
        self.problems: Mapping[Source, str] = {}
        """Which sources cannot be read now, and why."""
        self._refusal = UserspaceError("", "")
        self._pause_s = self._again = 0.0

    @property
    def unreadable(self) -> int:
        """How many files of the runtime's cache could not be used by the last look."""
        return self._cache.unreadable

    def locate(self, wanted: Collection[str] | None = None) -> list[LocatedSandbox]:
        """The sandboxes, each once. `wanted`: the UIDs of pods for which the runtime is asked if need be; None for all."""
        problems: dict[Source, str] = {}
        found: dict[str, LocatedSandbox] = {}
        sources: tuple[tuple[Source, Callable[[], Iterable[LocatedSandbox]]], ...] = (
            ("records", self._of_records),
            ("cache", self._of_cache),
            ("cri", lambda: self._of_runtime(wanted, {each.uid for each in found.values()})),
        )
        for source, read in sources:
            try:
                self._told[source] = list(read())
            except UserspaceError as error:
                problems[source] = str(error)  # what it has told before counts on
            for each in self._told.get(source, ()):
                had = found.get(each.place.sandbox, each)
                first = each if each.uid and not had.uid else had
                interfaces = each.interfaces if had is each else (*had.interfaces, *each.interfaces)
                found[each.place.sandbox] = replace(first, interfaces=interfaces)
        self.problems = problems
        return list(found.values())

    def _of_records(self) -> Iterator[LocatedSandbox]:
        boot_id = self._store.boot_id()
        for record in self._store.journal.records():
            if record.netns and record.boot_id == boot_id:
                place = PodNamespace(record.container_id, record.netns, record.netns_inode)
                interface = record.ifname, record.boottime_ns
                yield LocatedSandbox(place, record.pod_namespace, record.pod_name, record.pod_uid, "records", (interface,))

    def _of_cache(self) -> Iterator[LocatedSandbox]:
        sandboxes = self._cache.sandboxes()
        for each in sandboxes:
            yield _located(each, "cache", self._cache.interfaces[each.id])

    def _of_runtime(self, wanted: Collection[str] | None, known: Collection[str]) -> list[LocatedSandbox]:
        """Those of which no other source tells."""
        missing = None if wanted is None else set(wanted) - set(known)
        if not self._runtime or missing == set() or not self._has_socket():
            return []
        if time.monotonic() < self._again:
            raise self._refusal.with_traceback(None)
        try:
            found = self._runtime.sandboxes(missing)
        except UserspaceError as error:
            self._refusal, self._pause_s = error, AGAIN.after(self._pause_s)
            self._again = time.monotonic() + self._pause_s
            raise
        self._pause_s = 0.0
        return [_located(each, "cri") for each in found]

    def _has_socket(self) -> bool:
        """Whether there may be a runtime: where a look is refused, who asks it is told why."""
        try:
            os.stat(self._socket)  # noqa: PTH116 - as the host calls it
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    @property
    def again_s(self) -> float:
        """In how many seconds a source may be read that cannot be read now; 0.0 where all can."""
        return max(AGAIN.first_s, self._again - time.monotonic()) if self.problems else 0.0


def _located(sandbox: Sandbox, source: Source, interfaces: tuple[object, ...] = ()) -> LocatedSandbox:
    return LocatedSandbox(
        PodNamespace(sandbox.id, sandbox.path), sandbox.namespace, sandbox.name, sandbox.uid, source, interfaces
    )
