// SPDX-License-Identifier: Apache-2.0
/* frame_copies.c - frames of a burst to and from one run of bytes
 *
 * Python joins and cuts a run of bytes in one call each, but needs a step of its own for each frame that lies elsewhere. So frames
 * of different lengths pass between a burst's buffer and such a run here.
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

/**
 * fp_gather() - Put the frames of a burst one behind the other
 * @joined:	Room for @count frames of @stride bytes
 * @frames:	Buffer of the burst; frame i is at i * @stride
 * @stride:	Bytes from frame to frame
 * @lengths:	Bytes of each, at most @stride
 * @count:	Frames
 */
void fp_gather(void *joined, const void *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	const uint8_t *from = frames;
	uint8_t *to = joined;

	for (uint32_t i = 0; i < count; i++) {
		memcpy(to, from, lengths[i]);
		to += lengths[i];
		from += stride;
	}
}
