"""The members that rows of policies get from pods and their logical ports. Pure.

Members are counted: two policies can isolate a port, and two ports can have one address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from userspace_cni.ovn.policy.ip_blocks import AddressRanges
from userspace_cni.ovn.policy.label_selectors import Labels
from userspace_cni.ovn.policy.pod_selections import PodSelection, PolicyPod
from userspace_cni.ovn.policy.policy_acls import GroupContent
from userspace_cni.ovn.policy.policy_objects import NetworkPolicy

NUMBERS_MAX: Final = 16
"""Port numbers that pods may have for one name of a port in a rule."""


@dataclass(frozen=True, slots=True)
class PolicyPort:
    """A logical port. `owner`: the pod or VM in `namespace` after which it is called; `network`: its definition, as of
    `NetworkPolicy.networks`. `row`: which row it is: one that was made anew is in no group."""

    name: str
    namespace: str
    owner: str
    network: str
    row: str = ""
    addresses: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PortSubject:
    """What decides about a port's policies: a pod of it, and its network."""

    namespace: str
    labels: Labels
    network: str


class MemberRow:
    """A port group or an address set as it is to be. `members`: names of ports, or addresses, with how often they are counted."""

    def __init__(self, table: str, name: str) -> None:
        self.table = table
        self.name = name
        self.members: dict[str, int] = {}
        self.content = GroupContent()

    def count(self, member: str, change: int) -> bool:
        """Count a member up or down; whether it has come or gone by that."""
        number = self.members.get(member, 0) + change
        if number > 0:
            self.members[member] = number
        else:
            self.members.pop(member, None)
        return number == 0 or (number == 1 and change > 0)


class SelectedPorts:
    """The ports of the pods that a policy selects: members of its group, and of its namespace's."""

    def __init__(self, policy: NetworkPolicy, rows: Iterable[MemberRow]) -> None:
        self.policy = policy
        self.rows = tuple(rows)

    def list_members(self, _: PolicyPod, port: PolicyPort) -> Iterator[tuple[MemberRow, str]]:
        if port.network in self.policy.networks:
            for row in self.rows:
                yield row, port.name


class PeerSet:
    """The addresses of a choice's pods, as address sets: by the number of the port called `port`, 0 where it asks for none. With
    `blocks` those that are in one of these, without them all."""

    def __init__(
        self, selection: PodSelection, networks: frozenset[str], port: tuple[str, str] | None, blocks: tuple[str, ...] | None
    ) -> None:
        self.selection = selection
        self.networks = networks
        self.port = port
        self.blocks = blocks
        self._ranges = AddressRanges(blocks or ())
        self.said = repr((selection.choice, sorted(networks), port, blocks))
        self.rows: dict[tuple[int, int], MemberRow] = {}
        """By number and version of IP."""
        self.pods: dict[int, int] = {}
        """How many pods have a number."""
        self.users: dict[str, int] = {}
        """How often each policy uses it."""

    def number_of(self, pod: PolicyPod) -> int | None:
        """The number of the pod's port; None for a pod without such a port."""
        return 0 if self.port is None else pod.ports.get(self.port)

    def list_members(self, pod: PolicyPod, port: PolicyPort) -> Iterator[tuple[MemberRow, str]]:
        number = self.number_of(pod)
        if number is None or port.network not in self.networks:
            return
        for version, address in port.addresses:
            row = self.rows.get((number, version))
            if row is not None and (self.blocks is None or self._ranges.have(address)):
                yield row, address

    @property
    def numbers(self) -> list[int]:
        """Those that have rows."""
        return sorted({number for number, _ in self.rows})

    @property
    def is_excessive(self) -> bool:
        """Whether pods have more numbers than are let through."""
        return len(self.pods) > NUMBERS_MAX


MemberSource = SelectedPorts | PeerSet
"""What has members of rows because a selection has pods."""
