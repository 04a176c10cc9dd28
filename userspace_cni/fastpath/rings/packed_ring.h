/* SPDX-License-Identifier: Apache-2.0 */
/* packed_ring.h - a packed virtqueue in shared memory, as virtio 1.1 lays it out in 2.8; for both ends of it
 *
 * There is one ring of descriptors, which both sides write. The driver makes a descriptor available, the device overwrites it, or
 * one before it, when it has used the buffer. Two bits of its flags say which of the two it is: each side writes them with the
 * sense of its wrap counter, a bit that begins as 1 and is inverted each time that this side comes to the end of the ring.
 *
 * Here places in the ring are indices that run freely and wrap at 65536, as in a split ring: the ring's size is a power of two up
 * to 32768, so the low bits of an index are the number of the descriptor, and the bit above them is the inverted wrap counter.
 * The specification allows other sizes; no front-end that we know has one, and SET_VRING_NUM with one is refused.
 */

#ifndef FASTPATH_PACKED_RING_H
#define FASTPATH_PACKED_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "vring.h"	/* DESC_NEXT, DESC_WRITE and DESC_INDIRECT are the same */

#define PACKED_AVAIL 0x0080	/* VIRTQ_DESC_F_AVAIL */
#define PACKED_USED 0x8000	/* VIRTQ_DESC_F_USED */
#define PACKED_TURN (PACKED_AVAIL | PACKED_USED)
#define PACKED_LINE 4u		/* descriptors in a line of the processor's cache */

/** enum packed_notify - Values of the flags in struct packed_event; the two low bits, the others are reserved */
enum packed_notify {
	PACKED_ENABLE = 0,	/* RING_EVENT_FLAGS_ENABLE: notify me */
	PACKED_DISABLE = 1,	/* RING_EVENT_FLAGS_DISABLE: do not */
	PACKED_DESC = 2,	/* RING_EVENT_FLAGS_DESC: of the descriptor in @place; needs VIRTIO_F_EVENT_IDX, which we do not offer */
};

/** struct packed_desc - One of the ring's descriptors, on 16 bytes
 * @address:	Of the buffer, as the other side names it; what a device writes here means nothing
 * @length:	Bytes of the buffer; of a used one: bytes that the device wrote
 * @id:		Number of the buffer, which the driver chooses and the device repeats
 * @flags:	DESC_* and PACKED_*; stored last and loaded first
 * @tail:	@length, @id and @flags in one, from low to high bits
 */
struct packed_desc {
	uint64_t address;
	union {
		struct {
			uint32_t length;
			uint16_t id;
			uint16_t flags;
		};
		uint64_t tail;
	};
};

/** struct packed_event - Whether a side wants to be notified: the driver area, which the driver writes, and the device area
 * @place:	Number of a descriptor and, in bit 15, a wrap counter; valid with PACKED_DESC
 * @flags:	enum packed_notify
 */
struct packed_event {
	uint16_t place;
	uint16_t flags;
};

_Static_assert(sizeof(struct packed_desc) == 16 && sizeof(struct packed_event) == 4, "virtio 1.1, 2.8.13 and 2.8.14");

/**
 * packed_wrap() - Wrap counter of an index
 * @index:	Index, which runs freely
 * @size:	Descriptors of the ring, a power of two
 *
 * Return: the counter
 */
static inline bool packed_wrap(uint16_t index, uint32_t size)
{
	return !(index & size);
}

/**
 * packed_available() - Bits of the flags of a descriptor that is available at an index
 * @index:	Index, which runs freely
 * @size:	Descriptors of the ring
 *
 * Return: PACKED_AVAIL as the wrap counter, PACKED_USED as its inverse
 */
static inline uint16_t packed_available(uint16_t index, uint32_t size)
{
	return packed_wrap(index, size) ? PACKED_AVAIL : PACKED_USED;
}

/**
 * packed_used() - Bits of the flags of a descriptor that is used at an index
 * @index:	Index, which runs freely
 * @size:	Descriptors of the ring
 *
 * Return: both bits as the wrap counter
 */
static inline uint16_t packed_used(uint16_t index, uint32_t size)
{
	return packed_wrap(index, size) ? PACKED_TURN : 0;
}

/**
 * packed_load() - Load the flags of a descriptor
 * @desc:	Descriptor, which the other side may write meanwhile
 *
 * When they show that the other side is done with it, its other fields may be read afterwards.
 *
 * Return: flags
 */
static inline uint16_t packed_load(const struct packed_desc *desc)
{
	return __atomic_load_n(&desc->flags, __ATOMIC_ACQUIRE);
}

/**
 * packed_store() - Store the flags of a descriptor, which hands it to the other side
 * @desc:	Descriptor whose other fields are written
 * @flags:	Flags
 */
static inline void packed_store(struct packed_desc *desc, uint16_t flags)
{
	__atomic_store_n(&desc->flags, flags, __ATOMIC_RELEASE);
}

/**
 * packed_suppress() - Say whether we want to be notified
 * @event:	Our area
 * @wanted:	Whether notifications are wanted. Then a full fence and a last look at the ring must follow before sleeping
 */
static inline void packed_suppress(struct packed_event *event, bool wanted)
{
	__atomic_store_n(&event->flags, (uint16_t)(wanted ? PACKED_ENABLE : PACKED_DISABLE), __ATOMIC_RELAXED);
}

/**
 * packed_notified() - Whether the other side wants to be notified
 * @event:	Its area. A full fence must lie between the last packed_store() and this call
 *
 * PACKED_DESC was not negotiated and counts as wanted: a notification too many does no harm.
 *
 * Return: true if it is to be notified
 */
static inline bool packed_notified(const struct packed_event *event)
{
	return (__atomic_load_n(&event->flags, __ATOMIC_RELAXED) & 3) != PACKED_DISABLE;
}

/**
 * packed_base() - Half of the value of SET_VRING_BASE and GET_VRING_BASE
 * @index:	Index, which runs freely
 * @size:	Descriptors of the ring
 *
 * The lower half is of the next available descriptor, the upper half of the next one to be used.
 *
 * Return: number of the descriptor in bits 0 to 14, wrap counter in bit 15
 */
static inline uint16_t packed_base(uint16_t index, uint32_t size)
{
	return (uint16_t)((index & (size - 1)) | (packed_wrap(index, size) ? 0x8000u : 0));
}

/**
 * packed_index() - Index that a half of the value of SET_VRING_BASE names; see packed_base()
 * @base:	That half
 * @size:	Descriptors of the ring
 *
 * Return: an index below twice the size; -1: the number of the descriptor is beyond the ring
 */
static inline int packed_index(uint16_t base, uint32_t size)
{
	uint32_t number = base & 0x7fffu;

	if (number >= size)
		return -1;
	return (int)(base & 0x8000u ? number : number + size);
}

#endif /* FASTPATH_PACKED_RING_H */
