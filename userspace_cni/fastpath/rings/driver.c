// SPDX-License-Identifier: Apache-2.0
/* driver.c - the driver's side of a virtqueue: our side when we are the front-end
 *
 * THEORY OF OPERATION
 *
 * This is a ring of virtio 1.x, in our memory that the other side maps: a packed one where both sides know these, see
 * packed_driver.h, else a split one. The other side may write anything there at any time. So each value that it writes is read once
 * and checked before it is used, and state that we rely on is not kept there.
 *
 * With VIRTIO_F_IN_ORDER buffers of a split ring come back in the order in which they were given. Then entry i of the avail ring always names
 * descriptor i, descriptor i belongs to buffer i, and a burst is: write frames, set places and lengths that differ, one release
 * store of avail.idx. Without it there is a list of free descriptors, and each burst writes the avail ring.
 *
 * Most time goes into cache lines that move between two cores, so:
 *   - a frame starts on a cache line of its own; its header of 12 bytes is at the end of the line before, which stays clean
 *     (we zero it once, and the other side writes only bytes that differ);
 *   - long frames that are sent in order lie one behind the other, see place() in driver_transmit.h: a processor that reads one of
 *     them fetches the lines behind it ahead, which are those of the next frame. In buffers at a distance they were of no use,
 *     and frames of 512 bytes took the other side a sixth more time;
 *   - descriptors are written only when they change;
 *   - a transmit queue reads used.idx only when its room is too small, and descriptors come back unread;
 *   - a receive queue gives buffers back in lots of a quarter of the ring;
 *   - all lines of a burst are prefetched before the first is touched;
 *   - a line that was written is handed over (CLDEMOTE), which gave a tenth more throughput when measured.
 *
 * Order of memory accesses: used.idx is loaded with acquire before the elements that it covers are read, avail.idx is stored with
 * release after the elements that it covers are written. One full fence is between the store of avail.idx and the load of
 * used.flags, and one between the store of avail.flags and the last load of used.idx before sleeping: without them each side
 * could sleep while the other one waits for it.
 *
 * This file sets a queue up. How frames come and go is in driver_transmit.h and driver_receive.h for both kinds of ring; what a
 * split ring needs for it is in split_driver.h, driver_transmit.c and driver_receive.c, what a packed one needs in packed_driver*.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "driver_ring.h"

#define PAGE 4096
#define HEADER_AT (FP_LINE - FP_HEADER)	/* offset in a buffer, so that the frame starts on a line */
#define LARGEST_RING 32768
#define SMALL_RING 16			/* up to this size each buffer goes back at once */

/** struct ring_operations - What depends on the kind of ring
 * @queue:	What all queues have; the first member
 * @repeat:	See fp_driver_repeat()
 * @heads:	See fp_driver_heads()
 * @discard:	See fp_driver_discard()
 */
struct ring_operations {
	struct fp_operations queue;
	int (*repeat)(struct fp_queue *queue, uint32_t length, uint32_t count);
	int (*heads)(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity);
	int (*discard)(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign);
};

static const struct ring_operations split = {
	{ fp_split_send, fp_split_receive, fp_split_ready, fp_split_arm, fp_split_disarm },
	fp_split_repeat, fp_split_heads, fp_split_discard,
};

static const struct ring_operations packed = {
	{ fp_packed_send, fp_packed_receive, fp_packed_ready, fp_packed_arm, fp_packed_disarm },
	fp_packed_repeat, fp_packed_heads, fp_packed_discard,
};

/**
 * rounded() - Round up
 * @bytes:	Number
 * @to:		The result is a multiple of this
 *
 * Return: the next multiple
 */
static size_t rounded(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

/**
 * avail_at() - Offset of the avail ring in the shared memory
 * @size:	Descriptors
 *
 * Return: bytes from the beginning, where the descriptors are
 */
static size_t avail_at(uint32_t size)
{
	return rounded(size * sizeof(struct desc), FP_LINE);
}

/**
 * used_at() - Offset of the used ring in the shared memory
 * @size:	Descriptors
 *
 * Return: bytes from the beginning
 */
static size_t used_at(uint32_t size)
{
	return avail_at(size) + rounded(sizeof(struct avail) + (size + 1) * sizeof(uint16_t), FP_LINE);
}

/**
 * buffers_at() - Offset of the buffers in the shared memory
 * @size:	Descriptors
 *
 * Return: bytes from the beginning
 */
static size_t buffers_at(uint32_t size)
{
	return used_at(size) + rounded(sizeof(struct used) + size * sizeof(struct used_element) + sizeof(uint16_t), FP_LINE);
}

/**
 * pitch_of() - Distance between two buffers
 * @room:	Longest frame that one buffer holds, bytes
 *
 * Return: bytes, whole cache lines
 */
static size_t pitch_of(uint32_t room)
{
	return FP_LINE + rounded(room, FP_LINE);
}

/**
 * fp_driver_bytes() - Compute the shared memory that one queue needs
 * @size:	Descriptors
 * @room:	Longest frame that one buffer holds, bytes
 *
 * Return: bytes, a multiple of 4096
 */
size_t fp_driver_bytes(uint32_t size, uint32_t room)
{
	return rounded(buffers_at(size) + size * pitch_of(room), PAGE);
}

/**
 * fp_driver_new() - Make a queue, stopped
 * @memory:	fp_driver_bytes() of shared memory, on a cache line; it must outlive the queue
 * @size:	Descriptors, a power of two, 2 to 32768
 * @room:	Longest frame that one buffer holds, 14 to FP_LARGEST bytes
 * @transmit:	1: sends, 0: receives
 *
 * Return: the queue; NULL with errno set: EINVAL, ENOMEM
 */
struct fp_queue *fp_driver_new(void *memory, uint32_t size, uint32_t room, int transmit)
{
	struct driver *driver;

	if (size < 2 || size > LARGEST_RING || size & (size - 1) || room < FP_SHORTEST || room > FP_LARGEST ||
	    (uintptr_t)memory % FP_LINE) {
		errno = EINVAL;
		return NULL;
	}
	if (!(driver = aligned_alloc(FP_LINE, rounded(sizeof(*driver), FP_LINE))))
		return NULL;
	memset(driver, 0, sizeof(*driver));
	driver->queue.operations = &split.queue;
	driver->queue.state = FP_STOPPED;
	driver->queue.event = -1;
	driver->queue.room = room;
	driver->desc = memory;
	driver->avail = (struct avail *)((uint8_t *)memory + avail_at(size));
	driver->used = (struct used *)((uint8_t *)memory + used_at(size));
	driver->ring = memory;
	driver->wish = (struct packed_event *)((uint8_t *)memory + avail_at(size));
	driver->wished = (struct packed_event *)((uint8_t *)memory + used_at(size));
	driver->buffers = (uint8_t *)memory + buffers_at(size);
	driver->size = size;
	driver->pitch = (uint32_t)pitch_of(room);
	driver->room = room;
	driver->span = driver->pitch - HEADER_AT;
	driver->transmit = transmit;
	driver->kick = -1;
	driver->free = calloc(size, sizeof(*driver->free));
	driver->lent = calloc(size, sizeof(*driver->lent));
	driver->back = calloc(size, sizeof(*driver->back));
	driver->places = calloc(size, sizeof(*driver->places));
	if (!driver->free || !driver->lent || !driver->back || !driver->places) {
		fp_driver_free(&driver->queue);
		errno = ENOMEM;
		return NULL;
	}
	return &driver->queue;
}

/**
 * lay_out_split() - Write a split ring; a receive queue gives all its buffers to the other side
 * @driver:	Driver, stopped; its ring is empty
 */
static void lay_out_split(struct driver *driver)
{
	for (uint32_t id = 0; id < driver->size; id++) {
		driver->desc[id].address = (uint64_t)(uintptr_t)(frame_at(driver, id) - FP_HEADER);
		driver->desc[id].length = driver->transmit ? FP_HEADER : driver->span;
		driver->desc[id].flags = driver->transmit ? 0 : DESC_WRITE;
		driver->avail->ring[id] = (uint16_t)id;
		driver->lent[id] = !driver->transmit;
	}
	driver->avail->flags = NO_INTERRUPT;
	driver->made = driver->transmit ? 0 : (uint16_t)driver->size;
	driver->published = driver->made;
	__atomic_store_n(&driver->avail->index, driver->made, __ATOMIC_RELEASE);
}

/**
 * lay_out() - Write ring and headers for a new connection
 * @driver:	Driver, stopped
 */
static void lay_out(struct driver *driver)
{
	memset(driver->desc, 0, (size_t)(driver->buffers - (uint8_t *)driver->desc));
	memset(driver->lent, 0, driver->size);
	for (uint32_t id = 0; id < driver->size; id++) {
		uint8_t *header = frame_at(driver, id) - FP_HEADER;

		driver->places[id].at = (uint32_t)(frame_at(driver, id) - driver->buffers);
		memset(header, 0, FP_HEADER);
		header[NUM_BUFFERS] = driver->transmit ? 0 : 1;
		driver->free[id] = (uint16_t)(driver->size - 1 - id);
	}
	driver->made = driver->published = driver->seen = driver->behind = 0;
	driver->end = 0;
	driver->frees = driver->transmit ? driver->size : 0;
	if (driver->queue.operations == &packed.queue)
		fp_packed_lay_out(driver);
	else
		lay_out_split(driver);
}

/**
 * fp_driver_attach() - Prepare for a new connection
 * @queue:	A driver, stopped; it stays stopped until fp_start()
 * @packed_ring: VIRTIO_F_RING_PACKED was negotiated
 * @in_order:	VIRTIO_F_IN_ORDER was negotiated
 * @mergeable:	VIRTIO_NET_F_MRG_RXBUF was negotiated
 * @kick:	eventfd by which the other side is notified, or -1
 * @call:	eventfd by which it notifies us, not blocking, or -1. The caller closes both
 *
 * The queue's @headers say whether frames come and go with their headers; see queue.h.
 *
 * Empties the ring: sent frames that the other side had not yet used may be lost, received frames that were not fetched are lost.
 */
void fp_driver_attach(struct fp_queue *queue, int packed_ring, int in_order, int mergeable, int kick, int call)
{
	struct driver *driver = driver_of(queue);

	__atomic_store_n(&queue->operations, packed_ring ? &packed.queue : &split.queue, __ATOMIC_RELAXED);	/* for fp_driver_is() */
	driver->lot = driver->size <= SMALL_RING ? 1 : packed_ring ? PACKED_LINE : driver->size / 4;
	driver->in_order = in_order;
	driver->mergeable = mergeable && !driver->transmit;
	driver->kick = -1;
	queue->room = driver->room + fp_overhead(queue);
	queue->event = call;
	atomic_store(&queue->fault, FP_SOUND);
	lay_out(driver);
	driver->kick = kick;
}

/**
 * fp_driver_rings() - Name the addresses of the three parts of the ring
 * @queue:	A driver
 * @rings:	Set to our addresses of descriptors, avail ring, used ring; of a packed ring: descriptors, driver area, device area
 */
void fp_driver_rings(struct fp_queue *queue, uint64_t rings[3])
{
	struct driver *driver = driver_of(queue);

	rings[0] = (uint64_t)(uintptr_t)driver->desc;
	rings[1] = (uint64_t)(uintptr_t)driver->avail;
	rings[2] = (uint64_t)(uintptr_t)driver->used;
}

/**
 * fp_driver_free() - Free a queue, but not its shared memory
 * @queue:	A driver, closed; no thread may use it any more, not even to learn that it is closed
 */
void fp_driver_free(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);

	free(driver->free);
	free(driver->lent);
	free(driver->back);
	free(driver->places);
	free(driver);
}

/**
 * fp_driver_is() - Whether a queue is of this kind, with either kind of ring
 * @queue:	Any queue, which need not be taken
 *
 * Return: true for a driver
 */
bool fp_driver_is(const struct fp_queue *queue)
{
	const struct fp_operations *kind = __atomic_load_n(&queue->operations, __ATOMIC_RELAXED);

	return kind == &split.queue || kind == &packed.queue;
}

/**
 * fp_driver_fill() - Write a frame into all buffers of an idle transmit queue, for fp_driver_repeat()
 * @queue:	A driver that transmits, taken; frames that the other side has not used yet may be overwritten
 * @frame:	The frame
 * @length:	Its bytes, at most the queue's room
 */
void fp_driver_fill(struct fp_queue *queue, const void *frame, uint32_t length)
{
	struct driver *driver = driver_of(queue);

	for (uint32_t id = 0; id < driver->size; id++) {
		driver->places[id].at = (uint32_t)(frame_at(driver, id) - driver->buffers);
		memset(frame_at(driver, id) - FP_HEADER, 0, FP_HEADER);
		memcpy(frame_at(driver, id), frame, length);
	}
}

/**
 * fp_driver_repeat() - Send the frames that the buffers hold already
 * @queue:	A driver that transmits, taken; see fp_driver_fill()
 * @length:	Bytes of each frame
 * @count:	Frames
 *
 * Return: frames sent, or -EBADMSG
 */
int fp_driver_repeat(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	return ((const struct ring_operations *)queue->operations)->repeat(queue, length, count);
}

/**
 * fp_driver_heads() - Receive a burst, and copy only the beginning of each frame out
 * @queue:	A driver that receives, taken
 * @heads:	The first @stride bytes of frame i are put at i * @stride
 * @stride:	Bytes of each, 0 for none
 * @lengths:	Set to the bytes of each whole frame
 * @capacity:	Most frames
 *
 * Return: frames, or -EBADMSG
 */
int fp_driver_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	return ((const struct ring_operations *)queue->operations)->heads(queue, heads, stride, lengths, capacity);
}

/**
 * fp_driver_discard() - Receive and count frames without copying them
 * @queue:	A driver that receives, taken
 * @capacity:	Most frames
 * @mark:	FP_MARK bytes that our frames have behind the Ethernet header; NULL: no frame is read
 * @foreign:	Incremented for each frame without the mark
 *
 * Return: frames, or -EBADMSG
 */
int fp_driver_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	return ((const struct ring_operations *)queue->operations)->discard(queue, capacity, mark, foreign);
}
