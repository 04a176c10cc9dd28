"""What a pod is told of an attachment: an entry in its annotations, written and taken back.

Several writers change the annotations. So a write always carries the resourceVersion of the text it was made from, and after a
conflict the pod is read again. It also carries the pod's UID: another pod may have the same name. Because of both, an agent may
write from what its watch (`kube.watch`) knows without reading first. The watch only saves a request: it must never be the reason
to write nothing or to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from userspace_cni.attachment.drift import Absent, Drift, Other, Value
from userspace_cni.attachment.steps import Driver, PodNote
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.kube.credentials import load_library
from userspace_cni.kube.pod_requests import MIRROR, Clients, KubeClient, annotations_of, attempts, view_of
from userspace_cni.pod import document, eal

UNDO_LIMIT_S = 3.0
"""How long DEL waits for the API server, which may hang. On a busy node an answer takes a second."""
OPTIONAL_LIMIT_S = 5.0
"""How long an optional note may delay an ADD when the API server hangs."""
WRITE_TRIES = 20
"""Conflicts come from kubelet's status updates and other ADDs of the same pod; each means that another writer succeeded."""


class KnownPods(Protocol):
    """What is known of this node's pods without asking; `kube.watch.PodWatch`."""

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The kept part of the pod: its metadata, with the annotations that notes use; None when it is not known."""
        ...

    def update(self, pod: Mapping[str, Any]) -> None:
        """Replace what is kept by a pod that the server answered with."""
        ...


class PodNoteDriver(Driver[PodNote]):
    """Keeps an attachment's entry in its pod's annotations, beside the entries of the pod's other attachments."""

    def __init__(self, clients: Clients, watch: KnownPods | None = None) -> None:
        self._clients = clients
        self._watch = watch

    def prepare(self) -> None:
        """Import the API server's client."""
        load_library()

    def apply(self, step: PodNote, deadline: Deadline) -> None:
        """Write the entry; a failure of an optional step is only logged."""
        if not step.optional:
            self._apply(step, deadline)
            return
        try:
            self._apply(step, deadline.within(OPTIONAL_LIMIT_S))
        except UserspaceError as error:
            say("warning", f"the pod's annotations are not written, which this consumer does not need: {error}")

    def undo(self, step: PodNote, deadline: Deadline) -> None:
        """Remove the entry: no long wait, and again only after a conflict.

        A note that stays goes with the pod, or its next sandbox replaces it.
        """
        load_library()  # first: on a busy node it may take a second itself, and so may the credentials
        try:
            self._undo(step, deadline)
        except UserspaceError as error:
            say("warning", f"the entry of {step.ifname} stays in the annotations of pod {_named(step)}: {error}")

    def check(self, step: PodNote, deadline: Deadline) -> list[Drift]:
        """A drift when the entry is absent or differs. An optional note that is absent, or cannot be read, is none."""
        try:
            pod = self._clients.of(step.kubeconfig).read(step.namespace, step.pod, deadline)
        except UserspaceError:
            if step.optional:
                return []
            raise
        if pod is None or not _is_the_pod(pod, step):
            return [] if step.optional else [_drift(step, "the pod", "no such pod, or another one of its name")]
        annotations = annotations_of(pod)
        try:
            entries = document.parse(annotations.get(document.CONFIGURATION_DATA, ""))
        except document.DocumentError as error:
            return [_drift(step, "our entry", str(error))]
        wanted = document.parse_entry(step.entry)
        found = [entry for entry in entries if entry["ifName"] == step.ifname]
        if not found:
            return [] if step.optional else [_drift(step, "our entry", Absent("none for this interface"))]
        drifts = [] if wanted in found else [_drift(step, "the entry made by ADD", Other("another one"))]
        directory = annotations.get(document.MAPPED_DIR, "")
        if not document.same_directory(directory, step.mapped_dir):
            drifts.append(_drift(step, f"{document.MAPPED_DIR} {step.mapped_dir}", directory or Absent("none")))
        if not drifts and not _match_args(entries, annotations):
            arguments = annotations.get(document.DPDK_ARGS, "")
            drifts.append(_drift(step, f"{document.DPDK_ARGS} for all interfaces", arguments or Absent("none")))
        return drifts

    def _apply(self, step: PodNote, deadline: Deadline) -> None:
        client = self._clients.of(step.kubeconfig)
        try:
            entry = document.parse_entry(step.entry)
            directory = document.mapped_dir_value(step.mapped_dir)
            eal.arguments([entry], directory)
        except document.DocumentError as error:
            raise InvalidConfig(f"pod {_named(step)}, interface {step.ifname}: {error}") from None
        deadline.require(f"writing the annotations of pod {_named(step)}")

        def change(annotations: Mapping[str, str]) -> dict[str, str | None]:
            return _with_entry(step, entry, directory, annotations)

        if self._written_from_watch(client, step, change, deadline):
            return
        for _ in attempts(WRITE_TRIES, deadline):
            if not deadline.remaining():
                break
            pod = client.read(step.namespace, step.pod, deadline)
            if pod is None or not _is_the_pod(pod, step):
                raise NoteRefused(f"writing the annotations of pod {_named(step)}: the pod is gone", f"its UID was {step.uid}")
            changes = _differences(annotations_of(pod), change(annotations_of(pod)))
            if not changes or self._learn(client.annotate(pod, changes, deadline)):
                return
        raise Unavailable(
            f"writing the annotations of pod {_named(step)}: others changed the pod in between each time",
            "which program writes to this pod so often?",
        )

    def _undo(self, step: PodNote, deadline: Deadline) -> None:
        known = self._known(step)
        if known and view_of(known).deleting:
            return
        client = self._clients.of(step.kubeconfig)
        client.session.prepare(f"reading pod {_named(step)}", deadline.within(UNDO_LIMIT_S))
        deadline = deadline.within(UNDO_LIMIT_S)
        if self._written_from_watch(client, step, lambda annotations: _without_entry(step, annotations), deadline):
            return
        for _ in attempts(WRITE_TRIES, deadline):  # the pod's other interfaces are detached at the same time
            pod = client.read(step.namespace, step.pod, deadline, tries=1)
            if pod is None or not _is_the_pod(pod, step) or view_of(pod).deleting:
                return
            changes = _differences(annotations_of(pod), _without_entry(step, annotations_of(pod)))
            if not changes or self._learn(client.annotate(pod, changes, deadline)):
                return
        raise Unavailable("the pod was changed by other writers at the same time, each time")

    def _known(self, step: PodNote) -> dict[str, Any] | None:
        """The step's pod as the watch knows it. A pod that is known by its name only may be an earlier one."""
        pod = self._watch.get(step.namespace, step.pod) if self._watch and step.uid else None
        return pod if pod and _is_the_pod(pod, step) else None

    def _written_from_watch(self, client: KubeClient, step: PodNote, change: _Change, deadline: Deadline) -> bool:
        """Whether one write made from the watch's knowledge did it. Whatever else comes of that may be its age: read and see."""
        known = self._known(step)
        if known is None:
            return False
        try:
            changes = _differences(annotations_of(known), change(annotations_of(known)))
            return bool(changes) and self._learn(client.annotate(known, changes, deadline, whole=False))
        except UserspaceError:
            if not deadline.remaining():
                raise
            return False

    def _learn(self, pod: Mapping[str, Any] | None) -> bool:
        if pod is not None and self._watch:
            self._watch.update(pod)
        return pod is not None


_Change = Callable[[Mapping[str, str]], Mapping[str, str | None]]
"""Gives the new values of our annotations (None removes one) from the present ones."""


def _with_entry(step: PodNote, entry: document.Entry, directory: str, annotations: Mapping[str, str]) -> dict[str, str | None]:
    """The annotations with our entry in them; mapped-dir is one per pod, so a second value cannot be served."""
    before = annotations.get(document.MAPPED_DIR, "")
    if before and not document.same_directory(before, directory):
        raise InvalidConfig(
            f"pod {_named(step)}: {document.MAPPED_DIR} is {before} already and {step.ifname} needs {directory}",
            "all interfaces of a pod must share one directory in its containers",
        )
    try:
        entries = document.replace_entry(document.parse(annotations.get(document.CONFIGURATION_DATA, "")), entry)
        args = eal.joined(eal.arguments(entries, directory))
    except document.DocumentError as error:
        raise NoteRefused(f"pod {_named(step)}: what the annotations hold cannot be kept: {error}") from None
    return {document.CONFIGURATION_DATA: document.render(entries), document.MAPPED_DIR: directory, document.DPDK_ARGS: args}


def _without_entry(step: PodNote, annotations: Mapping[str, str]) -> dict[str, str | None]:
    """The annotations without our entry; without the last entry all of ours are removed."""
    try:
        entries = document.parse(annotations.get(document.CONFIGURATION_DATA, ""))
        left = document.remove_entry(entries, step.container_id, step.ifname)
        if left == entries:
            return {}
        if not left:
            return dict.fromkeys((document.CONFIGURATION_DATA, document.MAPPED_DIR, document.DPDK_ARGS))
        args = eal.joined(eal.arguments(left, annotations.get(document.MAPPED_DIR, step.mapped_dir)))
    except document.DocumentError as error:
        raise NoteRefused(f"what the annotations hold cannot be read: {error}") from None
    return {document.CONFIGURATION_DATA: document.render(left), document.DPDK_ARGS: args}


def _differences(before: Mapping[str, str], after: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: value for key, value in after.items() if before.get(key) != value}


def _match_args(entries: Sequence[document.Entry], annotations: Mapping[str, str]) -> bool:
    """Whether dpdk-args matches the entries; True when there can be no arguments for entries that others wrote."""
    try:
        args = eal.joined(eal.arguments(entries, annotations.get(document.MAPPED_DIR, "")))
    except document.DocumentError:
        return True
    return annotations.get(document.DPDK_ARGS, "") == args


def _is_the_pod(pod: Mapping[str, Any], step: PodNote) -> bool:
    return step.uid in ("", pod["metadata"].get("uid"), annotations_of(pod).get(MIRROR))


def _named(step: PodNote) -> str:
    return f"{step.namespace}/{step.pod}"


def _drift(step: PodNote, expected: str, found: Value) -> Drift:
    return Drift(f"annotations of pod {_named(step)} for {step.ifname}", "", expected, found)
