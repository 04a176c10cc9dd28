/* SPDX-License-Identifier: Apache-2.0 */
/* merge_segments.h - received frames merged into larger ones for a kernel; see merge_segments.c */

#ifndef FASTPATH_MERGE_SEGMENTS_H
#define FASTPATH_MERGE_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "segment.h"

#define FP_MERGE_FRAMES 128	/* most frames of one burst */
#define FP_MERGE_FLOWS 16	/* flows of a burst whose segments are merged at the same time */

/** struct fp_merged - A frame to be written, made of one or more received ones
 * @pieces:	Its bytes, the virtio header first
 * @piece_count: How many there are
 * @frames:	How many received frames it was made of
 * @bytes:	The bytes of those
 */
struct fp_merged {
	struct iovec *pieces;
	uint32_t piece_count;
	uint32_t frames;
	uint32_t bytes;
};

/** struct fp_segment - What is known of a received frame
 * @ip, @tcp, @payload, @end: Where IP's header, TCP's header and the payload begin, and where that ends
 * @flow:	A number that all frames of its flow have
 * @next:	The segment behind it in the same merged frame
 * @six:	Whether IP is version 6
 * @sound:	Whether its check words are known to be right
 */
struct fp_segment {
	uint32_t ip;
	uint32_t tcp;
	uint32_t payload;
	uint32_t end;
	uint32_t flow;
	uint32_t next;
	bool six;
	bool sound;
};

/** struct fp_train - Frames that are to be merged into one, in the order of their sequence numbers
 * @first, @last: Frames
 * @count:	How many
 * @bytes:	Payload of all
 * @same_id:	Whether all have the same IPv4 identification
 */
struct fp_train {
	uint32_t first;
	uint32_t last;
	uint32_t count;
	uint32_t bytes;
	bool same_id;
};

/** struct fp_merge - Room for a burst
 * @count:	Frames to be written
 * @merged:	These, in order
 * @pieces:	What @merged points into
 * @headers:	Virtio headers of frames that came without
 * @segments:	Of each received frame
 * @trains:	Of each frame to be written
 * @open_flow:	Flows with a train that may grow
 * @open_train:	That train
 * @open_count:	How many there are
 * @oldest:	The one whose place is taken next, when all are
 */
struct fp_merge {
	uint32_t count;
	struct fp_merged merged[FP_MERGE_FRAMES];
	struct iovec pieces[2 * FP_MERGE_FRAMES];
	struct fp_net_header headers[FP_MERGE_FRAMES];
	struct fp_segment segments[FP_MERGE_FRAMES];
	struct fp_train trains[FP_MERGE_FRAMES];
	uint32_t open_flow[FP_MERGE_FLOWS];
	uint32_t open_train[FP_MERGE_FLOWS];
	uint32_t open_count;
	uint32_t oldest;
};

void fp_merge_segments(struct fp_merge *merge, uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count, bool headers);

#endif /* FASTPATH_MERGE_SEGMENTS_H */
