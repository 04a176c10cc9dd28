// SPDX-License-Identifier: Apache-2.0
/* pump.c - frames between a kernel tap and a pair of queues
 *
 * THEORY OF OPERATION
 *
 * A tap takes and gives one frame per system call, half a microsecond each, while a ring takes a burst for little more than the
 * cost of one frame. So up to FP_PUMP_BATCH frames are read from the tap before one fp_send() sends them, and one fp_receive() is
 * followed by as many writes. In between each frame lies in a buffer of our own, without its virtio header, which would be empty
 * because nothing is offloaded. That copy was measured as 5 % (out) to 11 % (in) of the cost of a frame of 1500 bytes, and less for
 * shorter ones. If the kernel read and wrote the ring's own buffers, that would save little and bind the pump to one kind of queue.
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

#define SPIN_MIN_NS	2000		/* shortest time to look for frames before a sleep */
#define SPIN_MAX_NS	20000
#define HOLD_NS		2000000
#define RETRY_NS	50000		/* until a full ring is tried again, when there is nothing else to do */
#define LOOK_NS		1000000		/* how often a busy pump checks the events that end a run */
#define SLACK		64		/* bytes of room beyond the longest frame, to recognise a longer one */

/**
 * read_frame() - Call read(2) without libc's point of cancellation, which costs time per frame in a process of several threads
 * @tap:	Tap
 * @frame:	Room for the frame
 * @size:	Bytes of room
 *
 * Return: bytes of the frame, cut off at @size; -1 with errno set
 */
static ssize_t read_frame(int tap, uint8_t *frame, size_t size)
{
	return syscall(SYS_read, tap, frame, size);
}

/**
 * write_frame() - Call write(2) in the same way
 * @tap:	Tap
 * @frame:	Frame
 * @size:	Its bytes
 *
 * Return: bytes written, -1 with errno set
 */
static ssize_t write_frame(int tap, const uint8_t *frame, size_t size)
{
	return syscall(SYS_write, tap, frame, size);
}

/**
 * fp_pump_new() - Make the pump of one tap
 * @tap:	File of the tap, non-blocking
 * @stop:	eventfd that ends runs when it is written
 * @longest:	Bytes of the longest frame that is carried
 *
 * Return: the pump, to be given to fp_pump_free(); NULL: no memory
 */
struct fp_pump *fp_pump_new(int tap, int stop, uint32_t longest)
{
	struct fp_pump *pump = calloc(1, sizeof(*pump));

	if (!pump)
		return NULL;

	pump->tap = tap;
	pump->stop = stop;
	pump->stride = (longest + SLACK + FP_LINE - 1) / FP_LINE * FP_LINE;
	pump->spin_max_ns = SPIN_MAX_NS;
	pump->hold_ns = HOLD_NS;
	pump->up = aligned_alloc(FP_LINE, (size_t)FP_PUMP_BATCH * pump->stride);
	pump->down = aligned_alloc(FP_LINE, (size_t)FP_PUMP_BATCH * pump->stride);
	if (pump->up && pump->down)
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
	free(pump);
}

/**
 * read_tap() - Read up to a batch of frames from the tap
 * @pump:	Pump that holds no frames
 * @room:	Longest frame that can be sent, bytes
 *
 * Return: frames read, which the pump now holds; -ENODEV: the tap is gone
 */
static int read_tap(struct fp_pump *pump, uint32_t room)
{
	uint32_t count = 0, tries;

	if (room > pump->stride - 1)
		room = pump->stride - 1;

	for (tries = 0; tries < FP_PUMP_BATCH; tries++) {
		ssize_t length = read_frame(pump->tap, pump->up + (size_t)count * pump->stride, pump->stride);

		if (length > (ssize_t)room || (length > 0 && length < FP_SHORTEST)) {
			pump->to_ring.dropped++;
		} else if (length > 0) {
			pump->up_lengths[count++] = (uint32_t)length;
		} else {
			if (!count && (!length || (errno != EAGAIN && errno != EINTR)))
				return -ENODEV;
			break;
		}
	}

	pump->first = 0;
	pump->held = count;
	return (int)count;
}

/**
 * drop_held() - Drop the frames that the pump holds
 * @pump:	Pump
 */
static void drop_held(struct fp_pump *pump)
{
	pump->to_ring.dropped += pump->held;
	pump->held = 0;
}

/**
 * to_ring() - Carry a batch from the tap to the ring
 * @pump:	Pump
 * @tx:		Queue to send with
 * @now:	Time, nanoseconds
 *
 * Return: frames that were moved, or dropped; 0: nothing to do now; negative: errno of the queue, -ENODEV for the tap
 */
static int to_ring(struct fp_pump *pump, struct fp_queue *tx, int64_t now)
{
	uint32_t end, i;
	int count;

	if (!pump->held) {
		count = read_tap(pump, tx->room);
		if (count <= 0)
			return count;
	}

	count = fp_send(tx, pump->up + (size_t)pump->first * pump->stride, pump->stride, pump->up_lengths + pump->first, pump->held);
	if (count < 0)
		return count;

	for (i = pump->first, end = pump->first + (uint32_t)count; i < end; i++)
		pump->to_ring.bytes += pump->up_lengths[i];
	pump->to_ring.frames += (uint32_t)count;
	pump->first += (uint32_t)count;
	pump->held -= (uint32_t)count;

	if (count || !pump->held) {
		pump->full_since = 0;
	} else if (!pump->full_since) {
		pump->full_since = now;
	} else if (now - pump->full_since >= pump->hold_ns) {
		count = (int)pump->held;
		drop_held(pump);
	}
	return count;
}

/**
 * oversize_of() - Count the frames that were longer than our buffers, as the port's MTU is larger than the tap's
 * @rx:		Queue that receives
 *
 * Return: how many since the queue was made
 */
static uint64_t oversize_of(const struct fp_queue *rx)
{
	return __atomic_load_n(&rx->counters.oversize, __ATOMIC_RELAXED);
}

/**
 * to_tap() - Carry a batch from the ring to the tap
 * @pump:	Pump
 * @rx:		Queue to receive with
 *
 * Return: frames that were moved, or dropped; negative: errno of the queue, -ENODEV for the tap
 */
static int to_tap(struct fp_pump *pump, struct fp_queue *rx)
{
	int count = fp_receive(rx, pump->down, pump->stride, pump->down_lengths, FP_PUMP_BATCH);
	uint64_t oversize = oversize_of(rx);
	int i;

	pump->to_tap.dropped += oversize - pump->oversize;
	pump->oversize = oversize;

	for (i = 0; i < count; i++) {
		const uint8_t *frame = pump->down + (size_t)i * pump->stride;
		ssize_t written;

		do {
			written = write_frame(pump->tap, frame, pump->down_lengths[i]);
		} while (written < 0 && errno == EINTR);

		if (written >= 0) {
			pump->to_tap.frames++;
			pump->to_tap.bytes += pump->down_lengths[i];
		} else {
			/* EIO: the tap is down. EBADFD: it was deleted */
			pump->to_tap.dropped++;
			if (errno == EBADFD || errno == EPIPE || errno == ECONNRESET)
				return -ENODEV;
		}
	}
	return count;
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
	found = fp_wait(&rx, 1, -1, ready, limit_ns);

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

		up = to_ring(pump, tx, now);
		if (up < 0)
			return up;
		down = to_tap(pump, rx);
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
 * Return: enum fp_pump_end; negative: errno of a queue, as fp_send() and fp_receive(), or of epoll_ctl(2)
 */
int fp_pump_run(struct fp_pump *pump, struct fp_queue *tx, struct fp_queue *rx, int control, int wake, int64_t slice_ns)
{
	const int ends[] = { control, wake };
	int ready = epoll_create1(EPOLL_CLOEXEC), found;

	if (ready < 0)
		return -errno;

	pump->oversize = oversize_of(rx);
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
