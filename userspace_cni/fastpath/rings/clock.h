/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the clock of all deadlines of the rings */

#ifndef FASTPATH_CLOCK_H
#define FASTPATH_CLOCK_H

#include <stdint.h>
#include <time.h>

#define SECOND_NS 1000000000

/**
 * fp_now() - Read the clock
 *
 * Return: nanoseconds of CLOCK_MONOTONIC
 */
static inline int64_t fp_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * SECOND_NS + time.tv_nsec;
}

#endif /* FASTPATH_CLOCK_H */
