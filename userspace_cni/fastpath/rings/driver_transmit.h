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

#define SHORT_FRAME (2 * FP_LINE)	/* bytes up to which a frame takes the memory of a whole buffer */

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
 * place() - Choose where a frame goes
 * @driver:	Driver that transmits
 * @id:		Number of its buffer, which is ours; those of the frames before it have their places
 * @length:	Bytes of the frame, at most the driver's room
 *
 * With IN_ORDER the frames of a lap around the ring lie one behind the other, on as many lines as they need, and the first of
 * them at the beginning. Those of the lap before that are still with the other side lie further on, and are not written to: where
 * they were shorter, there may be no place until they have come back. Short frames take the memory of a whole buffer: of these the
 * lines ahead are mostly headers, which the other side does not read, and 4 % fewer went through when they lay close. It also
 * leaves room for long ones that follow.
 *
 * A header is zeroed when it moves. While it does not move from lap to lap, no frame was written over it.
 *
 * Return: true when it has a place, which only place() for the same buffer changes
 */
static inline bool place(struct driver *driver, uint32_t id, uint32_t length)
{
	struct place *place = &driver->places[id];
	uint32_t start = id ? driver->end : 0, oldest = slot(driver, driver->seen);
	uint32_t end = start + (length > SHORT_FRAME ? FP_LINE + (length + FP_LINE - 1) / FP_LINE * FP_LINE : driver->pitch);

	place->length = length;
	if (!driver->in_order)
		return true;
	if (oldest > id && end > driver->places[oldest].at - FP_LINE)
		return false;
	if (place->at != start + FP_LINE) {
		place->at = start + FP_LINE;
		memset(sent_at(driver, id) - FP_HEADER, 0, FP_HEADER);
	}
	driver->end = end;
	return true;
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
	int room = room_for(driver, count), placed;

	if (room <= 0)
		return room;
	for (placed = 0; placed < room; placed++) {
		length = __atomic_load_n(&lengths[placed], __ATOMIC_RELAXED);
		if (length > longest || length < header)
			break;
		id = next_id(driver, (uint32_t)placed);
		if (!place(driver, id, length - header)) {
			if (look_for_room(driver) < 0)
				return -EBADMSG;
			if (!place(driver, id, length - header))
				break;
		}
		prefetch_to_write(sent_at(driver, id));
	}
	for (int i = 0; i < placed; i++) {
		id = next_id(driver, 0);
		copy(sent_at(driver, id) - header, frames + (size_t)i * stride, driver->places[id].length + header);
		hand_over(sent_at(driver, id));
		offer(driver, id, driver->places[id].length);
	}
	publish(driver);
	return placed;
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
	for (int i = 0; i < room; i++) {
		uint32_t id = next_id(driver, 0);

		driver->end = (id + 1) * driver->pitch;
		offer(driver, id, length);
	}
	publish(driver);
	return room;
}

#endif /* FASTPATH_DRIVER_TRANSMIT_H */
