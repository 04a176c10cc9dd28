"""The API calls that attaching needs: read a pod, and keep an entry about our interface in its annotations.

A pod is the JSON that the server sent, with fields that we do not know, and not a typed model, which would lose them. A note is
written by a merge patch of pods/status. An account that may only update (Multus' has get and update, no patch) writes back by PUT
what it just read, `status` included: a body without it wipes the pod's status.

Several writers change the annotations. So a write always carries the resourceVersion of the text it was made from, and after a
conflict the pod is read again. It also carries the pod's UID: another pod may have the same name. Because of both, an agent may
write from what its watch (`kube.watch`) knows without reading first. The watch only saves a request: it must never be the reason
to write nothing or to refuse. No exception of a library may leave this module; no message may quote the server or a kubeconfig.

A static pod has two UIDs: its own, which kubelet, runtime and directories use, and that of the mirror pod in the API. The kubelet
writes the former into the mirror's annotation kubernetes.io/config.mirror, which no user can add later.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from userspace_cni.attachment.drift import Absent, Drift, Other, Value
from userspace_cni.attachment.facts import Pod, Volume
from userspace_cni.attachment.steps import Driver, PodNote
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.kube.credentials import SERVICE_ACCOUNT, Answer, Session, load_library
from userspace_cni.kube.kubeconfig import Bounds, Kubeconfig
from userspace_cni.pod import document, eal

UNDO_LIMIT_S = 1.0
OPTIONAL_LIMIT_S = 5.0
"""How long an optional note may delay an ADD when the API server hangs."""

READ_TRIES = 3
WRITE_TRIES = 20
"""Conflicts come from kubelet's status updates and other ADDs of the same pod; each means that another writer succeeded."""
PAUSE_MAX_S = 0.25

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: the UID of its static pod."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NEEDED = "the account needs the verbs get on pods and patch (or update) on pods/status"


def in_cluster(environ: Mapping[str, str], service_account: str = SERVICE_ACCOUNT) -> bool:
    """Whether this process has the credentials of a pod.

    The variables alone do not prove it: a delegate of thick Multus inherits them but is chrooted to the host, without a token.
    """
    named = environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT")
    return bool(named) and (Path(service_account) / "token").is_file()


class KubeClient:
    """Reads pods and writes their annotations under one account; safe to use from several threads.

    `kubeconfig`: absolute path on the host `root`, which must obey `bounds`; "" for the service account of the pod that this
    process runs in.
    """

    def __init__(self, kubeconfig: str, root: HostRoot = HERE, bounds: Bounds | None = None) -> None:
        self._session = Session(Kubeconfig(kubeconfig, root, bounds) if kubeconfig else None)

    @property
    def session(self) -> Session:
        """The account's connection, for a watch that shares it."""
        return self._session

    def get_pod(self, namespace: str, name: str, deadline: Deadline) -> Pod | None:
        """The pod, or None when there is none of this name. Raises Unavailable, NoteRefused (no permission) or InvalidConfig."""
        pod = self.read(namespace, name, deadline)
        return None if pod is None else view_of(pod)

    def read(self, namespace: str, name: str, deadline: Deadline, tries: int = READ_TRIES) -> dict[str, Any] | None:
        """As `get_pod`, but the pod as the server sent it. After a transient failure it is tried again, `tries` times in all."""
        what = f"reading pod {namespace}/{name}"
        answer = self._ask("GET", _path(namespace, name), deadline, tries=tries)
        if answer.status == 404:
            return None
        if answer.status in (401, 403):
            raise NoteRefused(f"{what}: not allowed ({answer.status}) with {self._session.account}", _NEEDED)
        if answer.status != 200 or not is_pod(answer.body):
            raise NoteRefused(f"{what}: unexpected answer {answer.status}", f"does {self._session.account} name an API server?")
        return answer.body

    def annotate(
        self, pod: Mapping[str, Any], changes: Mapping[str, str | None], deadline: Deadline, *, whole: bool = True
    ) -> dict[str, Any] | None:
        """Set (or, with None, remove) annotations of `pod`, as it was read. Returns the new pod.

        Returns None when the pod has changed since: read it again. `whole`: `pod` is all that the server sent, not what a watch
        kept of it.
        """
        metadata = pod["metadata"]
        precondition = {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")}
        path = _path(metadata["namespace"], metadata["name"]) + "/status"
        answer = self._ask("PATCH", path, deadline, {"metadata": {**precondition, "annotations": dict(changes)}})
        if answer.status == 403:
            full = pod if whole else self.read(metadata["namespace"], metadata["name"], deadline, tries=1)
            if full is None or any(full["metadata"].get(key) != value for key, value in precondition.items()):
                return None
            answer = self._ask("PUT", path, deadline, _annotated(full, changes))
        if answer.status in (200, 201):
            return answer.body
        if answer.status == 409:
            return None
        what = f"writing the annotations of pod {metadata['namespace']}/{metadata['name']}"
        if answer.status == 404:
            raise NoteRefused(f"{what}: the pod is gone")
        if answer.status in (401, 403):
            raise NoteRefused(f"{what}: not allowed ({answer.status}) with {self._session.account}", _NEEDED)
        raise NoteRefused(
            f"{what}: the API server answered {answer.status}", "413 and 422 mean that the annotations are too long"
        )

    def _ask(self, method: str, path: str, deadline: Deadline, body: Mapping[str, Any] | None = None, tries: int = 1) -> Answer:
        for last in _attempts(tries, deadline):
            try:
                return self._session.request(method, path, deadline, body)
            except Unavailable:
                if last or deadline.remaining() < PAUSE_MAX_S:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")


class Clients:
    """One KubeClient per kubeconfig, so that connections and credentials are shared.

    `bounds`: what a network's kubeconfig must obey; one that a record names, too, for the name came with the network. `own`: the
    setting `kubeconfig`, "" for the service account of the pod that this process runs in.
    """

    def __init__(self, bounds: Bounds, root: HostRoot = HERE, own: str = "") -> None:
        self._bounds = bounds
        self._root = root
        self._own = own
        self._lock = threading.Lock()
        self._clients: dict[str, KubeClient] = {}

    def of(self, kubeconfig: str) -> KubeClient:
        """The client for a network's `kubeconfig`, or for credentials of our own ("")."""
        with self._lock:
            client = self._clients.get(kubeconfig)
            if client is None:
                client = KubeClient(kubeconfig, self._root, self._bounds) if kubeconfig else KubeClient(self._own, self._root)
                self._clients[kubeconfig] = client
            return client


class Watch(Protocol):
    """What is known of this node's pods without asking; `kube.watch.PodWatch`."""

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The kept part of the pod: its metadata, with the annotations that notes use; None when it is not known."""
        ...

    def update(self, pod: Mapping[str, Any]) -> None:
        """Replace what is kept by a pod that the server answered with."""
        ...


class PodNoteDriver(Driver[PodNote]):
    """Keeps an attachment's entry in its pod's annotations, beside the entries of the pod's other attachments."""

    def __init__(self, clients: Clients, watch: Watch | None = None) -> None:
        self._clients = clients
        self._watch = watch

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
        """Remove the entry: one try within a second. A note that stays goes with the pod, or its next sandbox replaces it."""
        load_library()  # first: on a busy node it may take a second itself
        try:
            self._undo(step, deadline.within(UNDO_LIMIT_S))
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
        annotations = _annotations(pod)
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
        for _ in _attempts(WRITE_TRIES, deadline):
            if not deadline.remaining():
                break
            pod = client.read(step.namespace, step.pod, deadline)
            if pod is None or not _is_the_pod(pod, step):
                raise NoteRefused(f"writing the annotations of pod {_named(step)}: the pod is gone", f"its UID was {step.uid}")
            changes = _differences(_annotations(pod), change(_annotations(pod)))
            if not changes or self._learn(client.annotate(pod, changes, deadline)):
                return
        raise Unavailable(
            f"writing the annotations of pod {_named(step)}: others changed the pod in between each time",
            "who writes to this pod so often?",
        )

    def _undo(self, step: PodNote, deadline: Deadline) -> None:
        known = self._known(step)
        if known and view_of(known).deleting:
            return
        client = self._clients.of(step.kubeconfig)
        if self._written_from_watch(client, step, lambda annotations: _without_entry(step, annotations), deadline):
            return
        pod = client.read(step.namespace, step.pod, deadline, tries=1)
        if pod is None or not _is_the_pod(pod, step) or view_of(pod).deleting:
            return
        changes = _differences(_annotations(pod), _without_entry(step, _annotations(pod)))
        if changes and not self._learn(client.annotate(pod, changes, deadline)):
            raise Unavailable("the pod was changed by another writer at the same time")

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
            changes = _differences(_annotations(known), change(_annotations(known)))
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


def _annotated(pod: Mapping[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    """A copy of the pod in which only these annotations are changed."""
    copy: dict[str, Any] = json.loads(json.dumps(pod))
    annotations = {**_annotations(copy), **changes}
    copy["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
    return copy


def view_of(pod: Mapping[str, Any]) -> Pod:
    """Read a pod as the server sends it. Raises KeyError, TypeError or AttributeError for what is not shaped like one."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    volumes = []
    for volume in spec.get("volumes") or ():
        kind = next((key for key in volume if key != "name"), "")
        path = str((volume.get("hostPath") or {}).get("path", ""))
        volumes.append(Volume(volume.get("name", ""), kind, path))
    mounts: dict[str, tuple[str, ...]] = {}
    for container in spec.get("containers") or ():
        for mount in container.get("volumeMounts") or ():
            mounts[mount["name"]] = (*mounts.get(mount["name"], ()), mount["mountPath"])
    return Pod(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        uid=_annotations(pod).get(MIRROR) or metadata.get("uid", ""),
        volumes=tuple(volumes),
        mounts=mounts,
        annotations=_annotations(pod),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def is_pod(body: Mapping[str, Any]) -> bool:
    """Whether `body` is a pod that `view_of` can read. The answer of a server that is no API server is refused here alone."""
    try:
        pod = view_of(body)
    except (KeyError, TypeError, AttributeError):
        return False
    texts = (
        pod.namespace,
        pod.name,
        pod.uid,
        *pod.annotations.values(),
        *(path for paths in pod.mounts.values() for path in paths),
    )
    return all(isinstance(text, str) for text in texts) and bool(pod.name and pod.namespace)


def _annotations(pod: Mapping[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _is_the_pod(pod: Mapping[str, Any], step: PodNote) -> bool:
    return step.uid in ("", pod["metadata"].get("uid"), _annotations(pod).get(MIRROR))


def _named(step: PodNote) -> str:
    return f"{step.namespace}/{step.pod}"


def _drift(step: PodNote, expected: str, found: Value) -> Drift:
    return Drift(f"annotations of pod {_named(step)} for {step.ifname}", "", expected, found)


def _path(namespace: str, name: str) -> str:
    # A name is part of the path: ".." would lead to another path, with our credentials.
    if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise InvalidConfig(f"{namespace!r}/{name!r} is no name of a pod", "K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS")
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def _attempts(tries: int, deadline: Deadline) -> Iterator[bool]:
    """Yield `tries` times, True the last time, with growing random pauses between; none reaches beyond the deadline."""
    for number in range(1, tries + 1):
        yield number == tries
        pause = random.uniform(0.5, 1.0) * min(PAUSE_MAX_S, 0.02 * 2**number)  # noqa: S311 -- spreads writers, hides nothing
        time.sleep(min(pause, deadline.remaining()))
