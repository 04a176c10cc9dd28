/* SPDX-License-Identifier: Apache-2.0 */
/* guard.h - mappings of memory that its owner may take away; see guard.c */

#ifndef FASTPATH_GUARD_H
#define FASTPATH_GUARD_H

#include <stdatomic.h>
#include <stdint.h>

#define FP_GUARDS	4096		/* mappings that a process may have at once */
#define FP_GUARD_MAX	(1ULL << 40)	/* longest mapping and highest offset, bytes */

/** struct fp_guard - One mapping; only guard.c uses its fields, but all may read @data and @gone
 * @data:	Where the byte at the offset asked for is
 * @gone:	1 once memory was taken away: the whole mapping is then zero pages of our own
 * @sequence:	Odd while @start and @length are being changed
 * @start:	First byte mapped, 0 for a free entry
 * @length:	Bytes mapped
 * @around:	First byte of the reservation around it
 * @reserved:	Bytes reserved
 */
struct fp_guard {
	uint8_t *data;
	_Atomic uint32_t gone;
	_Atomic uint32_t sequence;
	_Atomic uintptr_t start;
	_Atomic uintptr_t length;
	void *around;
	uint64_t reserved;
};

int fp_guard_map(int fd, uint64_t offset, uint64_t length, struct fp_guard **guard);
void fp_guard_unmap(struct fp_guard *guard);
int fp_guard_count(void);
void fp_guard_unblock(void);

#endif /* FASTPATH_GUARD_H */
