/* SPDX-License-Identifier: Apache-2.0 */
/* device_ring.h - internals of a device's queue: for device*.c and packed_device*.c alone
 *
 * Functions that run per frame are inline here, so that the compiler sees them in each of these files.
 */

#ifndef FASTPATH_DEVICE_RING_H
#define FASTPATH_DEVICE_RING_H

#include <errno.h>

#include "device.h"
#include "events.h"
#include "vring.h"

#define PACKED_USES	(2 * FP_CHAIN_MAX)	/* buffers that are handed back together */

/** struct packed_place - A descriptor of a packed ring
 * @slot:	Its number
 * @available:	How PACKED_AVAIL and PACKED_USED are set when it is available there: the wrap counter, in other words
 */
struct packed_place {
	uint32_t slot;
	uint16_t available;
};

/** struct fp_device - A queue as its device sees it
 * @queue:	The part of every queue; its event is an epoll descriptor of our own
 * @memory:	Memory of rings and buffers
 * @desc:	Split ring: table of @size descriptors
 * @avail:	Split ring: ring that the driver writes
 * @used:	Split ring: ring that we write
 * @size:	Descriptors; of a split ring a power of two
 * @next_avail:	Split ring: index of the next available buffer to look at
 * @next_used:	Split ring: index of the next used element to write
 * @packed:	Packed ring: its descriptors, which both sides write; NULL for a split ring
 * @driver_area: Packed ring: whether the driver wants to be notified
 * @device_area: Packed ring: whether we do
 * @place:	Packed ring: the next descriptor to look at, and to write when it is used
 * @uses:	Packed ring: room for PACKED_USES buffers that are to be handed back together: of each the word of its used descriptor,
 *		with the number of its descriptors in place of flags
 * @transmit:	Whether frames go to the guest, so that we write the buffers
 * @mergeable:	Whether a frame may be spread over several buffers
 * @in_order:	Whether the driver knows that buffers are used in their order, so that the last one of a burst stands for all
 * @kick:	Watched by the epoll descriptor, -1 for none
 * @call:	Notified when buffers have been used, -1 for none
 * @alarm:	Notified of a fault, -1 for none
 */
struct fp_device {
	struct fp_queue queue;
	const struct fp_memory *memory;
	const struct desc *desc;
	struct avail *avail;
	struct used *used;
	uint32_t size;
	uint16_t next_avail;
	uint16_t next_used;
	struct packed_desc *packed;
	struct packed_event *driver_area;
	struct packed_event *device_area;
	struct packed_place place;
	uint64_t *uses;
	int transmit;
	int mergeable;
	int in_order;
	int kick;
	int call;
	int alarm;
};

/** struct walk - A chain of descriptors that is being followed
 * @index:	Next descriptor, when @more
 * @more:	Whether there is a next descriptor
 * @left:	How many descriptors may still follow
 */
struct walk {
	uint32_t index;
	uint32_t left;
	int more;
};

/**
 * fail() - End the use of a queue, and notify the control plane
 * @device:	Device
 * @fault:	What is wrong; FP_MEMORY_GONE is recorded instead when memory was taken away, as its zeros may be the reason
 *
 * Return: -EBADMSG, for the caller to return
 */
static inline int fail(struct fp_device *device, enum fp_fault fault)
{
	atomic_store(&device->queue.fault, fp_memory_gone(device->memory) ? FP_MEMORY_GONE : fault);
	if (device->alarm >= 0)
		fp_notify(device->alarm);
	return -EBADMSG;
}

/**
 * settled() - End a burst; its result is an error when memory is gone
 * @device:	Device
 * @result:	Result of the burst so far
 *
 * Return: @result, or -EBADMSG
 */
static inline int settled(struct fp_device *device, int result)
{
	return fp_memory_gone(device->memory) ? fail(device, FP_MEMORY_GONE) : result;
}

/**
 * available() - Count the buffers that the driver has made available
 * @device:	Device
 *
 * Return: number of buffers, -EBADMSG
 */
static inline int available(struct fp_device *device)
{
	uint16_t index, count;

	fp_guard_unblock();
	index = __atomic_load_n(&device->avail->index, __ATOMIC_ACQUIRE);
	count = (uint16_t)(index - device->next_avail);
	return count > device->size ? fail(device, FP_INDEX_JUMP) : count;
}

/**
 * begin() - Begin to follow a chain
 * @device:	Device
 * @ahead:	How many buffers after the next one, fewer than are available
 * @walk:	Set to its first descriptor; @left stays as it is
 *
 * Return: number of the first descriptor, or -EBADMSG
 */
static inline int begin(struct fp_device *device, uint32_t ahead, struct walk *walk)
{
	uint32_t slot = (device->next_avail + ahead) & (device->size - 1);
	uint16_t head = __atomic_load_n(&device->avail->ring[slot], __ATOMIC_RELAXED);

	if (head >= device->size)
		return fail(device, FP_BAD_ID);
	walk->index = head;
	walk->more = 1;
	return head;
}

/**
 * step() - Read the next descriptor of a chain
 * @device:	Device
 * @walk:	Chain that has a next descriptor
 * @data:	Set to our address of the buffer; NULL for an empty one, which the caller must skip
 * @length:	Set to its bytes
 *
 * Each field of the descriptor is read once: the guest may change it meanwhile.
 *
 * Return: 0, -EBADMSG
 */
static inline int step(struct fp_device *device, struct walk *walk, uint8_t **data, uint32_t *length)
{
	const struct desc *shared = &device->desc[walk->index];
	uint64_t address = __atomic_load_n(&shared->address, __ATOMIC_RELAXED);
	uint16_t flags = __atomic_load_n(&shared->flags, __ATOMIC_RELAXED);
	uint16_t next = __atomic_load_n(&shared->next, __ATOMIC_RELAXED);

	*length = __atomic_load_n(&shared->length, __ATOMIC_RELAXED);
	*data = NULL;
	if (!walk->left--)
		return fail(device, FP_LOOP);
	if ((flags & DESC_INDIRECT) || !(flags & DESC_WRITE) != !device->transmit)
		return fail(device, FP_BAD_FLAGS);
	if (*length && !(*data = fp_by_guest(device->memory, address, *length)))
		return fail(device, FP_BAD_ADDRESS);
	walk->more = flags & DESC_NEXT;
	if (walk->more && next >= device->size)
		return fail(device, FP_BAD_ID);
	walk->index = next;
	return 0;
}

/**
 * use() - Write an element of the used ring; the driver does not read it before publish()
 * @device:	Device
 * @ahead:	How many buffers after the next one
 * @id:		First descriptor of its chain
 * @length:	Bytes written to it
 */
static inline void use(struct fp_device *device, uint32_t ahead, uint32_t id, uint32_t length)
{
	struct used_element *element = &device->used->ring[(device->next_used + ahead) & (device->size - 1)];

	__atomic_store_n(&element->id, id, __ATOMIC_RELAXED);
	__atomic_store_n(&element->length, length, __ATOMIC_RELAXED);
}

/**
 * publish() - Hand buffers back, and notify the driver unless it has asked for no notification
 * @device:	Device
 * @count:	Buffers, for each of which use() was called
 */
static inline void publish(struct fp_device *device, uint32_t count)
{
	device->next_avail = (uint16_t)(device->next_avail + count);
	device->next_used = (uint16_t)(device->next_used + count);
	__atomic_store_n(&device->used->index, device->next_used, __ATOMIC_RELEASE);
	if (device->call < 0)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (__atomic_load_n(&device->avail->flags, __ATOMIC_RELAXED) & NO_INTERRUPT)
		return;
	fp_count(&device->queue.counters.kicks, (uint64_t)fp_notify(device->call));
}

void fp_device_forget_kicks(const struct fp_device *device);

/* The operations of the two directions; see struct fp_operations */
int fp_device_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
int fp_device_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);

#endif /* FASTPATH_DEVICE_RING_H */
