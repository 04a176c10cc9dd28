// SPDX-License-Identifier: Apache-2.0
/* packed_device_receive.c - frames out of the guest's buffers in a packed ring; see packed_device.c */

#include <string.h>

#include "packed_device.h"

/** struct take - A burst that is being received
 * @frames:	Where frames go
 * @stride:	Bytes of room for each
 * @lengths:	Set to the bytes of each
 * @skip:	Bytes of the header that the caller does not get
 * @received:	Frames
 * @used:	Buffers, in device->uses
 * @at:		Place of the next buffer
 * @taken:	Descriptors of those buffers
 */
struct take {
	uint8_t *frames;
	uint32_t stride;
	uint32_t *lengths;
	uint32_t skip;
	uint32_t received;
	uint32_t used;
	struct packed_place at;
	uint32_t taken;
};

/**
 * note() - Note a buffer as used, and its frame as received
 * @device:	Device
 * @take:	Burst, whose next frame's bytes are in place
 * @length:	Bytes of it; without any behind the header, or with more than there is room for, it is dropped
 * @id:		Number of the buffer
 * @descriptors: How many it has
 */
static inline void note(struct fp_device *device, struct take *take, uint64_t length, uint16_t id, uint32_t descriptors)
{
	device->uses[take->used++] = packed_word(0, id, (uint16_t)descriptors);
	take->taken += descriptors;
	if (length > take->stride)
		fp_count(&device->queue.counters.oversize, 1);
	else if (length > FP_HEADER - take->skip)
		take->lengths[take->received++] = (uint32_t)length;
}

/**
 * take_singles() - Copy out frames that are in one descriptor each
 * @device:	Device
 * @take:	Burst
 * @most:	Most buffers
 *
 * Return: buffers
 */
static uint32_t take_singles(struct fp_device *device, struct take *take, uint32_t most)
{
	struct packed_buffer buffers[PACKED_AHEAD];
	uint32_t count = packed_gather(device, take->at, buffers, most), i;

	for (i = 0; i < count; i++) {
		uint32_t length = buffers[i].length - take->skip;

		if (length <= take->stride)
			memcpy(take->frames + (size_t)take->received * take->stride, buffers[i].data + take->skip, length);
		note(device, take, length, buffers[i].id, 1);
	}
	packed_advance(device, &take->at, count);
	return count;
}

/**
 * take_chain() - Copy out the frame of the next buffer, which may be a chain
 * @device:	Device
 * @take:	Burst
 *
 * Return: 1, 0 when no buffer is available, -EBADMSG
 */
static int take_chain(struct fp_device *device, struct take *take)
{
	uint8_t *frame = take->frames + (size_t)take->received * take->stride;
	uint32_t most = device->size - take->taken, header = take->skip;
	struct packed_chain chain = { .left = most < FP_CHAIN_MAX ? most : FP_CHAIN_MAX };
	uint32_t left = chain.left;
	uint64_t got = 0;

	if (!packed_begin(device, &take->at, &chain))
		return 0;
	while (chain.more) {
		uint32_t part, left_out;
		uint8_t *data;

		if (packed_step(device, &chain, &data, &part))
			return -EBADMSG;
		left_out = part < header ? part : header;
		header -= left_out;
		part -= left_out;
		if (part && got + part <= take->stride)
			memcpy(frame + got, data + left_out, part);
		got += part;
	}
	if (header || got < FP_HEADER - take->skip)
		return fail(device, FP_BAD_LENGTH);
	note(device, take, got, chain.id, left - chain.left);
	take->at = chain.at;
	return 1;
}

/**
 * hand_back() - Hand all buffers of a burst back
 * @device:	Device
 * @take:	Burst, with one buffer at least; empty afterwards
 */
static void hand_back(struct fp_device *device, struct take *take)
{
	if (device->in_order) {
		device->uses[0] = packed_word(0, packed_id(device->uses[take->used - 1]), (uint16_t)take->taken);
		take->used = 1;
	}
	packed_publish(device, take->used);
	take->used = take->taken = 0;
}

/**
 * fp_packed_device_receive() - Receive frames from the guest
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: frames, -EBADMSG: the caller must use no frame of that burst
 */
int fp_packed_device_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct fp_device *device = (struct fp_device *)queue;
	struct take take = { .frames = frames, .stride = stride, .lengths = lengths, .at = device->place };
	uint32_t left = capacity < PACKED_USES ? capacity : PACKED_USES;
	int got = 1;

	take.skip = FP_HEADER - fp_overhead(queue);
	fp_guard_unblock();
	while (got && left && take.taken < device->size) {
		uint32_t most = left, room = device->size - take.taken;

		if (most > PACKED_AHEAD)
			most = PACKED_AHEAD;
		if (most > room)
			most = room;
		got = (int)take_singles(device, &take, most);
		if (!got)
			got = take_chain(device, &take);
		if (got < 0)
			return got;
		left -= (uint32_t)got;
	}
	if (take.used)
		hand_back(device, &take);
	return settled(device, (int)take.received);
}
