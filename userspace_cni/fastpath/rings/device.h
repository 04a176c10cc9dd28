/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the device's side of a virtqueue, in memory that the other side lends; see device.c */

#ifndef FASTPATH_DEVICE_H
#define FASTPATH_DEVICE_H

#include <stdint.h>

#include "../memory/lent.h"
#include "queue.h"

#define FP_RING_MAX	32768	/* descriptors of a ring */
#define FP_CHAIN_MAX	1024	/* descriptors that one frame may be spread over */

/** struct fp_ring - How a front-end describes one queue
 * @size:	Descriptors, of a split ring a power of two
 * @base:	Split ring: index of the first available buffer. Packed ring: number and wrap counter of the next available descriptor
 *		in the lower half, of the next one to be used in the upper half
 * @descriptors: User address of the descriptors
 * @available:	User address of the ring that the driver writes; packed ring: of the driver area
 * @used:	User address of the ring that we write; packed ring: of the device area
 * @kick:	eventfd by which we are notified, -1 for none: then the ring has to be polled
 * @call:	eventfd by which we notify, -1 for none
 * @mergeable:	Whether a frame may be spread over several of the guest's buffers
 * @packed:	Whether it is a packed ring
 * @in_order:	Whether the driver was told that buffers are used in order
 */
struct fp_ring {
	uint32_t size;
	uint32_t base;
	uint64_t descriptors;
	uint64_t available;
	uint64_t used;
	int kick;
	int call;
	int mergeable;
	int packed;
	int in_order;
};

struct fp_queue *fp_device_new(int transmit, int alarm);
int fp_device_attach(struct fp_queue *queue, const struct fp_memory *memory, const struct fp_ring *ring);
void fp_device_detach(struct fp_queue *queue);
uint32_t fp_device_base(const struct fp_queue *queue);
void fp_device_close(struct fp_queue *queue);
void fp_device_free(struct fp_queue *queue);

#endif /* FASTPATH_DEVICE_H */
