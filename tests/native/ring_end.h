/* SPDX-License-Identifier: Apache-2.0 */
/* ring_end.h - a driver's queue for trials, in memory of exactly its size, with the other side of it
 *
 * Shared memory is from the heap. All of it except the rings, and the parts of buffers that descriptors cover, is poisoned after
 * the attachment: AddressSanitizer sees each byte too far. The buffers of a queue that sends in order are one piece. A trial that fails prints where and ends with 1.
 */

#ifndef RING_END_H
#define RING_END_H

#include <errno.h>
#include <stdio.h>
#include <sys/types.h>

#include "ring_peer.h"

#ifdef __has_feature	/* clang */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(where, bytes) ((void)(where))
#define ASAN_UNPOISON_MEMORY_REGION(where, bytes) ((void)(where))
#endif

#define CHECK(condition) do { if (!(condition)) fail(__LINE__, #condition); } while (0)
#define SHORTEST 14

/* End the program, naming the @line and the condition that does not hold */
static inline void fail(int line, const char *what)
{
	fprintf(stderr, "line %d: not so: %s\n", line, what);
	exit(1);
}

/** struct end - A queue of ours, its memory, and the other side
 * @queue, @memory, @bytes, @peer: The queue, its memory of @bytes, the other side
 * @size, @room, @transmit: As in fp_driver_new()
 */
struct end {
	struct fp_queue *queue;
	uint8_t *memory;
	size_t bytes;
	struct peer peer;
	uint32_t size;
	uint32_t room;
	bool transmit;
};

/** struct kind - What was negotiated */
struct kind {
	bool packed;
	bool in_order;
	bool mergeable;
};

static const struct kind kinds[] = {
	{ false, true, false }, { false, false, false }, { false, true, true }, { false, false, true },
	{ true, true, false }, { true, false, false }, { true, true, true }, { true, false, true },
};

#define KINDS (sizeof(kinds) / sizeof(*kinds))

#define EACH_KIND(kind) for (const struct kind *kind = kinds; kind < kinds + KINDS; kind++)

/* Poison what neither side may touch, and check where each buffer is */
static inline void fence_off(const struct end *end)
{
	uint64_t rings[3];

	fp_driver_rings(end->queue, rings);
	ASAN_POISON_MEMORY_REGION(end->memory, end->bytes);
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[0], end->size * 16);
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[1], 4 + (end->peer.packed ? 0 : end->size * 2));
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[2], 4 + (end->peer.packed ? 0 : end->size * 8));
	for (uint32_t id = 0; id < end->size; id++) {
		uint8_t *header = peer_address(&end->peer, (uint16_t)id);

		CHECK((uintptr_t)(header + HEADER) % 64 == 0);
		CHECK(header >= end->memory && header + HEADER + end->room <= end->memory + end->bytes);
		ASAN_UNPOISON_MEMORY_REGION(header, end->transmit ? HEADER + end->room : peer_length(&end->peer, (uint16_t)id));
	}
	if (end->peer.from)
		ASAN_UNPOISON_MEMORY_REGION(end->peer.from, (size_t)(end->peer.to - end->peer.from));
}

/* Attach the queue anew as @kind says, with eventfds for both directions or -1, and start it */
static inline void attach_events(struct end *end, const struct kind *kind, int kick, int call)
{
	struct peer split = { 0 };

	ASAN_UNPOISON_MEMORY_REGION(end->memory, end->bytes);
	fp_stop(end->queue);
	fp_driver_attach(end->queue, false, true, false, -1, -1);	/* a split ring tells where the buffers are */
	peer_attach(&split, end->queue, end->size, false, false);
	peer_attach(&end->peer, end->queue, end->size, kind->packed, !kind->in_order);
	for (uint32_t id = 0; id < end->size; id++) {
		end->peer.buffers[id].address = peer_address(&split, (uint16_t)id);
		end->peer.buffers[id].length = peer_length(&split, (uint16_t)id);
	}
	if (end->transmit && kind->in_order) {
		end->peer.from = end->peer.buffers[0].address;
		end->peer.to = end->peer.buffers[end->size - 1].address + HEADER + (end->room + 63) / 64 * 64;
	}
	free(split.held);
	free(split.buffers);
	free(split.sums);
	fp_driver_attach(end->queue, kind->packed, kind->in_order, kind->mergeable, kick, call);
	fence_off(end);
	fp_start(end->queue);
}

/* The same without eventfds */
static inline void attach(struct end *end, const struct kind *kind)
{
	attach_events(end, kind, -1, -1);
}

/* A queue of @size descriptors and frames of @room bytes, closed to all until attach() */
static inline struct end make(uint32_t size, uint32_t room, bool transmit)
{
	struct end end = { .size = size, .room = room, .transmit = transmit, .bytes = fp_driver_bytes(size, room) };

	CHECK(end.bytes % 4096 == 0);
	CHECK((end.memory = aligned_alloc(64, end.bytes)));
	memset(end.memory, 0xa5, end.bytes);
	CHECK((end.queue = fp_driver_new(end.memory, size, room, transmit)));
	return end;
}

/* Close and free the queue, its memory and its other side */
static inline void unmake(struct end *end)
{
	fp_close(end->queue);
	fp_driver_free(end->queue);
	free(end->peer.held);
	free(end->peer.buffers);
	free(end->peer.sums);
	ASAN_UNPOISON_MEMORY_REGION(end->memory, end->bytes);
	free(end->memory);
}

/* Fill a frame with bytes that depend on its @number and on their place in it */
static inline void paint(uint8_t *frame, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		frame[i] = (uint8_t)(number + i * 7 + (i >> 8));
	memcpy(frame, &number, sizeof(number));
}

/* Do the other side's work: frames from @out arrive at @in, for at most half of its buffers */
static inline void carry(struct end *out, struct end *in, const struct kind *kind)
{
	uint32_t length;
	uint8_t *frame;

	while (peer_available(&in->peer) + in->peer.holds > in->size / 2 && (frame = peer_fetch(&out->peer, &length)))
		CHECK(peer_deliver(&in->peer, frame, length, kind->mergeable));
	peer_release(&out->peer, out->peer.shuffled ? out->peer.holds / 4 : 0);
}

#endif /* RING_END_H */
