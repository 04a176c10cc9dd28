"""Follows one pod until something is true of it, where the watch of the node does not keep what is needed of it.

The API server tells each change; nothing is asked in a loop but after a stream has ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NoteRefused, Unavailable
from userspace_cni.kube.credentials import Stream
from userspace_cni.kube.pod_requests import KubeClient, attempts, is_pod, view_of

_FORGOTTEN = 410
"""The server no longer knows the version: the pod is read again."""
_TRIES = 1000
"""Streams at most: each ends when the server likes, and the pauses between them grow to a quarter of a second."""


class FollowedPod:
    """One pod that is followed under the account of `client`, until `deadline`. `run` on one thread, `end` from any.

    `pod`: which one, by namespace, name and, where it is not "", UID; `ready` says whether its known state is enough.
    """

    def __init__(self, client: KubeClient, pod: Pod, ready: Callable[[Pod], bool], deadline: Deadline) -> None:
        self._client = client
        self._pod = pod
        self._ready = ready
        self._deadline = deadline
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._ended = False

    def run(self) -> Pod | None:
        """The pod as soon as it is ready or being deleted, else as it is at the deadline or `end`; None once it is gone.

        Raises NoteRefused for an account that may not watch, and Unavailable when the pod cannot be read.
        """
        view: Pod | None = None
        for last in attempts(_TRIES, self._deadline):
            if self._ended:
                return view
            try:
                raw = self._client.read(self._pod.namespace, self._pod.name, self._deadline)
            except Unavailable:
                if view is None or self._deadline.remaining():
                    raise
                return view
            view = view_of(raw) if raw else None
            if raw is None or view is None or (self._pod.uid and view.uid != self._pod.uid):
                return None
            if last or not self._deadline.remaining() or self._is_enough(view):
                return view
            found = self._read_stream(raw)
            if found or not self._deadline.remaining():
                return found or view
        raise AssertionError("unreachable: the last attempt returns")

    def end(self) -> None:
        """Have `run` end: at once where it waits for a change, else with the request that it has made. Never waits."""
        with self._lock:
            self._ended = True
            if self._stream is not None:
                self._stream.interrupt()

    def _is_enough(self, view: Pod) -> bool:
        return view.deleting or self._ready(view)

    def _read_stream(self, raw: dict[str, Any]) -> Pod | None:
        """Follow the pod from this version on; None when the stream has ended, or the pod, before it was ready."""
        namespace, name, version = (raw["metadata"][key] for key in ("namespace", "name", "resourceVersion"))
        selected = f"fieldSelector={quote(f'metadata.name={name}', safe='')}&resourceVersion={quote(version, safe='')}"
        left = self._deadline.remaining()
        path = f"/api/v1/namespaces/{quote(namespace)}/pods?{selected}&watch=1&timeoutSeconds={max(1, round(left))}"
        stream = self._client.session.stream(path, self._deadline, max(0.1, left))
        try:
            if stream.status not in (200, _FORGOTTEN):
                raise NoteRefused(
                    f"watching pod {namespace}/{name}: the API server answered {stream.status} to {self._client.session.account}",
                    "it needs the verb watch on pods",
                )
            with self._lock:
                self._stream = stream
            for line in stream.lines(self._deadline) if stream.status == 200 and not self._ended else ():
                event = json.loads(line)
                if event["type"] not in ("ADDED", "MODIFIED") or not is_pod(event["object"]):
                    return None
                view = view_of(event["object"])
                if self._is_enough(view):
                    return view
        except (Unavailable, ValueError, KeyError, TypeError, RecursionError):
            return None  # read and watch again
        finally:
            with self._lock:
                self._stream = None
            stream.close()
        return None
