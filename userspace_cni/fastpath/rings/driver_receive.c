// SPDX-License-Identifier: Apache-2.0
/* driver_receive.c - frames out of a split ring, and asking for notifications; see driver.c */

#include "split_driver.h"

/**
 * next_back() - Number of the next buffer that came back
 * @driver:	Driver that receives; a buffer is back
 *
 * Return: its number, -EBADMSG
 */
static inline int next_back(struct driver *driver)
{
	uint32_t id = __atomic_load_n(&driver->used->ring[slot(driver, driver->seen)].id, __ATOMIC_RELAXED);

	return id < driver->size ? (int)id : faulty(driver, FP_BAD_ID);
}

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
static inline void prefetch_received(const struct driver *driver, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = slot(driver, (uint16_t)(driver->seen + i));
		uint32_t id = driver->in_order ? at : __atomic_load_n(&driver->used->ring[at].id, __ATOMIC_RELAXED);

		if (id < driver->size)
			__builtin_prefetch(frame_at(driver, id));
	}
}

#include "driver_receive.h"

/**
 * fp_split_receive() - Receive a burst
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: frames, or -EBADMSG
 */
int fp_split_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	return receive_frames(queue, frames, stride, lengths, capacity, stride);
}

/**
 * fp_split_heads() - Receive a burst, and copy only the beginning of each frame out
 * @queue, @heads, @stride, @lengths, @capacity: As in fp_driver_heads()
 *
 * Return: frames, or -EBADMSG
 */
int fp_split_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	return receive_frames(queue, heads, stride, lengths, capacity, FP_LARGEST + fp_overhead(queue));
}

/**
 * fp_split_discard() - Receive and count frames without copying them
 * @queue, @capacity, @mark, @foreign: As in fp_driver_discard()
 *
 * Return: frames, or -EBADMSG
 */
int fp_split_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	return discard_frames(queue, capacity, mark, foreign);
}

/**
 * fp_split_ready() - Whether there are frames
 * @queue:	A driver, taken
 *
 * Return: 1, 0, -EBADMSG
 */
int fp_split_ready(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);

	if (driver->made != driver->published)
		publish(driver);
	if (driver->seen == driver->behind && load_used(driver) < 0)
		return -EBADMSG;
	return driver->seen != driver->behind;
}

/**
 * fp_split_arm() - Ask the other side to notify us of frames
 * @queue:	A driver, taken
 *
 * Return: 1 when frames are there already (then no notification is requested), 0, -EBADMSG
 */
int fp_split_arm(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);
	int ready = fp_split_ready(queue);

	if (ready)
		return ready;
	__atomic_store_n(&driver->avail->flags, 0, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_seq_cst);
	ready = fp_split_ready(queue);
	if (ready > 0)
		__atomic_store_n(&driver->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
	return ready;
}

/**
 * fp_split_disarm() - Ask the other side not to notify us
 * @queue:	A driver, taken
 */
void fp_split_disarm(struct fp_queue *queue)
{
	__atomic_store_n(&driver_of(queue)->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
}
