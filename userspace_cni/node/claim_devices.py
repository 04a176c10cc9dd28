"""The devices of claims as this node has them: what one consists of, and what is left of claims that nothing records.

A device is planned as the interface of an ADD whose network is the claim's parameters, for a pod of the claim's namespace: the
same reader, rules and plan. What a pod's annotations say is not asked: the claim is there before its pod is known.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.claim_plan import (
    UID,
    ClaimPlaces,
    ClaimRequest,
    DeviceOfRequest,
    LeftDevice,
    with_files,
)
from userspace_cni.attachment.claims import ClaimOwner, interface_name
from userspace_cni.attachment.facts import SocketFacts, SocketPlace
from userspace_cni.attachment.records import claim_container
from userspace_cni.base.errors import InvalidConfig, Unavailable, Undecodable, UnsupportedField
from userspace_cni.base.log import say
from userspace_cni.cni import outline
from userspace_cni.cni.request import Environment, Network, Request, read_network
from userspace_cni.cni.result import EMPTY, LATEST
from userspace_cni.consumers.kubevirt.kubevirt_consumer import KubevirtConsumer
from userspace_cni.host.files.device_directories import DOMAIN
from userspace_cni.host.files.whole_files import read_file
from userspace_cni.node.bridge_room import ClaimedPort
from userspace_cni.node.gathering import FactSources, LocalGathering

if TYPE_CHECKING:
    from collections.abc import Callable

    from userspace_cni.attachment.consumer import Consumer
    from userspace_cni.attachment.facts import Pod
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.attachment.planned import Attachment
    from userspace_cni.attachment.steps import PortRef, Step
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.cni.options import Options
    from userspace_cni.node.local_node import LocalNode

_ANY_CLAIM: Final = "claim"
"""The network's name while its keys are read, on which none of them depends: equal parameters of many claims are read once."""
CLAIMS: Final = "claims"
"""In the run directory: the directories and files of claims' devices."""
_CDI_MAX: Final = 64 << 10
"""Bytes that are read of a file for runtimes: ours have a few hundred for each device of a request."""


@dataclass(frozen=True)
class RequestedDevice:
    """A device that was allocated for a request. `network`: its parameters, as keys of a network, with the bridge."""

    pool: str
    device: str
    number: int
    network: Mapping[str, Any]


@dataclass(frozen=True)
class _ClaimGathering(LocalGathering):
    """What a device of a claim asks of the node."""

    place: SocketPlace

    def facts(self, netns_inode: int) -> SocketFacts:
        """As of an ADD. Raises also Unavailable for a bridge that is not there: a claim makes none."""
        bridge = self.options.bridge
        facts = super().facts(netns_inode)
        if not self.node.switch.ports.has_bridge(bridge):
            raise Unavailable(f"bridge {bridge} is not there", "the claim's device is of that bridge: ovs-vsctl show")
        assert isinstance(facts, SocketFacts)  # noqa: S101 - a claim has no link
        return facts

    def facts_as(self, facts: SocketFacts) -> SocketFacts:
        """Those that were gathered for another device of the claim with the same parameters, for this one."""
        return self._beside_others(replace(facts, place=self.place))

    def _ask_for_pod(self, kubeconfig: str, suffices: Callable[[Pod], bool] = lambda _: True) -> Pod | None:
        del kubeconfig, suffices
        return None

    def _device_place(self, pod: Pod) -> SocketPlace | None:
        del pod
        return self.place


def list_claimed(journal: Journal) -> list[ClaimedPort]:
    """The ports that claims have, by their records. Raises RecordRefused."""
    found = [(each, each.port) for each in journal.records() if each.owner == "claim"]
    return [ClaimedPort(each.claim_uid, port.bridge, str((each.result or {}).get("device", ""))) for each, port in found if port]


class ClaimPlans:
    """Plans the devices of one claim, each once, whichever of them ask for it. About devices with the same parameters the node is
    asked once. Safe to use from several threads.
    """

    def __init__(self, node: LocalNode, places: ClaimPlaces, owner: ClaimOwner, deadline: Deadline) -> None:
        self._node = node
        self._places = places
        self._owner = owner
        self._deadline = deadline
        self._lock = Lock()
        self._known: dict[bytes, tuple[Request, Options]] = {}
        self._gathered: dict[bytes, SocketFacts] = {}
        self._planned: dict[int, Attachment] = {}

    def plan(self, request: ClaimRequest, number: int, devices: Sequence[RequestedDevice]) -> tuple[Step, ...]:
        """The steps of the device of that number, which is one of `devices`, all of the request. Changes nothing.

        Raises UserspaceError for parameters that cannot be, for what the rules refuse, and for a bridge that is not there.
        """
        chosen = devices if request.is_first(number) else [each for each in devices if each.number == number]
        with self._lock:
            read = {each.number: self._read(each) for each in chosen}
            # parameters are a request's: its devices have one consumer
            request = replace(request, of_vm=isinstance(self._consumer(read[number][1]), KubevirtConsumer))
            planned = {each.number: self._plan_one(request, each.number, *read[each.number]) for each in chosen}
        views = [_view(each, planned[each.number], request) for each in chosen]
        return with_files(planned[number], request, number, views, self._places)

    def _consumer(self, options: Options) -> Consumer:
        return self._node.pods.consumers[options.consumer]

    def _read(self, device: RequestedDevice) -> tuple[Request, Options]:
        """The device as an ADD would ask for it."""
        stdin = json.dumps({**device.network, "cniVersion": LATEST, "name": _ANY_CLAIM, "type": "userspace"}).encode()
        if stdin not in self._known:
            self._known[stdin] = self._read_first(stdin)
        request, options = self._known[stdin]
        return replace(request, environment=replace(request.environment, ifname=interface_name(device.number))), options

    def _read_first(self, stdin: bytes) -> tuple[Request, Options]:
        owner = self._owner
        args = {"K8S_POD_NAMESPACE": owner.namespace, "K8S_POD_NAME": owner.pod_name, "K8S_POD_UID": owner.pod_uid}
        environment = Environment(
            "ADD", claim_container(owner.uid), "", interface_name(0), args, (), netns_override=False, variables={}
        )
        nameless = Request(environment, _network(stdin), stdin)
        options = self._node.pods.read_options(nameless, lambda text: say("warning", text))
        if options.link:
            raise UnsupportedField(
                "the claim's parameters ask for a kernel link", "a device of a claim is a vhost-user interface"
            )
        return replace(nameless, network=replace(nameless.network, name=owner.name)), options

    def _plan_one(self, of: ClaimRequest, number: int, request: Request, options: Options) -> Attachment:
        from userspace_cni.attachment.plan import plan

        if number not in self._planned:
            consumer = KubevirtConsumer(of.name_in_pod(number)) if of.of_vm else self._consumer(options)
            sources = FactSources(self._node.installation, self._node.store, self._node.switch, None)
            gathering = _ClaimGathering(sources, request, options, consumer, self._deadline, self._place(of, number))
            alike = self._gathered.get(request.stdin)
            facts = gathering.facts(0) if alike is None else gathering.facts_as(alike)
            self._planned[number] = plan(request, options, consumer, facts, EMPTY)
            self._gathered[request.stdin] = facts
        return self._planned[number]

    def _place(self, of: ClaimRequest, number: int) -> SocketPlace:
        return SocketPlace(
            self._places.device_directory(of.uid, number),
            trusted=self._places.directories,
            create=False,
            own=False,
            mount_name=self._places.mount_name(of.uid, number),
            subdirectory=f"{of.directory_name(number)}/",
            closed=True,
        )


class ClaimDevices:
    """The devices of claims: where they have their things, their plans, and what is left of them."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node

    @cached_property
    def places(self) -> ClaimPlaces:
        settings = self._node.installation.settings
        return ClaimPlaces(DOMAIN, f"{settings.run_dir}/{CLAIMS}", settings.cdi_dir, settings.short_dir)

    def begin_plans(self, owner: ClaimOwner, deadline: Deadline) -> ClaimPlans:
        """The plans of one claim's devices, for one preparation of it."""
        return ClaimPlans(self._node, self.places, owner, deadline)

    # -- what nothing records ---------------------------------------------------------------------------------------------

    def find_left(self, uid: str, known: Collection[str], deadline: Deadline) -> Mapping[str, LeftDevice]:
        """What the node has of the claim beside the devices of those names, by name. Raises Unavailable."""
        ports: dict[str, list[PortRef]] = {}
        identity = self._node.store.journal.identity()
        for port in self._node.switch.ports.list_marked(deadline, container_id=claim_container(uid)):
            if port.marks.get("store") == identity:
                ports.setdefault(port.marks.get("ifname", ""), []).append(port)
        found = {interface_name(number): number for number in self._numbers(uid)}
        found |= {ifname: int(ifname[3:]) for ifname in ports if re.fullmatch("net[0-9]{1,4}", ifname)}
        return {
            ifname: self.places.left_of(uid, number, ports.get(ifname, ()))
            for ifname, number in sorted(found.items())
            if ifname not in known
        }

    def list_names(self) -> frozenset[str]:
        """UIDs of claims after which directories and files in the places of claims' devices are called."""
        return frozenset(uid for uid, _ in self._names() if UID.fullmatch(uid))

    def has_files(self, uid: str) -> bool:
        """Whether one of those of that claim is this installation's: a file for runtimes says which directory it gives."""
        numbers = self._numbers(uid)
        if any(found == uid for found, _ in self._names_in(self.places.directories)):
            return True
        try:
            dirfd = os.open(self._node.installation.root.path(self.places.cdi), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return any(self._gives_ours(dirfd, uid, number) for number in numbers)
        finally:
            os.close(dirfd)

    def _gives_ours(self, dirfd: int, uid: str, number: int) -> bool:
        with suppress(OSError):
            content = read_file(dirfd, self.places.cdi_file(uid, number), _CDI_MAX) or b""
            return json.dumps(self.places.device_directory(uid, number)).encode() in content
        return False

    def _numbers(self, uid: str) -> set[int]:
        return {number for found, number in self._names() if found == uid}

    def _names(self) -> set[tuple[str, int]]:
        """UID and number of each directory and file in the places of claims' devices."""
        return self._names_in(self.places.directories) | self._names_in(self.places.cdi)

    def _names_in(self, directory: str) -> set[tuple[str, int]]:
        of_cdi = rf"\.?{re.escape(self.places.driver)}-claim_(.+)-([0-9]{{1,4}})\.json(\.tmp)?"
        form = re.compile(of_cdi if directory == self.places.cdi else r"\.?(.+)-([0-9]{1,4})(\.json)?(\.tmp)?")
        try:
            names = os.listdir(self._node.installation.root.path(directory))  # noqa: PTH208
        except OSError:
            return set()
        return {(match[1], int(match[2])) for name in names if (match := form.fullmatch(name))}


def _network(stdin: bytes) -> Network:
    """Parameters as a network. Raises UserspaceError in the words of a claim for what is too large, or nested too deep."""
    if not outline.is_within(stdin, outline.NEW):
        raise InvalidConfig(
            f"the claim's parameters are too large: as a network they have {len(stdin)} bytes",
            f"at most {outline.NEW.octets} bytes, and {outline.NEW.marks} braces, brackets and commas",
        )
    try:
        return read_network(stdin, "ADD")
    except Undecodable as error:
        raise Undecodable("the claim's parameters cannot be those of a network", error.details) from None


def _view(device: RequestedDevice, planned: Attachment, request: ClaimRequest) -> DeviceOfRequest:
    interface = planned.interfaces[-1]
    name = planned.socket.name if planned.socket else ""
    socket = f"{request.mapped_directory(device.number)}/{name}"
    return DeviceOfRequest(device.pool, device.device, device.number, interface.name, socket, interface.mac, interface.mtu)
