// SPDX-License-Identifier: Apache-2.0
/* driver.c - the driver's side of a virtqueue: our side when we are the front-end
 *
 * THEORY OF OPERATION
 *
 * This is a split ring of virtio 1.x, in our memory that the other side maps. The other side may write anything there at any time.
 * So each value that it writes is read once and checked before it is used, and state that we rely on is not kept there.
 *
 * With VIRTIO_F_IN_ORDER buffers come back in the order in which they were given. Then entry i of the avail ring always names
 * descriptor i, descriptor i belongs to buffer i, and a burst is: write frames, set lengths that differ, one release store of
 * avail.idx. Without it there is a list of free descriptors, and each burst writes the avail ring.
 *
 * Most time goes into cache lines that move between two cores, so:
 *   - a frame starts on a cache line of its own; its header of 12 bytes is at the end of the line before, which stays clean
 *     (we zero it once, and the other side writes only bytes that differ);
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
 * This file sets a queue up. Frames to send are in driver_transmit.c, frames received in driver_receive.c.
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

static const struct fp_operations operations = {
	.send = fp_driver_send,
	.receive = fp_driver_receive,
	.arm = fp_driver_arm,
	.disarm = fp_driver_disarm,
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
	driver->queue.operations = &operations;
	driver->queue.state = FP_STOPPED;
	driver->queue.event = -1;
	driver->queue.room = room;
	driver->desc = memory;
	driver->avail = (struct avail *)((uint8_t *)memory + avail_at(size));
	driver->used = (struct used *)((uint8_t *)memory + used_at(size));
	driver->buffers = (uint8_t *)memory + buffers_at(size);
	driver->size = size;
	driver->pitch = (uint32_t)pitch_of(room);
	driver->room = room;
	driver->span = driver->pitch - HEADER_AT;
	driver->lot = size <= SMALL_RING ? 1 : size / 4;
	driver->transmit = transmit;
	driver->kick = -1;
	driver->free = calloc(size, sizeof(*driver->free));
	driver->lent = calloc(size, sizeof(*driver->lent));
	if (!driver->free || !driver->lent) {
		fp_driver_free(&driver->queue);
		errno = ENOMEM;
		return NULL;
	}
	return &driver->queue;
}

/**
 * lay_out() - Write rings and headers for a new connection; a receive queue gives all its buffers to the other side
 * @driver:	Driver, stopped
 */
static void lay_out(struct driver *driver)
{
	memset(driver->desc, 0, (size_t)(driver->buffers - (uint8_t *)driver->desc));
	for (uint32_t id = 0; id < driver->size; id++) {
		uint8_t *header = frame_at(driver, id) - FP_HEADER;

		memset(header, 0, FP_HEADER);
		header[NUM_BUFFERS] = driver->transmit ? 0 : 1;
		driver->desc[id].address = (uint64_t)(uintptr_t)header;
		driver->desc[id].length = driver->transmit ? FP_HEADER : driver->span;
		driver->desc[id].flags = driver->transmit ? 0 : DESC_WRITE;
		driver->avail->ring[id] = (uint16_t)id;
		driver->lent[id] = !driver->transmit;
		driver->free[id] = (uint16_t)(driver->size - 1 - id);
	}
	driver->avail->flags = NO_INTERRUPT;
	driver->made = driver->transmit ? 0 : (uint16_t)driver->size;
	driver->published = driver->made;
	driver->seen = driver->behind = 0;
	driver->frees = driver->transmit ? driver->size : 0;
	__atomic_store_n(&driver->avail->index, driver->made, __ATOMIC_RELEASE);
}

/**
 * fp_driver_attach() - Prepare for a new connection
 * @queue:	A driver, stopped; it stays stopped until fp_start()
 * @in_order:	VIRTIO_F_IN_ORDER was negotiated
 * @mergeable:	VIRTIO_NET_F_MRG_RXBUF was negotiated
 * @kick:	eventfd by which the other side is notified, or -1
 * @call:	eventfd by which it notifies us, not blocking, or -1. The caller closes both
 *
 * The queue's @headers say whether frames come and go with their headers; see queue.h.
 *
 * Empties the ring: sent frames that the other side had not yet used may be lost, received frames that were not fetched are lost.
 */
void fp_driver_attach(struct fp_queue *queue, int in_order, int mergeable, int kick, int call)
{
	struct driver *driver = driver_of(queue);

	driver->in_order = in_order;
	driver->mergeable = mergeable && !driver->transmit;
	driver->kick = kick;
	queue->room = driver->room + fp_overhead(queue);
	queue->event = call;
	atomic_store(&queue->fault, FP_SOUND);
	lay_out(driver);
}

/**
 * fp_driver_rings() - Name the addresses of the three parts of the ring
 * @queue:	A driver
 * @rings:	Set to our addresses of descriptors, avail ring, used ring
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
	free(driver);
}

/**
 * fp_driver_is() - Whether a queue is of this kind
 * @queue:	Any queue
 *
 * Return: true for a driver
 */
bool fp_driver_is(const struct fp_queue *queue)
{
	return queue->operations == &operations;
}
