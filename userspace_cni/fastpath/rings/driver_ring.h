/* SPDX-License-Identifier: Apache-2.0 */
/* driver_ring.h - internals of a driver's queue with either kind of ring
 *
 * Functions that run per frame are inline here, so that the compiler sees them in each file.
 */

#ifndef FASTPATH_DRIVER_RING_H
#define FASTPATH_DRIVER_RING_H

#include <errno.h>
#include <string.h>

#include "driver.h"
#include "events.h"
#include "packed_ring.h"
#include "vring.h"

/** struct place - Where a transmit queue has the frame of a buffer
 * @at:		Its first byte, from @buffers of the driver on; the header is in the FP_HEADER bytes before it
 * @length:	Bytes of the frame
 */
struct place {
	uint32_t at;
	uint32_t length;
};

/** struct driver - A queue as its driver sees it; all indices run freely and wrap at 65536
 * @queue:	The part of every queue
 * @desc, @avail, @used: A split ring, in shared memory
 * @ring, @wish, @wished: A packed ring in the same memory: descriptors, the driver area, the device area
 * @back:	Packed ring: our copy of what it said of the buffers from @seen to @behind, checked
 * @head:	Packed ring: what publish() writes into the descriptor at @published, when @made is beyond it
 * @patience:	Packed ring that receives: not 0 while the next burst of a stream is awaited as a whole; until when, by fp_now()
 * @buffers:	@size buffers of @pitch bytes, in shared memory
 * @size:	Descriptors, a power of two
 * @pitch:	Bytes from one buffer to the next, whole cache lines
 * @room:	Longest frame that one buffer holds, bytes
 * @span:	Bytes of a buffer from its header on, which a descriptor covers
 * @made:	The next avail.idx to publish; of [@seen, @made) those before @behind are back, the rest are with the other side
 * @published:	avail.idx as the other side sees it
 * @seen:	used.idx up to which we have worked
 * @behind:	used.idx as last loaded. A packed ring has no such indices in memory; these four count its buffers in the same way
 * @lot:	Received buffers that are given back at once
 * @transmit:	Whether it sends; else it receives
 * @in_order:	VIRTIO_F_IN_ORDER was negotiated
 * @mergeable:	VIRTIO_NET_F_MRG_RXBUF was negotiated, and the queue receives
 * @kick:	eventfd by which we notify the other side, -1 for none
 * @frees:	How many numbers of @free are valid
 * @free:	Without IN_ORDER. Transmit queue: numbers of descriptors that are ours, the first @frees. Receive queue: our copy
 *		of the avail ring, which the other side may overwrite
 * @places:	Transmit queue: where the frames are; see place() in driver_transmit.h
 * @end:	Transmit queue: where the memory of the frame before @made ends, bytes from @buffers on
 * @lent:	Without IN_ORDER, per descriptor: whether it is with the other side
 */
struct driver {
	struct fp_queue queue;
	struct desc *desc;
	struct avail *avail;
	struct used *used;
	struct packed_desc *ring;
	struct packed_event *wish;
	const struct packed_event *wished;
	struct used_element *back;
	uint64_t head;
	int64_t patience;
	uint8_t *buffers;
	uint32_t size;
	uint32_t pitch;
	uint32_t room;
	uint32_t span;
	uint32_t lot;
	uint16_t made;
	uint16_t published;
	uint16_t seen;
	uint16_t behind;
	bool transmit;
	bool in_order;
	bool mergeable;
	int kick;
	uint32_t frees;
	uint16_t *free;
	uint8_t *lent;
	struct place *places;
	uint32_t end;
};

/**
 * driver_of() - The driver that a queue belongs to
 * @queue:	A queue of this kind
 *
 * Return: the driver
 */
static inline struct driver *driver_of(struct fp_queue *queue)
{
	return (struct driver *)queue;	/* its first member */
}

/**
 * frame_at() - Address of the frame in a buffer
 * @driver:	Driver
 * @id:		Number of the buffer, below the size of the ring
 *
 * Return: first byte of the frame; its header is in the FP_HEADER bytes before it
 */
static inline uint8_t *frame_at(const struct driver *driver, uint32_t id)
{
	return driver->buffers + (size_t)id * driver->pitch + FP_LINE;
}

/**
 * sent_at() - Address of the frame in a buffer of a transmit queue
 * @driver:	Driver that transmits
 * @id:		Number of the buffer, below the size of the ring
 *
 * Return: first byte of the frame; its header is in the FP_HEADER bytes before it
 */
static inline uint8_t *sent_at(const struct driver *driver, uint32_t id)
{
	return driver->buffers + driver->places[id].at;
}

/**
 * slot() - Entry of the ring that an index names
 * @driver:	Driver
 * @index:	Index, which runs freely
 *
 * Return: number of the entry
 */
static inline uint32_t slot(const struct driver *driver, uint16_t index)
{
	return index & (driver->size - 1);
}

/**
 * faulty() - End the use of a queue because of what the other side wrote
 * @driver:	Driver
 * @fault:	What it did
 *
 * Return: -EBADMSG, for the caller to return
 */
static inline int faulty(struct driver *driver, enum fp_fault fault)
{
	atomic_store(&driver->queue.fault, fault);
	return -EBADMSG;
}

/**
 * copy() - Do what memcpy() does, without the call for common short lengths
 * @to:		Destination; must not overlap @from
 * @from:	Source
 * @length:	Bytes
 *
 * At most 16 bytes are moved at a time, each wholly within both ranges.
 */
static inline void copy(uint8_t *restrict to, const uint8_t *restrict from, size_t length)
{
	if (length > 2 * FP_LINE || length < 16) {
		memcpy(to, from, length);
		return;
	}
	if (length > FP_LINE) {
		memcpy(to, from, FP_LINE);
		to += FP_LINE;
		from += FP_LINE;
		length -= FP_LINE;
		if (length < 16) {	/* copy some bytes twice */
			memcpy(to + length - 16, from + length - 16, 16);
			return;
		}
	}
	if (length >= 32) {
		memcpy(to, from, 32);
		memcpy(to + length - 32, from + length - 32, 32);
	} else {
		memcpy(to, from, 16);
		memcpy(to + length - 16, from + length - 16, 16);
	}
}

/**
 * hand_over() - Move a line that was written to the cache that all cores share
 * @line:	Address in it
 *
 * The other core reads the line next, and reads it faster from the shared cache than from ours. This is a hint: processors that
 * do not know the instruction do nothing.
 */
static inline void hand_over(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("cldemote %0" : : "m"(*(const char *)line));
#else
	(void)line;
#endif
}

/**
 * prefetch_to_write() - Bring a line into this core's cache before it is written
 * @line:	Address in it
 */
static inline void prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));	/* all x86-64 CPUs have it now, but gcc still wants an option */
#else
	__builtin_prefetch(line, 1);
#endif
}

/* What depends on the kind of ring; see struct ring_operations */
int fp_split_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
int fp_split_repeat(struct fp_queue *queue, uint32_t length, uint32_t count);
int fp_split_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_split_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_split_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign);
int fp_split_ready(struct fp_queue *queue);
int fp_split_arm(struct fp_queue *queue);
void fp_split_disarm(struct fp_queue *queue);

int fp_packed_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
int fp_packed_repeat(struct fp_queue *queue, uint32_t length, uint32_t count);
int fp_packed_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_packed_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_packed_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign);
int fp_packed_ready(struct fp_queue *queue);
int fp_packed_arm(struct fp_queue *queue);
void fp_packed_disarm(struct fp_queue *queue);
void fp_packed_lay_out(struct driver *driver);

#endif /* FASTPATH_DRIVER_RING_H */
