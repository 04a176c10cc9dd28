/* SPDX-License-Identifier: Apache-2.0 */
/* packed_driver.h - what a driver does with a packed ring; see packed_ring.h for its layout
 *
 * Each of our buffers has one descriptor, so the four indices of struct driver count buffers as those of a split ring do. Which
 * buffer an index means is the number (id) in its descriptor: with VIRTIO_F_IN_ORDER always that of the descriptor.
 *
 * A device overwrites descriptors, so a burst writes them whole, each with two stores. All of a burst but the first descriptor get
 * their flags at once, and the first one's are stored last: a device looks at no descriptor behind one that is not available, so it
 * sees the whole burst at a time. OVS-DPDK works on lines of four descriptors, and only where all four are available. So a receive
 * queue gives buffers back by whole lines. That also keeps it from writing a line whose other descriptors the device is still
 * writing: the line would move between the cores several times. Done at each buffer instead, it cost a tenth of the throughput.
 * For the same reason it awaits bursts of a stream as a whole, see underway() in packed_driver_receive.c.
 *
 * With VIRTIO_F_IN_ORDER a device may write one used descriptor for many buffers: in the place of the first of them, with the
 * number of the last. DPDK does so for the frames that it takes. The buffers before the last count as used completely.
 *
 * Left out, because nothing is gained with OVS as the peer: indirect descriptors and chains, as a frame always lies in one buffer
 * that we send; VIRTIO_F_EVENT_IDX with its notifications of a single descriptor, as both sides poll, and a thread of ours that
 * sleeps wants to know of the first frame.
 */

#ifndef FASTPATH_PACKED_DRIVER_H
#define FASTPATH_PACKED_DRIVER_H

#include "driver_ring.h"

/**
 * flags_of() - Flags in the tail of a descriptor
 * @tail:	Length, number and flags
 *
 * Return: the flags
 */
static inline uint16_t flags_of(uint64_t tail)
{
	return (uint16_t)(tail >> 48);
}

/**
 * id_of() - Number of the buffer in the tail of a descriptor
 * @tail:	Length, number and flags
 *
 * Return: the number
 */
static inline uint32_t id_of(uint64_t tail)
{
	return (uint16_t)(tail >> 32);
}

/**
 * load_tail() - Load length, number and flags of a descriptor at once
 * @driver:	Driver
 * @index:	Its index
 *
 * When the flags show that it is used, its buffer may be read or written afterwards.
 *
 * Return: the tail
 */
static inline uint64_t load_tail(const struct driver *driver, uint16_t index)
{
	return __atomic_load_n(&driver->ring[slot(driver, index)].tail, __ATOMIC_ACQUIRE);
}

/**
 * buffers_used() - Count the buffers that a descriptor gives back
 * @driver:	Driver
 * @index:	Index of the oldest descriptor that is with the other side and was not looked at; before @published
 * @tail:	From load_tail()
 *
 * Return: buffers, 0 when it is not used; -EBADMSG: flags that neither of us writes there, or the number of a buffer that is not
 *	   with the other side
 */
static inline int buffers_used(struct driver *driver, uint16_t index, uint64_t tail)
{
	uint32_t turn = flags_of(tail) & PACKED_TURN, id = id_of(tail), skipped;

	if (turn != packed_used(index, driver->size))
		return turn == packed_available(index, driver->size) ? 0 : faulty(driver, FP_BAD_FLAGS);
	if (id >= driver->size)
		return faulty(driver, FP_BAD_ID);
	if (!driver->in_order)
		return driver->lent[id] ? 1 : faulty(driver, FP_BAD_ID);
	skipped = (id - index) & (driver->size - 1);
	if (skipped >= (uint16_t)(driver->published - index))
		return faulty(driver, FP_BAD_ID);
	return (int)skipped + 1;
}

/**
 * describe() - Write a descriptor; the other side sees it after show()
 * @driver:	Driver
 * @index:	Its index; that at @published comes first
 * @id:		Number of the buffer, which is ours until then
 * @frame:	Where its frame begins
 * @length:	Bytes from its header on
 * @flags:	DESC_WRITE or 0
 */
static inline void describe(struct driver *driver, uint16_t index, uint32_t id, const uint8_t *frame, uint32_t length,
			    uint16_t flags)
{
	struct packed_desc *desc = &driver->ring[slot(driver, index)];
	uint64_t tail = length | (uint64_t)id << 32 | (uint64_t)(flags | packed_available(index, driver->size)) << 48;

	__atomic_store_n(&desc->address, (uint64_t)(uintptr_t)(frame - FP_HEADER), __ATOMIC_RELAXED);
	if (index == driver->published)
		driver->head = tail;
	else
		__atomic_store_n(&desc->tail, tail, __ATOMIC_RELAXED);
	if (index % PACKED_LINE == PACKED_LINE - 1)
		hand_over(desc);
}

/**
 * show() - Show the other side what was described, and notify it unless it has asked for no notification
 * @driver:	Driver
 * @end:	Index behind the last descriptor
 */
static inline void show(struct driver *driver, uint16_t end)
{
	struct packed_desc *first = &driver->ring[slot(driver, driver->published)];

	if (end == driver->published)
		return;
	driver->published = end;
	__atomic_store_n(&first->tail, driver->head, __ATOMIC_RELEASE);
	hand_over(first);
	if (driver->kick < 0)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (packed_notified(driver->wished))
		fp_count(&driver->queue.counters.kicks, (uint64_t)fp_notify(driver->kick));
}

#endif /* FASTPATH_PACKED_DRIVER_H */
