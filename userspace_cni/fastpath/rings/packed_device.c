// SPDX-License-Identifier: Apache-2.0
/* packed_device.c - the device's side of a packed virtqueue, in memory that the other side lends
 *
 * THEORY OF OPERATION
 *
 * device.c says that the guest is not trusted, and how it is checked. Here is what differs with a packed ring (virtio 1.1, 2.8).
 *
 * There is no index that says how many buffers are available: a descriptor says itself whether it is, by two bits of its flags
 * that are compared with our wrap counter. Length, id and flags are eight aligned bytes, and loaded at once. So the guest cannot
 * change one of them between the check and the use; the address is loaded once after them. One burst takes at most as many
 * descriptors as the ring has, however often the guest says that they are available again.
 *
 * A chain is a row of descriptors behind each other, of which the last one has the buffer's number. It has at most FP_CHAIN_MAX
 * of them, and no more than the ring. The number may be any, and is repeated as it was read.
 *
 * A used descriptor overwrites the first one of its buffer, as buffers are used in the order in which they are made available. It
 * is eight bytes again, stored at once. Nothing is stored before the end of a burst: the driver would see it on its next turn
 * through the ring even if the burst ended before that buffer. Then all are stored, the first one last, because the driver looks
 * at them in order. When the driver knows that the order is kept (VIRTIO_F_IN_ORDER), one used descriptor with the number of the
 * last buffer stands for all that were read.
 *
 * VIRTIO_F_EVENT_IDX is not offered, so a driver must only ask for all notifications or for none. The two other values of its
 * flags count as all: they can only cost the guest time, as we would be asked to notify it anyway.
 */

#include <stdlib.h>

#include "packed_device.h"

/**
 * fp_packed_device_ready() - Whether buffers are available
 * @queue:	A device, taken
 *
 * Return: 1, 0, -EBADMSG
 */
int fp_packed_device_ready(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;
	struct packed_chain chain;

	fp_guard_unblock();
	return settled(device, packed_begin(device, &device->place, &chain));
}

/**
 * fp_packed_device_arm() - Ask the driver to notify us of new buffers
 * @queue:	A device, taken
 *
 * Return: as device_arm() in device.c
 */
int fp_packed_device_arm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;
	int ready;

	fp_device_forget_kicks(device);
	fp_guard_unblock();
	packed_suppress(device->device_area, true);
	atomic_thread_fence(memory_order_seq_cst);
	ready = fp_packed_device_ready(queue);
	if (ready > 0 || device->kick < 0) {
		packed_suppress(device->device_area, false);
		ready = 1;
	}
	return settled(device, ready);
}

/**
 * fp_packed_device_disarm() - Ask the driver not to notify us
 * @queue:	A device, taken
 */
void fp_packed_device_disarm(struct fp_queue *queue)
{
	struct fp_device *device = (struct fp_device *)queue;

	fp_guard_unblock();
	packed_suppress(device->device_area, false);
	(void)settled(device, 0);
}

/**
 * to_place() - The place that a half of a base names
 * @half:	Number of a descriptor, and a wrap counter in bit 15
 *
 * Return: the place, perhaps beyond the ring
 */
static struct packed_place to_place(uint32_t half)
{
	struct packed_place place = { half & 0x7fff, half & 0x8000 ? PACKED_AVAIL : PACKED_USED };

	return place;
}

/**
 * resume() - Set the place at which the queue goes on
 * @device:	Device with its ring in place
 * @base:	Base that the front-end names, see struct fp_ring
 *
 * A device may have read buffers that it had not used. They are read again: the upper half says where they begin. It is not
 * believed where the descriptor is not available, as DPDK and its front-ends leave that half at 0.
 *
 * A ring has no index in memory. After a back-end has died, QEMU does not know where it was, and names an old place: there the ring
 * would carry nothing until the guest resets its card, without a word.
 *
 * Return: 0, -EINVAL: beyond the ring, -ESTALE: the next available descriptor has been used already
 */
static int resume(struct fp_device *device, uint32_t base)
{
	struct packed_place read = to_place(base), used = to_place(base >> 16);

	if (read.slot >= device->size || used.slot >= device->size)
		return -EINVAL;
	device->place = read;
	if (base >> 16 && packed_offered(packed_look(device, used.slot), &used))
		device->place = used;
	return packed_spent(packed_look(device, device->place.slot), &device->place) ? -ESTALE : 0;
}

/**
 * fp_packed_device_locate() - Find the parts of a packed ring, and the place where it goes on
 * @device:	Device, detached
 * @memory:	Memory in which they must be
 * @ring:	Ring as the front-end describes it, with a size in range; any number of descriptors will do
 *
 * Return: 0, -EINVAL: the base is beyond the ring, -ESTALE: it is an old one, -ENOMEM, what fp_by_user() returns
 */
int fp_packed_device_locate(struct fp_device *device, const struct fp_memory *memory, const struct fp_ring *ring)
{
	void *descriptors, *driver_area, *device_area;
	int rc;

	if (!device->uses && !(device->uses = calloc(PACKED_USES, sizeof(*device->uses))))
		return -ENOMEM;
	if ((rc = fp_by_user(memory, ring->descriptors, sizeof(struct packed_desc) * ring->size, 16, &descriptors)) ||
	    (rc = fp_by_user(memory, ring->available, sizeof(struct packed_event), 4, &driver_area)) ||
	    (rc = fp_by_user(memory, ring->used, sizeof(struct packed_event), 4, &device_area)))
		return rc;
	device->packed = descriptors;
	device->driver_area = driver_area;
	device->device_area = device_area;
	if ((rc = resume(device, ring->base)))
		return rc;
	packed_suppress(device->device_area, false);
	return 0;
}

/**
 * fp_packed_device_base() - Read the place at which a queue that is attached anew has to go on
 * @device:	Device with its ring in place
 *
 * Return: both halves of the base, which are equal: what is read is used
 */
uint32_t fp_packed_device_base(const struct fp_device *device)
{
	uint32_t half = device->place.slot | (device->place.available == PACKED_AVAIL ? 0x8000 : 0);

	return half | half << 16;
}
