"""Objects of one resource that this process keeps in the API as it is to have them, without ever holding anything up for it.

What is desired is read anew from its owner in each look, so nothing is queued: after an outage of the server, or of this process,
the next look finds the difference. What the server has is known from one list at the start and from the answers to our own
writes. So nothing is asked while nothing changes, and what others do to an object meanwhile shows at the next start.

Another process may have taken an object over, as another node does with that of a pod that was made anew there. So a deletion
names the version that is known: what is newer is another's, and stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Conflict, ObjectRefused
from userspace_cni.base.loops import Loop
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import ApiResource

STOP_S: Final = 0.2

DesiredObjects = Mapping[str, Mapping[str, Any] | None]
"""Objects by name, each with `metadata.labels` and `spec`; None keeps an object of which nothing is known now."""


@dataclass(frozen=True)
class KeepingTimes:
    """Pauses in seconds: `look_s` between two checks, `apart_s` between two requests, `tick_s` between checks without a
    request. An object that the server refuses has a pause of its own.
    """

    look_s: float = 1.0
    apart_s: float = 0.05
    tick_s: float = 60.0
    back_off: BackOff = BackOff()


@dataclass(frozen=True)
class _There:
    """An object that the server has: what is said in it, and the identity that a deletion names."""

    said: Mapping[str, Any]
    uid: str
    version: str


@dataclass(frozen=True)
class _ReadRefusal:
    """What was refused, not tried again before `due` (time.monotonic) unless something else is said; then `pause_s` doubles."""

    said: Mapping[str, Any] | None
    due: float
    pause_s: float


class KeptObjects(Loop):
    """The objects with the labels `labels`, written as the field manager `manager`. Safe to use from any thread.

    `desired` gives what they are to be, None while that is not known; it may read files. `ask` it for a look.
    """

    end_s = STOP_S

    def __init__(
        self,
        objects: Objects,
        resource: ApiResource,
        labels: Mapping[str, str],
        manager: str,
        desired: Callable[[], DesiredObjects | None],
        times: KeepingTimes | None = None,
    ) -> None:
        super().__init__(f"kept-{resource.plural}", f"keeps {resource.title}")
        self._objects = objects
        self._resource = resource
        self._labels = labels
        self._manager = manager
        self._desired = desired
        self._times = times or KeepingTimes()
        self.apart_s, self.back_off = self._times.look_s, self._times.back_off
        self.failing = f"{resource.title} cannot be kept now, and wait: "
        # only the thread uses these
        self._known: dict[str, _There] | None = None
        self._refused: dict[str, _ReadRefusal] = {}

    def _round(self) -> float:
        self._look()
        self._note(self._refusals())
        return min((self._times.tick_s, *(each.due - time.monotonic() for each in self._refused.values())))

    def _look(self) -> None:
        """Compare what is desired with what is there, and write the difference. Raises UserspaceError, then the rest waits."""
        desired = self._desired()
        if desired is None:
            return
        if self._known is None:
            selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
            found = self._objects.list(self._resource, selector)
            self._known = {each["metadata"]["name"]: _there(each, _said(each)) for each in found}
        self._refused = {name: each for name, each in self._refused.items() if name in desired or name in self._known}
        for name in [*(self._known.keys() - desired.keys()), *(name for name, thing in desired.items() if thing is not None)]:
            thing = desired.get(name)
            said = _said(thing) if thing is not None else None
            known = self._known.get(name)
            if (known.said if known else None) != said and not self._is_refused(name, said):
                self._attempt(name, said, self._known)
                if not self._rest(self._times.apart_s):
                    return

    def _is_refused(self, name: str, said: Mapping[str, Any] | None) -> bool:
        refused = self._refused.get(name)
        return refused is not None and refused.said == said and time.monotonic() < refused.due

    def _attempt(self, name: str, said: Mapping[str, Any] | None, known: dict[str, _There]) -> None:
        """Write one object, or delete it; what is refused is tried again later, and keeps no other from being written."""
        try:
            if said is None:
                self._delete(name, known)
            else:
                answer = self._objects.apply(self._resource, name, said, manager=self._manager)
                known[name] = _there(answer, said)
        except ObjectRefused as error:
            before = self._refused.get(name)
            pause = self.back_off.after(before.pause_s if before else 0.0)
            self._refused[name] = _ReadRefusal(said, time.monotonic() + pause, pause)
            self._note(f"{self._resource.title} {name} is refused: {error}")
        else:
            self._refused.pop(name, None)

    def _delete(self, name: str, known: dict[str, _There]) -> None:
        """Delete the object as it is known. One that has changed since is looked at: it stays unless it is still one of ours."""
        there = known[name]
        try:
            self._objects.delete(self._resource, name, uid=there.uid, version=there.version)
            del known[name]
        except Conflict:
            found = self._objects.get(self._resource, name)
            labels = ((found or {}).get("metadata") or {}).get("labels") or {}
            if found and self._labels.items() <= labels.items():
                known[name] = _there(found, _said(found))
                self.ask()
            else:
                del known[name]

    def _refusals(self) -> str:
        """What is said of objects that are refused; "" without any."""
        return f"{self._resource.title}: the server refuses {', '.join(sorted(self._refused)[:3])}" if self._refused else ""


def _said(thing: Mapping[str, Any]) -> dict[str, Any]:
    """What we say in an object, and nothing that server or others add."""
    return {
        "metadata": {"labels": dict((thing.get("metadata") or {}).get("labels") or {})},
        "spec": dict(thing.get("spec") or {}),
    }


def _there(thing: Mapping[str, Any], said: Mapping[str, Any]) -> _There:
    metadata = thing["metadata"]
    return _There(said, str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")))
