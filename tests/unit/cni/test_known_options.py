"""Options of equal configurations are read once, and those of others never taken for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.cni.known_options import KnownOptions
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.consumers import CONSUMERS

HOST = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "client"}, "bridge": {"bridgeName": "br0"}}


def asked(args: str = "", **keys: Any) -> Request:
    """An ADD of a network with these keys."""
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/n", "CNI_IFNAME": "net1", "CNI_ARGS": args}
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "userspace", "host": HOST, **keys}).encode()
    return Request(read_environment(environ, "ADD"), read_network(stdin, "ADD"), stdin)


def test_equal_networks() -> None:
    """Two pods of one network have the same options, which were read once."""
    known = KnownOptions()
    first = known.read(asked("K8S_POD_NAME=a;K8S_POD_UID=1"), CONSUMERS, pytest.fail)
    assert known.read(asked("K8S_POD_NAME=b;K8S_POD_UID=2"), CONSUMERS, pytest.fail) is first
    assert first == read_options(asked(), CONSUMERS, pytest.fail)


@pytest.mark.parametrize(
    "other",
    [asked("MAC=02:00:00:00:00:07"), asked(host={**HOST, "mtu": 1400}), asked(runtimeConfig={"mac": "02:00:00:00:00:08"})],
)
def test_what_differs(other: Request) -> None:
    """What a pod asks for by CNI_ARGS or runtimeConfig is its own."""
    known, told = KnownOptions(), list[str]()
    known.read(asked(), CONSUMERS, pytest.fail)
    assert known.read(other, CONSUMERS, told.append) == read_options(other, CONSUMERS, lambda _: None)


def test_warnings_are_told_each_time() -> None:
    """What is ignored is told to each caller, and what is refused is refused for each, after its warnings."""
    known, told = KnownOptions(), list[str]()
    for _ in range(2):
        known.read(asked(logFile="/x"), CONSUMERS, told.append)
        with pytest.raises(InvalidConfig):
            known.read(asked(logFile="/x", consumer="other"), CONSUMERS, told.append)
    assert len([text for text in told if "logFile" in text]) >= 2


def test_bounds() -> None:
    """Long configurations are not kept, and no more than 64 others."""
    known = KnownOptions()
    long = asked(logLevel="info", dns={"search": ["x" * (1 << 14)]})
    assert known.read(long, CONSUMERS, pytest.fail) is not known.read(long, CONSUMERS, pytest.fail)
    first = known.read(asked(), CONSUMERS, pytest.fail)
    for number in range(64):
        known.read(asked(host={**HOST, "mtu": 1000 + number}), CONSUMERS, pytest.fail)
    assert known.read(asked(), CONSUMERS, pytest.fail) is not first
