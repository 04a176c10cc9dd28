/* SPDX-License-Identifier: Apache-2.0 */
/* pump.h - frames between a kernel tap and a pair of queues; see pump.c */

#ifndef FASTPATH_PUMP_H
#define FASTPATH_PUMP_H

#include <stdint.h>

#include "cut_segments.h"
#include "merge_segments.h"
#include "queue.h"

#define FP_PUMP_BATCH 32	/* frames that are read, or received, at once */
#define FP_PUMP_DOWN_BATCH 64	/* the same for frames that are received with headers: what is merged is among them */

/** enum fp_pump_end - Why a run is over
 * @FP_PUMP_SLICE:	its time is over, or a signal came
 * @FP_PUMP_STOPPED:	the pump's stop event was written
 * @FP_PUMP_CLOSED:	the wake event of the queues' owner was written, or a queue is closed
 * @FP_PUMP_HANGUP:	the other side has left the control socket
 * @FP_PUMP_TAP_GONE:	the tap was deleted
 */
enum fp_pump_end {
	FP_PUMP_SLICE,
	FP_PUMP_STOPPED,
	FP_PUMP_CLOSED,
	FP_PUMP_HANGUP,
	FP_PUMP_TAP_GONE,
};

/** struct fp_flow - One direction since the pump was made
 * @frames:	Frames handed over
 * @bytes:	Their bytes
 * @dropped:	Frames for which there was no room, or that were too long, or that the tap did not take
 */
struct fp_flow {
	uint64_t frames;
	uint64_t bytes;
	uint64_t dropped;
};

/** struct fp_pump - One tap's descriptor and the frames under way; one thread runs it, any may read the counters
 * @to_ring, @to_tap:	Counters of the two directions
 * @sleeps:	How often the pump slept
 * @spin_max_ns: Longest time for which frames are looked for before sleeping
 * @hold_ns:	How long frames of the tap are kept for a full ring before they are dropped
 * @tap, @stop:	Descriptors that the caller closes
 * @longest:	Bytes of the longest frame that is not to be cut, without its header
 * @stride:	Bytes between frames in the buffers
 * @headers:	Whether frames have headers
 * @cuts:	Whether large frames of the tap are cut here
 * @merges:	Whether received frames are merged
 * @capacity:	Frames that the next burst may receive
 * @first, @held: Frames of @up that were read from the tap and not sent yet
 * @oversize:	What the receiving queue had dropped as too long when it was last looked at
 * @full_since:	When the ring became full, 0: it is not full
 * @spin_ns:	Time to look for frames before the next sleep
 * @up, @down:	Frames from the tap, and to it
 * @large:	The frame that is being cut
 * @cut:	How far that is
 * @merge:	Frames of @down that are merged
 */
struct fp_pump {
	struct fp_flow to_ring;
	struct fp_flow to_tap;
	uint64_t sleeps;
	int64_t spin_max_ns;
	int64_t hold_ns;

	int tap;
	int stop;
	uint32_t longest;
	uint32_t stride;
	bool headers;
	bool cuts;
	bool merges;
	uint32_t capacity;
	uint32_t first;
	uint32_t held;
	uint64_t oversize;
	int64_t full_since;
	int64_t spin_ns;
	uint8_t *up;
	uint8_t *down;
	uint8_t *large;
	struct fp_cut cut;
	struct fp_merge *merge;
	uint32_t up_lengths[FP_PUMP_BATCH];
	uint32_t down_lengths[FP_PUMP_DOWN_BATCH];
};

struct fp_pump *fp_pump_new(int tap, int stop, uint32_t longest, bool headers);
void fp_pump_offload(struct fp_pump *pump, bool cuts, bool merges);
void fp_pump_free(struct fp_pump *pump);
int fp_pump_run(struct fp_pump *pump, struct fp_queue *tx, struct fp_queue *rx, int control, int wake, int64_t slice_ns);

#endif /* FASTPATH_PUMP_H */
