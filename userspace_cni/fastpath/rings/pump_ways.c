// SPDX-License-Identifier: Apache-2.0
/* pump_ways.c - the two directions of a pump: from the tap to the ring, and back
 *
 * THEORY OF OPERATION
 *
 * Without headers each frame is carried as it is. With headers, the kernel's TCP frames may be 64 KiB long, and their checksums may be
 * left to be completed, as the header says:
 *
 *   to the ring	they are sent as they are if the other side takes such frames; else they are cut into frames of the wire,
 *			with their checksums (cut_segments.c)
 *   to the tap		large frames of the other side are written as they are; small ones that follow each other in a flow are
 *			written as one (merge_segments.c), because a write costs as much as 20 of them
 *
 * Headers of the other side lie: each is judged with its frame (net_header.c). The kernel refuses what it does not like, too, and
 * that frame is dropped and counted like any other that it does not take. A checksum for which a header vouches is made right where
 * the frame lacks it, for the kernel looks at the frame alone.
 *
 * A batch ends early when it has LARGE_BATCH bytes: large frames stay in the cache between read and send, and little memory is used.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net_header.h"
#include "pump_ways.h"
#include "segment.h"

#define LARGE_BATCH	(4 * 65536)	/* bytes after which a batch has no more frames */
#define LARGE_CAPACITY	8		/* frames of the next burst, when the last one had large frames */

/**
 * read_frame() - Call read(2) without libc's point of cancellation, which costs time per frame in a process of several threads
 * @tap:	Tap
 * @frame:	Room for the frame
 * @size:	Bytes of room
 *
 * Return: bytes of the frame, cut off at @size; -1 with errno set
 */
static ssize_t read_frame(int tap, uint8_t *frame, size_t size)
{
	return syscall(SYS_read, tap, frame, size);
}

/**
 * write_frame() - Call write(2) in the same way
 * @tap:	Tap
 * @frame:	Frame
 * @size:	Its bytes
 *
 * Return: bytes written, -1 with errno set
 */
static ssize_t write_frame(int tap, const uint8_t *frame, size_t size)
{
	return syscall(SYS_write, tap, frame, size);
}

/**
 * write_pieces() - Call writev(2) in the same way
 * @tap:	Tap
 * @merged:	Frame
 *
 * Return: bytes written, -1 with errno set
 */
static ssize_t write_pieces(int tap, const struct fp_merged *merged)
{
	return syscall(SYS_writev, tap, merged->pieces, (size_t)merged->piece_count);
}

/**
 * read_tap() - Read up to a batch of frames from the tap
 * @pump:	Pump that holds no frames
 * @room:	Longest frame that can be sent, bytes
 *
 * Return: frames read, which the pump now holds; -ENODEV: the tap is gone
 */
static int read_tap(struct fp_pump *pump, uint32_t room)
{
	uint32_t shortest = FP_SHORTEST + (pump->headers ? FP_HEADER : 0), count = 0, bytes = 0, tries;

	if (room > pump->stride - 1)
		room = pump->stride - 1;

	for (tries = 0; tries < FP_PUMP_BATCH && bytes < LARGE_BATCH; tries++) {
		uint8_t *frame = pump->up + (size_t)count * pump->stride;
		ssize_t length = read_frame(pump->tap, frame, pump->stride);

		if (length > (ssize_t)room || (length > 0 && length < (ssize_t)shortest)) {
			pump->to_ring.dropped++;
		} else if (length > 0 && pump->headers && !fp_header_sound(frame, (uint32_t)length, pump->longest)) {
			pump->to_ring.dropped++;
		} else if (length > 0) {
			if (pump->headers)	/* a kernel says it of frames that it forwards; a driver must not (virtio 1.2, 5.1.6.2.1) */
				frame[0] &= (uint8_t)~FP_DATA_VALID;
			pump->up_lengths[count++] = (uint32_t)length;
			bytes += (uint32_t)length;
		} else {
			if (!count && (!length || (errno != EAGAIN && errno != EINTR)))
				return -ENODEV;
			break;
		}
	}

	pump->first = 0;
	pump->held = count;
	return (int)count;
}

/**
 * cut_on() - Make frames for the ring of the frame that is being cut
 * @pump:	Pump
 * @count:	Frames that there are already
 *
 * Return: how many there are then
 */
static uint32_t cut_on(struct fp_pump *pump, uint32_t count)
{
	uint8_t *at = pump->up + (size_t)count * pump->stride;
	uint32_t made = fp_cut_next(&pump->cut, at + FP_HEADER, pump->stride, pump->up_lengths + count, FP_PUMP_BATCH - count);

	for (uint32_t i = 0; i < made; i++, at += pump->stride) {
		memset(at, 0, FP_HEADER);	/* nothing is left to do */
		pump->up_lengths[count + i] += FP_HEADER;
	}
	return count + made;
}

/**
 * cut_tap() - Read frames from the tap, and cut them, up to a batch for the ring
 * @pump:	Pump that holds no frames
 * @room:	Longest frame that can be sent, bytes
 *
 * Return: frames, which the pump now holds; -ENODEV: the tap is gone
 */
static int cut_tap(struct fp_pump *pump, uint32_t room)
{
	uint32_t longest = room - FP_HEADER < pump->longest ? room - FP_HEADER : pump->longest, count, tries;

	count = pump->cut.more ? cut_on(pump, 0) : 0;
	for (tries = 0; tries < FP_PUMP_BATCH && count < FP_PUMP_BATCH; tries++) {
		ssize_t length = read_frame(pump->tap, pump->large, pump->stride);

		if (length <= 0) {
			if (!count && (!length || (errno != EAGAIN && errno != EINTR)))
				return -ENODEV;
			break;
		}
		if (fp_cut_begin(&pump->cut, pump->large, (uint32_t)length, longest) < 0) {
			pump->cut.more = false;
			pump->to_ring.dropped++;
			continue;
		}
		count = cut_on(pump, count);
	}

	pump->first = 0;
	pump->held = count;
	return (int)count;
}

/**
 * drop_held() - Drop the frames that the pump holds
 * @pump:	Pump
 */
static void drop_held(struct fp_pump *pump)
{
	pump->to_ring.dropped += pump->held;
	pump->held = 0;
}

/**
 * fp_pump_to_ring() - Carry a batch from the tap to the ring
 * @pump:	Pump
 * @tx:		Queue to send with
 * @now:	Time, nanoseconds
 *
 * Return: frames that were moved, or dropped; 0: nothing to do now; negative: errno of the queue, -ENODEV for the tap
 */
int fp_pump_to_ring(struct fp_pump *pump, struct fp_queue *tx, int64_t now)
{
	uint32_t end, i;
	int count;

	if (!pump->held) {
		count = pump->cuts ? cut_tap(pump, tx->room) : read_tap(pump, tx->room);
		if (count <= 0)
			return count;
	}

	count = fp_send(tx, pump->up + (size_t)pump->first * pump->stride, pump->stride, pump->up_lengths + pump->first, pump->held);
	if (count < 0)
		return count;

	for (i = pump->first, end = pump->first + (uint32_t)count; i < end; i++)
		pump->to_ring.bytes += pump->up_lengths[i] - fp_overhead(tx);
	pump->to_ring.frames += (uint32_t)count;
	pump->first += (uint32_t)count;
	pump->held -= (uint32_t)count;

	if (count || !pump->held) {
		pump->full_since = 0;
	} else if (!pump->full_since) {
		pump->full_since = now;
	} else if (now - pump->full_since >= pump->hold_ns) {
		count = (int)pump->held;
		drop_held(pump);
	}
	return count;
}

/**
 * fp_pump_oversize() - Count the frames that were longer than our buffers, as the port's MTU is larger than the tap's
 * @rx:		Queue that receives
 *
 * Return: how many since the queue was made
 */
uint64_t fp_pump_oversize(const struct fp_queue *rx)
{
	return __atomic_load_n(&rx->counters.oversize, __ATOMIC_RELAXED);
}

/**
 * count_written() - Count what the tap took, or refused
 * @pump:	Pump
 * @written:	Result of the write, with errno
 * @frames:	Frames that were written at once
 * @bytes:	Their bytes
 *
 * Return: 0; -ENODEV: the tap was deleted
 */
static int count_written(struct fp_pump *pump, ssize_t written, uint32_t frames, uint64_t bytes)
{
	if (written >= 0) {
		pump->to_tap.frames += frames;
		pump->to_tap.bytes += bytes;
		return 0;
	}
	/* EIO: the tap is down. EINVAL: the kernel does not like the header. EBADFD: the tap was deleted */
	pump->to_tap.dropped += frames;
	return errno == EBADFD || errno == EPIPE || errno == ECONNRESET ? -ENODEV : 0;
}

/**
 * write_each() - Write frames to the tap one by one
 * @pump:	Pump
 * @first:	The first of @down
 * @count:	Frames
 *
 * Return: 0; -ENODEV: the tap was deleted
 */
static int write_each(struct fp_pump *pump, uint32_t first, uint32_t count)
{
	uint32_t header = pump->headers ? FP_HEADER : 0;
	int result = 0;

	for (uint32_t i = first; i < first + count && !result; i++) {
		const uint8_t *frame = pump->down + (size_t)i * pump->stride;
		ssize_t written;

		do {
			written = write_frame(pump->tap, frame, pump->down_lengths[i]);
		} while (written < 0 && errno == EINTR);
		result = count_written(pump, written, 1, pump->down_lengths[i] - header);
	}
	return result;
}

/**
 * write_merged() - Write frames with headers to the tap, merged if they are to be
 * @pump:	Pump
 * @first:	The first of @down
 * @count:	Frames
 *
 * Return: 0; -ENODEV: the tap was deleted
 */
static int write_merged(struct fp_pump *pump, uint32_t first, uint32_t count)
{
	uint8_t *frames = pump->down + (size_t)first * pump->stride;
	int result = 0;

	if (!pump->merges)
		return write_each(pump, first, count);
	fp_merge_segments(pump->merge, frames, pump->stride, pump->down_lengths + first, count, true);
	for (uint32_t i = 0; i < pump->merge->count && !result; i++) {
		const struct fp_merged *merged = &pump->merge->merged[i];
		ssize_t written;

		do {
			written = write_pieces(pump->tap, merged);
		} while (written < 0 && errno == EINTR);
		result = count_written(pump, written, merged->frames, merged->bytes);
	}
	return result;
}

/**
 * clear_unused() - Zero the fields of a header that have no meaning, because the kernel checks some of them nevertheless
 * @frame:	Header and frame, which is sound
 */
static void clear_unused(uint8_t *frame)
{
	struct fp_net_header header;

	memcpy(&header, frame, sizeof(header));
	if (header.gso_type == FP_GSO_NONE)
		header.hdr_len = header.gso_size = 0;
	if (!(header.flags & FP_NEEDS_CSUM))
		header.csum_start = header.csum_offset = 0;
	header.num_buffers = 0;
	memcpy(frame, &header, sizeof(header));
}

/**
 * write_with_headers() - Write the received frames that are sound
 * @pump:	Pump
 * @count:	Frames of @down
 *
 * Return: 0; -ENODEV: the tap was deleted
 */
static int write_with_headers(struct fp_pump *pump, uint32_t count)
{
	uint32_t first = 0, i;
	bool large = false;
	int result = 0;

	for (i = 0; i < count && !result; i++) {
		uint8_t *frame = pump->down + (size_t)i * pump->stride;

		if (fp_header_sound(frame, pump->down_lengths[i], pump->longest)) {
			if ((frame[0] & (FP_NEEDS_CSUM | FP_DATA_VALID)) == FP_DATA_VALID)
				fp_complete_check(frame, pump->down_lengths[i]);
			clear_unused(frame);
			large |= pump->down_lengths[i] > pump->longest + FP_HEADER;
			continue;
		}
		pump->to_tap.dropped++;
		if (i > first)
			result = write_merged(pump, first, i - first);
		first = i + 1;
	}
	if (i > first && !result)
		result = write_merged(pump, first, i - first);
	pump->capacity = large ? LARGE_CAPACITY : FP_PUMP_DOWN_BATCH;
	return result;
}

/**
 * fp_pump_to_tap() - Carry a batch from the ring to the tap
 * @pump:	Pump
 * @rx:		Queue to receive with
 *
 * Return: frames that were moved, or dropped; negative: errno of the queue, -ENODEV for the tap
 */
int fp_pump_to_tap(struct fp_pump *pump, struct fp_queue *rx)
{
	int count = fp_receive(rx, pump->down, pump->stride, pump->down_lengths, pump->capacity), result;
	uint64_t oversize = fp_pump_oversize(rx);

	pump->to_tap.dropped += oversize - pump->oversize;
	pump->oversize = oversize;
	if (count <= 0)
		return count;

	result = pump->headers ? write_with_headers(pump, (uint32_t)count) : write_each(pump, 0, (uint32_t)count);
	return result < 0 ? result : count;
}
