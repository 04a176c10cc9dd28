"""A front-end with packed virtqueues, written by hand: descriptors are made available one by one, in any way a test wants."""

from __future__ import annotations

import socket
import struct
from contextlib import AbstractContextManager
from typing import Final

from tests.lab.frames.lender import AVAIL_AT, DESC, FEATURES, RING, RING_BYTES, USED_AT, Buffer, Lender, connected_as
from userspace_cni.fastpath.vhost.back_end import BackEnd
from userspace_cni.fastpath.vhost.vhost_messages import Feature, VhostRequest, VringState

PACKED: Final = FEATURES | Feature.RING_PACKED
FIRST: Final = 0x8000_8000
"""Base of a ring that no side has used: number 0, wrap counter 1, for both halves."""
AVAIL, USED = 0x0080, 0x8000


class PackedLender(Lender):
    """A Lender whose rings are packed, of `size` descriptors each. In a Buffer, `next` is the buffer's number."""

    def __init__(self, sock: socket.socket, ring: int = RING) -> None:
        super().__init__(sock)
        self.ring = ring
        self.at = [(0, 1), (0, 1)]
        """Of each ring: number of the next descriptor to be made available, and the wrap counter there."""

    def attach(self, features: int = PACKED) -> None:
        """Send everything up to two rings that carry frames, and wait for the answer to a last request."""
        self.negotiate(features)
        self.share()
        for vring in (0, 1):
            self.place(vring, size=self.ring, base=FIRST)
            self.start(vring)
        self.ask(VhostRequest.GET_FEATURES)

    def describe(self, vring: int, index: int, buffer: Buffer) -> None:
        """Write a descriptor as it is, with the flags AVAIL and USED that the buffer has."""
        content = (buffer.address, buffer.length, buffer.next, buffer.flags)
        DESC.pack_into(self.memory, vring * RING_BYTES + DESC.size * index, *content)

    def supply(self, vring: int, *buffers: Buffer) -> None:
        """Make descriptors available; the first is written last, as that of a chain must be."""
        slots = []
        for buffer in buffers:
            slot, wrap = self.at[vring]
            slots.append((slot, buffer._replace(flags=buffer.flags | (AVAIL if wrap else USED))))
            self.at[vring] = (slot + 1, wrap) if slot + 1 < self.ring else (0, 1 - wrap)
        for slot, buffer in reversed(slots):
            self.describe(vring, slot, buffer)

    def used(self, vring: int, slot: int = 0, wrap: int = 1) -> list[tuple[int, int]]:
        """Number and length in used descriptors from `slot` to the end of the ring, up to the first that is none."""
        found = []
        for each in range(slot, self.ring):
            length, number, flags = self.words(vring, each)
            if flags & (AVAIL | USED) != (AVAIL | USED if wrap else 0):
                break
            found.append((number, length))
        return found

    def words(self, vring: int, slot: int) -> tuple[int, int, int]:
        """Length, number and flags of a descriptor."""
        _, length, number, flags = DESC.unpack_from(self.memory, vring * RING_BYTES + DESC.size * slot)
        return length, number, flags

    def set_event(self, vring: int, flags: int, place: int = 0) -> None:
        """Write the driver area: which notifications are wanted."""
        struct.pack_into("=HH", self.memory, vring * RING_BYTES + AVAIL_AT, place, flags)

    def silence(self, vring: int) -> None:
        """Ask for no notifications (RING_EVENT_FLAGS_DISABLE)."""
        self.set_event(vring, 1)

    def wants_kicks(self, vring: int) -> bool:
        """Whether the device asks to be notified."""
        return struct.unpack_from("=H", self.memory, vring * RING_BYTES + USED_AT + 2) == (0,)

    def stop(self, vring: int) -> int:
        """Stop a ring; returns its base."""
        self.send(VhostRequest.GET_VRING_BASE, VringState(vring, 0).pack())
        return VringState(*struct.unpack("=II", self.answer()[2])).value


def packed_ends(ring: int = RING) -> AbstractContextManager[tuple[PackedLender, BackEnd]]:
    """A front-end with packed rings, and our back-end; nothing of them is left afterwards."""
    return connected_as(lambda sock: PackedLender(sock, ring))
