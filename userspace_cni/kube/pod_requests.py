"""The API calls that attaching needs: read a pod, and change its annotations.

A pod is the JSON that the server sent, with fields that we do not know, and not a typed model, which would lose them. A note is
written by a merge patch of pods/status. An account that may only update (Multus' has get and update, no patch) writes back by PUT
what it just read, `status` included: a body without it wipes the pod's status.

No exception of a library may leave this module; no message may quote the server or a kubeconfig.

A static pod has two UIDs: its own, which kubelet, runtime and directories use, and that of the mirror pod in the API. The kubelet
writes the former into the mirror's annotation kubernetes.io/config.mirror, which no user can add later.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from userspace_cni.attachment.facts import Pod, Volume
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.kube.credentials import SERVICE_ACCOUNT, ApiAnswer, ApiSession
from userspace_cni.kube.kubeconfig import Kubeconfig, KubeconfigBounds

READ_TRIES = 3
PAUSE_MAX_S = 0.25
CLIENTS_MAX = 32
"""Kubeconfigs of networks whose connections are kept."""

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: the UID of its static pod."""
_MACHINE = "VirtualMachineInstance"
_KUBEVIRT = "kubevirt.io/"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NEEDED = "the account needs the verbs get on pods and patch (or update) on pods/status"


HUGEPAGES = "hugepages-"
"""How the names of the resources begin that a container asks for to have hugepages."""
MODESTY = re.compile(r"--no-huge|userspace[-_]cni tap|^tap( |$)")
"""What in a container's command says that it does without hugepages: DPDK's option, or the program of ours that needs none."""


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

    def __init__(self, kubeconfig: str, root: HostRoot = HERE, bounds: KubeconfigBounds | None = None) -> None:
        self._session = ApiSession(Kubeconfig(kubeconfig, root, bounds) if kubeconfig else None)

    @property
    def session(self) -> ApiSession:
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

    def _ask(
        self, method: str, path: str, deadline: Deadline, body: Mapping[str, Any] | None = None, tries: int = 1
    ) -> ApiAnswer:
        for last in attempts(tries, deadline):
            try:
                return self._session.request(method, path, deadline, body)
            except Unavailable:
                if last or deadline.remaining() < PAUSE_MAX_S:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")


class Clients:
    """One KubeClient per kubeconfig, so that connections and credentials are shared.

    `bounds`: what a network's kubeconfig must obey; one that a record names, too, for the name came with the network. `own`:
    the setting `kubeconfig`, "" for the service account of the pod that this process runs in. Only the most recently used
    clients of networks are kept: tenants write the names, also of files that are refused.
    """

    def __init__(self, bounds: KubeconfigBounds, root: HostRoot = HERE, own: str = "") -> None:
        self._bounds = bounds
        self._root = root
        self._own = own
        self._lock = threading.Lock()
        self._clients: dict[str, KubeClient] = {}

    def of(self, kubeconfig: str) -> KubeClient:
        """The client for a network's `kubeconfig`, or for credentials of our own ("")."""
        with self._lock:
            client = self._clients.pop(kubeconfig, None)
            if client is None:
                client = KubeClient(kubeconfig, self._root, self._bounds) if kubeconfig else KubeClient(self._own, self._root)
            others = [each for each in self._clients if each]
            if kubeconfig and len(others) >= CLIENTS_MAX:
                del self._clients[others[0]]
            self._clients[kubeconfig] = client
            return client


def _annotated(pod: Mapping[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    """A copy of the pod in which only these annotations are changed."""
    copy: dict[str, Any] = json.loads(json.dumps(pod))
    annotations = {**annotations_of(copy), **changes}
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
    mounts: dict[str, list[str]] = {}
    for container in spec.get("containers") or ():
        for mount in container.get("volumeMounts") or ():
            mounts.setdefault(mount["name"], []).append(mount["mountPath"])
    return Pod(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        uid=annotations_of(pod).get(MIRROR) or metadata.get("uid", ""),
        volumes=tuple(volumes),
        mounts={name: tuple(paths) for name, paths in mounts.items()},
        annotations=annotations_of(pod),
        deleting=bool(metadata.get("deletionTimestamp")),
        lacks_hugepages=bool(spec.get("containers")) and not _may_have_hugepages(spec),
        api_uid=metadata.get("uid", ""),
        machine_uid=next((each.get("uid", "") for each in machines_of(pod)), ""),
    )


def machines_of(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The references of a pod to the VirtualMachineInstance that owns it: one of a launcher, none of another pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return [each for each in owners if each.get("kind") == _MACHINE and each.get("apiVersion", "").startswith(_KUBEVIRT)][:1]


def containers_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The containers of a pod's spec, with those that run before or beside the others."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def command_of(container: Mapping[str, Any]) -> str:
    """What a container runs, as far as the spec says it."""
    return " ".join(str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ())))


def _may_have_hugepages(spec: Mapping[str, Any]) -> bool:
    """Whether a container of the pod may have hugepages, or says that it needs none. In doubt it may."""
    containers = containers_of(spec)
    asked = [name for holder in (spec, *containers) for name in (holder.get("resources") or {}).get("limits") or ()]
    volumes = [volume for volume in spec.get("volumes") or () if volume.get("hostPath")]
    paths = [str(volume["hostPath"].get("path", "")) for volume in volumes]
    return (
        any(name.startswith(HUGEPAGES) for name in asked)
        or any(path.rstrip("/") in ("", "/dev") or "huge" in path for path in paths)
        or any(MODESTY.search(command_of(container)) for container in containers)
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
        pod.api_uid,
        pod.machine_uid,
        *pod.annotations.values(),
        *(path for paths in pod.mounts.values() for path in paths),
    )
    return all(isinstance(text, str) for text in texts) and bool(pod.name and pod.namespace)


def annotations_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a pod as the server sends it, {} for none."""
    return pod["metadata"].get("annotations") or {}


def is_named(namespace: str, name: str) -> bool:
    """Whether a pod can have this name. It becomes part of a path: ".." would lead to another one, with our credentials."""
    return bool(_NAME.fullmatch(namespace) and _NAME.fullmatch(name))


def _path(namespace: str, name: str) -> str:
    if not is_named(namespace, name):
        raise InvalidConfig(f"{namespace!r}/{name!r} is not a name of a pod", "K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS")
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def attempts(tries: int, deadline: Deadline) -> Iterator[bool]:
    """Yield `tries` times, True the last time, with growing random pauses between; none reaches beyond the deadline."""
    for number in range(1, tries + 1):
        yield number == tries
        pause = random.SystemRandom().uniform(0.5, 1.0) * min(PAUSE_MAX_S, 0.02 * 2**number)  # spreads writers
        time.sleep(min(pause, deadline.remaining()))
