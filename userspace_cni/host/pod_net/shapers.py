"""Limits for what leaves a pod: a token bucket filter at the root of the pod's end.

It is told by its handle: a discipline that the pod or another program put there is replaced, and never removed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import Driver, Shaper, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadEnvironment, ContainerGone, StepFailed, UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import qdisc_messages as qdiscs
from userspace_cni.host.netlink.netns import open_pod_netns
from userspace_cni.host.netlink.qdisc_messages import FoundTbf
from userspace_cni.host.pod_net.pod_links import connect, find_link, kernel_does
from userspace_cni.linux.netlink import LISTED_MAX, NetlinkConnection

_GONE = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV})
"""How kernels refuse to take off a root what is not there, or is another's."""
_ROUNDING = 100


class ShaperDriver(Driver[Shaper]):
    """Token bucket filters at pods' ends."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: Shaper, deadline: Deadline) -> None:
        """Put the filter there, or change it; what is queued in it stays queued."""
        deadline.require(_what(step))
        with self._inside(step) as inside:
            link = find_link(inside, step.name)
            if link is None:
                raise StepFailed(f"{_what(step)}: the pod has no such interface", "ip link, in the pod's network namespace")
            with kernel_does(_what(step), "tc qdisc, in the pod's network namespace; the kernel needs NET_SCH_TBF"):
                inside.send(qdiscs.tbf(link.index, step.rate // 8, step.burst // 8))

    def undo(self, step: Shaper, deadline: Deadline) -> None:
        """Take the filter off; gone with the link or the namespace, or out of sight, is fine."""
        deadline.require(_what(step))
        try:
            with self._inside(step) as inside:
                if (link := find_link(inside, step.name)) and _found(inside, link.index):
                    with kernel_does(f"{_what(step)}: taking it off"):
                        (answer,) = inside.exchange(qdiscs.delete(link.index))
                        if answer.error and answer.error.errno not in _GONE:
                            raise answer.error
        except (ContainerGone, BadEnvironment):
            return  # it goes with the namespace, at the latest with the interface, which is deleted by its host end

    def check(self, step: Shaper, deadline: Deadline) -> list[Drift]:
        """Whether the filter is there, with its rate and its burst."""
        deadline.require(_what(step))
        subject, details = f"interface {step.name}", "tc qdisc, in the pod's network namespace"
        try:
            found = self._filter(step)
        except ContainerGone as error:
            return [Drift(subject, "", "the pod's network namespace", Absent(), error.message)]
        if found is None:
            return [Drift(subject, "limit from the pod", f"{step.rate} bit/s", Absent(), details)]
        return self._differences(step, found)

    @staticmethod
    def _differences(step: Shaper, found: FoundTbf) -> list[Drift]:
        subject, details = f"interface {step.name}", "tc qdisc, in the pod's network namespace"
        drifts = []
        if found.rate != step.rate // 8:
            drifts.append(Drift(subject, "limit from the pod", f"{step.rate} bit/s", f"{found.rate * 8} bit/s", details))
        elif abs(found.burst - step.burst // 8) > step.burst // 8 // _ROUNDING + found.rate // qdiscs.TICKS + 1:
            drifts.append(Drift(subject, "burst from the pod", f"{step.burst} bit", f"{found.burst * 8} bit", details))
        return drifts

    def is_lost(self, step: Shaper, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether the interface is there without the filter."""
        deadline.require(_what(step))
        del seen
        try:
            with self._inside(step) as inside:
                link = find_link(inside, step.name)
                return link is not None and _found(inside, link.index) is None
        except UserspaceError:
            return False  # the namespace is gone, or not to be seen from here

    def find_changes(self, step: Shaper, seen: SharedReads, deadline: Deadline) -> list[Drift]:
        """Another rate or burst of our filter."""
        deadline.require(_what(step))
        del seen
        try:
            found = self._filter(step)
        except UserspaceError:
            return []  # the namespace is gone, or not to be seen from here
        return self._differences(step, found) if found else []

    def drops(self, step: Shaper) -> int:
        """How many frames the filter has dropped since it was made; 0 when it is gone. Raises UserspaceError."""
        try:
            found = self._filter(step)
        except ContainerGone:
            return 0
        return found.drops if found else 0

    def _filter(self, step: Shaper) -> FoundTbf | None:
        with self._inside(step) as inside:
            link = find_link(inside, step.name)
            return _found(inside, link.index) if link else None

    @contextmanager
    def _inside(self, step: Shaper) -> Iterator[NetlinkConnection]:
        with open_pod_netns(step.netns, step.netns_inode, self._root) as pod, connect(pod, _what(step), LISTED_MAX) as inside:
            yield inside


def _found(inside: NetlinkConnection, index: int) -> FoundTbf | None:
    """Our filter at the root of the link, or None."""
    with kernel_does("reading queueing disciplines"):
        found = [qdiscs.read(payload) for _, payload in inside.ask(qdiscs.dump())]
    return next((each for each in found if each and (each.index, each.handle) == (index, qdiscs.HANDLE)), None)


def _what(step: Shaper) -> str:
    return f"limit of {step.rate} bit/s for what leaves the pod by {step.name}"
