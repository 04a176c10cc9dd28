/* SPDX-License-Identifier: Apache-2.0 */
/* frame_copies.h - frames from one run of bytes into a burst; see frame_copies.c */

#ifndef FASTPATH_FRAME_COPIES_H
#define FASTPATH_FRAME_COPIES_H

#include <stdint.h>

void fp_spread(void *frames, uint32_t stride, const void *joined, const uint32_t *lengths, uint32_t count);

#endif /* FASTPATH_FRAME_COPIES_H */
