"""Writes annotations into pods, several at a time, because each is a request that waits for its answer.

Of each pod the last note alone waits, and one is written at a time. A note is for the pod of its UID: another one of that name is
not touched. A note that cannot be written now is tried again; whether it is still right is asked before each attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from userspace_cni.base.errors import Conflict, ObjectRefused, Unavailable
from userspace_cni.base.loops import Loop
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import PODS
from userspace_cni.ovn.pod_notes import AddressNote

WRITERS: Final = 4
_Pod = tuple[str, str]


class NoteQueue:
    """What waits, by pod. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[_Pod, AddressNote] = {}
        self._written: set[_Pod] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, notes: Iterable[AddressNote]) -> None:
        """Have these written, instead of those that wait for the same pods."""
        with self._lock:
            self._waiting |= {(each.namespace, each.name): each for each in notes}

    def next(self) -> AddressNote | None:
        """A note to write, whose pod is then this caller's until `done`; None when there is none for it."""
        with self._lock:
            pod = next((each for each in self._waiting if each not in self._written), None)
            if pod is None:
                return None
            self._written.add(pod)
            return self._waiting.pop(pod)

    def done(self, note: AddressNote, *, again: bool = False) -> None:
        """It was written, or is to be tried `again` unless a later one waits."""
        pod = (note.namespace, note.name)
        with self._lock:
            self._written.discard(pod)
            if again:
                self._waiting.setdefault(pod, note)

    def clear(self) -> None:
        """Forget what waits: another process has taken over."""
        with self._lock:
            self._waiting.clear()


class NoteWriters(Supervisor):
    """The threads. `may_write`: whether this process may write now; `outcome` is told of each attempt."""

    def __init__(self, objects: Objects, may_write: Callable[[], bool], outcome: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self.queue = NoteQueue()
        self._writers = [_NoteWriter(number, objects, self.queue, may_write, outcome) for number in range(WRITERS)]

    def start(self) -> None:
        """Start them; returns at once. Raises Unavailable."""
        self.begin(*self._writers)

    def put(self, notes: Iterable[AddressNote]) -> None:
        """Have these written soon."""
        self.queue.put(notes)
        for each in self._writers:
            each.ask()

    @property
    def problem(self) -> str:
        """Why notes cannot be written now; "" while they can."""
        return next((each.problem for each in self._writers if each.problem), "")


class _NoteWriter(Loop):
    failing = "addresses cannot be written into pods now, and are tried again: "
    end_s = 1.0
    first_s = None

    def __init__(
        self, number: int, objects: Objects, queue: NoteQueue, may_write: Callable[[], bool], outcome: Callable[[str], None]
    ) -> None:
        super().__init__(f"notes {number}", "writes addresses into pods")
        self._objects = objects
        self._queue = queue
        self._may_write = may_write
        self._outcome = outcome

    def _round(self) -> float | None:
        while not self._stopping and (note := self._queue.next()) is not None:
            if not self._may_write():
                self._queue.done(note)
                self._queue.clear()
                break
            try:
                self._write(note)
            except Unavailable:
                self._queue.done(note, again=True)
                self._outcome("failed")
                self.ask()
                raise
        return None

    def _write(self, note: AddressNote) -> None:
        """Write one; a pod that is gone or another has none. Raises Unavailable."""
        patch = {"metadata": {"uid": note.uid, "annotations": dict(note.annotations)}}
        outcome, problem = "written", ""
        try:
            self._objects.merge(PODS.within(note.namespace), note.name, patch, subresource="status")
        except Conflict:
            outcome = "conflict"  # the watch tells of the other pod
        except ObjectRefused as error:
            is_gone = self._objects.get(PODS.within(note.namespace), note.name) is None
            outcome, problem = ("conflict", "") if is_gone else ("failed", str(error))
        finally:
            self._queue.done(note)
        self._outcome(outcome)
        self._note(problem)
