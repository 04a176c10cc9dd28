"""Reads back what ovs-vswitchd has made of a port's rows, because a commit succeeds whatever it can do.

It writes into OVSDB whether it has opened the interface, counts up cur_cfg when it has gone through all rows, and says over its
control socket which limit is in force. What it makes of a link of the node's own shows in the kernel alone. Nothing here writes.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from userspace_cni.attachment.drift import Absent, Condition, Drift
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.switch.kernel_links import KernelLinks, NoLinks
from userspace_cni.switch.ovsdb.rows.bridge_row import DATAPATH_TYPE
from userspace_cni.switch.ovsdb.rows.interface_row import interface_row
from userspace_cni.switch.ovsdb.rows.qos_row import describe_limit, policing_columns, qos_row, why_not_in_force
from userspace_cni.switch.vswitchd import Daemon

if TYPE_CHECKING:
    from userspace_cni.ovsdb.replica import Watch
    from userspace_cni.switch.ovsdb.put import Put
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

T = TypeVar("T")

_NO_POLICE: Final = "the kernel needs cls_matchall and act_police (modprobe cls_matchall act_police); see the log of ovs-vswitchd"
PATIENCE_SECONDS: Final = 1.0
"""How long it waits before it asks whether ovs-vswitchd lives: opening a port takes 5 to 50 ms."""
WORD_SECONDS: Final = 5.0
"""How long it waits for a word on an interface when ovs-vswitchd has gone through all rows; a busy machine takes it that long."""


class ReadBack:
    """Asks the ovs-vswitchd of `daemon`. Safe to use from several threads."""

    def __init__(self, daemon: Daemon, links: KernelLinks | None = None) -> None:
        self._daemon = daemon
        self._links = links or NoLinks()

    def require(self, added: Put, step: OvsPort, deadline: Deadline) -> None:
        """Wait until ovs-vswitchd has opened the interface and done what else it was asked for.

        Raises SwitchRefused with its error, or for a bridge or limit that it has not made; Unavailable when it does not answer.
        """
        from userspace_cni.switch.ovsdb.switch_reads import read_open_state

        session: SwitchSession = added.api
        word = partial(read_open_state, session, step.name)
        if added.done is not None:
            self.wait(added.done, deadline)
            if session.look(lambda _: word()) is None and step.datapath != DATAPATH_TYPE:
                raise SwitchRefused(
                    f"port {step.name}: ovs-vswitchd has made no bridge {step.bridge} with datapath_type {step.datapath}",
                    "the kernel needs its module openvswitch (modprobe openvswitch); see the log of ovs-vswitchd",
                )
        answer = self.wait(session.watch("Interface", step.name, word), deadline)
        if answer is not None and not answer[0]:
            log = f"the log of ovs-vswitchd{interface_row(step).opened_by}"
            look = f"ovs-vsctl list Interface {shlex.quote(step.name)}, and {log}"
            raise SwitchRefused(f"port {step.name}: {answer[1]}", look)
        for drift in self.find_drifts(step, deadline):
            found = drift.found.words if isinstance(drift.found, Condition) else drift.found
            raise SwitchRefused(f"port {step.name}: ovs-vswitchd has set {found}, not {drift.expected}", drift.details)

    @staticmethod
    def await_word(name: str, session: SwitchSession, deadline: Deadline) -> None:
        """Wait a moment while the Interface row of that name says neither that it is open nor why not.

        So it is for a moment after ovs-vswitchd has gone through all rows, where several sessions write the same rows at once.
        """
        from userspace_cni.ovsdb.column_values import value_of

        def told() -> bool | None:
            row = session.row("Interface", name)
            return True if row is None or value_of(row, "ofport") or value_of(row, "error") else None

        watch: Watch[bool] = session.watch("Interface", name, told)
        if watch.wait(deadline.within(WORD_SECONDS).remaining()) is None:
            watch.forget()

    def find_drifts(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        """The limits, if others or none are in force, and what of the node's own link differs; of the limit to the pod nothing
        while the control socket is out of reach."""
        return self._limit_drifts(step, deadline) + (self._link_drifts(step) if step.interface.link_by == "switch" else [])

    def _link_drifts(self, step: OvsPort) -> list[Drift]:
        """What differs of the link that ovs-vswitchd has made for an internal port. It may be on a bridge that is not up."""
        subject, wanted = f"port {step.name}", interface_row(step)
        details = f"ip -d link show {step.name}, where ovs-vswitchd opens its ports: setting switch_netns"
        link = self._links().get(step.name)
        if link is None:
            return [Drift(subject, "link", "a link", Absent("no link of that name"), details)]
        compared = (("MAC of the link", wanted.mac.lower(), link.mac), ("MTU of the link", wanted.mtu, link.mtu))
        drifts = [Drift(subject, field, expected, found, details) for field, expected, found in compared if expected]
        drifts = [drift for drift in drifts if drift.expected != drift.found]
        if step.limits.from_pod and not self._links.polices(step.name):
            limit = f"policing at {policing_columns(step)['ingress_policing_rate']} kbit/s"
            drifts.append(Drift(subject, "limit to the node", limit, Absent("none"), _NO_POLICE))
        return drifts

    def _limit_drifts(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        row = qos_row(step)
        if row is None:
            return []
        try:
            shown = self._daemon.run_command("qos/show", step.name, deadline=deadline.within(PATIENCE_SECONDS))
        except Unavailable:
            return []
        except SwitchRefused:
            shown = ""  # it has no such port
        other = why_not_in_force(row, shown)
        field = "limit from the node" if step.interface.link_by == "switch" else "limit to the pod"
        return [Drift(f"port {step.name}", field, describe_limit(row), *other)] if other else []

    def wait(self, watch: Watch[T] | None, deadline: Deadline, *, or_dead: bool = False) -> T | None:
        """The value of the watch. Raises Unavailable at the deadline, and for a dead ovs-vswitchd unless `or_dead`."""
        while watch is not None and (found := watch.wait(deadline.within(PATIENCE_SECONDS).remaining())) is None:
            liveness = self._daemon.ask_shared(deadline)
            if liveness.state == "dead" and or_dead:
                return None
            if liveness.state == "dead":
                raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")
            if not deadline.remaining():
                raise Unavailable(
                    f"ovs-vswitchd has not opened the interface in time; it is {liveness.state}: {liveness.reason}", "see its log"
                )
        return None if watch is None else found
