/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - sends frames at a rate at one queue pair, and receives what comes back; see stream.c */

#ifndef FASTPATH_STREAM_H
#define FASTPATH_STREAM_H

#include <stdint.h>

#include "queue.h"

#define FP_STAMP_BYTES 16	/* mark and time of sending in each frame */
#define FP_LATENCY_SLOTS 1184	/* of the histogram: see slot_of() */

/** struct fp_stream - A stream, what is left of it, and its results so far; all but the results is the caller's
 * @frames, @stride, @lengths, @gaps, @count: What is sent, one after the other and from the start again: frame i is at i * @stride,
 *		and the next one is due @gaps[i] picoseconds later
 * @batch:	Frames that are sent together, 1 or more
 * @stamp_at:	Where in each frame the mark and the time of sending are written, 0 for none; each frame has room for them
 * @mark:	Eight bytes by which frames that come back are known
 * @arrived, @arrived_stride, @arrived_lengths, @arrived_capacity: Room for received frames
 * @budget_ns:	How long a call of fp_stream_run() may take
 * @left:	Frames still to send
 * @at:		The next frame
 * @pending:	Frames of the burst that is under way
 * @start_ns:	When the stream began, by fp_now(); 0: it begins with the next call
 * @earlier_ns:	How long frames were sent before that
 * @due_ps:	When the next frame is due, in picoseconds since then
 * @sent, @sent_bytes: Frames taken by the queue
 * @received, @received_bytes: Frames of this stream that came back; without stamps, all that came
 * @foreign, @foreign_bytes: Other frames that came
 * @behind_ns:	Time by which the stream was late and which it did not make up for
 * @elapsed_ns:	How long frames were sent
 * @latencies:	Frames by the time that they took
 * @least_ns, @most_ns: Of these times, if there is any
 */
struct fp_stream {
	uint8_t *frames;
	uint32_t stride;
	const uint32_t *lengths;
	const uint64_t *gaps;
	uint32_t count;
	uint32_t batch;
	uint32_t stamp_at;
	uint64_t mark;
	uint8_t *arrived;
	uint32_t arrived_stride;
	uint32_t *arrived_lengths;
	uint32_t arrived_capacity;
	int64_t budget_ns;
	uint64_t left;
	uint32_t at;
	uint32_t pending;
	int64_t start_ns;
	int64_t earlier_ns;
	uint64_t due_ps;
	uint64_t sent;
	uint64_t sent_bytes;
	uint64_t received;
	uint64_t received_bytes;
	uint64_t foreign;
	uint64_t foreign_bytes;
	int64_t behind_ns;
	int64_t elapsed_ns;
	uint64_t latencies[FP_LATENCY_SLOTS];
	int64_t least_ns;
	int64_t most_ns;
};

int fp_stream_run(struct fp_queue *tx, struct fp_queue *rx, int control, int wake, struct fp_stream *stream);

#endif /* FASTPATH_STREAM_H */
