"""Which limits the logical ports of pods are to have as rows of OVN, and what has to be written for them. Pure.

A port whose network leaves limits to the node has none here. Where a pod says what cannot be, its port keeps the limits that it
has, and that is told: the pod's author must not get rid of a limit by a word that no one understands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from userspace_cni.base.errors import BadRequest
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.ovn.limit_rows import (
    DIRECTIONS,
    DesiredLimit,
    FoundLimits,
    LimitChange,
    find_gone_limits,
    find_limit_changes,
)
from userspace_cni.ovn.meter_shapes import MeterShapes
from userspace_cni.ovn.pod_ports import PodPorts, Settled
from userspace_cni.ovn.port_claimants import Claimant
from userspace_cni.ovn.port_view import PortView

_NOTHING: FoundLimits = {}


class LimitedPorts:
    """For one thread. `kubeovn_read`: kube-ovn's annotations say limits, too."""

    def __init__(self, *, kubeovn_read: bool) -> None:
        self._kubeovn_read = kubeovn_read
        self._shapes = MeterShapes()
        self._known: set[str] = set()
        """The ports that have limits, or were refused some: of the others most are never looked at."""
        self.refused: dict[str, str] = {}
        """The ports whose limits stay as they are, by name, and why."""

    @property
    def names(self) -> Collection[str]:
        """The ports of which something is kept."""
        return self._known

    def settle(
        self, names: Iterable[str], ports: PodPorts, settled: Settled, view: PortView, *, certain: bool
    ) -> list[LimitChange]:
        """What has to be written for these ports, which were `settled` just now. `view`: the rows that there are.

        `certain`: a port that no pod is to have is known to be none. A port that cannot be, or that is not ours, is left alone.
        """
        changes = []
        made = {each.name for each in settled.changes if each.kind != "delete"}
        concerned = {each for each in names if each in view.limits or each in self._known or ports.claimants.are_limited(each)}
        for name in sorted(concerned, key=lambda each: (each not in view.limits, each)):  # who has a limit keeps its form
            placed, row, has = ports.find_placed(name), view.ports.get(name), view.limits.get(name, _NOTHING)
            self.refused.pop(name, None)
            if placed is None:
                changes += self._lift(name, has) if certain else []
            elif name in made or (row is not None and row.is_ours):
                changes += self._settle_port(name, *placed, has)
        return changes

    def _settle_port(self, name: str, claimants: Sequence[Claimant], switch: str, has: FoundLimits) -> list[LimitChange]:
        pod, interface = claimants[0].pod, claimants[0].interface
        network = interface.network
        if network.limits is None:
            return self._lift(name, has)
        self._known.add(name)
        nodes = frozenset(each.pod.node for each in claimants)
        known = PodInterface(network.name, pod.namespace, interface.ifname, self._kubeovn_read)
        try:
            limits = network.limits.of_pod(pod.notes, known, interface.limits)
        except BadRequest as error:
            self.refused[name] = f"the limits of logical port {name} stay as they are: {error.message}"
            if has:
                for each, found in has.items():
                    self._shapes.keep((name, each), nodes, found.shape)
                return []
            limits = network.limits.network
        desired = {}
        for direction, rate in zip(DIRECTIONS, (limits.to_pod, limits.from_pod), strict=True):
            if rate is None:
                self._shapes.release((name, direction))
                continue
            shape = has[direction].shape_of(rate) if direction in has else None
            desired[direction] = DesiredLimit(rate, self._shapes.take((name, direction), nodes, rate, shape))
        return find_limit_changes(name, switch, desired, has)

    def _lift(self, name: str, has: FoundLimits) -> list[LimitChange]:
        self._known.discard(name)
        for direction in DIRECTIONS:
            self._shapes.release((name, direction))
        return find_gone_limits(name, has)
