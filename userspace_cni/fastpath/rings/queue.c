// SPDX-License-Identifier: Apache-2.0
/* queue.c - the common part of both ends of a virtqueue
 *
 * THEORY OF OPERATION
 *
 * A burst takes the queue, which is a compare-and-swap of one word, does its work and releases it. A thread that finds it taken
 * waits: a burst lasts microseconds and never blocks. fp_stop() and fp_close() set a bit in the same word, which keeps new
 * bursts out, and wait for the burst that is under way. When they return, no thread touches ring or buffers, and the memory
 * may be unmapped.
 *
 * fp_wait() and fp_sleep() sleep without taking the queue. They hold no reference to the file descriptors that they poll, so a thread counts itself
 * among the waiters; fp_close() returns when they have left. The closer makes `wake` readable first, and closes file
 * descriptors afterwards. A waiter that is not woken checks its queues ten times a second: a queue that is stopped and started
 * anew may have got another file descriptor.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "queue.h"

#define SPINS 200			/* tries to take a queue before we yield our time slice to its holder */
#define LOOK_AROUND_NS 100000000	/* longest sleep of a waiter */
#define UNATTACHED_NS 5000000		/* the same when a queue is stopped, or has no event that would wake us */
#define LEAVE_NS 20000			/* pause of a closer while waiters leave */
#define LOOK_NS 4000			/* how long fp_wait() looks for frames before it sleeps */
#define MOST_MISSES 6			/* looks in vain after which one wait in 2^6 looks */

/** relax() - Tell the processor that this thread waits for another one */
static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/**
 * fp_take() - Take a queue for a burst
 * @queue:	The queue
 *
 * Return: 1 when it is taken, 0 when it is stopped, -ESHUTDOWN when it is closed
 */
int fp_take(struct fp_queue *queue)
{
	for (unsigned int spins = 0;;) {
		uint32_t seen = FP_IDLE;

		if (atomic_compare_exchange_weak_explicit(&queue->state, &seen, FP_TAKEN, memory_order_acquire,
							  memory_order_relaxed))
			return 1;
		if (seen & FP_CLOSED)
			return -ESHUTDOWN;
		if (seen & FP_STOPPED)
			return 0;
		if (++spins < SPINS)
			relax();
		else
			sched_yield();
	}
}

/**
 * fp_release() - End a burst
 * @queue:	Taken by the caller
 */
void fp_release(struct fp_queue *queue)
{
	atomic_fetch_and_explicit(&queue->state, ~(uint32_t)FP_TAKEN, memory_order_release);
}

/**
 * keep_out() - Keep new bursts out, and wait for the burst that is under way
 * @queue:	The queue
 * @bit:	FP_STOPPED or FP_CLOSED
 */
static void keep_out(struct fp_queue *queue, uint32_t bit)
{
	unsigned int spins = 0;

	atomic_fetch_or(&queue->state, bit);
	while (atomic_load_explicit(&queue->state, memory_order_acquire) & FP_TAKEN) {
		if (++spins < SPINS)
			relax();
		else
			sched_yield();
	}
}

/**
 * fp_stop() - Make bursts carry nothing; returns when none is under way
 * @queue:	The queue, running or not
 *
 * Waiters go on waiting, as the queue may be started anew.
 */
void fp_stop(struct fp_queue *queue)
{
	keep_out(queue, FP_STOPPED);
}

/**
 * fp_start() - Let bursts carry frames
 * @queue:	Stopped; its rings are in place
 */
void fp_start(struct fp_queue *queue)
{
	atomic_fetch_and_explicit(&queue->state, ~(uint32_t)FP_STOPPED, memory_order_release);
}

/**
 * fp_close() - Close a queue for ever; returns when no thread touches it or its memory
 * @queue:	The queue, in any state; closing it again does nothing
 *
 * The caller makes the `wake` of its waiters readable before: else this may take as long as they sleep.
 */
void fp_close(struct fp_queue *queue)
{
	const struct timespec pause = { .tv_nsec = LEAVE_NS };

	keep_out(queue, FP_CLOSED);
	while (atomic_load(&queue->waiters))
		nanosleep(&pause, NULL);
}

/**
 * fp_forget() - Close a queue in a child after fork(2), where no other thread is that could be awaited
 * @queue:	The queue, in any state
 */
void fp_forget(struct fp_queue *queue)
{
	atomic_store(&queue->state, FP_CLOSED);
}

/**
 * acceptable() - Count the frames that can be sent, up to the first that cannot
 * @queue:	Queue that transmits
 * @stride:	Bytes from frame to frame
 * @lengths:	Bytes of each
 * @count:	Frames
 *
 * Return: frames; -EINVAL or -EMSGSIZE when not even the first can be
 */
static int acceptable(const struct fp_queue *queue, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	uint32_t longest = stride < queue->room ? stride : queue->room, shortest = fp_overhead(queue) + FP_SHORTEST, i;

	for (i = 0; i < count; i++)
		if (lengths[i] < shortest || lengths[i] > longest)
			break;
	if (i || !count)
		return (int)i;
	return lengths[0] > queue->room ? -EMSGSIZE : -EINVAL;
}

/**
 * total() - Add up the bytes of a burst, without headers
 * @queue:	Its queue
 * @lengths:	Bytes of each frame
 * @count:	Frames
 *
 * Return: their sum
 */
static uint64_t total(const struct fp_queue *queue, const uint32_t *lengths, int count)
{
	uint64_t sum = 0;

	for (int i = 0; i < count; i++)
		sum += lengths[i];
	return sum - (uint64_t)count * fp_overhead(queue);
}

/**
 * fp_send() - Send a burst
 * @queue:	A queue that transmits
 * @frames:	Frame i is at i * @stride
 * @stride:	Bytes from frame to frame
 * @lengths:	Bytes of each frame, fp_overhead() + FP_SHORTEST to the queue's room
 * @count:	Frames; at most INT_MAX
 *
 * The burst ends before a frame whose length cannot be sent; a burst that begins with such a frame is an error.
 *
 * Return: frames taken, fewer than @count when the ring is full, 0 when the queue is stopped; -ESHUTDOWN: closed; -EBADMSG: ring
 *	   fault, see fp_fault_of(); -EMSGSIZE, -EINVAL: the first frame is too long, too short or longer than @stride
 */
int fp_send(struct fp_queue *queue, const void *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	int fit = acceptable(queue, stride, lengths, count), sent;

	if (fit < 0)
		return fit;
	if ((sent = fp_take(queue)) <= 0)
		return sent;
	if (atomic_load_explicit(&queue->fault, memory_order_relaxed))
		sent = -EBADMSG;
	else
		sent = queue->operations->send(queue, frames, stride, lengths, (uint32_t)fit);
	if (sent >= 0) {
		fp_count(&queue->counters.frames, (uint64_t)sent);
		fp_count(&queue->counters.bytes, total(queue, lengths, sent));
		fp_count(&queue->counters.refused, (uint64_t)(fit - sent));
	}
	fp_release(queue);
	return sent;
}

/**
 * fp_receive() - Receive a burst
 * @queue:	A queue that receives
 * @frames:	Frame i is put at i * @stride
 * @stride:	Room for each; a longer frame is dropped and counted
 * @lengths:	Set to the bytes of each
 * @capacity:	Most frames; at most INT_MAX
 *
 * Return: frames, 0 when there are none or the queue is stopped; -ESHUTDOWN: closed; -EBADMSG: ring fault, see fp_fault_of()
 */
int fp_receive(struct fp_queue *queue, void *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	int received = fp_take(queue);

	if (received <= 0)
		return received;
	if (atomic_load_explicit(&queue->fault, memory_order_relaxed))
		received = -EBADMSG;
	else
		received = queue->operations->receive(queue, frames, stride, lengths, capacity);
	if (received > 0) {
		fp_count(&queue->counters.frames, (uint64_t)received);
		fp_count(&queue->counters.bytes, total(queue, lengths, received));
	}
	fp_release(queue);
	return received;
}

/**
 * drain() - Forget notifications that were received
 * @fd:		eventfd; it may belong to the other side, which can make it block at any time
 *
 * Return: false when reading it could block
 */
static bool drain(int fd)
{
	uint64_t value;
	struct iovec iov = { &value, sizeof(value) };

	if (preadv2(fd, &iov, 1, -1, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP)
		return true;
	if (!(fcntl(fd, F_GETFL) & O_NONBLOCK))
		return false;
	(void)!read(fd, &value, sizeof(value));
	return true;
}

/**
 * ask() - Ask a queue whether there are frames
 * @queue:	Queue that receives
 * @event:	NULL, or to be notified if there are none: set to the descriptor of notifications, -1 for none
 *
 * Return: 1 when there are, 0; -ESHUTDOWN, -EBADMSG
 */
static int ask(struct fp_queue *queue, int *event)
{
	int result = fp_take(queue);

	if (event)
		*event = -1;
	if (result <= 0)
		return result;
	if (atomic_load_explicit(&queue->fault, memory_order_relaxed))
		result = -EBADMSG;
	else
		result = event ? queue->operations->arm(queue) : queue->operations->ready(queue);
	if (event)
		*event = queue->event;
	fp_release(queue);
	return result;
}

/**
 * arm() - Ask for notifications of frames
 * @queue:	Queue that receives
 * @watch:	Set to the descriptor to poll, -1 when the queue has none
 * @longest:	Lowered to UNATTACHED_NS for a queue without one; longest sleep, nanoseconds
 *
 * Return: 1 when frames are there, 0 when the caller may sleep; -ESHUTDOWN, -EBADMSG
 */
static int arm(struct fp_queue *queue, struct pollfd *watch, int64_t *longest)
{
	int result = ask(queue, &watch->fd);

	watch->events = POLLIN;
	watch->revents = 0;
	if (!result && watch->fd < 0)
		*longest = UNATTACHED_NS;
	return result;
}

/**
 * disarm() - Ask for no more notifications
 * @queue:	Queue that arm() was called for
 * @watch:	Result of polling its descriptor
 *
 * While another waiter still needs notifications they stay on; they do no harm to threads that poll.
 */
static void disarm(struct fp_queue *queue, const struct pollfd *watch)
{
	if (fp_take(queue) <= 0)
		return;
	if (queue->event >= 0 && queue->event == watch->fd) {
		if (watch->revents & (POLLERR | POLLHUP | POLLNVAL) || (watch->revents && !drain(queue->event)))
			atomic_store(&queue->fault, FP_BAD_EVENT);
	}
	if (atomic_load(&queue->waiters) <= 1 && !atomic_load(&queue->fault))
		queue->operations->disarm(queue);
	fp_release(queue);
}

/**
 * sleep_on() - Sleep until a descriptor is readable
 * @watches:	One for each queue, behind them the control socket and the wake event
 * @count:	Queues
 * @longest:	Longest sleep, nanoseconds
 * @until:	When to wake up at the latest, by fp_now()
 *
 * Return: 0, or what ends the wait: -ESHUTDOWN, -ECONNRESET, -errno of ppoll()
 */
static int sleep_on(struct pollfd *watches, uint32_t count, int64_t longest, int64_t until)
{
	int64_t left = until - fp_now();
	struct timespec timeout;

	if (left > longest)
		left = longest;
	if (left < 0)
		left = 0;
	timeout.tv_sec = left / SECOND_NS;
	timeout.tv_nsec = left % SECOND_NS;
	if (ppoll(watches, count + 2, &timeout, NULL) < 0)
		return -errno;
	if (watches[count + 1].revents)
		return -ESHUTDOWN;
	if (watches[count].revents & POLLNVAL)
		return -ESHUTDOWN;
	return watches[count].revents ? -ECONNRESET : 0;
}

/**
 * wait_once() - Look at all queues, and sleep once when none has frames
 * @queues:	Queues
 * @count:	How many
 * @watches:	Room for one each; behind them the control socket and the wake event
 * @until:	When to wake up at the latest, by fp_now()
 *
 * Return: 1 when there are frames, 0 to look again; negative as fp_wait()
 */
static int wait_once(struct fp_queue *const *queues, uint32_t count, struct pollfd *watches, int64_t until)
{
	int64_t longest = LOOK_AROUND_NS;
	int result = 0;
	uint32_t armed;

	for (armed = 0; armed < count && !result; armed++)
		result = arm(queues[armed], &watches[armed], &longest);
	if (!result)
		result = sleep_on(watches, count, longest, until);
	while (armed--)
		disarm(queues[armed], &watches[armed]);
	return result;
}

/**
 * look_first() - Look for frames for LOOK_NS, if that was not in vain lately
 * @queues:	Queues
 * @count:	How many
 * @until:	When the wait is over, by fp_now()
 *
 * An answer that a program waits for often comes sooner than it can fall asleep. To sleep and to be woken costs it more than this
 * look, and costs the other side, which polls and serves others, a system call. Where frames come seldom, few waits look.
 *
 * Return: 1 when there are frames, 0; -ESHUTDOWN, -EBADMSG
 */
static int look_first(struct fp_queue *const *queues, uint32_t count, int64_t until)
{
	struct fp_queue *first = queues[0];	/* notes it for all */
	uint32_t skips = atomic_load_explicit(&first->skips, memory_order_relaxed), misses;
	int64_t now = fp_now(), end = now + LOOK_NS;
	int result = 0;

	if (end > until)
		return 0;
	if (skips) {
		atomic_store_explicit(&first->skips, skips - 1, memory_order_relaxed);
		return 0;
	}
	for (; !result && now < end; now = fp_now()) {
		for (uint32_t i = 0; i < count && !result; i++)
			result = ask(queues[i], NULL);
		relax();
	}

	misses = result ? 0 : atomic_load_explicit(&first->misses, memory_order_relaxed) + 1;
	if (misses > MOST_MISSES)
		misses = MOST_MISSES;
	atomic_store_explicit(&first->misses, misses, memory_order_relaxed);
	atomic_store_explicit(&first->skips, (1u << misses) - 1, memory_order_relaxed);
	return result;
}

/**
 * await() - Sleep until one of some queues has frames
 * @queues, @count, @control, @wake, @timeout_ns: As for fp_wait()
 * @looks:	Whether to look for frames before
 *
 * Return: as fp_wait()
 */
static int await(struct fp_queue *const *queues, uint32_t count, int control, int wake, int64_t timeout_ns, bool looks)
{
	struct pollfd watches[FP_WAIT_QUEUES + 2];
	int64_t start = fp_now(), until;
	int result = 0;

	if (!count || count > FP_WAIT_QUEUES)
		return -EINVAL;
	until = timeout_ns < 0 || timeout_ns > INT64_MAX - start ? INT64_MAX : start + timeout_ns;
	watches[count] = (struct pollfd){ .fd = control, .events = POLLRDHUP };
	watches[count + 1] = (struct pollfd){ .fd = wake, .events = POLLIN };

	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_add(&queues[i]->waiters, 1);
	if (looks)
		result = look_first(queues, count, until);
	if (!result) {
		do {
			result = wait_once(queues, count, watches, until);
		} while (!result && fp_now() < until);
	}
	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_sub(&queues[i]->waiters, 1);
	return result;
}

/**
 * fp_wait() - Wait until one of some queues has frames: look for them for some microseconds where they often come so soon, then sleep
 * @queues:	Queues that receive
 * @count:	How many, 1 to FP_WAIT_QUEUES
 * @control:	Socket whose hang-up ends the wait, or -1; nothing is read from it
 * @wake:	eventfd that ends the wait when it is readable, and is not read, or -1
 * @timeout_ns:	Nanoseconds, negative for no limit
 *
 * Return: 1 when there are frames, 0 when time is over; -ESHUTDOWN: a queue is closed, or @wake is readable; -ECONNRESET:
 *	   @control has hung up; -EBADMSG: ring fault; -EINTR: a signal
 */
int fp_wait(struct fp_queue *const *queues, uint32_t count, int control, int wake, int64_t timeout_ns)
{
	return await(queues, count, control, wake, timeout_ns, true);
}

/**
 * fp_sleep() - Sleep until one of some queues has frames, for a caller that has looked for them long enough itself
 * @queues, @count, @control, @wake, @timeout_ns: As for fp_wait()
 *
 * Return: as fp_wait()
 */
int fp_sleep(struct fp_queue *const *queues, uint32_t count, int control, int wake, int64_t timeout_ns)
{
	return await(queues, count, control, wake, timeout_ns, false);
}

/**
 * fp_read_counters() - Read what a queue has carried
 * @queue:	The queue, in any state
 * @counters:	Set; each number is whole, but they may belong to different bursts
 */
void fp_read_counters(const struct fp_queue *queue, struct fp_counters *counters)
{
	counters->frames = __atomic_load_n(&queue->counters.frames, __ATOMIC_RELAXED);
	counters->bytes = __atomic_load_n(&queue->counters.bytes, __ATOMIC_RELAXED);
	counters->refused = __atomic_load_n(&queue->counters.refused, __ATOMIC_RELAXED);
	counters->oversize = __atomic_load_n(&queue->counters.oversize, __ATOMIC_RELAXED);
	counters->kicks = __atomic_load_n(&queue->counters.kicks, __ATOMIC_RELAXED);
}

/**
 * fp_fault_of() - Read what the other side did to the ring
 * @queue:	The queue
 *
 * Return: enum fp_fault
 */
uint32_t fp_fault_of(const struct fp_queue *queue)
{
	return atomic_load(&queue->fault);
}
