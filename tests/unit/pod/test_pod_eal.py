"""The DPDK arguments for a pod's interfaces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.pod.test_pod_document import CONTAINER, entry
from userspace_cni.pod import eal
from userspace_cni.pod.document import DocumentError

SOCKET = f"/x/{CONTAINER[:12]}"
MAC = "mac=02:00:00:aa:bb:01"


def test_one_device_per_interface_in_the_documents_order() -> None:
    """Server interfaces listen, client ones get app-netutil's one queue, and numbers count up from 0."""
    assert eal.arguments([entry("net1"), entry("net2", mode="client"), entry("net3", queues=4, queueSize=1024)], "/x") == [
        "--in-memory",
        "--single-file-segments",
        f"--vdev=virtio_user0,path={SOCKET}-net1,server=1,{MAC}",
        f"--vdev=virtio_user1,path={SOCKET}-net2,{MAC},queues=1",
        f"--vdev=virtio_user2,path={SOCKET}-net3,server=1,{MAC},queues=4,queue_size=1024",
    ]


def test_an_entry_of_upstream_without_mac_has_none_in_the_arguments() -> None:
    """What the replaced plugin wrote (no mac, no queues) is enough."""
    bare = {"containerId": "c", "ifName": "net1", "config": {"vhost": {"mode": "server", "socketfile": "s"}}}
    assert eal.arguments([bare], "/x/")[2:] == ["--vdev=virtio_user0,path=/x/s,server=1"]


def test_interfaces_of_another_kind_are_left_out() -> None:
    """A memif entry of another plugin in the same pod neither appears nor counts."""
    memif = {"containerId": "c", "ifName": "m", "config": {"iftype": "memif", "vhost": {}}}
    assert "virtio_user0" in eal.arguments([memif, entry()], "/x")[2]


def test_the_annotations_text_is_one_line_that_splits_back() -> None:
    """Splitting the text at blanks gives the arguments again."""
    args = eal.arguments([entry(), entry("net2")], "/x")
    assert "\n" not in eal.joined(args)
    assert eal.joined(args).split(" ") == args


def altered(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """An entry with another value at `place`."""
    changed = entry()
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[place[-1]] = value
    return changed


VHOST = ("config", "vhost")
LINK = ("ipResult", "interfaces", "0")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((*VHOST, "socketfile"), "a,server=0"),
        ((*VHOST, "socketfile"), "a b"),
        ((*VHOST, "socketfile"), "$(reboot)"),
        ((*VHOST, "socketfile"), "../a"),
        ((*VHOST, "socketfile"), "a" * 108),
        ((*VHOST, "socketfile"), None),
        ((*VHOST, "mode"), "both"),
        ((*VHOST, "queues"), "2,path=x"),
        ((*VHOST, "queues"), True),
        ((*VHOST, "queueSize"), -1),
        ((*LINK, "mac"), "02:00:00:aa:bb:01,path=x"),
        ((*LINK, "mac"), "nonsense"),
    ],
)
def test_what_dpdk_would_misread_is_refused_with_the_interfaces_name(place: tuple[str, ...], value: Any) -> None:
    """No value can add a device argument, be cut off, or reach a shell."""
    with pytest.raises(DocumentError, match="interface net1"):
        eal.arguments([altered(place, value)], "/x")


@pytest.mark.parametrize("directory", ["/a b", "/a,b", "/a=b", "/a;b", "/ü"])
def test_a_directory_that_dpdk_would_misread_is_refused(directory: str) -> None:
    """The mapped directory is looked at as much as the socket's name."""
    with pytest.raises(DocumentError, match="path"):
        eal.arguments([entry()], directory)


@pytest.mark.parametrize("junk", [None, 7, [], "x", [1], {"interfaces": 3, "ips": {}}, {"interfaces": [None], "ips": [{}, 1]}])
def test_a_result_of_another_shape_is_no_obstacle(junk: Any) -> None:
    """Only the vhost block is needed to open the device."""
    assert eal.arguments([{**entry(), "ipResult": junk}], "/x")[2] == f"--vdev=virtio_user0,path={SOCKET}-net1,server=1"
