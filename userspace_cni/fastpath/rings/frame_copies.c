// SPDX-License-Identifier: Apache-2.0
/* frame_copies.c - frames from one run of bytes into a burst
 *
 * Python joins objects of any kind that has bytes in one call, but needs a step of its own for each frame that lies elsewhere. So
 * frames pass from such a run into a burst's buffer here.
 */

#include <string.h>

#include "frame_copies.h"

/**
 * fp_spread() - Put frames that lie one behind the other into a burst's buffer
 * @frames:	Buffer; frame i is put at i * @stride
 * @stride:	Bytes from frame to frame
 * @joined:	The frames
 * @lengths:	Bytes of each, at most @stride; the caller has seen to it that they add up to the bytes of @joined
 * @count:	Frames
 */
void fp_spread(void *frames, uint32_t stride, const void *joined, const uint32_t *lengths, uint32_t count)
{
	const uint8_t *from = joined;
	uint8_t *to = frames;

	for (uint32_t i = 0; i < count; i++) {
		memcpy(to, from, lengths[i]);
		from += lengths[i];
		to += stride;
	}
}
