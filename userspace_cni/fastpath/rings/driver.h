/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - the driver's side of a virtqueue: our side when we are the front-end; see driver.c */

#ifndef FASTPATH_DRIVER_H
#define FASTPATH_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "queue.h"

size_t fp_driver_bytes(uint32_t size, uint32_t room);
struct fp_queue *fp_driver_new(void *memory, uint32_t size, uint32_t room, int transmit);
void fp_driver_attach(struct fp_queue *queue, int packed, int in_order, int mergeable, int kick, int call);
void fp_driver_rings(struct fp_queue *queue, uint64_t rings[3]);
void fp_driver_free(struct fp_queue *queue);

/* For generator.c and stream.c alone, so they are not in struct fp_operations */
#define FP_MARK 8	/* bytes behind the Ethernet header by which a generator knows its frames; a buffer always has room for them */
bool fp_driver_is(const struct fp_queue *queue);
void fp_driver_fill(struct fp_queue *queue, const void *frame, uint32_t length);
int fp_driver_repeat(struct fp_queue *queue, uint32_t length, uint32_t count);
int fp_driver_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_driver_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign);

#endif /* FASTPATH_DRIVER_H */
