"""Events of the API about the network of a pod, or about a Route, where its author looks first (`kubectl describe pod`).

A runtime repeats a failed ADD for ever. So there is one Event for each pod and reason: later notices raise its `count`, at first
after half a minute and then less and less often, and its message has the last texts for each interface. Its name follows from pod
and reason, so that an agent that was restarted goes on with the Event that its predecessor made; it needs no permission to read.

Sending must never delay a verb and never fill the memory: `tell` only notes, one thread sends, and while the API server cannot
be reached notices wait in a table of bounded size; what has no room in it is dropped and counted. Events are made with this
process's own account only, never with a network's kubeconfig, in the namespace of the pod that the runtime named. Those of an
object of the cluster are in the namespace `default`, as the API server has it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError, on_one_line
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.base.loops import Loop
from userspace_cni.base.notices import Recipient
from userspace_cni.kube.credentials import REQUEST_LIMIT_S, ApiAnswer, ApiSession
from userspace_cni.kube.pod_requests import is_named

COMPONENT: Final = "userspace-cni"
CLUSTER_NAMESPACE: Final = "default"
"""Where Events about objects without a namespace are."""
MESSAGE_MAX: Final = 1024
"""Characters of an Event's message, as the API has them."""
STOP_S: Final = 0.2
_INTERFACES_MAX: Final = 4
_POD_NAME_MAX: Final = 230
_REFUSED: Final = "the account needs the verbs create and patch on events, in all namespaces"


@dataclass(frozen=True)
class EventLimits:
    """How often is sent, in seconds, and how much is kept.

    Between two requests there are `apart_s`, between two about the same Event the pauses of `repeats`, and after failures those
    of `back_off`. `kept`: Events that are remembered.
    """

    apart_s: float = 0.05
    repeats: BackOff = BackOff(30.0, 600.0)
    back_off: BackOff = BackOff()
    kept: int = 512


@dataclass
class _Event:
    """One Event. `count`: what the server has, 0 while that is not known. `waiting`: notices since then. `due`: not before it."""

    recipient: Recipient
    reason: str
    severity: Severity
    first: float
    last: float
    due: float
    pause_s: float = 0.0
    count: int = 0
    waiting: int = 0
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in the API: another one for each object (also of the same name) and reason."""
        pod = self.recipient
        digest = hashlib.sha256(f"{pod.uid} {pod.namespace} {pod.name} {self.reason}".encode()).hexdigest()
        return f"{pod.name[:_POD_NAME_MAX].rstrip('-.')}.{digest[:16]}"

    @property
    def namespace(self) -> str:
        return _namespace(self.recipient)

    @property
    def message(self) -> str:
        """The last texts for each interface, the interface of the latest first."""
        said = ((interface, text) for interface, texts in reversed(self.texts.items()) for text in texts)
        text = " | ".join(f"{interface}: {text}" if interface else text for interface, text in said)
        return text if len(text) <= MESSAGE_MAX else f"{text[: MESSAGE_MAX - 1]}…"


class _EventRefused(Exception):
    """The server does not want this Event. `why`: for the log, "" for what is no fault of this installation."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Events(Loop):
    """The Events that `component` makes on node `node` (as the API calls it; "" for none). Safe to use from any thread.

    `dropped` is called with the number of notices for which there is no Event; it must not wait. One daemon thread from `start`
    to `stop`; what waits then is not sent: of pods, what is still wrong is told by the next agent.
    """

    failing = "events cannot be sent now, and wait: "
    end_s = STOP_S

    def __init__(
        self,
        session: ApiSession,
        node: str,
        dropped: Callable[[int], None],
        limits: EventLimits | None = None,
        component: str = COMPONENT,
    ) -> None:
        super().__init__("events", "sends events")
        self._session = session
        self._node = node
        self._component = component
        self._dropped = dropped
        self._limits = limits or EventLimits()
        self.apart_s, self.back_off = self._limits.apart_s, self._limits.back_off
        self._events: dict[tuple[str, ...], _Event] = {}

    def tell(self, recipient: Recipient, notices: Iterable[Finding]) -> None:
        """Note what the recipient is to be told; one with the name of no object is told nothing. Never waits and never fails.

        Notices of one call with the same reason, as two keys of a network, are one: they count once, and the message has all.
        """
        if not is_named(_namespace(recipient), recipient.name):
            return
        found: dict[str, list[Finding]] = {}
        for notice in notices:
            found.setdefault(notice.name, []).append(notice)
        lost = 0
        with self._wake:
            for alike in found.values():
                lost += not self._keep_notice(recipient, alike)
            self.ask()
        if lost:
            self._drop(lost, "too many wait to be sent")

    def _keep_notice(self, recipient: Recipient, alike: Sequence[Finding]) -> bool:
        reason, severity = alike[0].name, alike[0].severity
        key = (recipient.uid, recipient.namespace, recipient.name, reason)
        now = time.time()
        event = self._events.pop(key, None)
        if event is None:
            if not self._has_room():
                return False
            event = _Event(recipient, reason, severity, now, now, 0.0)
        self._events[key] = event  # the one that was used last is the last
        event.last = now
        event.waiting += 1
        event.texts.pop(recipient.interface, None)
        event.texts[recipient.interface] = _bounded(each.message for each in alike)
        while len(event.texts) > _INTERFACES_MAX:
            del event.texts[next(iter(event.texts))]
        return True

    def _has_room(self) -> bool:
        """Make room for one more; False when all that are kept have to be sent yet."""
        if len(self._events) < self._limits.kept:
            return True
        sent = next((key for key, event in self._events.items() if not event.waiting), None)
        if sent is None:
            return False
        del self._events[sent]
        return True

    def _round(self) -> float | None:
        with self._wake:
            event = min((each for each in self._events.values() if each.waiting), key=lambda each: each.due, default=None)
            if event is None:
                return None
            if (wait_s := event.due - time.monotonic()) > 0:
                return wait_s
            waiting, body = event.waiting, self._body(event)
        try:
            count = self._send(event, body, waiting)
        except UserspaceError:
            event.due = time.monotonic()  # what waits is kept, and other Events come first: they may be taken
            raise
        except Exception as error:  # noqa: BLE001 -- what is wrong with one must not keep others from being sent
            self._note_sent(event, 0, waiting)
            self._drop(waiting, error.why if isinstance(error, _EventRefused) else f"{type(error).__name__}: {error}")
        else:
            self._note_sent(event, count, waiting)
            self._note("")
        return 0.0

    def _note_sent(self, event: _Event, count: int, sent: int) -> None:
        with self._wake:
            event.count = count
            event.waiting -= sent
            event.pause_s = self._limits.repeats.after(event.pause_s)
            event.due = time.monotonic() + event.pause_s

    def _send(self, event: _Event, body: Mapping[str, Any], notices: int) -> int:
        """Make the Event, or add `notices` to its count; what that is now. Raises _Refused and UserspaceError."""
        path = f"/api/v1/namespaces/{event.namespace}/events"
        news = {key: body[key] for key in ("message", "lastTimestamp")}
        count = event.count
        if not count:
            answer = self._ask("POST", path, body)
            if answer.status != 409:
                _require_taken(answer)
                return notices
            # an earlier agent made it: what its count is shows in the answer to a change that leaves that alone
            answer = self._ask("PATCH", f"{path}/{event.name}", news)
            if answer.status != 404:
                _require_taken(answer)
                count = _count(answer)
        if count:
            answer = self._ask("PATCH", f"{path}/{event.name}", {**news, "count": count + notices})
            if answer.status != 404:
                _require_taken(answer)
                return count + notices
        _require_taken(self._ask("POST", path, body))  # the server forgets Events, after an hour where nothing else is set
        return notices

    def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> ApiAnswer:
        return self._session.request(method, path, Deadline.after(REQUEST_LIMIT_S), body)

    def _body(self, event: _Event) -> dict[str, Any]:
        pod = event.recipient
        about = {"kind": pod.kind, "apiVersion": pod.api_version, "name": pod.name}
        about |= {"namespace": pod.namespace} if pod.namespace else {}
        where = {"host": self._node} if self._node else {}
        return {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": event.name, "namespace": event.namespace},
            # of a static pod the UID on the node, by which `kubectl describe` looks for its Events
            "involvedObject": {**about, "uid": pod.uid} if pod.uid else about,
            "reason": event.reason,
            "message": event.message,
            "type": type_of(event.severity),
            "source": {"component": self._component, **where},
            "reportingComponent": self._component,
            "reportingInstance": self._node or self._component,
            "firstTimestamp": _stamp(event.first),
            "lastTimestamp": _stamp(event.last),
            "count": event.waiting,
        }

    def _drop(self, notices: int, why: str) -> None:
        self._dropped(notices)
        if why:
            self._note(f"events are dropped: {why}")


def type_of(severity: Severity) -> str:
    return "Warning" if severity in ("error", "warning") else "Normal"


def _bounded(texts: Iterable[str]) -> tuple[str, ...]:
    """As much of them as a message may show: a pod may have any number of them kept."""
    kept, left = [], MESSAGE_MAX
    for text in texts:
        kept.append(on_one_line(text[:left]))
        left -= len(kept[-1])
        if left <= 0:
            break
    return tuple(kept)


def _namespace(recipient: Recipient) -> str:
    """The namespace of its Events; "" for a pod without one, which is none."""
    return recipient.namespace or ("" if recipient.kind == "Pod" else CLUSTER_NAMESPACE)


def _require_taken(answer: ApiAnswer) -> None:
    """Raise unless the server did it: Unavailable for what passes, else _Refused."""
    if answer.status in (200, 201, 202):
        return
    if answer.status == 409:
        raise Unavailable("writing an event: others changed it at the same time", "it is tried again")
    if answer.status == 404 or _is_ending(answer):
        raise _EventRefused("")
    if answer.status in (401, 403):
        raise _EventRefused(f"not allowed ({answer.status}); {_REFUSED}")
    raise _EventRefused(f"the API server answered {answer.status}")


def _is_ending(answer: ApiAnswer) -> bool:
    """Whether the refusal's cause is that the pod's namespace is being deleted."""
    details = answer.body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    found = causes if isinstance(causes, list) else ()
    return any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in found)


def _count(answer: ApiAnswer) -> int:
    count = answer.body.get("count")
    return count if isinstance(count, int) and count > 0 else 1


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
