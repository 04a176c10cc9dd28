// SPDX-License-Identifier: Apache-2.0
/* driver_receive.c - frames out of a driver's ring, and asking for notifications; see driver.c */

#include "driver_ring.h"

/**
 * take_back() - Take the next buffer that came back
 * @driver:	Driver that receives; a buffer is back
 * @length:	Set to the bytes that the other side wrote, at most the buffer's size
 *
 * Return: number of the buffer, which is ours until lend(); -EBADMSG
 */
static inline int take_back(struct driver *driver, uint32_t *length)
{
	const struct used_element *element = &driver->used->ring[slot(driver, driver->seen)];
	uint32_t id = __atomic_load_n(&element->id, __ATOMIC_RELAXED);

	*length = __atomic_load_n(&element->length, __ATOMIC_RELAXED);
	if (driver->in_order ? id != slot(driver, driver->seen) : id >= driver->size || !driver->lent[id])
		return faulty(driver, FP_BAD_ID);
	if (*length > driver->span)
		return faulty(driver, FP_BAD_LENGTH);
	if (!driver->in_order)
		driver->lent[id] = 0;
	driver->seen++;
	return (int)id;
}

/**
 * merged() - Count the buffers of the next frame
 * @driver:	Driver that receives; a buffer is back
 *
 * Return: 1 without MRG_RXBUF, else their number; 0 while some of them are not back yet; -EBADMSG
 */
static inline int merged(struct driver *driver)
{
	uint16_t back = (uint16_t)(driver->behind - driver->seen), count;
	uint32_t id;

	if (!driver->mergeable)
		return 1;
	id = __atomic_load_n(&driver->used->ring[slot(driver, driver->seen)].id, __ATOMIC_RELAXED);
	if (id >= driver->size)
		return faulty(driver, FP_BAD_ID);
	memcpy(&count, frame_at(driver, id) - FP_HEADER + NUM_BUFFERS, sizeof(count));
	__asm__ volatile("" : "+r"(count));	/* read once */
	if (!count || count > driver->size)
		return faulty(driver, FP_LOOP);
	return count <= back ? count : 0;
}

/**
 * assemble() - Copy the next frame out, and lend its buffers again
 * @driver:	Driver that receives
 * @to:		Set to the frame's bytes
 * @stride:	Bytes of room in @to
 * @skip:	Bytes of the header that the caller does not get
 * @parts:	Number of buffers that the frame lies in; all are back
 *
 * Return: length of the frame, -1 when it does not fit, -EBADMSG
 */
static inline int assemble(struct driver *driver, uint8_t *to, uint32_t stride, uint32_t skip, int parts)
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
		fits = fits && length <= stride - done;
		if (fits) {
			copy(to + done, frame_at(driver, (uint32_t)id) - FP_HEADER + from, length);
			done += length;
		}
		lend(driver, (uint32_t)id);
	}
	return fits ? (int)done : -1;
}

/**
 * arrived() - Count the buffers that have come back and were not taken yet
 * @driver:	Driver that receives
 * @wanted:	used.idx is loaded only when fewer buffers than this are known to be back
 *
 * Return: number of buffers, or -EBADMSG
 */
static inline int arrived(struct driver *driver, uint32_t wanted)
{
	if ((uint16_t)(driver->behind - driver->seen) < wanted && load_used(driver) < 0)
		return -EBADMSG;
	return (uint16_t)(driver->behind - driver->seen);
}

/**
 * prefetch_received() - Bring the next frames into this core's cache before they are read
 * @driver:	Driver that receives
 * @count:	Buffers, which are back; their numbers are not checked yet
 */
static void prefetch_received(const struct driver *driver, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = slot(driver, (uint16_t)(driver->seen + i));
		uint32_t id = driver->in_order ? at : __atomic_load_n(&driver->used->ring[at].id, __ATOMIC_RELAXED);

		if (id < driver->size)
			__builtin_prefetch(frame_at(driver, id));
	}
}

/**
 * recycle() - Publish lent buffers again, once there is a whole lot of them
 * @driver:	Driver that receives
 */
static void recycle(struct driver *driver)
{
	if ((uint16_t)(driver->made - driver->published) >= driver->lot)
		publish(driver);
}

/**
 * fp_driver_receive() - Receive a burst
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: frames, or -EBADMSG; a fault behind the first frame is returned by the next call
 */
int fp_driver_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct driver *driver = driver_of(queue);
	uint32_t skip = FP_HEADER - fp_overhead(queue), count = 0;
	int back = arrived(driver, capacity), parts, length;

	if (back <= 0)
		return back;
	prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	while (count < capacity && driver->seen != driver->behind) {
		if ((parts = merged(driver)) <= 0)
			break;
		length = assemble(driver, frames + (size_t)count * stride, stride, skip, parts);
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
 * fp_driver_discard() - Receive and count frames without copying them
 * @queue:	A driver that receives, taken
 * @capacity:	Most frames
 * @mark:	FP_MARK bytes that our frames have behind the Ethernet header; NULL: no frame is read
 * @foreign:	Incremented for each frame without the mark
 *
 * Return: frames, or -EBADMSG
 */
int fp_driver_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	struct driver *driver = driver_of(queue);
	int back = arrived(driver, capacity), parts, id;
	uint32_t count = 0, length;
	uint64_t bytes = 0;

	if (mark && back > 0)
		prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	for (; back > 0 && count < capacity && driver->seen != driver->behind; count++) {
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

/**
 * fp_driver_arm() - Ask the other side to notify us of frames
 * @queue:	A driver, taken
 *
 * Return: 1 when frames are there already (then no notification is requested), 0, -EBADMSG
 */
int fp_driver_arm(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);

	if (driver->made != driver->published)
		publish(driver);
	if (driver->seen != driver->behind)
		return 1;
	__atomic_store_n(&driver->avail->flags, 0, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_seq_cst);
	if (load_used(driver) < 0)
		return -EBADMSG;
	if (driver->seen == driver->behind)
		return 0;
	__atomic_store_n(&driver->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
	return 1;
}

/**
 * fp_driver_disarm() - Ask the other side not to notify us
 * @queue:	A driver, taken
 */
void fp_driver_disarm(struct fp_queue *queue)
{
	__atomic_store_n(&driver_of(queue)->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
}
