// SPDX-License-Identifier: Apache-2.0
/* pump.c - frames between a kernel tap and a pair of queues
 *
 * THEORY OF OPERATION
 *
 * A tap takes and gives one frame per system call, half a microsecond each, while a ring takes a burst for little more than the
 * cost of one frame. So up to FP_PUMP_BATCH frames are read from the tap before one fp_send() sends them, and one fp_receive() is
 * followed by as many writes. In between each frame lies in a buffer of our own. That copy was measured as 5 % (out) to 11 % (in) of
 * the cost of a frame of 1500 bytes, and less for shorter ones. If the kernel read and wrote the ring's own buffers, that would save
 * little and bind the pump to one kind of queue.
 *
 * With headers, frames of tap and ring begin with their virtio header, and the kernel's TCP frames may have 64 KiB: see pump_ways.c.
 *
 * The pump never waits for one side while the other one has frames. When the ring is full, the frames of the last read are kept
 * for @hold_ns, so that no frames are lost when the switch's thread was off its core for a moment: meanwhile the tap's own queue
 * fills, which senders in the kernel notice. After that, and until the ring takes frames again, frames are dropped and counted.
 *
 * With nothing to do the thread sleeps on the tap, the ring's event and all events that end a run. If the last sleeps were short,
 * it looks for frames a little longer before it sleeps: sleeping and waking costs more than that, for the switch too. So an idle
 * pump uses no processor at all, and a busy one does not ask for notifications.
 *
 * The caller owns descriptors and queues, and keeps them open until a run has ended.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "pump.h"
#include "pump_ways.h"

#define SPIN_MIN_NS	2000		/* shortest time to look for frames before a sleep */
#define SPIN_MAX_NS	20000
#define HOLD_NS		2000000
#define RETRY_NS	50000		/* until a full ring is tried again, when there is nothing else to do */
#define LOOK_NS		1000000		/* how often a busy pump checks the events that end a run */
#define SLACK		64		/* bytes of room beyond the longest frame, to recognise a longer one */
#define LARGE_BASE	65536		/* see stride_of() */

/**
 * stride_of() - Choose the distance of frames in the buffers
 * @longest:	Bytes of the longest frame that is carried
 * @headers:	Whether frames have headers, and may be large
 *
 * Of the room for a large frame a small one touches the beginning alone. If these were 64 KiB apart, all would fall into the same few
 * sets of a cache.
 *
 * Return: bytes, whole cache lines
 */
static uint32_t stride_of(uint32_t longest, bool headers)
{
	uint32_t stride = (longest + (headers ? FP_HEADER : 0) + SLACK + FP_LINE - 1) / FP_LINE * FP_LINE;

	return headers ? LARGE_BASE + stride : stride;
}

_Static_assert(FP_HEADER + FP_LARGEST < LARGE_BASE + SLACK, "a longer frame is recognised");

/**
 * fp_pump_new() - Make the pump of one tap
 * @tap:	File of the tap, non-blocking
 * @stop:	eventfd that ends runs when it is written
 * @longest:	Bytes of the longest frame that is carried, without a header and unless it is to be cut
 * @headers:	Whether frames have headers: of a tap with IFF_VNET_HDR and TUNSETVNETHDRSZ of FP_HEADER, and of the queues
 *
 * The kernel gives memory when it is touched: with headers a few large frames at a time are under way, see pump_ways.c.
 *
 * Return: the pump, to be given to fp_pump_free(); NULL: no memory
 */
struct fp_pump *fp_pump_new(int tap, int stop, uint32_t longest, bool headers)
{
	struct fp_pump *pump = calloc(1, sizeof(*pump));

	if (!pump)
		return NULL;

	pump->tap = tap;
	pump->stop = stop;
	pump->longest = longest;
	pump->headers = headers;
	pump->cuts = pump->merges = headers;
	pump->stride = stride_of(longest, headers);
	pump->capacity = FP_PUMP_BATCH;
	pump->spin_max_ns = SPIN_MAX_NS;
	pump->hold_ns = HOLD_NS;
	pump->up = aligned_alloc(FP_LINE, (size_t)FP_PUMP_BATCH * pump->stride);
	pump->down = aligned_alloc(FP_LINE, (size_t)FP_PUMP_DOWN_BATCH * pump->stride);
	pump->large = headers ? aligned_alloc(FP_LINE, pump->stride) : NULL;
	pump->merge = headers ? malloc(sizeof(*pump->merge)) : NULL;
	if (pump->up && pump->down && (!headers || (pump->large && pump->merge)))
		return pump;

	fp_pump_free(pump);
	return NULL;
}

/**
 * fp_pump_free() - Free a pump; no run may be under way
 * @pump:	The pump, or NULL
 */
void fp_pump_free(struct fp_pump *pump)
{
	if (!pump)
		return;

	free(pump->up);
	free(pump->down);
	free(pump->large);
	free(pump->merge);
	free(pump);
}

/**
 * fp_pump_offload() - Say what is done to frames with headers
 * @pump:	Pump with headers, which does not run; a new one does both
 * @cuts:	Whether large frames of the tap are cut, for a ring whose other side takes none
 * @merges:	Whether received frames are merged
 *
 * Frames that are held for the former ring are dropped: they may be too large for the next one.
 */
void fp_pump_offload(struct fp_pump *pump, bool cuts, bool merges)
{
	pump->merges = merges;
	if (cuts == pump->cuts)
		return;
	pump->cuts = cuts;
	pump->cut.more = false;
	pump->to_ring.dropped += pump->held;
	pump->held = 0;
}

/**
 * ended() - Check the events that end a run
 * @pump:	Pump
 * @control, @wake: As in fp_pump_run()
 *
 * Return: enum fp_pump_end; FP_PUMP_SLICE: none of them has happened
 */
static int ended(const struct fp_pump *pump, int control, int wake)
{
	struct pollfd watched[] = {
		{ .fd = pump->stop, .events = POLLIN },
		{ .fd = wake, .events = POLLIN },
		{ .fd = control, .events = POLLRDHUP },
	};

	if (poll(watched, 3, 0) <= 0)
		return FP_PUMP_SLICE;
	if (watched[0].revents)
		return FP_PUMP_STOPPED;
	return watched[1].revents ? FP_PUMP_CLOSED : FP_PUMP_HANGUP;
}

/**
 * rest() - Sleep until there is something to do
 * @pump:	Pump
 * @rx:		Queue to receive with
 * @ready:	epoll of all other events that have to wake us
 * @limit_ns:	Longest sleep
 *
 * Return: 0; negative: errno of the queue, or -EINTR
 */
static int rest(struct fp_pump *pump, struct fp_queue *rx, int ready, int64_t limit_ns)
{
	int found;

	/* While frames are held the tap has to wait, and no event shows that the ring takes them */
	if (pump->held) {
		ready = -1;
		if (limit_ns > RETRY_NS)
			limit_ns = RETRY_NS;
	}

	pump->sleeps++;
	found = fp_sleep(&rx, 1, -1, ready, limit_ns);

	/* -ESHUTDOWN may mean @ready; a closed queue returns it again */
	return found == -ESHUTDOWN || found > 0 ? 0 : found;
}

/**
 * adapt() - Look for frames longer before the next sleep when the last one was short, else less
 * @pump:	Pump
 * @slept_ns:	Length of the last sleep
 */
static void adapt(struct fp_pump *pump, int64_t slept_ns)
{
	if (slept_ns > pump->spin_max_ns)
		pump->spin_ns /= 2;
	else if (pump->spin_ns < SPIN_MIN_NS)
		pump->spin_ns = SPIN_MIN_NS;
	else
		pump->spin_ns *= 2;

	if (pump->spin_ns > pump->spin_max_ns)
		pump->spin_ns = pump->spin_max_ns;
}

/**
 * carry() - Move frames and sleep in turns
 * @pump:	Pump
 * @tx, @rx:	Queues
 * @ends:	Control socket and wake event
 * @ready:	epoll of the tap and of the events that end a run
 * @slice_ns:	Time after which the run ends in any case
 *
 * Return: enum fp_pump_end; negative: errno of a queue, -EINTR, -ENODEV for the tap
 */
static int carry(struct fp_pump *pump, struct fp_queue *tx, struct fp_queue *rx, const int ends[2], int ready, int64_t slice_ns)
{
	int64_t now = fp_now(), end = now + slice_ns, busy_until = now, look_at = now;

	for (;;) {
		int up, down, found;

		up = fp_pump_to_ring(pump, tx, now);
		if (up < 0)
			return up;
		down = fp_pump_to_tap(pump, rx);
		if (down < 0)
			return down;

		now = fp_now();
		if (up || down)
			busy_until = now + pump->spin_ns;
		if (now >= look_at) {
			found = ended(pump, ends[0], ends[1]);
			if (found != FP_PUMP_SLICE)
				return found;
			look_at = now + LOOK_NS;
		}
		if (now >= end)
			return FP_PUMP_SLICE;

		if (now >= busy_until) {
			int64_t before = now;

			found = rest(pump, rx, ready, end - now);
			if (found < 0)
				return found;
			now = fp_now();
			adapt(pump, now - before);
			busy_until = now + pump->spin_ns;
			look_at = now;	/* the event that has woken us may end the run */
		}
	}
}

/**
 * watch() - Add a descriptor to an epoll
 * @ready:	epoll
 * @fd:		Descriptor, -1: none
 * @events:	Events to watch for
 *
 * Return: 0, or -errno
 */
static int watch(int ready, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	return fd >= 0 && epoll_ctl(ready, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/**
 * fp_pump_run() - Carry frames both ways for a while
 * @pump:	Pump
 * @tx:		Queue for frames from the tap
 * @rx:		Queue for frames to the tap
 * @control:	Socket to the other side; its hang-up ends the run
 * @wake:	Event that ends the run; -1: none
 * @slice_ns:	Time after which the run ends in any case
 *
 * Frames that are held at the end are sent by the next run, or dropped when its ring takes none.
 *
 * Return: enum fp_pump_end; negative: errno of a queue, as fp_send() and fp_receive(), or of epoll_ctl(2); -EINVAL: only one of pump
 *	   and queues has headers
 */
int fp_pump_run(struct fp_pump *pump, struct fp_queue *tx, struct fp_queue *rx, int control, int wake, int64_t slice_ns)
{
	const int ends[] = { control, wake };
	int ready, found;

	if (tx->headers != pump->headers || rx->headers != pump->headers)
		return -EINVAL;
	if ((ready = epoll_create1(EPOLL_CLOEXEC)) < 0)
		return -errno;

	pump->oversize = fp_pump_oversize(rx);
	if ((found = watch(ready, pump->tap, EPOLLIN)) == 0 && (found = watch(ready, pump->stop, EPOLLIN)) == 0 &&
	    (found = watch(ready, wake, EPOLLIN)) == 0 && (found = watch(ready, control, EPOLLRDHUP)) == 0)
		found = carry(pump, tx, rx, ends, ready, slice_ns);
	close(ready);

	switch (found) {
	case -ENODEV:
		return FP_PUMP_TAP_GONE;
	case -ESHUTDOWN:
		return FP_PUMP_CLOSED;
	case -EINTR:
		return FP_PUMP_SLICE;
	default:
		return found;
	}
}
