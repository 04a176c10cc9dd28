"""Composition root: this node, of the five objects that attachments are given and the drivers of their steps.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING

from userspace_cni.attachment.attachment_store import AttachmentStore
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.node import ServeOptions
from userspace_cni.attachment.spool import Spool
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.settings import Settings
from userspace_cni.linux import boot
from userspace_cni.node.callbacks import Callbacks
from userspace_cni.node.drivers import Drivers
from userspace_cni.node.installation import Installation
from userspace_cni.node.local_addresses import LocalAddresses
from userspace_cni.node.local_pods import LocalPods
from userspace_cni.node.local_sandboxes import LocalSandboxes
from userspace_cni.node.local_switch import LocalSwitch

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.node.known_subnets import Subnets


class LocalNode:
    """This node: `attachment.node.Node` for the settings of this installation.

    `resident`: for a process that lives on. It sees the host below `host_root`, and keeps one session with OVSDB in which all
    our ports are known. `tell`: the callbacks for events.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        resident: bool = False,
        tell: Callbacks | None = None,
    ) -> None:
        self.installation = Installation(settings, environ, resident=resident)
        self.service = ServeOptions(settings.log_level, settings.deadline_s, resident)
        self._callbacks = tell or Callbacks()

    @cached_property
    def store(self) -> AttachmentStore:
        """Records, spool, and the present boot."""
        boot_id = cache(boot.boot_id)
        state, run = map(self.installation.root.path, (self.installation.settings.state_dir, self.installation.settings.run_dir))
        journal = Journal(state, run, lambda text: say("warning", text), boot_id, self._on_state)
        return AttachmentStore(journal, Spool(f"{state}/spool", f"{state}/quarantine"), boot_id, boot.boottime_ns)

    @cached_property
    def switch(self) -> LocalSwitch:
        return LocalSwitch(self.installation, self.store, lambda: self.subnets, self._callbacks)

    @cached_property
    def sandboxes(self) -> LocalSandboxes:
        return LocalSandboxes(self.installation, self.store.journal.identity)

    @cached_property
    def pods(self) -> LocalPods:
        return LocalPods(self.installation, self.store, self.switch, self._callbacks)

    @cached_property
    def addresses(self) -> LocalAddresses:
        return LocalAddresses(self.installation, lambda: self.subnets)

    @cached_property
    def subnets(self) -> Subnets:
        from userspace_cni.node.known_subnets import Subnets

        return Subnets(self.installation, self.store.journal, self.pods.is_gone)

    @cached_property
    def driver(self) -> Drivers:
        return Drivers(self.installation, self.store, self.switch, self.addresses, self.pods)

    def _on_state(self, record: Record) -> None:
        if "subnets" in vars(self):
            self.subnets.on_state(record)

    def warm_up(self, deadline: Deadline) -> None:
        """Import what verbs will use, begin to watch the pods of this node, and try to open the session with OVSDB."""
        from userspace_cni.attachment import plan  # noqa: F401

        self.pods.follow()
        self.driver.make_all()
        try:
            self.switch.ports.connect(deadline.half())
        except UserspaceError as error:
            say("warning", "there is no session with OVSDB yet", error=error)

    def close(self) -> None:
        """End the session with OVSDB and the watch; calls that wait for the switch fail."""
        if "pods" in vars(self):
            self.pods.close()
        if "switch" in vars(self):
            self.switch.close()
