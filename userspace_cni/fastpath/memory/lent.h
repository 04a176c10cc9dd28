/* SPDX-License-Identifier: Apache-2.0 */
/* lent.h - memory that a front-end lends; see lent.c */

#ifndef FASTPATH_LENT_H
#define FASTPATH_LENT_H

#include <stddef.h>
#include <stdint.h>

#include "guard.h"

#define FP_REGIONS	8	/* regions of memory that a front-end may lend */

/** struct fp_region - A part of the other side's memory
 * @guest:	Its address in descriptors
 * @user:	Its address in SET_VRING_ADDR
 * @size:	Bytes
 * @data:	Our address of it
 * @guard:	Our mapping of it, NULL for memory that is not a mapping (tests)
 */
struct fp_region {
	uint64_t guest;
	uint64_t user;
	uint64_t size;
	uint8_t *data;
	struct fp_guard *guard;
};

/** struct fp_memory - All memory that one front-end lends at a time
 * @count:	Regions
 * @regions:	None of which overlaps another
 */
struct fp_memory {
	uint32_t count;
	struct fp_region regions[FP_REGIONS];
};

/**
 * fp_by_guest() - Find a buffer
 * @memory:	Memory in which it has to lie
 * @address:	Guest address
 * @length:	Bytes
 *
 * Return: our address, NULL when they are not all in one region
 */
static inline uint8_t *fp_by_guest(const struct fp_memory *memory, uint64_t address, uint32_t length)
{
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		const struct fp_region *r = &memory->regions[i];
		uint64_t offset = address - r->guest;

		if (offset < r->size && length <= r->size - offset)
			return r->data + offset;
	}
	return NULL;
}

struct fp_memory *fp_memory_new(void);
int fp_memory_put(struct fp_memory *memory, const struct fp_region *region);
int fp_memory_add(struct fp_memory *memory, const struct fp_region *region, int fd, uint64_t offset);
int fp_memory_gone(const struct fp_memory *memory);
void fp_memory_free(struct fp_memory *memory);
int fp_by_user(const struct fp_memory *memory, uint64_t address, uint64_t length, uintptr_t alignment, void **where);

#endif /* FASTPATH_LENT_H */
