// SPDX-License-Identifier: Apache-2.0
/* pump_trial.c - the pump between a socket pair, which stands for the tap, and a queue that mirrors
 *
 * Frames that are sent into the mirror can be received from it, in a ring of @capacity frames. The command line names a trial; it
 * ends with 0 without output, or prints which expectation was not met. test_pump.py builds it with sanitizers.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pump.h"

#define LONGEST 9018
#define SLOTS 64
#define SECOND 1000000000
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what); exit(1); } } while (0)

/** struct mirror - One end of the mirror, a queue */
struct mirror {
	struct fp_queue queue;		/* must be first */
	struct mirror *other;		/* whose frames are sent into this one */
	uint32_t capacity, head, tail, armed, fail;
	uint32_t lengths[SLOTS];
	uint8_t frames[SLOTS][LONGEST];
};

/* Both ends of the mirror are used by the pump's one thread, its capacity is set before */
static int mirror_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct mirror *to = ((struct mirror *)queue)->other;
	uint64_t one = 1;
	uint32_t i;

	if (to->fail)
		return -EBADMSG;
	for (i = 0; i < count && to->head - to->tail < to->capacity; i++, to->head++) {
		memcpy(to->frames[to->head % SLOTS], frames + (size_t)i * stride, lengths[i]);
		to->lengths[to->head % SLOTS] = lengths[i];
	}
	if (i && to->armed)
		CHECK(write(to->queue.event, &one, sizeof(one)) == sizeof(one));
	return (int)i;
}

/* Receive what the other end has sent */
static int mirror_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct mirror *from = (struct mirror *)queue;
	uint32_t i;

	for (i = 0; i < capacity && from->head != from->tail; from->tail++) {
		lengths[i] = from->lengths[from->tail % SLOTS];
		if (lengths[i] > stride) {
			fp_count(&queue->counters.oversize, 1);
			continue;
		}
		memcpy(frames + (size_t)i * stride, from->frames[from->tail % SLOTS], lengths[i]);
		i++;
	}
	return (int)i;
}

/* As in struct fp_operations */
static int mirror_arm(struct fp_queue *queue)
{
	struct mirror *from = (struct mirror *)queue;

	from->armed = from->head == from->tail;
	return !from->armed;
}

/* As in struct fp_operations */
static void mirror_disarm(struct fp_queue *queue)
{
	((struct mirror *)queue)->armed = 0;
}

static const struct fp_operations operations = { mirror_send, mirror_receive, NULL, mirror_arm, mirror_disarm };	/* a pump looks itself, then sleeps */

/** struct trial - A pump with its descriptors and queues */
struct trial {
	int tap[2], control[2], stop, wake;
	struct mirror *tx, *rx;
	struct fp_pump *pump;
	pthread_t thread;
	int64_t slice;
	int end;
};

/* One end of a mirror */
static struct mirror *mirror_new(uint32_t capacity)
{
	struct mirror *mirror = calloc(1, sizeof(*mirror));

	CHECK(mirror);
	mirror->queue.operations = &operations;
	mirror->queue.event = eventfd(0, EFD_NONBLOCK);
	mirror->queue.room = LONGEST;
	mirror->capacity = capacity;
	return mirror;
}

/* Make tap, control socket, events, mirror and pump */
static void begin(struct trial *trial, uint32_t capacity)
{
	memset(trial, 0, sizeof(*trial));
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, trial->tap));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, trial->control));
	trial->stop = eventfd(0, EFD_NONBLOCK);
	trial->wake = eventfd(0, EFD_NONBLOCK);
	trial->tx = mirror_new(capacity);
	trial->rx = mirror_new(capacity);
	trial->tx->other = trial->rx;
	trial->pump = fp_pump_new(trial->tap[0], trial->stop, LONGEST, false);
	trial->slice = 60 * (int64_t)SECOND;
	CHECK(trial->pump);
}

/* Run the pump in this thread; return its result */
static int run(struct trial *trial)
{
	return fp_pump_run(trial->pump, &trial->tx->queue, &trial->rx->queue, trial->control[0], trial->wake, trial->slice);
}

/* Thread: runs the pump */
static void *run_thread(void *context)
{
	struct trial *trial = context;

	trial->end = run(trial);
	return NULL;
}

/* Run the pump in a thread */
static void start(struct trial *trial)
{
	CHECK(!pthread_create(&trial->thread, NULL, run_thread, trial));
}

/* Wait for that thread; return the result of its run */
static int joined(struct trial *trial)
{
	CHECK(!pthread_join(trial->thread, NULL));
	return trial->end;
}

/* Make an event readable */
static void ring(int event)
{
	uint64_t one = 1;

	CHECK(write(event, &one, sizeof(one)) == sizeof(one));
}

/* Close and free all that begin() has made */
static void finish(struct trial *trial)
{
	close(trial->tap[0]);
	close(trial->tap[1]);
	close(trial->control[0]);
	close(trial->control[1]);
	close(trial->stop);
	close(trial->wake);
	close(trial->tx->queue.event);
	close(trial->rx->queue.event);
	free(trial->tx);
	free(trial->rx);
	fp_pump_free(trial->pump);
}

/* Send a frame with bytes from @seed, from the tap's other side */
static void give(struct trial *trial, uint32_t length, uint8_t seed)
{
	static uint8_t frame[LONGEST + 100];
	struct pollfd room = { .fd = trial->tap[1], .events = POLLOUT };

	for (uint32_t i = 0; i < length; i++)
		frame[i] = (uint8_t)(seed + i * 7);
	while (send(trial->tap[1], frame, length, 0) < 0) {
		CHECK(errno == EAGAIN);
		CHECK(poll(&room, 1, 20000) == 1);
	}
}

/* Receive a frame on the tap's other side, and check its length and seed */
static void expect(struct trial *trial, uint32_t length, uint8_t seed)
{
	static uint8_t frame[LONGEST + 100];
	struct pollfd some = { .fd = trial->tap[1], .events = POLLIN };

	CHECK(poll(&some, 1, 20000) == 1);
	CHECK(recv(trial->tap[1], frame, sizeof(frame), 0) == (ssize_t)length);
	for (uint32_t i = 0; i < length; i++)
		CHECK(frame[i] == (uint8_t)(seed + i * 7));
}

/* Frames of every length go out and come back as they were, in their order, alone and in bursts */
static void lengths(void)
{
	struct trial trial;
	uint32_t length, i;

	begin(&trial, SLOTS);
	start(&trial);
	for (length = FP_SHORTEST; length <= LONGEST; length += 1 + length / 40) {
		give(&trial, length, (uint8_t)length);
		expect(&trial, length, (uint8_t)length);
	}
	for (length = FP_SHORTEST; length < LONGEST; length += 401) {
		for (i = 0; i < 8; i++)
			give(&trial, length + i, (uint8_t)i);
		for (i = 0; i < 8; i++)
			expect(&trial, length + i, (uint8_t)i);
	}
	ring(trial.stop);
	CHECK(joined(&trial) == FP_PUMP_STOPPED);
	CHECK(trial.pump->to_ring.frames == trial.pump->to_tap.frames);
	CHECK(trial.pump->to_ring.bytes == trial.pump->to_tap.bytes);
	CHECK(!trial.pump->to_ring.dropped && !trial.pump->to_tap.dropped);
	finish(&trial);
}

/* A frame that is too long, or too short to be one, is dropped and counted, and its neighbours are not touched */
static void misfits(void)
{
	struct trial trial;

	begin(&trial, SLOTS);
	give(&trial, 100, 1);
	give(&trial, LONGEST + 1, 2);
	give(&trial, 5, 3);
	give(&trial, LONGEST + 90, 4);
	give(&trial, LONGEST, 5);
	start(&trial);
	expect(&trial, 100, 1);
	expect(&trial, LONGEST, 5);
	ring(trial.stop);
	CHECK(joined(&trial) == FP_PUMP_STOPPED);
	CHECK(trial.pump->to_ring.dropped == 3 && trial.pump->to_ring.frames == 2);
	finish(&trial);
}

/* A frame that is longer than the pump's buffers is dropped by the queue, and counted here */
static void oversize(void)
{
	struct trial trial;

	begin(&trial, SLOTS);
	trial.rx->queue.counters.oversize = 7;
	for (int i = 0; i < 3; i++)
		trial.rx->lengths[trial.rx->head++] = i == 1 ? LONGEST : 60;
	fp_pump_free(trial.pump);
	trial.pump = fp_pump_new(trial.tap[0], trial.stop, 1518, false);
	CHECK(trial.pump);
	trial.slice = SECOND / 50;
	CHECK(run(&trial) == FP_PUMP_SLICE);
	CHECK(trial.pump->to_tap.dropped == 1 && trial.pump->to_tap.frames == 2);
	finish(&trial);
}

/* A ring that takes nothing costs frames and never blocks: they are kept for a while, then dropped and counted */
static void full(void)
{
	struct trial trial;

	begin(&trial, 0);
	for (int i = 0; i < 40; i++)
		give(&trial, 64, 0);
	trial.pump->hold_ns = SECOND;
	trial.slice = SECOND / 10;
	CHECK(run(&trial) == FP_PUMP_SLICE);
	CHECK(!trial.pump->to_ring.dropped && trial.pump->held == FP_PUMP_BATCH);

	trial.pump->hold_ns = 0;
	CHECK(run(&trial) == FP_PUMP_SLICE);
	CHECK(trial.pump->to_ring.dropped == 40 && !trial.pump->to_ring.frames && !trial.pump->held);

	trial.rx->capacity = SLOTS;
	give(&trial, 64, 0);
	CHECK(run(&trial) == FP_PUMP_SLICE);
	expect(&trial, 64, 0);
	CHECK(trial.pump->to_ring.dropped == 40 && trial.pump->to_ring.frames == 1);
	finish(&trial);
}

/* A ring that takes some of a burst gets the rest of it later, in order */
static void narrow(void)
{
	struct trial trial;

	begin(&trial, 3);
	for (uint8_t i = 0; i < 40; i++)
		give(&trial, 60u + i, i);
	start(&trial);
	for (uint8_t i = 0; i < 40; i++)
		expect(&trial, 60u + i, i);
	ring(trial.stop);
	CHECK(joined(&trial) == FP_PUMP_STOPPED);
	CHECK(!trial.pump->to_ring.dropped);
	finish(&trial);
}

/* A tap that takes nothing costs frames and never blocks */
static void deaf(void)
{
	struct trial trial;
	uint64_t given = 0;

	begin(&trial, SLOTS);
	trial.slice = SECOND / 100;
	do {
		give(&trial, 4000, 0);
		CHECK(run(&trial) == FP_PUMP_SLICE);
		CHECK(++given < 10000);
	} while (!trial.pump->to_tap.dropped);
	CHECK(trial.pump->to_tap.frames + trial.pump->to_tap.dropped == given);
	finish(&trial);
}

/* Each event that ends a run ends it while the pump sleeps, and an earlier event ends it before any frame moves */
static void ends(void)
{
	struct trial trial;

	for (int asleep = 0; asleep < 2; asleep++) {
		for (int what = FP_PUMP_STOPPED; what <= FP_PUMP_TAP_GONE + 1; what++) {
			int expected = what > FP_PUMP_TAP_GONE ? FP_PUMP_CLOSED : what;

			begin(&trial, SLOTS);
			if (asleep) {
				start(&trial);
				give(&trial, 64, 0);
				expect(&trial, 64, 0);
			}
			if (what == FP_PUMP_STOPPED)
				ring(trial.stop);
			else if (what == FP_PUMP_CLOSED)
				ring(trial.wake);
			else if (what == FP_PUMP_HANGUP)
				shutdown(trial.control[1], SHUT_RDWR);
			else if (what == FP_PUMP_TAP_GONE)
				shutdown(trial.tap[1], SHUT_RDWR);
			else
				fp_close(&trial.rx->queue);
			CHECK((asleep ? joined(&trial) : run(&trial)) == expected);
			finish(&trial);
		}
	}
}

/* With nothing to do the pump sleeps, and does not look for frames before it sleeps */
static void idle(void)
{
	struct trial trial;

	begin(&trial, SLOTS);
	trial.slice = SECOND / 5;
	CHECK(run(&trial) == FP_PUMP_SLICE);
	CHECK(trial.pump->sleeps >= 1 && trial.pump->sleeps < 10);
	CHECK(!trial.pump->spin_ns);
	finish(&trial);
}

/* A stopped queue carries nothing and does not end the run; frames flow when it is started */
static void stopped(void)
{
	struct trial trial;

	begin(&trial, SLOTS);
	fp_stop(&trial.rx->queue);
	trial.slice = SECOND / 20;
	CHECK(run(&trial) == FP_PUMP_SLICE);
	fp_start(&trial.rx->queue);
	give(&trial, 64, 9);
	CHECK(run(&trial) == FP_PUMP_SLICE);
	expect(&trial, 64, 9);
	finish(&trial);
}

/* A fault of the ring ends the run with its error */
static void fault(void)
{
	struct trial trial;

	begin(&trial, SLOTS);
	trial.rx->fail = 1;
	give(&trial, 64, 0);
	CHECK(run(&trial) == -EBADMSG);
	finish(&trial);
}

static const struct {
	const char *name;
	void (*run)(void);
} trials[] = {
	{ "lengths", lengths }, { "misfits", misfits }, { "oversize", oversize }, { "full", full }, { "narrow", narrow }, { "deaf", deaf },
	{ "ends", ends }, { "idle", idle }, { "stopped", stopped }, { "fault", fault },
};

/* Run the trial of that name */
int main(int count, char **arguments)
{
	for (size_t i = 0; count > 1 && i < sizeof(trials) / sizeof(*trials); i++) {
		if (!strcmp(arguments[1], trials[i].name)) {
			trials[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no such trial\n");
	return 2;
}
