// SPDX-License-Identifier: Apache-2.0
/* device.c - the device's side of a virtqueue, in memory that the other side lends
 *
 * THEORY OF OPERATION
 *
 * The front-end is a virtual machine or a container, and what is in its memory can change while we look: it is read once into
 * variables of our own, judged there, and used from there. So
 *
 *   - an index that has moved by more than the size of the ring is a fault, as is a number of a descriptor beyond it;
 *   - a chain is followed for at most FP_CHAIN_MAX descriptors, and one burst takes at most as many chains as it was given frames
 *     (each frame that is sent: FP_CHAIN_MAX descriptors, however many chains they are in), so that a call has an end;
 *   - every address is looked for among at most FP_REGIONS regions; a buffer must lie in one of them;
 *   - indirect tables are not offered, and so are a fault;
 *   - memory that is taken away reads as zeros (guard.c): a burst looks at the marks after its last access and before it returns,
 *     so that nobody is given what was made of them.
 *
 * A fault ends the queue: nothing of that burst is returned, used.idx is not moved for it, and `alarm` tells the control plane.
 *
 * Buffers are used in the order in which they are made available, always (VIRTIO_F_IN_ORDER), and the used ring is published
 * once per burst. While nobody sleeps, VIRTQ_USED_F_NO_NOTIFY is set. Who sleeps does so on an epoll descriptor of our own in
 * which the eventfd for kicks is watched edge-triggered: it never has to be read, so that nobody else can make that block, and
 * waiters stay where they are when the front-end gives another one.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "device.h"
#include "events.h"
#include "vring.h"

/** struct fp_device - A queue as its device sees it
 * @queue:	What is common; its event is an epoll descriptor of ours
 * @memory:	Where rings and buffers are
 * @desc:	Table of @size descriptors
 * @avail:	Ring that the driver writes
 * @used:	Ring that we write
 * @size:	A power of two
 * @next_avail:	Index of the next available buffer to look at
 * @next_used:	Index of the next used element to write
 * @transmit:	Whether buffers are for us to write: frames go to the guest
 * @mergeable:	Whether a frame may be spread over several of them
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
	int transmit;
	int mergeable;
	int kick;
	int call;
	int alarm;
};

/** struct walk - A chain of descriptors that is being followed
 * @index:	Next descriptor, when @more
 * @more:	Whether there is one
 * @left:	How many may still follow
 */
struct walk {
	uint32_t index;
	uint32_t left;
	int more;
};

/** struct fill - A frame on its way into buffers of the guest
 * @frame:	Its bytes
 * @length:	Their number
 * @done:	Bytes written, of FP_HEADER + @length
 * @last:	Where the last two bytes of the header went, as a buffer may end between them
 */
struct fill {
	const uint8_t *frame;
	uint32_t length;
	uint32_t done;
	uint8_t *last[2];
};

/* A fault, for which zeros in place of memory that was taken away may be the reason */
static int fail(struct fp_device *device, enum fp_fault fault)
{
	atomic_store(&device->queue.fault, fp_memory_gone(device->memory) ? FP_MEMORY_GONE : fault);
	if (device->alarm >= 0)
		fp_notify(device->alarm);
	return -EBADMSG;
}

/* Ends a burst: memory that is gone makes its result worthless */
static int settled(struct fp_device *device, int result)
{
	return fp_memory_gone(device->memory) ? fail(device, FP_MEMORY_GONE) : result;
}

/* Buffers that the driver has made available, -EBADMSG */
static int available(struct fp_device *device)
{
	uint16_t index, count;

	fp_guard_unblock();
	index = __atomic_load_n(&device->avail->index, __ATOMIC_ACQUIRE);
	count = (uint16_t)(index - device->next_avail);
	return count > device->size ? fail(device, FP_INDEX_JUMP) : count;
}

/* Begin the chain that is @ahead buffers after the next one; its number, or -EBADMSG */
static int begin(struct fp_device *device, uint32_t ahead, struct walk *walk)
{
	uint32_t slot = (device->next_avail + ahead) & (device->size - 1);
	uint16_t head = __atomic_load_n(&device->avail->ring[slot], __ATOMIC_RELAXED);

	if (head >= device->size)
		return fail(device, FP_BAD_ID);
	walk->index = head;
	walk->more = 1;
	return head;
}

/* The next buffer of a chain: 0, -EBADMSG. One without bytes has no place, and is passed over by whoever uses it. */
static int step(struct fp_device *device, struct walk *walk, uint8_t **data, uint32_t *length)
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

/* Write an element of the used ring, which nobody looks at before publish() */
static void use(struct fp_device *device, uint32_t ahead, uint32_t id, uint32_t length)
{
	struct used_element *element = &device->used->ring[(device->next_used + ahead) & (device->size - 1)];

	__atomic_store_n(&element->id, id, __ATOMIC_RELAXED);
	__atomic_store_n(&element->length, length, __ATOMIC_RELAXED);
}

/* Hand buffers back, and tell the driver unless it does not want to be told */
static void publish(struct fp_device *device, uint32_t count)
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

/* Write as much of header and frame into a buffer as fits; the number of buffers is not known yet */
static uint32_t fill_buffer(struct fill *fill, uint8_t *data, uint32_t room)
{
	uint32_t written = 0, part;

	while (fill->done < FP_HEADER && written < room) {
		if (fill->done >= NUM_BUFFERS)
			fill->last[fill->done - NUM_BUFFERS] = data + written;
		data[written++] = 0;
		fill->done++;
	}
	part = FP_HEADER + fill->length - fill->done;
	if (part > room - written)
		part = room - written;
	if (part) {
		memcpy(data + written, fill->frame + (fill->done - FP_HEADER), part);
		fill->done += part;
	}
	return written + part;
}

/* Fill one chain: bytes written, -EBADMSG */
static int64_t fill_chain(struct fp_device *device, struct walk *walk, struct fill *fill)
{
	int64_t written = 0;

	while (walk->more && fill->done < FP_HEADER + fill->length) {
		uint32_t room;
		uint8_t *data;
		int rc = step(device, walk, &data, &room);

		if (rc)
			return rc;
		if (room)
			written += fill_buffer(fill, data, room);
	}
	return written;
}

/* Send a frame in buffers from @ahead on of @count: buffers used, 0 when they are too few, -EMSGSIZE: it never fits, -EBADMSG */
static int put(struct fp_device *device, struct fill *fill, uint32_t ahead, uint32_t count)
{
	struct walk walk = { .left = FP_CHAIN_MAX };
	uint32_t buffers = 0;

	while (fill->done < FP_HEADER + fill->length) {
		int64_t written;
		int head;

		if (buffers && !device->mergeable)
			return -EMSGSIZE;
		if (ahead + buffers == count)
			return count == device->size && !ahead ? -EMSGSIZE : 0;
		if ((head = begin(device, ahead + buffers, &walk)) < 0)
			return head;
		if ((written = fill_chain(device, &walk, fill)) < 0)
			return (int)written;
		if (written < FP_HEADER && fill->done < FP_HEADER + fill->length)
			return fail(device, FP_BAD_LENGTH);
		use(device, ahead + buffers, (uint32_t)head, (uint32_t)written);
		buffers++;
	}
	*fill->last[0] = (uint8_t)buffers;
	*fill->last[1] = (uint8_t)(buffers >> 8);
	return (int)buffers;
}

/**
 * device_send() - Send frames to the guest; see struct fp_operations
 *
 * A frame that can never fit in what the guest provides is dropped and counted as refused, although it counts as taken: it does
 * not stand in the way of those behind it.
 */
static int device_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct fp_device *device = (struct fp_device *)queue;
	uint32_t longest = stride < queue->room ? stride : queue->room, used = 0, i;
	int ready = available(device);

	if (ready < 0)
		return ready;
	for (i = 0; i < count; i++) {
		struct fill fill = { .frame = frames + (size_t)i * stride };
		int taken;

		fill.length = __atomic_load_n(&lengths[i], __ATOMIC_RELAXED);
		if (fill.length > longest)
			break;
		taken = put(device, &fill, used, (uint32_t)ready);
		if (taken == -EMSGSIZE)
			fp_count(&queue->counters.refused, 1);
		else if (taken < 0)
			return taken;
		else if (!taken)
			break;
		else
			used += (uint32_t)taken;
	}
	if (used)
		publish(device, used);
	return settled(device, (int)i);
}

/* Copy the frame of one chain out: 1, 0 when it is dropped, -EBADMSG */
static int take(struct fp_device *device, struct walk *walk, uint8_t *frame, uint32_t stride, uint32_t *length)
{
	uint32_t header = FP_HEADER;
	uint64_t got = 0;

	while (walk->more) {
		uint32_t part, skip;
		uint8_t *data;
		int rc = step(device, walk, &data, &part);

		if (rc)
			return rc;
		skip = part < header ? part : header;
		header -= skip;
		part -= skip;
		if (part && got + part <= stride)
			memcpy(frame + got, data + skip, part);
		got += part;
	}
	if (header)
		return fail(device, FP_BAD_LENGTH);
	if (got > stride) {
		fp_count(&device->queue.counters.oversize, 1);
		return 0;
	}
	*length = (uint32_t)got;
	return got > 0;
}

/** device_receive() - Receive frames from the guest; see struct fp_operations */
static int device_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct fp_device *device = (struct fp_device *)queue;
	uint32_t received = 0, used;
	int ready = available(device);

	for (used = 0; ready > 0 && used < (uint32_t)ready && used < capacity; used++) {
		struct walk walk = { .left = FP_CHAIN_MAX };
		int head = begin(device, used, &walk), rc;

		if (head < 0)
			return head;
		rc = take(device, &walk, frames + (size_t)received * stride, stride, &lengths[received]);
		if (rc < 0)
			return rc;
		use(device, used, (uint32_t)head, 0);
		received += (uint32_t)rc;
	}
	if (ready < 0)
		return ready;
	if (used)
		publish(device, used);
	return settled(device, (int)received);
}

static void want_kicks(struct fp_device *device, int wanted)
{
	__atomic_store_n(&device->used->flags, wanted ? 0 : NO_NOTIFY, __ATOMIC_RELAXED);
}

/** device_arm() - Ask to be notified; see struct fp_operations. A driver that gave no eventfd has to be polled: 1 */
static int device_arm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;
	struct epoll_event event;
	int ready;

	(void)!epoll_wait(queue->event, &event, 1, 0);	/* Kicks from here on count */
	want_kicks(device, 1);
	atomic_thread_fence(memory_order_seq_cst);
	ready = available(device);
	if (ready > 0 || device->kick < 0) {
		want_kicks(device, 0);
		ready = 1;
	}
	return settled(device, ready);
}

/** device_disarm() - Take that back; see struct fp_operations */
static void device_disarm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;

	want_kicks(device, 0);
	(void)settled(device, 0);
}

static int refuse(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	(void)queue, (void)frames, (void)stride, (void)lengths, (void)count;
	return -EOPNOTSUPP;
}

static int refuse_too(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	(void)queue, (void)frames, (void)stride, (void)lengths, (void)capacity;
	return -EOPNOTSUPP;
}

static const struct fp_operations to_guest = { device_send, refuse_too, device_arm, device_disarm };
static const struct fp_operations from_guest = { refuse, device_receive, device_arm, device_disarm };

/**
 * fp_device_new() - A queue without rings, stopped
 * @transmit:	1: frames go to the guest, 0: they come from it
 * @alarm:	eventfd of ours that a fault makes readable, -1 for none
 *
 * Return: the queue, NULL with errno set
 */
struct fp_queue *fp_device_new(int transmit, int alarm)
{
	struct fp_device *device = calloc(1, sizeof(*device));

	if (!device)
		return NULL;
	device->queue.event = epoll_create1(EPOLL_CLOEXEC);
	if (device->queue.event < 0) {
		free(device);
		return NULL;
	}
	device->queue.operations = transmit ? &to_guest : &from_guest;
	device->queue.room = FP_DEVICE_ROOM;
	device->transmit = transmit;
	device->kick = device->call = -1;
	device->alarm = alarm;
	atomic_store(&device->queue.state, FP_STOPPED);
	return &device->queue;
}

/* Watch another eventfd, or the same again, or none */
static int watch(struct fp_device *device, int kick)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };

	if (device->kick >= 0)
		epoll_ctl(device->queue.event, EPOLL_CTL_DEL, device->kick, NULL);
	device->kick = -1;
	if (kick >= 0 && epoll_ctl(device->queue.event, EPOLL_CTL_ADD, kick, &event))
		return -errno;
	device->kick = kick;
	return 0;
}

/* Where to go on. A front-end whose last back-end died says how far that one had looked; what it has not used is looked at again. */
static void resume(struct fp_device *device, uint32_t base)
{
	uint16_t used = __atomic_load_n(&device->used->index, __ATOMIC_RELAXED), lost = (uint16_t)(base - used);

	device->next_avail = device->next_used = lost <= device->size ? used : (uint16_t)base;
}

/**
 * fp_device_attach() - Give a queue its rings
 * @queue:	Stopped, without a fault: that stays for the life of the queue, whatever the front-end says later
 * @memory:	Where they are; stays until the queue is detached, attached anew or closed
 * @ring:	What the front-end says; its eventfds stay open as long
 *
 * Return: 0; -EINVAL: size or base can not be, -EFAULT: a ring is not wholly in a region, -EDOM: not aligned; -EBADMSG: memory is
 *	   gone; -errno of epoll_ctl(). The queue is detached then.
 */
int fp_device_attach(struct fp_queue *queue, const struct fp_memory *memory, const struct fp_ring *ring)
{
	struct fp_device *device = (struct fp_device *)queue;
	void *desc, *avail, *used;
	uint64_t size = ring->size;
	int rc = -EINVAL;

	fp_device_detach(queue);
	if (!size || size > FP_RING_MAX || (size & (size - 1)) || ring->base > UINT16_MAX)
		return rc;
	if ((rc = fp_by_user(memory, ring->descriptors, sizeof(struct desc) * size, 16, &desc)) ||
	    (rc = fp_by_user(memory, ring->available, sizeof(struct avail) + sizeof(uint16_t) * size, 2, &avail)) ||
	    (rc = fp_by_user(memory, ring->used, sizeof(struct used) + sizeof(struct used_element) * size, 4, &used)))
		return rc;
	if ((rc = watch(device, ring->kick)))
		return rc;
	fp_guard_unblock();
	device->memory = memory;
	device->desc = desc;
	device->avail = avail;
	device->used = used;
	device->size = ring->size;
	device->call = ring->call;
	device->mergeable = ring->mergeable;
	resume(device, ring->base);
	want_kicks(device, 0);
	rc = settled(device, 0);
	if (rc)
		fp_device_detach(queue);
	return rc;
}

/**
 * fp_device_detach() - Forget rings, memory and eventfds
 * @queue:	Stopped or closed
 */
void fp_device_detach(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;

	watch(device, -1);
	device->memory = NULL;
	device->desc = NULL;
	device->avail = NULL;
	device->used = NULL;
	device->call = -1;
}

/**
 * fp_device_base() - Where a queue that is attached anew has to go on
 * @queue:	Stopped
 *
 * Return: index of the next available buffer
 */
uint16_t fp_device_base(const struct fp_queue *queue)
{
	return ((const struct fp_device *)queue)->next_avail;
}

/**
 * fp_device_close() - Give back what a queue has of the kernel
 * @queue:	A device, closed and detached; it can be asked for faults and counters, and freed
 */
void fp_device_close(struct fp_queue *queue)
{
	if (queue->event >= 0)
		close(queue->event);
	queue->event = -1;
}

/**
 * fp_device_free() - Free a queue
 * @queue:	Closed
 */
void fp_device_free(struct fp_queue *queue)
{
	fp_device_close(queue);
	free(queue);
}
