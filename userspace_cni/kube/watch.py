"""The pods on the agent's node, known from a list and a watch of the API server that never end.

This saves requests and, while it is fresh, lets reconcile see that a pod is gone. It must never claim what it cannot know: `uids`
returns None before the first complete list, after a minute and a half of silence of the server, and while there is no pod at all
(a wrong node name looks like that). It must never delay a verb either: all methods but `stop` and those that
say that they wait return at once, and a caller that finds no pod here asks the server.

The `kubernetes` library's SharedInformer is not used: it needs the typed models (20 MiB), reads the first list in one piece, does
not back off between failing watches, and does not tell whether its list was complete. Here pods are the raw JSON of
`kube.credentials`' connection, and only the parts that we use are kept, as text: a node has some hundred pods, and each may have
256 KiB of annotations that we do not use.

Versions are compared as numbers where they are numbers (as all versions of pods are; promised since Kubernetes 1.35), so that
neither an answer to our own request nor a later watch event replaces a newer pod. Where they are not, only the watch counts.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.threads import start
from userspace_cni.cni.annotations import is_read
from userspace_cni.kube.client import HUGEPAGES, MIRROR, MODESTY, annotations_of, command_of, is_pod, view_of
from userspace_cni.kube.credentials import REQUEST_LIMIT_S, Session, Stream, TooLong
from userspace_cni.pod import document, launcher

KEPT_LIMIT: Final = 32 << 10
"""Bytes kept of one pod. A longer one has a foreign text under our keys, and is read from the server when it is needed."""
STOP_S: Final = 1.0

_KEPT_METADATA: Final = ("namespace", "name", "uid", "resourceVersion", "deletionTimestamp")
_NOTES: Final = (document.CONFIGURATION_DATA, document.MAPPED_DIR, document.DPDK_ARGS, MIRROR, launcher.DOMAIN)
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_EVENTS: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})
_DIGITS_MAX: Final = 100
_NEEDED: Final = "the account needs the verbs list and watch on pods"


@dataclass(frozen=True)
class Pace:
    """How long a watch lasts and waits, in seconds, and how many pods are listed at once.

    A watch is asked for `watch_s` at most (a random part less, to spread the nodes) and given up when it is still open `slack_s`
    later. After a failure the pause doubles from `pause_min_s` to `pause_max_s`; a watch that was open for `good_s` resets it.
    Knowledge is fresh for `fresh_s`: servers send a bookmark about every minute.
    """

    watch_s: float = 240.0
    slack_s: float = 15.0
    pause_min_s: float = 0.5
    pause_max_s: float = 30.0
    good_s: float = 10.0
    fresh_s: float = 90.0
    page: int = 10


@dataclass(frozen=True, slots=True)
class _Known:
    """A pod: its UID in the API, its UID on the node (another one for a static pod), its version, and the text kept of it.

    `said`: a number that changes with the annotations that decide about interfaces.
    """

    uid: str
    node_uid: str
    version: str
    text: bytes
    said: int = 0


class _Forgotten(Exception):
    """The server no longer knows our version: only a new list helps."""


class PodWatch:
    """The pods of node `node` (as the API calls it), in all namespaces. Safe to use from any thread.

    One daemon thread from `start` to `stop`; a stopped watch cannot be started again. Raises InvalidConfig for a wrong name.
    `on_change` is called with namespace and name of a known pod whose annotations say another thing of its interfaces than
    before; it must not wait.
    """

    def __init__(
        self, session: Session, node: str, pace: Pace | None = None, on_change: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        if not _NODE.fullmatch(node):
            raise InvalidConfig(f"{node!r} is no name of a node", "the setting node_name")
        self._session = session
        self._node = node
        self._pace = pace or Pace()
        self._path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(node)}"
        self._on_change = on_change
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pods: dict[tuple[str, str], _Known] = {}
        self._contact = 0.0
        self._problem = "watching has not begun"
        self._reported = False
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="pod-watch")
        # only the thread uses these
        self._version = ""
        self._opened: float | None = None
        self._page = self._pace.page

    def start(self) -> None:
        """Start the thread; returns at once. Raises Unavailable."""
        start(self._thread, "watching the pods of this node")

    def stop(self) -> None:
        """End the thread; waits 1 s at most: a thread that hangs in a request ends by itself."""
        self._stopping.set()
        with self._lock:
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def synced(self) -> bool:
        """Whether there was a complete list; once true it stays so."""
        return self._synced.is_set()

    @property
    def fresh(self) -> bool:
        """Whether what is known is complete, and the server confirmed it within `fresh_s`."""
        with self._lock:
            return self._is_fresh()

    @property
    def problem(self) -> str:
        """Why the pods are not watched now; "" when they are."""
        with self._lock:
            return self._problem

    def wait_synced(self, deadline: Deadline) -> bool:
        """Wait for the first complete list; False when there was none by `deadline`."""
        return self._synced.wait(deadline.remaining())

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The kept part of a pod, in the server's shape; None when it is not known here, though it may exist.

        It has names, UID and version, deletionTimestamp, the annotations that notes use, volumes and volumeMounts: enough for a
        PATCH, never for a PUT.
        """
        with self._lock:
            known = self._pods.get((namespace, name))
        if known is None or not known.text:
            return None
        pod: dict[str, Any] = json.loads(known.text)
        return pod

    def view(self, namespace: str, name: str, uid: str) -> Pod | None:
        """The pod if it is known under this UID; None otherwise, and without a UID: an earlier pod may have had the name.

        Its volumes and mounts are never out of date, since they do not change in a pod's life.
        """
        pod = self.get(namespace, name) if uid else None
        view = view_of(pod) if pod else None
        return view if view and view.uid == uid else None

    def wait_for(self, pod: Pod, ready: Callable[[Pod], bool], deadline: Deadline) -> Pod | None:
        """Wait until `ready` says so of the pod, it is being deleted, or `deadline`; the pod as it is then, None once it is gone.

        `pod`: which one, by namespace, name and UID, which must be known. Also None for a pod that is not known until then.
        """
        seen = False
        while True:
            with self._lock:
                known = self._pods.get((pod.namespace, pod.name))
            view = self.view(pod.namespace, pod.name, pod.uid)
            if view and (view.deleting or ready(view)):
                return view
            if seen and not view:
                return None
            seen = seen or view is not None
            with self._lock:
                while self._pods.get((pod.namespace, pod.name)) is known:
                    if self._stopping.is_set() or not self._changed.wait(deadline.remaining()):
                        return view

    def uids(self) -> frozenset[str] | None:
        """The UIDs of all pods on the node, both of a static pod's; None when they are not known for certain now.

        A static pod runs on when its mirror is deleted: its absence here proves nothing without the kubelet's directory.
        """
        with self._lock:
            if not self._pods or not self._is_fresh():
                return None
            return frozenset(uid for known in self._pods.values() for uid in (known.uid, known.node_uid))

    def update(self, pod: Mapping[str, Any]) -> None:
        """Replace a known pod by a newer one from the server's answer to a GET, PATCH or PUT.

        It never adds a pod: an answer may arrive after the watch has seen that the pod is gone.
        """
        try:
            key, answered = _remembered(pod)
        except (KeyError, TypeError, AttributeError, ValueError):
            return
        with self._lock:
            known = self._pods.get(key)
            if known and known.uid == answered.uid and _is_older(known.version, answered.version):
                self._pods[key] = answered
                self._changed.notify_all()

    def _is_fresh(self) -> bool:
        return self._synced.is_set() and time.monotonic() - self._contact <= self._pace.fresh_s

    def _run(self) -> None:
        pause = self._pace.pause_min_s
        while not self._stopping.is_set():
            self._opened = None
            problem = self._list_and_watch()
            good = self._opened is not None and time.monotonic() - self._opened >= self._pace.good_s
            if self._stopping.is_set():
                return
            self._note(problem)
            if good:
                pause = self._pace.pause_min_s
            if problem or not good:
                self._stopping.wait(random.uniform(0.5, 1.0) * pause)  # noqa: S311 -- spreads nodes, hides nothing
                pause = min(2 * pause, self._pace.pause_max_s)

    def _list_and_watch(self) -> str:
        """Watch until that ends, after a list where one is needed; the problem that ended it, "" for none."""
        try:
            if not self._version:
                self._list()
            self._watch()
        except _Forgotten:
            self._version = ""
        except UserspaceError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 -- the thread must go on: without it what is known grows old
            self._version = ""
            return f"watching pods: {type(error).__name__}: {error}"
        return ""

    def _note(self, problem: str) -> None:
        """Keep the problem ("" for none), and log it once, when it begins."""
        with self._lock:
            self._problem = problem
            new, self._reported = bool(problem) and not self._reported, bool(problem)
        if new:
            say("warning", f"the pods of this node are not watched now, and are read one by one: {problem}")

    def _list(self) -> None:
        """Replace what is known by a complete list. A list that fails changes nothing."""
        pods: dict[tuple[str, str], _Known] = {}
        first, token = "", ""
        while True:
            body = self._read_page(token)
            try:
                pods.update(_remembered(item) for item in body["items"] or ())
                first = first or _text(body["metadata"]["resourceVersion"])
                token = body["metadata"].get("continue") or ""
            except (KeyError, TypeError, AttributeError, ValueError):
                raise NoteRefused("listing the pods of this node: the answer is no list of pods", _who(self._session)) from None
            if not token:
                break
        self._page = self._pace.page
        self._take_over(pods)
        self._version = first
        if not pods:
            say("warning", f"the API server knows no pod on this node: is it what it calls the node? {self._node}")

    def _read_page(self, token: str) -> dict[str, Any]:
        more = f"&continue={quote(token, safe='')}" if token else ""
        try:
            answer = self._session.request("GET", f"{self._path}&limit={self._page}{more}", Deadline.after(REQUEST_LIMIT_S))
        except TooLong:
            self._page = max(1, self._page // 2)
            raise
        self._require_ok(answer.status, "listing")
        return answer.body

    def _take_over(self, pods: dict[tuple[str, str], _Known]) -> None:
        with self._lock:
            for key, listed in pods.items():
                known = self._pods.get(key)
                if known and known.uid == listed.uid and _is_older(listed.version, known.version):
                    pods[key] = known
            before, self._pods = self._pods, pods
            self._contact = time.monotonic()
            self._synced.set()
            self._changed.notify_all()
        for key, now in pods.items():
            self._tell(key, before.get(key), now)

    def _watch(self) -> None:
        """Follow the events from our version on, until the server ends them."""
        seconds = max(1, int(random.uniform(0.75, 1.0) * self._pace.watch_s))  # noqa: S311 -- spreads nodes, hides nothing
        options = f"&watch=1&allowWatchBookmarks=true&resourceVersion={quote(self._version, safe='')}&timeoutSeconds={seconds}"
        limit = seconds + self._pace.slack_s
        stream = self._session.stream(self._path + options, Deadline.after(REQUEST_LIMIT_S), limit)
        try:
            with self._lock:
                self._stream = stream
            if self._stopping.is_set():
                return
            self._require_ok(stream.status, "watching")
            self._opened = time.monotonic()
            self._note("")
            for line in stream.lines(Deadline.after(limit)):
                self._event(line)
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _event(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, thing = event["type"], event["object"]
            if kind == "ERROR":
                self._refused(thing)
            if kind not in _EVENTS:
                raise ValueError(kind)
            version = _text(thing["metadata"]["resourceVersion"])
            pod = None if kind == "BOOKMARK" else _remembered(thing)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            self._version = ""
            raise Unavailable("watching the pods of this node: a line that is no event", _who(self._session)) from None
        with self._lock:
            # after a silence only a bookmark proves that no event is outstanding
            if kind == "BOOKMARK" or self._is_fresh():
                self._contact = time.monotonic()
            before = self._pods.get(pod[0]) if pod else None
            if pod:
                self._change(kind, *pod)
        if pod:
            self._tell(pod[0], before, pod[1])
        self._version = version

    def _tell(self, key: tuple[str, str], before: _Known | None, now: _Known) -> None:
        """Tell of a known pod that has changed, without the lock; `on_change` reads what is known by then."""
        if before and before.uid == now.uid and before.said != now.said:
            self._on_change(*key)

    def _change(self, kind: str, key: tuple[str, str], changed: _Known) -> None:
        self._changed.notify_all()
        known = self._pods.get(key)
        if kind == "DELETED":
            if known and known.uid == changed.uid:
                del self._pods[key]
        elif not (known and known.uid == changed.uid and _is_older(changed.version, known.version)):
            self._pods[key] = changed

    def _refused(self, status: Mapping[str, Any]) -> None:
        """Raise for an error event. The version may be its cause, so a list comes next."""
        self._version = ""
        if status.get("code") == 410:
            raise _Forgotten
        raise Unavailable(f"watching the pods of this node: the server ended it with {status.get('code')}", _who(self._session))

    def _require_ok(self, status: int, doing: str) -> None:
        if status == 200:
            return
        if status == 410:
            raise _Forgotten
        if status in (401, 403):
            raise NoteRefused(f"{doing} the pods of this node: not allowed ({status}) with {self._session.account}", _NEEDED)
        self._version = ""
        raise NoteRefused(f"{doing} the pods of this node: unexpected answer {status}", _who(self._session))


def _remembered(pod: Mapping[str, Any]) -> tuple[tuple[str, str], _Known]:
    """Key and kept part of a pod. Raises KeyError, TypeError, AttributeError or ValueError for what is no pod.

    Of a pod whose spec we cannot read, only UID and version are kept.
    """
    metadata = pod["metadata"]
    key, uid = (_text(metadata["namespace"]), _text(metadata["name"])), _text(metadata["uid"])
    version = _text(metadata["resourceVersion"])
    if not is_pod(pod):
        return key, _Known(uid, uid, version, b"")
    text = json.dumps(_kept(pod), separators=(",", ":")).encode()
    said = hash(frozenset((name, value) for name, value in annotations_of(pod).items() if is_read(name)))
    return key, _Known(uid, view_of(pod).uid, version, text if len(text) <= KEPT_LIMIT else b"", said)


def _kept(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a readable pod that `view_of` and notes use."""
    spec = pod.get("spec") or {}
    metadata = {name: pod["metadata"][name] for name in _KEPT_METADATA if pod["metadata"].get(name)}
    annotations = pod["metadata"].get("annotations") or {}
    metadata["annotations"] = {name: value for name, value in annotations.items() if name in _NOTES or is_read(name)}
    begin = [_kept_memory(container) for container in spec.get("initContainers") or ()]
    containers = [_kept_container(container) for container in spec.get("containers") or ()]
    volumes = [
        {"name": volume.get("name", ""), kind: {"path": (source or {}).get("path", "")} if kind == "hostPath" else {}}
        for volume in spec.get("volumes") or ()
        for kind, source in volume.items()
        if kind != "name"
    ]
    kept = {"volumes": volumes, "initContainers": [each for each in begin if each], "containers": containers}
    return {"metadata": metadata, "spec": {**_kept_resources(spec), **kept}}


def _kept_container(container: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [{"name": mount["name"], "mountPath": mount["mountPath"]} for mount in container.get("volumeMounts") or ()]
    return {**({"volumeMounts": mounts} if mounts else {}), **_kept_memory(container)}


def _kept_memory(container: Mapping[str, Any]) -> dict[str, Any]:
    """The hugepages that the container asks for, and of its command the words that say that it needs none."""
    said = MODESTY.search(command_of(container))
    return {**({"args": [said.group()]} if said else {}), **_kept_resources(container)}


def _kept_resources(holder: Mapping[str, Any]) -> dict[str, Any]:
    limits = (holder.get("resources") or {}).get("limits") or {}
    asked = {name: str(amount) for name, amount in limits.items() if name.startswith(HUGEPAGES)}
    return {"resources": {"limits": asked}} if asked else {}


def _text(value: object) -> str:
    """Return a value that must be a text and not empty. Raises ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _is_older(version: str, than: str) -> bool:
    """Whether a version is known to be older than another one."""
    numbers = all(text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX for text in (version, than))
    return numbers and int(version) < int(than)


def _who(session: Session) -> str:
    return f"does {session.account} name an API server?"
