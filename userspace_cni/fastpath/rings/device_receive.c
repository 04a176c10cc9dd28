// SPDX-License-Identifier: Apache-2.0
/* device_receive.c - frames out of the guest's buffers; see device.c */

#include <string.h>

#include "device_ring.h"

/**
 * take() - Copy the frame of one chain out
 * @device:	Device
 * @walk:	Chain, at its beginning
 * @frame:	Set to the frame's bytes
 * @stride:	Bytes of room in @frame
 * @skip:	Bytes of the header that the caller does not get
 * @length:	Set to the bytes of the frame, when there is one
 *
 * Return: 1, 0 when it is dropped, -EBADMSG
 */
static int take(struct fp_device *device, struct walk *walk, uint8_t *frame, uint32_t stride, uint32_t skip, uint32_t *length)
{
	uint32_t header = skip;
	uint64_t got = 0;

	while (walk->more) {
		uint32_t part, left_out;
		uint8_t *data;
		int rc = step(device, walk, &data, &part);

		if (rc)
			return rc;
		left_out = part < header ? part : header;
		header -= left_out;
		part -= left_out;
		if (part && got + part <= stride)
			memcpy(frame + got, data + left_out, part);
		got += part;
	}
	if (header || got < FP_HEADER - skip)
		return fail(device, FP_BAD_LENGTH);
	if (got > stride) {
		fp_count(&device->queue.counters.oversize, 1);
		return 0;
	}
	*length = (uint32_t)got;
	return got > FP_HEADER - skip;
}

/**
 * fp_device_receive() - Receive frames from the guest
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: frames, -EBADMSG: the caller must use no frame of that burst
 */
int fp_device_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct fp_device *device = (struct fp_device *)queue;
	uint32_t skip = FP_HEADER - fp_overhead(queue), received = 0, used;
	int ready = available(device);

	for (used = 0; ready > 0 && used < (uint32_t)ready && used < capacity; used++) {
		struct walk walk = { .left = FP_CHAIN_MAX };
		int head = begin(device, used, &walk), rc;

		if (head < 0)
			return head;
		rc = take(device, &walk, frames + (size_t)received * stride, stride, skip, &lengths[received]);
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
