"""Offloads: work on frames that one side leaves to the other, checksums and the cutting of large TCP frames.

Who asks for them gets and gives each frame with its header of 12 bytes (struct virtio_net_hdr_mrg_rxbuf), which says what is
left to do. Pure: which features go together, and what queues they need. Must not ask for one on its own account: a caller that
does not read the headers would take frames without checksums for whole ones.

Source: virtio 1.2, 5.1.3.1 (feature bit requirements) and 5.1.6.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from userspace_cni.fastpath.vhost.vhost_messages import Feature

SEND_OFFLOADS: Final = Feature.NET_CSUM | Feature.NET_HOST_TSO4 | Feature.NET_HOST_TSO6 | Feature.NET_HOST_ECN
"""What a front-end may leave to the back-end: frames without checksum, and large ones."""
RECEIVE_OFFLOADS: Final = Feature.NET_GUEST_CSUM | Feature.NET_GUEST_TSO4 | Feature.NET_GUEST_TSO6 | Feature.NET_GUEST_ECN
"""What the back-end may leave to the front-end."""
OFFLOADS: Final = SEND_OFFLOADS | RECEIVE_OFFLOADS
LARGEST_FRAME: Final = 65535 + 14 + 4
"""Bytes of a large frame: the longest IP packet, an Ethernet header, a VLAN tag."""
LARGE_QUEUE: Final = 128
"""Descriptors of a queue that sends large frames, each with a buffer of that size: 8.1 MiB."""
_SEND_TSO: Final = Feature.NET_HOST_TSO4 | Feature.NET_HOST_TSO6
_RECEIVE_TSO: Final = Feature.NET_GUEST_TSO4 | Feature.NET_GUEST_TSO6
NO_OFFLOADS: Final = Feature(0)


class QueueShape(NamedTuple):
    """A queue: its descriptors, and bytes of the longest frame that one buffer holds."""

    size: int
    room: int


def agree_offloads(offered: Feature, wanted: Feature) -> Feature:
    """Those of the `wanted` offloads that are offered, together with all that they require."""
    features = offered & wanted & OFFLOADS
    if not features:
        return features
    if not features & Feature.NET_CSUM:
        features &= ~SEND_OFFLOADS
    if not features & Feature.NET_GUEST_CSUM:
        features &= ~RECEIVE_OFFLOADS
    if not features & _SEND_TSO:
        features &= ~Feature.NET_HOST_ECN
    if not features & _RECEIVE_TSO:
        features &= ~Feature.NET_GUEST_ECN
    return features


def sends_large(features: Feature) -> bool:
    """Whether a front-end that has agreed to `features` may send large frames."""
    return bool(features & _SEND_TSO)


def takes_large(features: Feature) -> bool:
    """Whether the other side takes all that a kernel may leave to its link: checksums, and large frames of both IPs."""
    needed = Feature.NET_CSUM | _SEND_TSO
    return features & needed == needed


def without_large(wanted: Feature) -> Feature:
    """`wanted` for a front-end whose queues have no buffers for large frames to send."""
    return wanted & ~(_SEND_TSO | Feature.NET_HOST_ECN)


def require_offloads(wanted: Feature, *, mergeable: bool) -> None:
    """Raise ValueError for what is no offload, and for large frames that no buffer could hold."""
    if extra := int(wanted) & ~int(OFFLOADS):
        raise ValueError(f"offloads={extra:#x}: not among {OFFLOADS!r}")
    if wanted & _RECEIVE_TSO and not mergeable:
        raise ValueError("offloads: large frames are received with mergeable=True, which spreads them over buffers")
