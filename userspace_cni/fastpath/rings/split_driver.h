/* SPDX-License-Identifier: Apache-2.0 */
/* split_driver.h - what a driver does with a split ring; see driver.c */

#ifndef FASTPATH_SPLIT_DRIVER_H
#define FASTPATH_SPLIT_DRIVER_H

#include "driver_ring.h"

/**
 * load_used() - Load used.idx
 * @driver:	Driver
 *
 * Afterwards the elements that the index covers may be read, and buffers that are back may be written.
 *
 * Return: 0, -EBADMSG: the index moved beyond what was published
 */
static inline int load_used(struct driver *driver)
{
	uint16_t index = __atomic_load_n(&driver->used->index, __ATOMIC_ACQUIRE);

	if ((uint16_t)(index - driver->seen) > (uint16_t)(driver->published - driver->seen))
		return faulty(driver, FP_INDEX_JUMP);
	driver->behind = index;
	return 0;
}

/**
 * publish() - Publish avail.idx, and notify the other side unless it has asked for no notification
 * @driver:	Driver
 */
static inline void publish(struct driver *driver)
{
	if (!driver->in_order && !driver->transmit)
		while (driver->published != driver->made)
			driver->lent[driver->free[slot(driver, driver->published++)]] = 1;
	__atomic_store_n(&driver->avail->index, driver->made, __ATOMIC_RELEASE);
	hand_over(driver->avail);
	driver->published = driver->made;
	if (driver->kick < 0)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (__atomic_load_n(&driver->used->flags, __ATOMIC_RELAXED) & NO_NOTIFY)
		return;
	fp_count(&driver->queue.counters.kicks, (uint64_t)fp_notify(driver->kick));
}

/**
 * lend() - Put a descriptor in the avail ring; the other side sees it after publish()
 * @driver:	Driver
 * @id:		Number of the descriptor, which is ours until then
 */
static inline void lend(struct driver *driver, uint32_t id)
{
	if (!driver->in_order) {
		__atomic_store_n(&driver->avail->ring[slot(driver, driver->made)], (uint16_t)id, __ATOMIC_RELAXED);
		if (driver->transmit) {
			driver->lent[id] = 1;
			driver->frees--;
		} else {
			driver->free[slot(driver, driver->made)] = (uint16_t)id;
		}
	}
	driver->made++;
}

#endif /* FASTPATH_SPLIT_DRIVER_H */
