"""Where one interface of a VM finds its vhost-user socket, and what else is known of it. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["server", "client"]
Origin = Literal["dra", "claim", "device-info", "path", "annotation"]


@dataclass(frozen=True)
class VmSocketSource:
    """The socket of one network of a VM.

    `path`: as QEMU sees it. `mode`: QEMU's role; "server" makes the socket. `mac`: the one to use, never "". `mtu`: bytes of the
    switch's port, None when not known. `origin`: which of the resolver's sources it is from. The rest is what the VM's owner
    asked for by annotation, None for libvirt's default: `queues` (pairs), ring sizes in descriptors.
    """

    path: str
    mac: str
    mode: Role = "server"
    mtu: int | None = None
    origin: Origin = "path"
    queues: int | None = None
    rx_queue_size: int | None = None
    tx_queue_size: int | None = None
