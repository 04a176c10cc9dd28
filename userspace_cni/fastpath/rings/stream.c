// SPDX-License-Identifier: Apache-2.0
/* stream.c - sends frames at a rate at one queue pair, and receives what comes back
 *
 * THEORY OF OPERATION
 *
 * A burst is due when its first frame is. When it has been taken, the next one is due as much later as its frames' gaps say, counted
 * from when this one was due and not from when it was sent: so the rate is exact however late single bursts are. A stream that is
 * late catches up, by at most CATCH_UP_NS; what it was late beyond that, it gives up and counts.
 *
 * Of a received frame only its beginning, up to the end of the stamp, is copied out of a front-end's ring; the rest is never read.
 *
 * Frames are stamped with the time just before they are given to the queue. Received ones are looked at between two bursts, and
 * timed when they are found: a latency has in it what this thread did meanwhile. Until the next burst is due it polls if that is
 * soon, and else sleeps until frames arrive or until shortly before.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "driver.h"
#include "stream.h"

#define CATCH_UP_NS 10000000
#define POLL_NS 70000		/* a sleep may end later by the kernel's timer slack, 50 us */
#define PS 1000			/* picoseconds of a nanosecond */
#define FINE 5			/* a slot of the histogram is one 2^FINE-th of a power of two */

/**
 * slot_of() - Find a time's slot in the histogram
 * @time:	Nanoseconds, not negative
 *
 * Times below 32 ns have a slot each, then each power of two has 32, up to 2^41 ns; a longer time has the last one.
 *
 * Return: 0 to FP_LATENCY_SLOTS - 1
 */
static uint32_t slot_of(int64_t time)
{
	uint32_t power, slot;

	if (time < 1 << FINE)
		return (uint32_t)time;
	power = 63 - (uint32_t)__builtin_clzll((unsigned long long)time);
	slot = (power - FINE + 1) << FINE | ((time >> (power - FINE)) & ((1 << FINE) - 1));
	return slot < FP_LATENCY_SLOTS ? slot : FP_LATENCY_SLOTS - 1;
}

/**
 * stamp() - Write mark and time into the frames of a burst
 * @stream:	The frames from its position on
 * @count:	How many
 * @time:	By fp_now()
 */
static void stamp(struct fp_stream *stream, uint32_t count, int64_t time)
{
	uint8_t *frame = stream->frames + (size_t)stream->at * stream->stride + stream->stamp_at;

	for (uint32_t i = 0; stream->stamp_at && i < count; i++, frame += stream->stride) {
		memcpy(frame, &stream->mark, sizeof(stream->mark));
		memcpy(frame + sizeof(stream->mark), &time, sizeof(time));
	}
}

/**
 * begin_burst() - See whether a burst is due
 * @stream:	No burst is under way
 * @time:	By fp_now()
 */
static void begin_burst(struct fp_stream *stream, int64_t time)
{
	int64_t late = time - stream->start_ns - (int64_t)(stream->due_ps / PS);

	if (late < 0)
		return;
	if (late > CATCH_UP_NS && stream->due_ps) {
		stream->behind_ns += late - CATCH_UP_NS;
		stream->due_ps += (uint64_t)(late - CATCH_UP_NS) * PS;
	}
	stream->pending = stream->left < stream->batch ? (uint32_t)stream->left : stream->batch;
}

/**
 * send_pending() - Send what is due
 * @tx:		Queue that transmits
 * @stream:	What to send; its position and counts move
 * @time:	By fp_now()
 *
 * Return: frames taken, or as fp_send()
 */
static int send_pending(struct fp_queue *tx, struct fp_stream *stream, int64_t time)
{
	uint32_t run = stream->count - stream->at;
	int taken;

	if (!stream->pending && stream->left)
		begin_burst(stream, time);
	if (!stream->pending)
		return 0;
	if (run > stream->pending)
		run = stream->pending;
	stamp(stream, run, time);
	taken = fp_send(tx, stream->frames + (size_t)stream->at * stream->stride, stream->stride, stream->lengths + stream->at, run);
	for (int i = 0; i < taken; i++) {
		stream->sent_bytes += stream->lengths[stream->at];
		stream->due_ps += stream->gaps[stream->at];
		stream->at = (stream->at + 1) % stream->count;
	}
	if (taken > 0) {
		stream->sent += (uint64_t)taken;
		stream->left -= (uint64_t)taken;
		stream->pending -= (uint32_t)taken;
	}
	return taken;
}

/**
 * note() - Count a received frame
 * @stream:	Counts
 * @frame:	The frame; another process wrote it
 * @length:	Its bytes
 * @time:	When it was found, by fp_now()
 */
static void note(struct fp_stream *stream, const uint8_t *frame, uint32_t length, int64_t time)
{
	int64_t sent;

	if (stream->stamp_at && (length < stream->stamp_at + FP_STAMP_BYTES ||
				 memcmp(frame + stream->stamp_at, &stream->mark, sizeof(stream->mark)))) {
		stream->foreign++;
		stream->foreign_bytes += length;
		return;
	}
	stream->received++;
	stream->received_bytes += length;
	if (!stream->stamp_at)
		return;
	memcpy(&sent, frame + stream->stamp_at + sizeof(stream->mark), sizeof(sent));
	if (sent < stream->start_ns || sent > time)	/* changed on its way */
		return;
	time -= sent;
	stream->latencies[slot_of(time)]++;
	if (time < stream->least_ns || !stream->most_ns)
		stream->least_ns = time;
	if (time > stream->most_ns)
		stream->most_ns = time;
}

/**
 * take_heads() - Receive the beginning of each frame of a burst
 * @rx:		A driver
 * @stream:	Room
 * @bytes:	Of each frame, 0 for none
 *
 * Return: as fp_receive()
 */
static int take_heads(struct fp_queue *rx, struct fp_stream *stream, uint32_t bytes)
{
	int count = fp_take(rx);
	uint64_t sum = 0;

	if (count <= 0)
		return count;
	count = atomic_load_explicit(&rx->fault, memory_order_relaxed) ? -EBADMSG :
		fp_driver_heads(rx, stream->arrived, bytes, stream->arrived_lengths, stream->arrived_capacity);
	for (int i = 0; i < count; i++)
		sum += stream->arrived_lengths[i];
	if (count > 0) {
		fp_count(&rx->counters.frames, (uint64_t)count);
		fp_count(&rx->counters.bytes, sum);
	}
	fp_release(rx);
	return count;
}

/**
 * collect() - Receive a burst and count it
 * @rx:		Queue that receives
 * @stream:	Room, and counts
 *
 * Return: as fp_receive()
 */
static int collect(struct fp_queue *rx, struct fp_stream *stream)
{
	uint32_t stride = stream->stamp_at ? (stream->stamp_at + FP_STAMP_BYTES + FP_LINE - 1) / FP_LINE * FP_LINE : 0;
	int64_t time;
	int count;

	if (fp_driver_is(rx) && stride <= stream->arrived_stride) {
		count = take_heads(rx, stream, stride);
	} else {
		stride = stream->arrived_stride;
		count = fp_receive(rx, stream->arrived, stride, stream->arrived_lengths, stream->arrived_capacity);
	}
	time = count > 0 ? fp_now() : 0;
	for (int i = 0; i < count; i++)
		note(stream, stream->arrived + (size_t)i * stride, stream->arrived_lengths[i], time);
	return count;
}

/**
 * rest() - Sleep until frames arrive, or until a burst is nearly due
 * @rx, @control, @wake: As for fp_wait()
 * @stream:	No frame is under way or there
 * @time, @end:	Now, and when to wake up at the latest
 *
 * Return: 0, or as fp_wait()
 */
static int rest(struct fp_queue *rx, int control, int wake, const struct fp_stream *stream, int64_t time, int64_t end)
{
	int64_t until = stream->start_ns + (int64_t)(stream->due_ps / PS) - POLL_NS;
	int result;

	if (!stream->left || until > end)
		until = end;
	if (stream->pending || until <= time)
		return 0;
	result = fp_wait(&rx, 1, control, wake, until - time);
	return result < 0 ? result : 0;
}

/**
 * fp_stream_run() - Send what is due, and receive what arrives, for a while
 * @tx, @rx:	The queues of one pair
 * @control, @wake: As for fp_wait()
 * @stream:	What to send; its results grow
 *
 * Ends when its budget is used up, when a signal arrives, and when nothing is left to send; with nothing left at its start it only
 * receives. It may be called again.
 *
 * Return: 0; -EINVAL; else as fp_send(), fp_receive() and fp_wait()
 */
int fp_stream_run(struct fp_queue *tx, struct fp_queue *rx, int control, int wake, struct fp_stream *stream)
{
	int64_t start = fp_now(), time = start, end = start + stream->budget_ns;
	bool sends = stream->left;
	int sent = 0, received;

	if (!stream->count || !stream->batch || !stream->arrived_capacity)
		return -EINVAL;
	if (!stream->start_ns) {
		stream->start_ns = start;
		stream->earlier_ns = stream->elapsed_ns;
	}
	while (time < end && (stream->left || !sends)) {
		sent = send_pending(tx, stream, time);
		received = sent < 0 ? sent : collect(rx, stream);
		if (received < 0 || (!sent && !received && (received = rest(rx, control, wake, stream, time, end)) < 0)) {
			sent = received == -EINTR ? 0 : received;
			break;
		}
		time = fp_now();
	}
	if (sends)
		stream->elapsed_ns = stream->earlier_ns + fp_now() - stream->start_ns;
	return sent < 0 ? sent : 0;
}
