// SPDX-License-Identifier: Apache-2.0
/* packed_driver_transmit.c - frames into a packed ring; see packed_driver.h */

#include "packed_driver.h"

/**
 * look_for_room() - Take back the buffers of frames that were sent
 * @driver:	Driver that transmits
 *
 * Return: 0, -EBADMSG
 */
static inline int look_for_room(struct driver *driver)
{
	while (driver->seen != driver->published) {
		uint64_t tail = load_tail(driver, driver->seen);
		int count = buffers_used(driver, driver->seen, tail);

		if (count < 0)
			return count;
		if (!count)
			break;
		if (!driver->in_order) {
			driver->lent[id_of(tail)] = 0;
			driver->free[driver->frees++] = (uint16_t)id_of(tail);
		}
		driver->seen = (uint16_t)(driver->seen + count);
	}
	driver->behind = driver->seen;
	return 0;
}

/**
 * offer() - Give a frame to the other side, which sees it after publish()
 * @driver:	Driver that transmits
 * @id:		Number of its buffer, which is ours until then
 * @length:	Bytes of the frame
 */
static inline void offer(struct driver *driver, uint32_t id, uint32_t length)
{
	if (!driver->in_order) {
		driver->lent[id] = 1;
		driver->frees--;
	}
	describe(driver, driver->made++, id, sent_at(driver, id), FP_HEADER + length, 0);
}

/**
 * publish() - Show the other side what was offered
 * @driver:	Driver that transmits
 */
static inline void publish(struct driver *driver)
{
	show(driver, driver->made);
}

#include "driver_transmit.h"

/**
 * fp_packed_send() - Send a burst
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * Return: frames taken, or -EBADMSG
 */
int fp_packed_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	return send_frames(queue, frames, stride, lengths, count);
}

/**
 * fp_packed_repeat() - Send the frames that the buffers hold already
 * @queue, @length, @count: As in fp_driver_repeat()
 *
 * Return: frames sent, or -EBADMSG
 */
int fp_packed_repeat(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	return repeat_frames(queue, length, count);
}
