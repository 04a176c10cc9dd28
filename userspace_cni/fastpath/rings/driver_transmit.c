// SPDX-License-Identifier: Apache-2.0
/* driver_transmit.c - frames into a driver's ring; see driver.c */

#include "driver_ring.h"

/**
 * prefetch_to_write() - Bring a line into this core's cache before it is written
 * @line:	Address in it
 */
static inline void prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));	/* all x86-64 CPUs have it now, but gcc still wants an option */
#else
	__builtin_prefetch(line, 1);
#endif
}

/**
 * reclaim() - Without IN_ORDER: take back the descriptors of frames that were sent
 * @driver:	Driver that transmits
 *
 * Return: 0, -EBADMSG: the number of a descriptor that is not with the other side
 */
static int reclaim(struct driver *driver)
{
	while (driver->seen != driver->behind) {
		uint32_t id = __atomic_load_n(&driver->used->ring[slot(driver, driver->seen)].id, __ATOMIC_RELAXED);

		if (id >= driver->size || !driver->lent[id])
			return faulty(driver, FP_BAD_ID);
		driver->lent[id] = 0;
		driver->free[driver->frees++] = (uint16_t)id;
		driver->seen++;
	}
	return 0;
}

/**
 * room_for() - Count the frames that there is room for
 * @driver:	Driver that transmits
 * @count:	Frames wanted
 *
 * Return: frames, @count at most; -EBADMSG
 */
static inline int room_for(struct driver *driver, uint32_t count)
{
	uint32_t room = driver->size - (uint16_t)(driver->made - driver->seen);

	if (room < count) {
		if (load_used(driver) < 0)
			return -EBADMSG;
		if (driver->in_order)
			driver->seen = driver->behind;
		else if (reclaim(driver) < 0)
			return -EBADMSG;
		room = driver->size - (uint16_t)(driver->made - driver->seen);
	}
	return (int)(room < count ? room : count);
}

/**
 * next_id() - Choose the descriptor for a frame
 * @driver:	Driver that transmits
 * @ahead:	How many frames go before it, fewer than there is room for
 *
 * Return: number of the descriptor
 */
static inline uint32_t next_id(const struct driver *driver, uint32_t ahead)
{
	if (driver->in_order)
		return slot(driver, (uint16_t)(driver->made + ahead));
	return driver->free[driver->frees - 1 - ahead];
}

/**
 * describe() - Write the length into a descriptor, unless it has that length already
 * @driver:	Driver
 * @id:		Number of the descriptor, which is ours
 * @length:	Bytes of the frame
 */
static inline void describe(struct driver *driver, uint32_t id, uint32_t length)
{
	if (driver->desc[id].length != FP_HEADER + length)
		driver->desc[id].length = FP_HEADER + length;
}

/**
 * fp_driver_send() - Send a burst
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * Return: frames taken, or -EBADMSG
 */
int fp_driver_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct driver *driver = driver_of(queue);
	uint32_t longest = stride < queue->room ? stride : queue->room, header = fp_overhead(queue), id, length;
	int room = room_for(driver, count), i;

	if (room <= 0)
		return room;
	for (i = 0; i < room; i++)
		prefetch_to_write(frame_at(driver, next_id(driver, (uint32_t)i)));
	for (i = 0; i < room; i++) {
		length = __atomic_load_n(&lengths[i], __ATOMIC_RELAXED);
		if (length > longest || length < header)
			break;
		id = next_id(driver, 0);
		copy(frame_at(driver, id) - header, frames + (size_t)i * stride, length);
		hand_over(frame_at(driver, id));
		describe(driver, id, length - header);
		lend(driver, id);
	}
	publish(driver);
	return i;
}

/**
 * fp_driver_fill() - Write a frame into all buffers of an idle transmit queue, for fp_driver_repeat()
 * @queue:	A driver that transmits, taken; frames that the other side has not used yet may be overwritten
 * @frame:	The frame
 * @length:	Its bytes, at most the queue's room
 */
void fp_driver_fill(struct fp_queue *queue, const void *frame, uint32_t length)
{
	struct driver *driver = driver_of(queue);

	for (uint32_t id = 0; id < driver->size; id++)
		memcpy(frame_at(driver, id), frame, length);
}

/**
 * fp_driver_repeat() - Send the frames that the buffers hold already
 * @queue:	A driver that transmits, taken; see fp_driver_fill()
 * @length:	Bytes of each frame
 * @count:	Frames
 *
 * Return: frames sent, or -EBADMSG
 */
int fp_driver_repeat(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	struct driver *driver = driver_of(queue);
	int room = room_for(driver, count);

	if (room <= 0)
		return room;
	for (int i = 0; i < room; i++) {
		uint32_t id = next_id(driver, 0);

		describe(driver, id, length);
		lend(driver, id);
	}
	publish(driver);
	return room;
}
