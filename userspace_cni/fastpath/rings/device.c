// SPDX-License-Identifier: Apache-2.0
/* device.c - the device's side of a virtqueue, in memory that the other side lends
 *
 * THEORY OF OPERATION
 *
 * The front-end is a virtual machine or a container, and its memory can change while we read it. So each value is read once into
 * a variable of our own, checked there, and used from there:
 *
 *   - an index that has moved by more than the size of the ring is a fault, as is a descriptor's number beyond the ring;
 *   - a chain is followed for at most FP_CHAIN_MAX descriptors, and one burst takes at most as many chains as it was given frames
 *     (each frame that is sent: FP_CHAIN_MAX descriptors, however many chains they are in), so that a call has an end;
 *   - every address is looked up in at most FP_REGIONS regions; a buffer must lie in one of them;
 *   - indirect tables are not offered, so they are a fault;
 *   - memory that is taken away reads as zeros (guard.c): a burst checks the marks after its last access and before it returns,
 *     so that no caller gets frames made of those zeros.
 *
 * A fault ends the queue: nothing of that burst is returned, used.idx does not move, and `alarm` notifies the control plane.
 *
 * Buffers are always used in the order in which they are made available (VIRTIO_F_IN_ORDER), and the used ring is published
 * once per burst. While no thread sleeps, VIRTQ_USED_F_NO_NOTIFY is set. A thread sleeps on an epoll descriptor of our own that
 * watches the eventfd for kicks edge-triggered. So the eventfd never has to be read, which the front-end could make block, and
 * waiters go on sleeping when the front-end gives another eventfd.
 *
 * This file sets a queue up. Frames to the guest are in device_transmit.c, frames from it in device_receive.c. All this is about
 * split rings; packed_device.c has what differs with a packed one. Which of the two a queue has is known when it is attached.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "device.h"
#include "device_ring.h"
#include "packed_device.h"

/**
 * request_kicks() - Tell the driver whether to notify us
 * @device:	Device
 * @wanted:	Whether
 */
static void request_kicks(struct fp_device *device, int wanted)
{
	__atomic_store_n(&device->used->flags, wanted ? 0 : NO_NOTIFY, __ATOMIC_RELAXED);
}

/**
 * fp_device_forget_kicks() - Make the epoll descriptor wait for kicks that come from now on
 * @device:	Device
 */
void fp_device_forget_kicks(const struct fp_device *device)
{
	struct epoll_event event;

	(void)!epoll_wait(device->queue.event, &event, 1, 0);
}

/**
 * device_ready() - Whether buffers are available
 * @queue:	A device, taken
 *
 * Return: 1, 0, -EBADMSG
 */
static int device_ready(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;
	int count = available(device);

	return settled(device, count > 0 ? 1 : count);
}

/**
 * device_arm() - Ask the driver to notify us of new buffers
 * @queue:	A device, taken
 *
 * A driver that gave no eventfd has to be polled: then the result is always 1.
 *
 * Return: 1 when buffers are available already (then no notification is requested), 0, -EBADMSG
 */
static int device_arm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;
	int ready;

	fp_device_forget_kicks(device);
	request_kicks(device, 1);
	atomic_thread_fence(memory_order_seq_cst);
	ready = device_ready(queue);
	if (ready > 0 || device->kick < 0) {
		request_kicks(device, 0);
		ready = 1;
	}
	return settled(device, ready);
}

/**
 * device_disarm() - Ask the driver not to notify us
 * @queue:	A device, taken
 */
static void device_disarm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;

	request_kicks(device, 0);
	(void)settled(device, 0);
}

/**
 * refuse_to_send() - Refuse to send on a queue that receives
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * Return: -EOPNOTSUPP
 */
static int refuse_to_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	(void)queue, (void)frames, (void)stride, (void)lengths, (void)count;
	return -EOPNOTSUPP;
}

/**
 * refuse_to_receive() - Refuse to receive on a queue that sends
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: -EOPNOTSUPP
 */
static int refuse_to_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	(void)queue, (void)frames, (void)stride, (void)lengths, (void)capacity;
	return -EOPNOTSUPP;
}

static const struct fp_operations to_guest = { fp_device_send, refuse_to_receive, device_ready, device_arm, device_disarm };
static const struct fp_operations from_guest = { refuse_to_send, fp_device_receive, device_ready, device_arm, device_disarm };
static const struct fp_operations packed_to_guest = { fp_packed_device_send, refuse_to_receive, fp_packed_device_ready,
						      fp_packed_device_arm, fp_packed_device_disarm };
static const struct fp_operations packed_from_guest = { refuse_to_send, fp_packed_device_receive, fp_packed_device_ready,
							fp_packed_device_arm, fp_packed_device_disarm };

/**
 * fp_device_new() - Make a queue without rings, stopped
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
	device->queue.room = FP_LARGEST;
	device->transmit = transmit;
	device->kick = device->call = -1;
	device->alarm = alarm;
	atomic_store(&device->queue.state, FP_STOPPED);
	return &device->queue;
}

/**
 * watch() - Watch an eventfd for kicks in place of the current one
 * @device:	Device, stopped
 * @kick:	eventfd, -1 for none
 *
 * Return: 0, -errno of epoll_ctl(): none is watched then
 */
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

/**
 * resume() - Set the indices at which the queue goes on
 * @device:	Device with its rings in place
 * @base:	Index that the front-end names
 *
 * After its last back-end died, a front-end names the index up to which that one had read, or 0, as DPDK's virtio_user does. So the
 * ring tells where that one was: buffers that it had not used are read again. It is believed if the driver can have made as many
 * buffers available since then.
 */
static void resume(struct fp_device *device, uint32_t base)
{
	uint16_t used = __atomic_load_n(&device->used->index, __ATOMIC_RELAXED);
	uint16_t left = (uint16_t)(__atomic_load_n(&device->avail->index, __ATOMIC_RELAXED) - used);

	device->next_avail = device->next_used = left <= device->size ? used : (uint16_t)base;
}

/**
 * locate() - Find the parts of a split ring, and its indices
 * @device:	Device, detached
 * @memory:	Memory in which they must be
 * @ring:	Ring as the front-end describes it, with a size in range
 *
 * Return: 0, -EINVAL, what fp_by_user() returns
 */
static int locate(struct fp_device *device, const struct fp_memory *memory, const struct fp_ring *ring)
{
	uint64_t size = ring->size;
	void *desc, *avail, *used;
	int rc;

	if ((size & (size - 1)) || ring->base > UINT16_MAX)
		return -EINVAL;
	if ((rc = fp_by_user(memory, ring->descriptors, sizeof(struct desc) * size, 16, &desc)) ||
	    (rc = fp_by_user(memory, ring->available, sizeof(struct avail) + sizeof(uint16_t) * size, 2, &avail)) ||
	    (rc = fp_by_user(memory, ring->used, sizeof(struct used) + sizeof(struct used_element) * size, 4, &used)))
		return rc;
	device->desc = desc;
	device->avail = avail;
	device->used = used;
	resume(device, ring->base);
	request_kicks(device, 0);
	device->queue.operations = device->transmit ? &to_guest : &from_guest;
	return 0;
}

/**
 * fp_device_attach() - Give a queue its rings
 * @queue:	Stopped, without a fault: a fault stays for the life of the queue, whatever the front-end sends later
 * @memory:	Memory of the rings; must stay until the queue is detached, attached anew or closed
 * @ring:	Ring as the front-end describes it; its eventfds must stay open as long
 *
 * Return: 0; -EINVAL: size or base is out of range, -EFAULT: a ring is not wholly in a region, -EDOM: not aligned, -ESTALE:
 *	   the base is an old one; -EBADMSG: memory is gone; -ENOMEM; -errno of epoll_ctl(). After an error the queue is detached.
 */
int fp_device_attach(struct fp_queue *queue, const struct fp_memory *memory, const struct fp_ring *ring)
{
	struct fp_device *device = (struct fp_device *)queue;
	int rc;

	fp_device_detach(queue);
	if (!ring->size || ring->size > FP_RING_MAX)
		return -EINVAL;
	if ((rc = watch(device, ring->kick)))
		return rc;
	fp_guard_unblock();
	device->memory = memory;
	device->size = ring->size;
	device->call = ring->call;
	device->mergeable = ring->mergeable;
	device->in_order = ring->in_order;
	queue->room = FP_LARGEST + fp_overhead(queue);
	if (!ring->packed) {
		rc = locate(device, memory, ring);
	} else if (!(rc = fp_packed_device_locate(device, memory, ring))) {
		queue->operations = device->transmit ? &packed_to_guest : &packed_from_guest;
	}
	if (!rc)
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
	device->packed = NULL;
	device->driver_area = NULL;
	device->device_area = NULL;
	device->call = -1;
}

/**
 * fp_device_base() - Read the index at which a queue that is attached anew has to go on
 * @queue:	Stopped, attached
 *
 * Return: the base for the next attachment, see struct fp_ring
 */
uint32_t fp_device_base(const struct fp_queue *queue)
{
	const struct fp_device *device = (const struct fp_device *)queue;

	return device->packed ? fp_packed_device_base(device) : device->next_avail;
}

/**
 * fp_device_close() - Close a queue's file descriptor
 * @queue:	A device, closed and detached; its fault and counters can still be read, and it can be freed
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
	free(((struct fp_device *)queue)->uses);
	free(queue);
}
