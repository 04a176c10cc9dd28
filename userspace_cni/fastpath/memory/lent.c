// SPDX-License-Identifier: Apache-2.0
/* lent.c - memory that a front-end lends: its regions, and the places of addresses in them
 *
 * THEORY OF OPERATION
 *
 * A front-end announces up to FP_REGIONS parts of its memory. Each has three addresses: one that descriptors use, one that
 * SET_VRING_ADDR uses, and one where we map it. A table is filled before a queue uses it and never changed afterwards: new memory
 * is a new table. A ring or buffer must lie in one region as a whole. guard.c deals with memory that is taken away.
 */

#include <errno.h>
#include <stdlib.h>

#include "lent.h"

/**
 * fp_memory_new() - Make a table without regions
 *
 * Return: the table, NULL with errno set
 */
struct fp_memory *fp_memory_new(void)
{
	return calloc(1, sizeof(struct fp_memory));
}

/**
 * overlap() - Whether two ranges of addresses have bytes in common
 * @a:		Where one begins
 * @a_size:	Its bytes
 * @b:		Where the other begins
 * @b_size:	Its bytes
 *
 * Return: 1 or 0
 */
static int overlap(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
	return a < b ? b - a < a_size : a - b < b_size;
}

/**
 * check_region() - Check that a region could be in the table
 * @memory:	Table
 * @region:	Region
 *
 * Return: 0, -EOVERFLOW: empty, too long or beyond the end of addresses, -EEXIST: overlaps another, -E2BIG: the table is full
 */
static int check_region(const struct fp_memory *memory, const struct fp_region *region)
{
	uint32_t i;

	if (!region->size || region->size > FP_GUARD_MAX)
		return -EOVERFLOW;
	if (region->guest + region->size < region->guest || region->user + region->size < region->user)
		return -EOVERFLOW;
	if (memory->count == FP_REGIONS)
		return -E2BIG;
	for (i = 0; i < memory->count; i++) {
		const struct fp_region *other = &memory->regions[i];

		if (overlap(region->guest, region->size, other->guest, other->size) ||
		    overlap(region->user, region->size, other->user, other->size))
			return -EEXIST;
	}
	return 0;
}

/**
 * fp_memory_put() - Add a region that is mapped already
 * @memory:	Table that no queue uses yet
 * @region:	The region, with @data of at least @size bytes
 *
 * Return: 0, -EOVERFLOW: empty, longer than FP_GUARD_MAX or beyond the end of addresses, -EEXIST: overlaps another, -E2BIG
 */
int fp_memory_put(struct fp_memory *memory, const struct fp_region *region)
{
	int rc = check_region(memory, region);

	if (!rc)
		memory->regions[memory->count++] = *region;
	return rc;
}

/**
 * fp_memory_add() - Add a region that is part of a file
 * @memory:	Table that no queue uses yet
 * @region:	The region without @data
 * @fd:		File, may be closed afterwards
 * @offset:	Where in it the region begins
 *
 * Return: 0, what fp_memory_put() and fp_guard_map() return
 */
int fp_memory_add(struct fp_memory *memory, const struct fp_region *region, int fd, uint64_t offset)
{
	struct fp_region mapped = *region;
	int rc = check_region(memory, region);

	if (!rc)
		rc = fp_guard_map(fd, offset, region->size, &mapped.guard);
	if (rc)
		return rc;
	mapped.data = mapped.guard->data;
	return fp_memory_put(memory, &mapped);
}

/**
 * fp_memory_gone() - Whether any of the memory was taken away
 * @memory:	The table
 *
 * Return: 1 or 0
 */
int fp_memory_gone(const struct fp_memory *memory)
{
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		const struct fp_guard *guard = memory->regions[i].guard;

		if (guard && atomic_load_explicit(&guard->gone, memory_order_acquire))
			return 1;
	}
	return 0;
}

/**
 * fp_memory_free() - Unmap everything
 * @memory:	Table that no queue uses any more, or NULL
 */
void fp_memory_free(struct fp_memory *memory)
{
	if (!memory)
		return;
	while (memory->count--) {
		if (memory->regions[memory->count].guard)
			fp_guard_unmap(memory->regions[memory->count].guard);
	}
	free(memory);
}

/**
 * fp_by_user() - Find a ring
 * @memory:	Memory in which it has to lie
 * @address:	User address
 * @length:	Bytes
 * @alignment:	A power of two, of our address
 * @where:	Set to our address
 *
 * Return: 0, -EFAULT: not all in one region, -EDOM: not aligned
 */
int fp_by_user(const struct fp_memory *memory, uint64_t address, uint64_t length, uintptr_t alignment, void **where)
{
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		const struct fp_region *r = &memory->regions[i];
		uint64_t offset = address - r->user;

		if (offset >= r->size || length > r->size - offset)
			continue;
		*where = r->data + offset;
		return (uintptr_t)*where & (alignment - 1) ? -EDOM : 0;
	}
	return -EFAULT;
}
