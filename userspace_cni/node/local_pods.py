"""The pods of this node: what they say of their interfaces, what they are told, and whether they are gone.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from userspace_cni.base.log import say
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.base.tenancy import require_mirrors

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.consumer import Consumer
    from userspace_cni.attachment.facts import ChangeableOptions
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.findings import Finding
    from userspace_cni.base.notices import Recipient
    from userspace_cni.cni.known_options import KnownOptions
    from userspace_cni.cni.options import Options
    from userspace_cni.cni.request import Environment, Request
    from userspace_cni.kube.events import Events
    from userspace_cni.kube.watch import PodWatch
    from userspace_cni.node.callbacks import Callbacks
    from userspace_cni.node.gathering import LocalGathering
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.local_switch import LocalSwitch


class LocalPods:
    """`attachment.node.Pods` of this node. `tell`: whom it tells of changed pods, and of notices that none was told."""

    def __init__(self, installation: Installation, store: AttachmentStore, switch: LocalSwitch, tell: Callbacks) -> None:
        self._installation = installation
        self._store = store
        self._switch = switch
        self._callbacks = tell
        self.watch: PodWatch | None = None
        """The watched pods of this node; None before `follow`, or without credentials."""
        self._events: Events | None = None
        self._threads = Supervisor()

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The kinds of consumers, by their names in a network's key `consumer`."""
        from userspace_cni.consumers import CONSUMERS

        return CONSUMERS

    def read_options(self, request: Request, warn: Callable[[str], object]) -> Options:
        """What an ADD's configuration asks for; a process that lives on reads equal ones once."""
        if not self._installation.resident:
            from userspace_cni.cni.options import read_options

            return read_options(request, self.consumers, warn)
        return self._known_options.read(request, self.consumers, warn)

    @cached_property
    def _known_options(self) -> KnownOptions:
        from userspace_cni.cni.known_options import KnownOptions

        return KnownOptions()

    def begin_gathering(self, request: Request, options: Options, consumer: Consumer, deadline: Deadline) -> LocalGathering:
        """What this ADD asks of node and pod, and of the API server if there is one."""
        from userspace_cni.node.gathering import FactSources, LocalGathering
        from userspace_cni.node.pod_logical_port import place_options

        asked = FactSources(self._installation, self._store, self._switch, self.watch)
        return LocalGathering(asked, request, place_options(options, self._installation.settings), consumer, deadline)

    def require_mirrors(self, environment: Environment, mirrors: Iterable[str], outputs: Iterable[str]) -> None:
        """Raise MirrorRefused unless the rules let the call's pod have that part."""
        require_mirrors(self._installation.settings.rules, environment.pod_namespace, mirrors, outputs)

    def read_changeable_options(self, record: Record) -> ChangeableOptions | None:
        """What the attachment's pod says of its interface now; None where the pod is not watched. Raises BadRequest."""
        if not self.watch or not record.port:
            return None
        pod = self.watch.view(record.pod_namespace, record.pod_name, record.pod_uid)
        if pod is None:
            return None
        from userspace_cni.node.gathering import read_changeable_options

        return read_changeable_options(record.port, pod, record, self._installation.settings)

    def is_gone(self, uid: str) -> bool:
        """Whether the pod is missing in the API's list or, where that is not known, in the kubelet's directory."""
        known = self.watch.uids() if self.watch else None
        if known is None:
            directory = f"{self._installation.settings.kubelet_dir}/pods"
            try:
                known = frozenset(os.listdir(self._installation.root.path(directory)))  # noqa: PTH208
            except OSError:
                return False
        return uid not in known

    def tell(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        """Have the pod or object told by Events of the API; a pod without a UID is the one of that name which the watch knows."""
        if not self._events or not notices:
            return
        if recipient.kind == "Pod" and not recipient.uid and self.watch:
            from userspace_cni.kube.pod_requests import view_of

            known = self.watch.get(recipient.namespace, recipient.name)
            recipient = replace(recipient, uid=view_of(known).uid if known else "")
        self._events.tell(recipient, notices)

    # -- for a process that lives on --------------------------------------------------------------------------------------

    def begin_telling(self) -> None:
        """Make Events of later notices, if there is an account. Raises Unavailable."""
        from userspace_cni.kube.events import Events

        here = self._installation
        if here.has_account:
            self._events = Events(here.clients.of("").session, here.name, self._callbacks.untold)
            self._threads.begin(self._events)

    def follow(self) -> None:
        """Begin to watch the pods of this node, if there is an account. Raises Unavailable."""
        from userspace_cni.kube.watch import PodWatch

        here = self._installation
        if here.has_account and here.settings.netconf_kubeconfig != "always":
            self.watch = PodWatch(
                here.clients.of("").session, here.name, on_change=self._callbacks.pod, on_claims=self._callbacks.claims
            )
            self._threads.begin(self.watch)

    def await_known(self, deadline: Deadline) -> None:
        """Wait until the pods of this node are known, after `follow`. Not known by then, they are not waited for."""
        if self.watch and not self.watch.wait_synced(deadline):
            say("warning", "the pods of this node are not known yet", problem=self.watch.problem)

    def problems(self) -> list[str]:
        """Why pods are no longer watched, or told anything, by a thread that is dead."""
        return self._threads.problems()

    def close(self) -> None:
        """End the watch, and tell no more."""
        self._threads.stop()
