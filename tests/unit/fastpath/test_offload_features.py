"""Which offloads are agreed on, by what a back-end offers."""

from __future__ import annotations

import pytest

from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, OFFLOADS, agree_offloads, sends_large, without_large
from userspace_cni.fastpath.vhost.vhost_messages import Feature

RECEIVED = Feature.NET_GUEST_CSUM | Feature.NET_GUEST_TSO4 | Feature.NET_GUEST_TSO6 | Feature.NET_GUEST_ECN
CASES = {
    "all": (OFFLOADS | Feature.VERSION_1, OFFLOADS),
    "none": (Feature.VERSION_1 | Feature.NET_MTU, NO_OFFLOADS),
    "OVS without segmentation": (RECEIVED | Feature.NET_MRG_RXBUF, RECEIVED),
    "large without checksum": (Feature.NET_HOST_TSO4 | Feature.NET_GUEST_TSO4 | Feature.NET_GUEST_ECN, NO_OFFLOADS),
    "checksums alone": (Feature.NET_CSUM | Feature.NET_GUEST_CSUM, Feature.NET_CSUM | Feature.NET_GUEST_CSUM),
    "congestion without large": (Feature.NET_CSUM | Feature.NET_HOST_ECN, Feature.NET_CSUM),
}


@pytest.mark.parametrize("name", CASES)
def test_agreed(name: str) -> None:
    """An offload is agreed on only together with all that it requires (virtio 1.2, 5.1.3.1)."""
    offered, agreed = CASES[name]
    assert agree_offloads(offered, OFFLOADS) == agreed
    assert agree_offloads(offered, NO_OFFLOADS) == NO_OFFLOADS


def test_large_frames() -> None:
    """Large frames are sent with either version of IP, and not wanted by a queue without room for them."""
    assert sends_large(Feature.NET_HOST_TSO6)
    assert not sends_large(RECEIVED | Feature.NET_CSUM)
    assert without_large(OFFLOADS) == RECEIVED | Feature.NET_CSUM
