/* SPDX-License-Identifier: Apache-2.0 */
/* driver_receive.h - how a driver takes frames out of a ring of either kind
 *
 * It is included once for each kind, behind the functions that know the ring:
 *   arrived(driver, wanted)	the buffers that are back and were not taken, or -EBADMSG; looks at the ring when fewer than
 *				@wanted are known to be
 *   next_back(driver)		number of the buffer that take_back() is going to take; -EBADMSG
 *   take_back(driver, length)	take the next buffer that is back: its number, -EBADMSG
 *   lend(driver, id)		give a buffer to the other side, which sees it after publish()
 *   publish(driver)		show what was lent
 */

#ifndef FASTPATH_DRIVER_RECEIVE_H
#define FASTPATH_DRIVER_RECEIVE_H

#include "driver_ring.h"

/**
 * merged() - Count the buffers of the next frame
 * @driver:	Driver that receives; a buffer is back
 *
 * Return: 1 without MRG_RXBUF, else their number; 0 while some of them are not back yet; -EBADMSG
 */
static inline int merged(struct driver *driver)
{
	uint16_t count;
	int id, back;

	if (!driver->mergeable)
		return 1;
	if ((id = next_back(driver)) < 0)
		return id;
	memcpy(&count, frame_at(driver, (uint32_t)id) - FP_HEADER + NUM_BUFFERS, sizeof(count));
	__asm__ volatile("" : "+r"(count));	/* read once */
	if (!count || count > driver->size)
		return faulty(driver, FP_LOOP);
	if ((back = arrived(driver, count)) < 0)
		return back;
	return count <= back ? count : 0;
}

/**
 * more() - Whether there is another buffer to take in this burst
 * @driver:	Driver that receives
 *
 * Merged frames may need more buffers than the burst has looked for.
 *
 * Return: true if there is
 */
static inline bool more(struct driver *driver)
{
	return driver->seen != driver->behind || (driver->mergeable && arrived(driver, 1) > 0);
}

/**
 * assemble() - Copy the next frame out, and lend its buffers again
 * @driver:	Driver that receives
 * @to:		Set to the frame's first bytes
 * @stride:	Bytes of room in @to
 * @longest:	Bytes of the longest frame, @stride or more
 * @skip:	Bytes of the header that the caller does not get
 * @parts:	Number of buffers that the frame lies in; all are back
 *
 * Return: length of the frame, -1 when it is longer than @longest, -EBADMSG
 */
static inline int assemble(struct driver *driver, uint8_t *to, uint32_t stride, uint32_t longest, uint32_t skip, int parts)
{
	uint32_t length, done = 0;
	bool fits = true;
	int id;

	for (int part = 0; part < parts; part++) {
		uint32_t from = part ? 0 : skip;

		if ((id = take_back(driver, &length)) < 0)
			return id;
		if (!part && length < FP_HEADER)
			return faulty(driver, FP_BAD_LENGTH);
		length -= from;
		fits = fits && length <= longest - done;
		if (fits && done < stride)
			copy(to + done, frame_at(driver, (uint32_t)id) - FP_HEADER + from,
			     length < stride - done ? length : stride - done);
		if (fits)
			done += length;
		lend(driver, (uint32_t)id);
	}
	return fits ? (int)done : -1;
}

/**
 * recycle() - Publish lent buffers again, once there is a whole lot of them
 * @driver:	Driver that receives
 */
static inline void recycle(struct driver *driver)
{
	if ((uint16_t)(driver->made - driver->published) >= driver->lot)
		publish(driver);
}

/**
 * receive_frames() - Receive a burst
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 * @longest:	Bytes of the longest frame; if that is more than @stride, only the first @stride bytes of a frame are copied out
 *
 * Return: frames, or -EBADMSG; a fault behind the first frame is returned by the next call
 */
static inline int receive_frames(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths,
				 uint32_t capacity, uint32_t longest)
{
	struct driver *driver = driver_of(queue);
	uint32_t skip = FP_HEADER - fp_overhead(queue), count = 0;
	int back = arrived(driver, capacity), parts, length;

	if (back <= 0)
		return back;
	if (stride || driver->mergeable)
		prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	while (count < capacity && more(driver)) {
		if ((parts = merged(driver)) <= 0)
			break;
		length = assemble(driver, frames + (size_t)count * stride, stride, longest, skip, parts);
		if (length >= 0)
			lengths[count++] = (uint32_t)length;
		else if (length == -1)
			fp_count(&queue->counters.oversize, 1);
		else
			break;
	}
	if (count || !atomic_load_explicit(&queue->fault, memory_order_relaxed)) {
		recycle(driver);
		return (int)count;
	}
	return -EBADMSG;
}

/**
 * discard_frames() - Receive and count frames without copying them
 * @queue:	A driver that receives, taken
 * @capacity:	Most frames
 * @mark:	FP_MARK bytes that our frames have behind the Ethernet header; NULL: no frame is read
 * @foreign:	Incremented for each frame without the mark
 *
 * Return: frames, or -EBADMSG
 */
static inline int discard_frames(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	struct driver *driver = driver_of(queue);
	int back = arrived(driver, capacity), parts, id;
	uint32_t count = 0, length;
	uint64_t bytes = 0;

	if (mark && back > 0)
		prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	for (; back > 0 && count < capacity && more(driver); count++) {
		if ((parts = merged(driver)) <= 0)
			break;
		for (int part = 0; part < parts; part++) {
			uint32_t header = part ? 0 : FP_HEADER;

			if ((id = take_back(driver, &length)) < 0)
				return id;
			if (length < header)
				return faulty(driver, FP_BAD_LENGTH);
			bytes += length - header;
			if (mark && !part && memcmp(frame_at(driver, (uint32_t)id) + FP_SHORTEST, mark, FP_MARK))
				++*foreign;
			lend(driver, (uint32_t)id);
		}
	}
	if (back < 0 || atomic_load_explicit(&queue->fault, memory_order_relaxed))
		return -EBADMSG;
	fp_count(&queue->counters.frames, count);
	fp_count(&queue->counters.bytes, bytes);
	recycle(driver);
	return (int)count;
}

#endif /* FASTPATH_DRIVER_RECEIVE_H */
