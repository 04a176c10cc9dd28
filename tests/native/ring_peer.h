/* SPDX-License-Identifier: Apache-2.0 */
/* ring_peer.h - the other side of a driver's virtqueue, written for tests from the virtio specification alone */

#ifndef RING_PEER_H
#define RING_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define HEADER 12
#define DESC_BYTES 16
#define LENGTH_AT 8	/* in a descriptor */
#define FLAGS_AT 12
#define WRITE 2		/* flags of a packed ring's descriptor */
#define AVAIL 0x80
#define USED 0x8000
#define TURN (AVAIL | USED)

/** struct peer - One queue as a device sees it
 * @desc, @avail, @used: The parts of the ring
 * @size:	Descriptors
 * @packed:	The ring is a packed one
 * @taken:	Index of the next available buffer
 * @done:	The next used.idx to publish; of a packed ring: the next place for a used descriptor
 * @shuffled:	Buffers come back in another order than they were given
 * @held, @holds: Buffers that were taken and not given back
 * @lumps:	Packed and in order: one used descriptor may stand for several buffers, as chance decides
 * @known:	Packed ring: index up to which buffers are known to be available
 * @shown:	Packed ring: @done as it was published
 * @buffers:	Packed ring: the buffers by number, which a split ring in the same memory has too
 * @from, @to:	Transmit queue that sends in order: where its frames and headers are, each where a descriptor says; else NULL
 * @sums:	Of a frame that was taken from such a queue, by number
 * @misplaced:	A descriptor named another address, or one beyond @from and @to; a header was not zero, or a frame changed while it
 *		was held
 */
struct peer {
	uint8_t *desc;
	uint8_t *avail;
	uint8_t *used;
	uint32_t size;
	bool packed;
	uint16_t taken;
	uint16_t done;
	bool shuffled;
	uint16_t *held;
	uint32_t holds;
	bool lumps;
	uint16_t known;
	uint16_t shown;
	struct { uint8_t *address; uint32_t length; } *buffers;
	uint8_t *from;
	uint8_t *to;
	uint64_t *sums;
	bool misplaced;
};

/* Begin with an empty ring, at the addresses of @queue */
static inline void peer_attach(struct peer *peer, struct fp_queue *queue, uint32_t size, bool packed, bool shuffled)
{
	uint64_t rings[3];

	fp_driver_rings(queue, rings);
	free(peer->held);
	free(peer->buffers);
	free(peer->sums);
	*peer = (struct peer){ .desc = (uint8_t *)(uintptr_t)rings[0], .avail = (uint8_t *)(uintptr_t)rings[1],
			       .used = (uint8_t *)(uintptr_t)rings[2], .size = size, .packed = packed, .shuffled = shuffled,
			       .held = malloc(size * sizeof(uint16_t)), .lumps = packed && !shuffled,
			       .buffers = calloc(size, sizeof(*peer->buffers)), .sums = calloc(size, sizeof(*peer->sums)) };
}

/* Length, number and flags of a packed ring's descriptor */
static inline uint64_t *peer_tail(const struct peer *peer, uint16_t index)
{
	return (uint64_t *)(peer->desc + (size_t)(index % peer->size) * DESC_BYTES + LENGTH_AT);
}

/* The flags AVAIL and USED of a descriptor that is available, or used, at an index of a packed ring */
static inline uint16_t peer_turn(const struct peer *peer, uint16_t index, bool used)
{
	bool wrap = index / peer->size % 2 == 0;

	return (uint16_t)((wrap ? AVAIL : 0) | (wrap == used ? USED : 0));
}

/* Replace flags of a packed ring's descriptor */
static inline void peer_flag(const struct peer *peer, uint16_t index, uint16_t flags)
{
	uint64_t tail = __atomic_load_n(peer_tail(peer, index), __ATOMIC_RELAXED) & 0xffffffffffffu;

	__atomic_store_n(peer_tail(peer, index), tail | (uint64_t)flags << 48, __ATOMIC_RELEASE);
}

/* Count the buffers that the driver has made available and that were not taken */
static inline uint16_t peer_available(struct peer *peer)
{
	if (!peer->packed)
		return (uint16_t)(__atomic_load_n((uint16_t *)(peer->avail + 2), __ATOMIC_ACQUIRE) - peer->taken);
	while ((uint16_t)(peer->known - peer->done) < peer->size) {
		uint16_t flags = (uint16_t)(__atomic_load_n(peer_tail(peer, peer->known), __ATOMIC_ACQUIRE) >> 48);

		if ((flags & TURN) != peer_turn(peer, peer->known, false))
			break;
		peer->known++;
	}
	return (uint16_t)(peer->known - peer->taken);
}

/* Address of a buffer */
static inline uint8_t *peer_address(const struct peer *peer, uint16_t id)
{
	uint64_t address;

	if (peer->packed)
		return peer->buffers[id].address;
	memcpy(&address, peer->desc + (size_t)id * DESC_BYTES, sizeof(address));
	return (uint8_t *)(uintptr_t)address;
}

/* Bytes of a buffer */
static inline uint32_t peer_length(const struct peer *peer, uint16_t id)
{
	uint32_t length;

	if (peer->packed)
		return peer->buffers[id].length;
	memcpy(&length, peer->desc + (size_t)id * DESC_BYTES + LENGTH_AT, sizeof(length));
	return length;
}

/* The next available buffer */
static inline uint16_t peer_next(struct peer *peer)
{
	uint64_t address, tail;
	uint16_t id;

	if (!peer->packed)
		return __atomic_load_n((uint16_t *)(peer->avail + 4) + peer->taken++ % peer->size, __ATOMIC_RELAXED);
	memcpy(&address, peer->desc + (size_t)(peer->taken % peer->size) * DESC_BYTES, sizeof(address));
	tail = __atomic_load_n(peer_tail(peer, peer->taken++), __ATOMIC_RELAXED);
	id = (uint16_t)(tail >> 32) % peer->size;	/* a test may have overwritten it */
	if (peer->from)
		peer->buffers[id].address = (uint8_t *)(uintptr_t)address;
	peer->misplaced |= peer->buffers[id].address != (uint8_t *)(uintptr_t)address;
	peer->buffers[id].length = (uint32_t)tail;
	return id;
}

/* Write a used element for a buffer; peer_publish() shows it */
static inline void peer_use(struct peer *peer, uint32_t id, uint32_t length)
{
	uint32_t *element = (uint32_t *)(peer->used + 4) + 2 * (size_t)(peer->done % peer->size);
	uint64_t flags;

	if (peer->packed) {
		flags = __atomic_load_n(peer_tail(peer, peer->done), __ATOMIC_RELAXED) & (uint64_t)0xffff << 48;
		__atomic_store_n(peer_tail(peer, peer->done++), length | (uint64_t)(id & 0xffff) << 32 | flags, __ATOMIC_RELAXED);
		return;
	}
	peer->done++;
	__atomic_store_n(&element[0], id, __ATOMIC_RELAXED);
	__atomic_store_n(&element[1], length, __ATOMIC_RELAXED);
}

/* Show what was used; what is not used any more, as @done went back, is available again */
static inline void peer_publish(struct peer *peer)
{
	if (!peer->packed) {
		__atomic_store_n((uint16_t *)(peer->used + 2), peer->done, __ATOMIC_RELEASE);
		return;
	}
	while ((int16_t)(peer->shown - peer->done) > 0) {
		peer->shown--;
		peer_flag(peer, peer->shown, peer_turn(peer, peer->shown, false) | WRITE);
	}
	for (uint16_t index = peer->done; index != peer->shown; index--)
		peer_flag(peer, (uint16_t)(index - 1), peer_turn(peer, (uint16_t)(index - 1), true));
	peer->shown = peer->done;
}

/* Show one used descriptor, for the buffer @id and all before it; @count buffers altogether */
static inline void peer_use_lump(struct peer *peer, uint32_t id, uint32_t length, uint32_t count)
{
	peer_use(peer, id, length);
	peer_publish(peer);
	peer->done = peer->shown = (uint16_t)(peer->done + count - 1);
}

/* Whether the driver wants to be notified of what was published */
static inline bool peer_wants_interrupt(const struct peer *peer)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return !(__atomic_load_n((uint16_t *)(peer->avail + (peer->packed ? 2 : 0)), __ATOMIC_RELAXED) & 1);
}

/* Sum of the bytes of a frame with its header, by their places */
static inline uint64_t peer_sum(const uint8_t *frame, uint32_t length)
{
	uint64_t sum = length;

	for (uint32_t i = 0; i < length; i++)
		sum = sum * 31 + frame[i];
	return sum;
}

/* Check where a frame is that was taken and that nothing is left to do for it; note its sum */
static inline void peer_note(struct peer *peer, uint16_t id)
{
	static const uint8_t zeros[HEADER];
	const uint8_t *header = peer_address(peer, id);
	uint32_t length = peer_length(peer, id);

	if (!peer->from)
		return;
	if (header < peer->from || header > peer->to || length < HEADER || length > (size_t)(peer->to - header) ||
	    (uintptr_t)(header + HEADER) % 64 || memcmp(header, zeros, HEADER))
		peer->misplaced = true;
	else
		peer->sums[id] = peer_sum(header, length);
}

/* Check that a frame is as it was when it was taken */
static inline void peer_compare(struct peer *peer, uint16_t id)
{
	if (peer->from && !peer->misplaced)
		peer->misplaced = peer->sums[id] != peer_sum(peer_address(peer, id), peer_length(peer, id));
}

/* Give back the buffers of a transmit queue: in order, or all that are held in another order */
static inline void peer_release(struct peer *peer, uint32_t keep)
{
	if (peer->lumps && peer->holds > keep && rand() % 2) {
		uint32_t count = peer->holds - keep;

		for (uint32_t i = 0; i < count; i++)
			peer_compare(peer, peer->held[i]);
		peer_use_lump(peer, peer->held[count - 1], 0, count);
		memmove(peer->held, peer->held + count, keep * sizeof(*peer->held));
		peer->holds = keep;
	}
	while (peer->holds > keep) {
		uint32_t pick = peer->shuffled ? (uint32_t)rand() % peer->holds : 0;
		uint16_t id = peer->held[pick];

		memmove(peer->held + pick, peer->held + pick + 1, (peer->holds - pick - 1) * sizeof(*peer->held));
		peer->holds--;
		peer_compare(peer, id);
		peer_use(peer, id, 0);
	}
	peer_publish(peer);
}

/* Take a frame from a transmit queue: its bytes, NULL when there is none; the buffer is held */
static inline uint8_t *peer_fetch(struct peer *peer, uint32_t *length)
{
	uint16_t id;

	if (!peer_available(peer))
		return NULL;
	id = peer_next(peer);
	peer->held[peer->holds++] = id;
	peer_note(peer, id);
	*length = peer_length(peer, id) - HEADER;
	return peer_address(peer, id) + HEADER;
}

/* A buffer to receive into: with @shuffled any that is available */
static inline uint16_t peer_pick(struct peer *peer)
{
	uint16_t id;
	uint32_t pick;

	while (peer->shuffled && peer_available(peer))
		peer->held[peer->holds++] = peer_next(peer);
	if (!peer->shuffled)
		return peer_next(peer);
	pick = (uint32_t)rand() % peer->holds;
	id = peer->held[pick];
	peer->held[pick] = peer->held[--peer->holds];
	return id;
}

/* Deliver a frame to a receive queue, over several buffers if @mergeable; false when there is no room */
static inline bool peer_deliver(struct peer *peer, const uint8_t *frame, uint32_t length, bool mergeable)
{
	uint32_t left = length, span = peer_length(peer, 0), need = (HEADER + length + span - 1) / span, at = 0;
	bool lump = peer->lumps && need > 1 && rand() % 2;
	uint8_t *header = NULL;

	if ((need > 1 && !mergeable) || need > peer_available(peer) + peer->holds)
		return false;
	for (uint32_t part = 0; part < need; part++) {
		uint16_t id = peer_pick(peer);
		uint8_t *to = peer_address(peer, id);
		uint32_t room = peer_length(peer, id), now;

		if (!part) {
			header = to;
			memset(header, 0, HEADER);
			header[10] = (uint8_t)need;
			header[11] = (uint8_t)(need >> 8);
			to += HEADER;
			room -= HEADER;
		}
		now = left < room ? left : room;
		memcpy(to, frame + at, now);
		at += now;
		left -= now;
		if (!lump)
			peer_use(peer, id, part ? now : now + HEADER);
		else if (part == need - 1)
			peer_use_lump(peer, id, now, need);
	}
	peer_publish(peer);
	return true;
}

#endif /* RING_PEER_H */
