/* SPDX-License-Identifier: Apache-2.0 */
/* cut_segments.h - large frames of a kernel cut into frames of a wire; see cut_segments.c */

#ifndef FASTPATH_CUT_SEGMENTS_H
#define FASTPATH_CUT_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

/** struct fp_cut - A frame that is being cut
 * @frame:	The frame behind its virtio header, the caller's: unchanged until all is cut
 * @length:	Its bytes
 * @head:	Bytes of headers that each segment begins with; all of a frame that is not cut
 * @size:	Bytes of payload of each segment but the last
 * @done:	Payload that was handed out
 * @ip:		Where IP's header is
 * @from:	Where the bytes begin that the check word sums up
 * @check:	Where that word is; 0: it is left as it is
 * @four:	Whether IP is version 4
 * @more:	Whether there is a segment left
 */
struct fp_cut {
	const uint8_t *frame;
	uint32_t length;
	uint32_t head;
	uint32_t size;
	uint32_t done;
	uint32_t ip;
	uint32_t from;
	uint32_t check;
	bool four;
	bool more;
};

int fp_cut_begin(struct fp_cut *cut, const uint8_t *frame, uint32_t length, uint32_t longest);
uint32_t fp_cut_next(struct fp_cut *cut, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);

#endif /* FASTPATH_CUT_SEGMENTS_H */
