"""Writes annotations into pods, several at a time, because each is a request that waits for its answer.

Of each pod the last note alone waits, and one is written at a time. A note is for the pod of its UID: another one of that name is
not touched. A note that the server does not take rests, longer each time, until its pod has ended; a later note for the pod
is tried at once. All retries together are so many a second: new notes do not wait for those that are refused.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Conflict, NoSuchObject, NotAllowed, ObjectRefused
from userspace_cni.base.loops import Loop
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import PODS
from userspace_cni.ovn.cluster_pods import ClusterPod
from userspace_cni.ovn.pod_notes import AddressNote

WRITERS: Final = 8
"""A request waits some milliseconds for its answer, mostly. A session keeps ten connections open."""
RETRIES: Final = BackOff(1.0, 60.0)
"""Of one pod's note."""
_RETRY_APART_S: Final = 0.05
"""Between two retries, of whatever pods: an account that may not write at all would try ten thousands."""
_NAMESPACES: Final = 2
"""From so many, if no note was written meanwhile, a refusal for lack of rights is about this account."""
_Pod = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Resting:
    """A note that was not taken; from `due` on it is tried again."""

    note: AddressNote
    pause_s: float
    due: float


@dataclass(frozen=True)
class NoteListener:
    """Who is told of attempts: `outcome` of each, `refused` of a note that the server did not take, with the reason."""

    outcome: Callable[[str], None] = lambda _: None
    refused: Callable[[AddressNote, str], None] = lambda _note, _why: None


class NoteQueue:
    """What waits, by pod. Safe to use from several threads."""

    def __init__(self, retries: BackOff = RETRIES) -> None:
        self._lock = threading.Lock()
        self._retries = retries
        self._waiting: dict[_Pod, AddressNote] = {}
        self._resting: dict[_Pod, _Resting] = {}
        self._due: list[tuple[float, _Pod]] = []
        """A heap of when notes that rest are due; an entry whose note rests no more, or until another time, is void."""
        self._written: set[_Pod] = set()
        self._retry_due = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._resting)

    @property
    def resting(self) -> int:
        """How many were not taken, and are tried again."""
        return len(self._resting)

    def put(self, notes: Iterable[AddressNote]) -> None:
        """Have these written, instead of those that wait for the same pods."""
        with self._lock:
            self._waiting |= {(each.namespace, each.name): each for each in notes}

    def forget(self, pod: _Pod) -> None:
        """Have nothing written into it."""
        with self._lock:
            self._waiting.pop(pod, None)
            self._resting.pop(pod, None)

    def next(self, now: float) -> AddressNote | None:
        """A note to write, whose pod is then this caller's until `done` or `rest`; None when there is none for it now."""
        with self._lock:
            pod = next((each for each in self._waiting if each not in self._written), None)
            if pod is not None:
                note = self._waiting.pop(pod)
            elif now >= self._next_due():
                _, pod = heapq.heappop(self._due)
                note, self._retry_due = self._resting[pod].note, now + _RETRY_APART_S
            else:
                return None
            self._written.add(pod)
            return note

    def next_due(self, now: float) -> float | None:
        """In how many seconds a note that rests is to be tried again; None for none."""
        with self._lock:
            due = self._next_due()
            return None if math.isinf(due) else max(0.0, due - now)

    def done(self, note: AddressNote) -> None:
        """It was written, or has no pod any more."""
        pod = (note.namespace, note.name)
        with self._lock:
            self._written.discard(pod)
            self._resting.pop(pod, None)

    def rest(self, note: AddressNote, now: float) -> None:
        """It was not taken: it is tried again later, unless another one for its pod waits."""
        pod = (note.namespace, note.name)
        with self._lock:
            self._written.discard(pod)
            former = self._resting.pop(pod, None)
            if pod not in self._waiting:
                pause_s = self._retries.after(former.pause_s if former is not None and former.note.uid == note.uid else 0.0)
                self._resting[pod] = _Resting(note, pause_s, now + pause_s)
                heapq.heappush(self._due, (now + pause_s, pod))

    def clear(self) -> None:
        """Forget what waits: another process has taken over."""
        with self._lock:
            self._waiting.clear()
            self._resting.clear()
            self._due.clear()

    def _next_due(self) -> float:
        while self._due:
            due, pod = self._due[0]
            rest = self._resting.get(pod)
            if rest is not None and rest.due == due and pod not in self._written:
                return max(due, self._retry_due)
            heapq.heappop(self._due)
        return math.inf


class NoteWriters(Supervisor):
    """The threads. `may_write`: whether this process may write now."""

    def __init__(
        self, objects: Objects, may_write: Callable[[], bool], listener: NoteListener | None = None, retries: BackOff = RETRIES
    ) -> None:
        super().__init__()
        self.queue = NoteQueue(retries)
        self._objects = objects
        self._may_write = may_write
        self._listener = listener or NoteListener()
        self._forbidden: set[str] = set()
        self._writers = [_NoteWriter(number, self.queue, self._write) for number in range(WRITERS)]
        self.problem = ""
        """Why this account can write into no pod; "" while it can, as far as is known. That one pod's note is refused is none."""

    def start(self) -> None:
        """Start them; returns at once. Raises Unavailable."""
        self.begin(*self._writers)

    def put(self, notes: Collection[AddressNote]) -> None:
        """Have these written soon."""
        if notes:
            self.queue.put(notes)
            for each in self._writers:
                each.ask()

    def forget(self, pod: ClusterPod) -> None:
        """Have nothing written into it any more: it has ended."""
        self.queue.forget((pod.namespace, pod.name))

    def _write(self, note: AddressNote) -> bool:
        """Write one; whether to go on. A pod that is gone or another has no note. Raises Unavailable."""
        if not self._may_write():
            self.queue.done(note)
            self.queue.clear()
            return False
        patch = {"metadata": {"uid": note.uid, "annotations": dict(note.annotations)}}
        outcome, is_over = "failed", False
        try:
            self._objects.merge(PODS.within(note.namespace), note.name, patch, subresource="status")
            outcome, is_over, self.problem = "written", True, ""
            self._forbidden.clear()
        except (Conflict, NoSuchObject):
            outcome, is_over = "conflict", True  # the watch tells what has become of the pod
        except ObjectRefused as error:
            self._note_refused(note, error)
        finally:
            if is_over:
                self.queue.done(note)
            else:
                self.queue.rest(note, time.monotonic())
            self._listener.outcome(outcome)
        return True

    def _note_refused(self, note: AddressNote, error: ObjectRefused) -> None:
        """A pod's author can have its note refused; that the account may write into pods of several namespaces is no author's."""
        if isinstance(error, NotAllowed) and len(self._forbidden) < _NAMESPACES:
            self._forbidden.add(note.namespace)
        if len(self._forbidden) >= _NAMESPACES:
            self.problem = str(error)
        self._listener.refused(note, str(error))


class _NoteWriter(Loop):
    failing = "addresses cannot be written into pods now, and are tried again: "
    end_s = 1.0
    first_s = None
    back_off = BackOff(0.5, 8.0, spread=0.3)

    def __init__(self, number: int, queue: NoteQueue, write: Callable[[AddressNote], bool]) -> None:
        super().__init__(f"notes {number}", "writes addresses into pods")
        self._queue = queue
        self._write = write

    def _round(self) -> float | None:
        while not self._stopping and (note := self._queue.next(time.monotonic())) is not None:
            if not self._write(note):
                break
        return self._queue.next_due(time.monotonic())
