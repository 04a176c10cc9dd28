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
#define MOST 32768

/** struct peer - One queue as a device sees it
 * @desc, @avail, @used: The parts of the ring
 * @size:	Descriptors
 * @taken:	Index of the next available buffer
 * @done:	The next used.idx to publish
 * @shuffled:	Buffers come back in another order than they were given
 * @held, @holds: Buffers that were taken and not given back
 */
struct peer {
	uint8_t *desc;
	uint8_t *avail;
	uint8_t *used;
	uint32_t size;
	uint16_t taken;
	uint16_t done;
	bool shuffled;
	uint16_t *held;
	uint32_t holds;
};

/* Begin with an empty ring, at the addresses of @queue */
static inline void peer_attach(struct peer *peer, struct fp_queue *queue, uint32_t size, bool shuffled)
{
	uint64_t rings[3];

	fp_driver_rings(queue, rings);
	free(peer->held);
	*peer = (struct peer){ (uint8_t *)(uintptr_t)rings[0], (uint8_t *)(uintptr_t)rings[1], (uint8_t *)(uintptr_t)rings[2],
			       size, 0, 0, shuffled, malloc(size * sizeof(uint16_t)), 0 };
}

/* Count the buffers that the driver has made available and that were not taken */
static inline uint16_t peer_available(const struct peer *peer)
{
	return (uint16_t)(__atomic_load_n((uint16_t *)(peer->avail + 2), __ATOMIC_ACQUIRE) - peer->taken);
}

/* Address of a descriptor's buffer */
static inline uint8_t *peer_address(const struct peer *peer, uint16_t id)
{
	uint64_t address;

	memcpy(&address, peer->desc + (size_t)id * DESC_BYTES, sizeof(address));
	return (uint8_t *)(uintptr_t)address;
}

/* Bytes of a descriptor's buffer */
static inline uint32_t peer_length(const struct peer *peer, uint16_t id)
{
	uint32_t length;

	memcpy(&length, peer->desc + (size_t)id * DESC_BYTES + LENGTH_AT, sizeof(length));
	return length;
}

/* The next available buffer */
static inline uint16_t peer_next(struct peer *peer)
{
	return __atomic_load_n((uint16_t *)(peer->avail + 4) + peer->taken++ % peer->size, __ATOMIC_RELAXED);
}

/* Write a used element for a buffer; peer_publish() shows it */
static inline void peer_use(struct peer *peer, uint32_t id, uint32_t length)
{
	uint32_t *element = (uint32_t *)(peer->used + 4) + 2 * (size_t)(peer->done++ % peer->size);

	__atomic_store_n(&element[0], id, __ATOMIC_RELAXED);
	__atomic_store_n(&element[1], length, __ATOMIC_RELAXED);
}

/* Write used.idx */
static inline void peer_publish(struct peer *peer)
{
	__atomic_store_n((uint16_t *)(peer->used + 2), peer->done, __ATOMIC_RELEASE);
}

/* Whether the driver wants to be notified of what was published */
static inline bool peer_wants_interrupt(const struct peer *peer)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return !(__atomic_load_n((uint16_t *)peer->avail, __ATOMIC_RELAXED) & 1);
}

/* Give back the buffers of a transmit queue: in order, or all that are held in another order */
static inline void peer_release(struct peer *peer, uint32_t keep)
{
	while (peer->holds > keep) {
		uint32_t pick = peer->shuffled ? (uint32_t)rand() % peer->holds : 0;
		uint16_t id = peer->held[pick];

		memmove(peer->held + pick, peer->held + pick + 1, (peer->holds - pick - 1) * sizeof(*peer->held));
		peer->holds--;
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
		peer_use(peer, id, part ? now : now + HEADER);
	}
	peer_publish(peer);
	return true;
}

#endif /* RING_PEER_H */
