"""The pods on the agent's node, known from a list and a watch of the API server that never end.

This saves requests and, while it is fresh, lets reconcile see that a pod is gone. It must never claim what it cannot know: `uids`
returns None until two lists have told which pods there are, after a minute and a half of silence of the server, and while there
is no pod at all (a wrong node name looks like that). It must never delay a verb either: all methods but `stop` and `wait_synced`
return at once, and a caller that finds no pod here asks the server.

Of a pod only the parts that we use are kept, as text: a node has some hundred pods, and each may have 256 KiB of annotations that
we do not use. Neither an answer to our own request nor a later watch event replaces a newer pod.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Keys
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.log import say
from userspace_cni.cni.annotations import is_read
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_pages import text
from userspace_cni.kube.list_watch import Collection, ListWatch, WatchTimes
from userspace_cni.kube.pod_requests import HUGEPAGES, MIRROR, MODESTY, annotations_of, command_of, is_pod, machines_of, view_of
from userspace_cni.kube.resources import PODS
from userspace_cni.kube.versions import is_older
from userspace_cni.pod import document, launcher

KEPT_LIMIT: Final = 32 << 10
"""Bytes kept of one pod. A longer one has a foreign text under our keys, and is read from the server when it is needed."""

_KEPT_METADATA: Final = ("namespace", "name", "uid", "resourceVersion", "deletionTimestamp")
_NOTES: Final = (document.CONFIGURATION_DATA, document.MAPPED_DIR, document.DPDK_ARGS, MIRROR, launcher.DOMAIN)
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class _KnownPod:
    """A pod: its UID in the API, its UID on the node (another one for a static pod), its version, and the text kept of it.

    `said`: a number that changes with the annotations that decide about interfaces, and when the pod begins to be deleted.
    `claims`: the ResourceClaims that it names itself, which other pods may name, too.
    """

    uid: str
    node_uid: str
    version: str
    text: bytes
    said: int = 0
    claims: tuple[str, ...] = ()


class PodWatch(ListWatch):
    """The pods of node `node` (as the API calls it), in all namespaces. Safe to use from any thread.

    One daemon thread from `start` to `stop`; a stopped watch cannot be started again. Raises InvalidConfig for a wrong name.
    `on_change` is called with namespace and name of a known pod whose annotations say another thing of its interfaces than
    before, that has begun to be deleted, or is gone; `on_claims` with the namespace of a pod that has become known, and the
    ResourceClaims that it names. They must not wait.
    """

    def __init__(
        self,
        session: ApiSession,
        node: str,
        times: WatchTimes | None = None,
        on_change: Callable[[str, str], None] = lambda *_: None,
        on_claims: Callable[[str, Sequence[str]], None] = lambda *_: None,
    ) -> None:
        if not _NODE.fullmatch(node):
            raise InvalidConfig(f"{node!r} is not a name of a node", "the setting node_name")
        self._pods = _WatchedPods(node, on_change, on_claims)
        collection = Collection(
            resource=PODS,
            title="the pods of this node",
            needed="the verbs list and watch on pods",
            meanwhile="and are read one by one",
            fields=f"spec.nodeName={node}",
        )
        super().__init__(session, collection, self._pods, times or WatchTimes())

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The kept part of a pod, in the server's shape; None when it is not known here, though it may exist.

        It has names, UID and version, deletionTimestamp, the annotations that notes use, volumes and volumeMounts: enough for a
        PATCH, never for a PUT.
        """
        known = self._pods.known(namespace, name)
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

    def uids(self) -> frozenset[str] | None:
        """The UIDs of all pods on the node, both of a static pod's; None when they are not known for certain now.

        A static pod runs on when its mirror is deleted: its absence here proves nothing without the kubelet's directory.
        """
        uids = self._pods.uids() if self.confirmed and self.fresh else None
        return uids or None

    def update(self, pod: Mapping[str, Any]) -> None:
        """Replace a known pod by a newer one from the server's answer to a GET, PATCH or PUT.

        It never adds a pod: an answer may arrive after the watch has seen that the pod is gone.
        """
        self._pods.update(pod)


class _WatchedPods:
    """What is kept of the pods: the store of their watch."""

    def __init__(self, node: str, on_change: Callable[[str, str], None], on_claims: Callable[[str, Sequence[str]], None]) -> None:
        self._node = node
        self._on_change = on_change
        self._on_claims = on_claims
        self._lock = threading.Lock()
        self._pods: dict[tuple[str, str], _KnownPod] = {}

    def known(self, namespace: str, name: str) -> _KnownPod | None:
        with self._lock:
            return self._pods.get((namespace, name))

    def uids(self) -> frozenset[str]:
        """The UIDs of all pods, both of a static pod's."""
        with self._lock:
            return frozenset(uid for known in self._pods.values() for uid in (known.uid, known.node_uid))

    def update(self, pod: Mapping[str, Any]) -> None:
        """Replace a known pod by a newer one; anything else is ignored."""
        try:
            key, answered = self.read(pod)
        except (KeyError, TypeError, AttributeError, ValueError):
            return
        with self._lock:
            known = self._pods.get(key)
            if known and known.uid == answered.uid and is_older(known.version, answered.version):
                self._pods[key] = answered

    def read(self, thing: Mapping[str, Any]) -> tuple[tuple[str, str], _KnownPod]:
        """Key and kept part of a pod, as `ObjectStore.read`."""
        return _remembered(thing)

    def keys(self) -> Keys[tuple[str, str]]:
        with self._lock:
            return set(self._pods)

    def take_over(self, listed: Sequence[tuple[tuple[str, str], _KnownPod]], gone: Keys[tuple[str, str]]) -> None:
        """Take a complete list over: it replaces no pod by an older one, and what it lacks stays, but for what is gone."""
        found = dict(listed)
        with self._lock:
            pods = {**{key: known for key, known in self._pods.items() if key not in gone}, **found}
            for key, now in found.items():
                known = self._pods.get(key)
                if known and known.uid == now.uid and is_older(now.version, known.version):
                    pods[key] = known
            before, self._pods = self._pods, pods
        for key in {**before, **pods}:
            self._tell(key, before.get(key), pods.get(key))
        if not found:
            say("warning", f"the API server knows no pod on this node: does the API know the node by this name? {self._node}")

    def change(self, kind: str, thing: tuple[tuple[str, str], _KnownPod]) -> None:
        key, changed = thing
        with self._lock:
            known = self._pods.get(key)
            is_same = known is not None and known.uid == changed.uid
            if kind == "DELETED":
                if is_same:
                    del self._pods[key]
            elif not (known and is_same and is_older(changed.version, known.version)):
                self._pods[key] = changed
            now = self._pods.get(key)
        self._tell(key, known, now)

    def _tell(self, key: tuple[str, str], before: _KnownPod | None, now: _KnownPod | None) -> None:
        """Tell of a known pod that has changed or gone, without the lock; `on_change` reads what is known by then."""
        if before and not (now and before.uid == now.uid and before.said == now.said):
            self._on_change(*key)
        if now and now.claims and not (before and before.uid == now.uid):
            self._on_claims(key[0], now.claims)


def _remembered(pod: Mapping[str, Any]) -> tuple[tuple[str, str], _KnownPod]:
    """Key and kept part of a pod. Raises KeyError, TypeError, AttributeError or ValueError for what is no pod.

    Of a pod whose spec we cannot read, only UID and version are kept.
    """
    metadata = pod["metadata"]
    key, uid = (text(metadata["namespace"]), text(metadata["name"])), text(metadata["uid"])
    version = text(metadata["resourceVersion"])
    if not is_pod(pod):
        return key, _KnownPod(uid, uid, version, b"")
    kept = json.dumps(_kept(pod), separators=(",", ":")).encode()
    decisive = frozenset((name, value) for name, value in annotations_of(pod).items() if is_read(name))
    said = hash((decisive, bool(metadata.get("deletionTimestamp"))))
    claims = tuple(_named_claims(pod))
    return key, _KnownPod(uid, view_of(pod).uid, version, kept if len(kept) <= KEPT_LIMIT else b"", said, claims)


def _named_claims(pod: Mapping[str, Any]) -> Iterator[str]:
    listed = (pod.get("spec") or {}).get("resourceClaims")
    for each in listed if isinstance(listed, list) else ():
        name = each.get("resourceClaimName") if isinstance(each, dict) else None
        if isinstance(name, str) and name:
            yield name


def _kept(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a readable pod that `view_of` and notes use."""
    spec = pod.get("spec") or {}
    metadata = {name: pod["metadata"][name] for name in _KEPT_METADATA if pod["metadata"].get(name)}
    annotations = pod["metadata"].get("annotations") or {}
    metadata["annotations"] = {name: value for name, value in annotations.items() if name in _NOTES or is_read(name)}
    if owners := machines_of(pod):
        metadata["ownerReferences"] = [{key: owners[0].get(key, "") for key in ("apiVersion", "kind", "uid")}]
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
