"""A new kind of consumer takes only a module in `consumers` and a row in CONSUMERS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.facts import Allocation, Pod, SocketFacts, SocketPlace
from userspace_cni.attachment.plan import plan
from userspace_cni.attachment.planned import Attachment
from userspace_cni.attachment.steps import Directory, OvsPort, SocketFile
from userspace_cni.base.errors import BadEnvironment, InvalidConfig, UnsupportedField
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.cni.options import Access, Role, Warn, read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.cni.result import EMPTY
from userspace_cni.consumers import CONSUMERS


class Process:
    """A process of the host, in no pod."""

    default_role: Role = "client"
    reads_note = False
    needs_hugepages = False
    naming_remedy = "name the interface after the process"

    def check(self, top: Mapping[str, Any], vhost: Mapping[str, Any], warn: Warn) -> None:
        """It refuses sharedDir, and ignores a mode."""
        if top.get("sharedDir"):
            raise UnsupportedField("key 'sharedDir': a process has its own directory", "remove it")
        if vhost.get("mode"):
            warn("key 'host.vhost.mode' is told")

    def access(self, access: Access) -> Access:
        return replace(access, user="process")

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> SocketPlace:
        return SocketPlace("/run/process", "/run", create=True, own=True)

    def takes_device(self, pod: Pod, settings: Settings, root: HostRoot) -> bool:
        return False

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:
        return "/run/process/"

    def check_allocation(self, allocation: Allocation) -> None:
        """No device plugin knows it."""
        raise InvalidConfig("a process is allocated nothing")

    def socket_file(self, ifname: str) -> str:
        """Named after the interface."""
        return f"{ifname}.process"

    def derive_mac(self, request: Request, pod: Pod) -> str:
        return "02:00:00:00:00:07"

    def logical_owner(self, pod: Pod) -> tuple[str, str]:
        return pod.name, pod.uid

    def marks(self, pod: Pod) -> Mapping[str, str]:
        return {"process": "x"}


ALL: Mapping[str, Consumer] = {**CONSUMERS, "process": Process()}
PROCESS = ALL["process"]


def attached(warnings: list[str], ifname: str = "net1", allocation: Allocation | None = None, **keys: Any) -> Attachment:
    """The plan of an ADD for that consumer, with `keys` in the network's configuration."""
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "userspace", "consumer": "process", **keys}).encode()
    variables = {"CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": ifname}
    request = Request(read_environment(variables, "ADD"), read_network(stdin, "ADD"), stdin)
    options = read_options(request, ALL, warnings.append)
    facts = SocketFacts(
        boot_id="boot", store="5707e", netns_inode=4711, pod=Pod(), short_dir="/short", mount_always=False, ovs_sockdir="/ovs",
        place=PROCESS.find_place(Pod(), "c0ffee", options.shared_dir, Settings(), HERE),
        mapped_dir=PROCESS.mapped_dir(Pod(), Settings()), noted=False, allocation=allocation,
    )  # fmt: skip
    return plan(request, options, ALL[options.consumer], facts, EMPTY)


def test_an_attachment_is_as_its_consumer_has_it() -> None:
    """Role, place, access, socket, MAC, marks and documents: the consumer decides all of them."""
    warnings: list[str] = []
    attachment = attached(warnings, host={"vhost": {}})
    directory, socket, port = attachment.steps
    assert directory == Directory("/run/process", "/run", create=True, own=True, user="process")
    assert socket == SocketFile("/run/process", "/run", "net1.process")
    assert isinstance(port, OvsPort)
    assert (port.server_path, port.mac, port.marks["process"]) == ("/run/process/net1.process", "02:00:00:00:00:07", "x")
    assert warnings == []


def test_its_terms_are_in_force() -> None:
    """The consumer's refusals and warnings are the plugin's, and a bad name gets the consumer's advice."""
    warnings: list[str] = []
    attached(warnings, host={"vhost": {"mode": "client"}})
    assert warnings == ["key 'host.vhost.mode' is told"]
    with pytest.raises(UnsupportedField, match="sharedDir"):
        attached(warnings, sharedDir="/x")
    with pytest.raises(InvalidConfig, match="allocated nothing"):
        attached(warnings, allocation=Allocation("server", "/x/y", {}))
    with pytest.raises(BadEnvironment) as refused:
        attached(warnings, ifname="a=b")
    assert refused.value.details.endswith("name the interface after the process")


def test_a_consumer_that_there_is_not() -> None:
    """An unknown consumer is refused with 7, which names the known ones."""
    with pytest.raises(InvalidConfig) as refused:
        attached([], consumer="vm")
    assert (refused.value.code, refused.value.message) == (7, "key 'consumer' is 'vm'")
    assert refused.value.details == "it can be 'pod' or 'kubevirt' or 'process'"
