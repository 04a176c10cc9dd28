// SPDX-License-Identifier: Apache-2.0
/* packed_device_transmit.c - frames into the guest's buffers in a packed ring; see packed_device.c */

#include <string.h>

#include "device_fill.h"
#include "packed_device.h"

/** struct give - A burst that is being sent
 * @at:		Place of the next buffer
 * @used:	Buffers that are filled, in device->uses
 * @taken:	Descriptors of those buffers
 */
struct give {
	struct packed_place at;
	uint32_t used;
	uint32_t taken;
};

/** struct frames - What is left of a burst
 * @data, @stride, @lengths, @count: As in struct fp_operations
 * @longest:	Bytes of the longest frame that can be sent
 * @header:	Bytes of it that are its header: FP_HEADER or 0
 */
struct frames {
	const uint8_t *data;
	uint32_t stride;
	const uint32_t *lengths;
	uint32_t count;
	uint32_t longest;
	uint32_t header;
};

/**
 * fill_chain() - Write as much of a frame into a chain of buffers as fits
 * @device:	Device
 * @chain:	Chain, at its beginning
 * @fill:	Frame
 *
 * The rest of the chain is read, too: its last descriptor has the buffer's number.
 *
 * Return: bytes written, -EBADMSG
 */
static int64_t fill_chain(struct fp_device *device, struct packed_chain *chain, struct fill *fill)
{
	int64_t written = 0;

	while (chain->more) {
		uint32_t room;
		uint8_t *data;

		if (packed_step(device, chain, &data, &room))
			return -EBADMSG;
		if (room)
			written += fill_buffer(fill, data, room);
	}
	return written;
}

/**
 * put() - Write a frame into the guest's buffers, whatever they are made of
 * @device:	Device
 * @give:	Burst; unchanged unless the frame fits
 * @fill:	Frame
 *
 * Return: 1, 0 when too few buffers are available, -EMSGSIZE: the frame can never fit, -EBADMSG
 */
static int put(struct fp_device *device, struct give *give, struct fill *fill)
{
	uint32_t room = device->size - give->taken, most = room < FP_CHAIN_MAX ? room : FP_CHAIN_MAX, buffers = 0, before;
	struct packed_chain chain = { .at = give->at, .left = most };

	while (fill->done < FP_HEADER + fill->length) {
		int64_t written;

		if (buffers && !device->mergeable)
			return -EMSGSIZE;
		if (most - chain.left == room)	/* All of the ring that this burst has not used */
			return give->taken ? 0 : -EMSGSIZE;
		if (!chain.left)
			return fail(device, FP_LOOP);
		before = chain.left;
		if (!packed_begin(device, &chain.at, &chain))
			return 0;
		if ((written = fill_chain(device, &chain, fill)) < 0)
			return -EBADMSG;
		if (written < FP_HEADER && fill->done < FP_HEADER + fill->length)
			return fail(device, FP_BAD_LENGTH);
		device->uses[give->used + buffers++] = packed_word((uint32_t)written, chain.id, (uint16_t)(before - chain.left));
	}
	count_buffers(fill, buffers);
	give->used += buffers;
	give->taken += most - chain.left;
	give->at = chain.at;
	return 1;
}

/**
 * put_singles() - Write frames into buffers that are one descriptor each, up to the first that does not fit
 * @device:	Device
 * @give:	Burst
 * @from:	Frames
 * @most:	How many buffers to look up at once, PACKED_AHEAD at most
 *
 * Return: frames
 */
static uint32_t put_singles(struct fp_device *device, struct give *give, const struct frames *from, uint32_t most)
{
	struct packed_buffer buffers[PACKED_AHEAD];
	uint32_t room = device->size - give->taken, count, i;

	if (most > from->count)
		most = from->count;
	if (most > room)
		most = room;
	count = packed_gather(device, give->at, buffers, most);
	for (i = 0; i < count; i++) {
		uint32_t length = __atomic_load_n(&from->lengths[i], __ATOMIC_RELAXED);
		const uint8_t *frame = from->data + (size_t)i * from->stride;

		if (length > from->longest || length < from->header || length - from->header > buffers[i].length - FP_HEADER)
			break;
		length -= from->header;
		write_header(buffers[i].data, from->header ? frame : no_offload);
		memcpy(buffers[i].data + FP_HEADER, frame + from->header, length);
		device->uses[give->used++] = packed_word(FP_HEADER + length, buffers[i].id, 1);
	}
	give->taken += i;
	packed_advance(device, &give->at, i);
	return i;
}

/**
 * put_any() - Write one frame into whatever buffers there are
 * @device:	Device
 * @give:	Burst
 * @from:	Frames, of which the first is written
 *
 * Return: 1 when it is taken, 0 when it is not, -EBADMSG
 */
static int put_any(struct fp_device *device, struct give *give, const struct frames *from)
{
	struct fill fill = { .header = from->header ? from->data : no_offload, .frame = from->data + from->header };
	uint32_t length = __atomic_load_n(from->lengths, __ATOMIC_RELAXED);
	int result;

	if (length > from->longest || length < from->header)
		return 0;
	fill.length = length - from->header;
	result = put(device, give, &fill);
	if (result != -EMSGSIZE)
		return result;
	fp_count(&device->queue.counters.refused, 1);
	return 1;
}

/**
 * fp_packed_device_send() - Send frames to the guest
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * As fp_device_send() in device_transmit.c. Where frames need several buffers, looking many up ahead of each is wasted.
 *
 * Return: frames taken, -EBADMSG
 */
int fp_packed_device_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct fp_device *device = (struct fp_device *)queue;
	struct frames left = { frames, stride, lengths, count, stride < queue->room ? stride : queue->room,
			       fp_overhead(queue) };
	struct give give = { .at = device->place };
	uint32_t ahead = PACKED_AHEAD;

	fp_guard_unblock();
	while (left.count) {
		int taken = (int)put_singles(device, &give, &left, ahead);

		ahead = taken ? PACKED_AHEAD : 1;
		if (!taken)
			taken = put_any(device, &give, &left);
		if (taken < 0)
			return taken;
		if (!taken)
			break;
		left.data += (size_t)taken * stride;
		left.lengths += taken;
		left.count -= (uint32_t)taken;
		if (give.used > PACKED_USES - FP_CHAIN_MAX) {
			packed_publish(device, give.used);
			give.used = give.taken = 0;
		}
	}
	if (give.used)
		packed_publish(device, give.used);
	return settled(device, (int)(count - left.count));
}
