// SPDX-License-Identifier: Apache-2.0
/* device_transmit.c - frames into the guest's buffers; see device.c */

#include "device_fill.h"
#include "device_ring.h"

/**
 * fill_chain() - Write as much of a frame into a chain of buffers as fits
 * @device:	Device
 * @walk:	Chain, at its beginning
 * @fill:	Frame
 *
 * Return: bytes written, -EBADMSG
 */
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

/**
 * put() - Write a frame into the guest's buffers
 * @device:	Device
 * @fill:	Frame
 * @ahead:	How many of the available buffers are used already
 * @count:	How many are available
 *
 * Return: buffers used, 0 when too few are available, -EMSGSIZE: the frame can never fit, -EBADMSG
 */
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
	count_buffers(fill, buffers);
	return (int)buffers;
}

/**
 * fp_device_send() - Send frames to the guest
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * A frame that can never fit in the guest's buffers is dropped and counted as refused. It also counts as taken, so that it does
 * not block the frames behind it.
 *
 * Return: frames taken, -EBADMSG
 */
int fp_device_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct fp_device *device = (struct fp_device *)queue;
	uint32_t longest = stride < queue->room ? stride : queue->room, header = fp_overhead(queue), used = 0, i;
	int ready = available(device);

	if (ready < 0)
		return ready;
	for (i = 0; i < count; i++) {
		const uint8_t *frame = frames + (size_t)i * stride;
		struct fill fill = { .header = header ? frame : no_offload, .frame = frame + header };
		uint32_t length = __atomic_load_n(&lengths[i], __ATOMIC_RELAXED);
		int taken;

		if (length > longest || length < header)
			break;
		fill.length = length - header;
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
