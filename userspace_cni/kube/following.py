"""One pod, followed until something is true of it: for a process of one call, which watches no node's pods.

The API server tells each change; nothing is asked in a loop but after a stream has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NoteRefused, Unavailable
from userspace_cni.kube.client import KubeClient, attempts, is_pod, view_of

_FORGOTTEN = 410
"""The server no longer knows the version: the pod is read again."""
_TRIES = 1000
"""Streams at most: each ends when the server likes, and the pauses between them grow to a quarter of a second."""


def follow(client: KubeClient, pod: Pod, ready: Callable[[Pod], bool], deadline: Deadline) -> Pod | None:
    """The pod as soon as `ready` says so of it or it is being deleted, else as it is at `deadline`; None once it is gone.

    `pod`: which one, by namespace, name and, where it is not "", UID. Raises NoteRefused for an account that may not watch, and
    Unavailable when the pod cannot be read.
    """
    view: Pod | None = None
    for last in attempts(_TRIES, deadline):
        try:
            raw = client.read(pod.namespace, pod.name, deadline)
        except Unavailable:
            if view is None or deadline.remaining():
                raise
            return view
        view = view_of(raw) if raw else None
        if raw is None or view is None or (pod.uid and view.uid != pod.uid):
            return None
        if last or not deadline.remaining() or ready(view) or view.deleting:
            return view
        found = _followed(client, raw, ready, deadline)
        if found or not deadline.remaining():
            return found or view
    raise AssertionError("unreachable: the last attempt returns")


def _followed(client: KubeClient, raw: dict[str, Any], ready: Callable[[Pod], bool], deadline: Deadline) -> Pod | None:
    """Follow the pod from this version on; None when the stream has ended, or the pod, before it was ready."""
    namespace, name, version = (raw["metadata"][key] for key in ("namespace", "name", "resourceVersion"))
    selected = f"fieldSelector={quote(f'metadata.name={name}', safe='')}&resourceVersion={quote(version, safe='')}"
    seconds = max(1, round(deadline.remaining()))
    path = f"/api/v1/namespaces/{quote(namespace)}/pods?{selected}&watch=1&timeoutSeconds={seconds}"
    stream = client.session.stream(path, deadline, max(0.1, deadline.remaining()))
    try:
        if stream.status not in (200, _FORGOTTEN):
            raise NoteRefused(
                f"watching pod {namespace}/{name}: the API server answered {stream.status} to {client.session.account}",
                "it needs the verb watch on pods",
            )
        for line in stream.lines(deadline) if stream.status == 200 else ():
            event = json.loads(line)
            if event["type"] not in ("ADDED", "MODIFIED") or not is_pod(event["object"]):
                return None
            view = view_of(event["object"])
            if view.deleting or ready(view):
                return view
    except (Unavailable, ValueError, KeyError, TypeError, RecursionError):
        return None  # read and watch again
    finally:
        stream.close()
    return None
