/* SPDX-License-Identifier: Apache-2.0 */
/* driver_transmit.h - how a driver puts frames into a ring of either kind
 *
 * It is included once for each kind, behind the functions that know the ring:
 *   look_for_room(driver)	take back what the other side has used: 0, -EBADMSG
 *   offer(driver, id, length)	give a buffer with a frame of @length bytes to the other side, which sees it after publish()
 *   publish(driver)		show what was offered
 */

#ifndef FASTPATH_DRIVER_TRANSMIT_H
#define FASTPATH_DRIVER_TRANSMIT_H

#include "driver_ring.h"

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
		if (look_for_room(driver) < 0)
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
 * send_frames() - Send a burst
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * Return: frames taken, or -EBADMSG
 */
static inline int send_frames(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths,
			      uint32_t count)
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
		offer(driver, id, length - header);
	}
	publish(driver);
	return i;
}

/**
 * repeat_frames() - Send the frames that the buffers hold already
 * @queue:	A driver that transmits, taken; see fp_driver_fill()
 * @length:	Bytes of each frame
 * @count:	Frames
 *
 * Return: frames sent, or -EBADMSG
 */
static inline int repeat_frames(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	struct driver *driver = driver_of(queue);
	int room = room_for(driver, count);

	if (room <= 0)
		return room;
	for (int i = 0; i < room; i++)
		offer(driver, next_id(driver, 0), length);
	publish(driver);
	return room;
}

#endif /* FASTPATH_DRIVER_TRANSMIT_H */
