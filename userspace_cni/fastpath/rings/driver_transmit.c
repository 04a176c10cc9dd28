// SPDX-License-Identifier: Apache-2.0
/* driver_transmit.c - frames into a split ring; see driver.c */

#include "split_driver.h"

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
 * look_for_room() - Take back the descriptors of frames that were sent
 * @driver:	Driver that transmits
 *
 * Return: 0, -EBADMSG
 */
static inline int look_for_room(struct driver *driver)
{
	if (load_used(driver) < 0)
		return -EBADMSG;
	if (!driver->in_order)
		return reclaim(driver);
	driver->seen = driver->behind;
	return 0;
}

/**
 * offer() - Give a frame to the other side, which sees it after publish()
 * @driver:	Driver that transmits
 * @id:		Number of its buffer and descriptor, which is ours until then; what is there already is not written
 * @length:	Bytes of the frame
 */
static inline void offer(struct driver *driver, uint32_t id, uint32_t length)
{
	uint64_t address = (uint64_t)(uintptr_t)(sent_at(driver, id) - FP_HEADER);

	if (driver->desc[id].address != address)
		driver->desc[id].address = address;
	if (driver->desc[id].length != FP_HEADER + length)
		driver->desc[id].length = FP_HEADER + length;
	lend(driver, id);
}

#include "driver_transmit.h"

/**
 * fp_split_send() - Send a burst
 * @queue, @frames, @stride, @lengths, @count: As in struct fp_operations
 *
 * Return: frames taken, or -EBADMSG
 */
int fp_split_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	return send_frames(queue, frames, stride, lengths, count);
}

/**
 * fp_split_repeat() - Send the frames that the buffers hold already
 * @queue, @length, @count: As in fp_driver_repeat()
 *
 * Return: frames sent, or -EBADMSG
 */
int fp_split_repeat(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	return repeat_frames(queue, length, count);
}
