/* SPDX-License-Identifier: Apache-2.0 */
/* generator.h - bounded loops that load a datapath and measure its latency; see generator.c */

#ifndef FASTPATH_GENERATOR_H
#define FASTPATH_GENERATOR_H

#include <stdint.h>

#include "queue.h"

#define FP_WAYS 4		/* most ways of one load: both directions of two queue pairs */
#define FP_LARGEST_BATCH 256	/* frames */
#define FP_NUMBER_AT 22		/* where an echo's number is: behind Ethernet header and mark */
#define FP_ECHO_BYTES 30	/* shortest frame of an echo */

/** struct fp_load - A load, and its results
 * @frame, @back, @length: The frame of the first way and that of the others, NULL for the same; with @touch, bytes 14 to 22 of
 *		both are the mark
 * @batch:	Frames per burst, 1 to FP_LARGEST_BATCH
 * @copy:	Copy each frame into its buffer; else buffers are filled once (drivers only)
 * @touch:	Look at each received frame for the mark
 * @duration_ns: How long to send
 * @window_ns:	Received frames are counted per window of this length
 * @windows:	Set to the frames of each window, at most @window_count
 * @window_count: Set to the number of windows
 * @sent, @received, @foreign, @elapsed_ns: Results; @received does not count foreign frames, which lack the mark
 */
struct fp_load {
	const uint8_t *frame;
	const uint8_t *back;
	uint32_t length;
	uint32_t batch;
	int copy;
	int touch;
	int64_t duration_ns;
	int64_t window_ns;
	uint64_t *windows;
	uint32_t window_count;
	uint64_t sent;
	uint64_t received;
	uint64_t foreign;
	int64_t elapsed_ns;
};

/** struct fp_echo - A run of single frames that come back
 * @frame, @length: The frame, FP_ECHO_BYTES at least; bytes 14 to 22 are its mark, 22 to 30 are set to its number
 * @first:	Number of the first frame
 * @count:	How many frames to send
 * @sleep:	Sleep on eventfds while nothing is there, else poll
 * @timeout_ns:	After this time a frame is lost
 * @budget_ns:	After this time no further one is sent
 * @nanoseconds: Filled with round trip times, -1 for a lost frame
 * @foreign:	Set to the number of frames that were not ours, or late
 */
struct fp_echo {
	uint8_t *frame;
	uint32_t length;
	uint64_t first;
	uint32_t count;
	int sleep;
	int64_t timeout_ns;
	int64_t budget_ns;
	int64_t *nanoseconds;
	uint64_t foreign;
};

int fp_blast(struct fp_queue *const *sources, struct fp_queue *const *sinks, uint32_t ways, struct fp_load *load);
int fp_bounce(struct fp_queue *const near[2], struct fp_queue *const far[2], struct fp_echo *echo);

#endif /* FASTPATH_GENERATOR_H */
