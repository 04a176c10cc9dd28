// SPDX-License-Identifier: Apache-2.0
/* ring_threads.c - queues that several threads share, and what ends a wait: ring_threads NAME */

#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ring_end.h"

#define MILLISECOND 1000000
#define TURNS 20000

/** struct life - What threads share
 * @out, @in:	The rings, carried by one thread
 * @kind:	What was negotiated
 * @call:	eventfd of @in
 * @kick:	eventfd of @out
 * @ending:	Tells the carrier to end
 * @sent, @received: Frames so far
 */
struct life {
	struct end out;
	struct end in;
	const struct kind *kind;
	int call;
	int kick;
	int wake;
	_Atomic bool ending;
	_Atomic uint32_t sent;
	_Atomic uint32_t received;
};

/* Thread: carries frames from one ring to the other, and notifies where that is wanted */
static void *carrier(void *argument)
{
	struct life *life = argument;
	uint64_t one = 1;

	while (!life->ending) {
		uint16_t before = life->in.peer.done;

		carry(&life->out, &life->in, life->kind);
		if (life->in.peer.done != before && peer_wants_interrupt(&life->in.peer))
			CHECK(write(life->call, &one, sizeof(one)) == sizeof(one));
		sched_yield();
	}
	return NULL;
}

/* Thread: sends in bursts of four until enough frames are sent */
static void *sender(void *argument)
{
	struct life *life = argument;
	uint8_t frames[4 * 64];
	uint32_t lengths[4] = { 64, 64, 64, 64 };
	int sent;

	memset(frames, 0x5a, sizeof(frames));
	while (life->sent < TURNS) {
		CHECK((sent = fp_send(life->out.queue, frames, 64, lengths, 4)) >= 0);
		life->sent += (uint32_t)sent;
		if (!sent)
			sched_yield();
	}
	return NULL;
}

/* Thread: receives by sleeping; ends when its wait ends with -ESHUTDOWN */
static void *receiver(void *argument)
{
	struct life *life = argument;
	uint8_t frames[4 * 64], expected[64];
	uint32_t lengths[4];
	int result, count;

	memset(expected, 0x5a, sizeof(expected));
	while ((result = fp_wait(&life->in.queue, 1, -1, life->wake, -1)) >= 0) {
		while ((count = fp_receive(life->in.queue, frames, 64, lengths, 4)) > 0) {
			for (int i = 0; i < count; i++)
				CHECK(lengths[i] == 64 && !memcmp(frames + 64 * i, expected, 64));
			life->received += (uint32_t)count;
		}
	}
	CHECK(result == -ESHUTDOWN);
	CHECK(fp_receive(life->in.queue, frames, 64, lengths, 4) >= -ESHUTDOWN);
	return NULL;
}

/* Make both queues, attached as @kind says, with eventfds */
static void begin(struct life *life, const struct kind *kind)
{
	*life = (struct life){ .out = make(64, 64, true), .in = make(64, 64, false), .kind = kind };
	life->call = eventfd(0, EFD_NONBLOCK);
	life->kick = eventfd(0, EFD_NONBLOCK);
	life->wake = eventfd(0, EFD_NONBLOCK);
	attach_events(&life->out, kind, life->kick, -1);
	attach_events(&life->in, kind, -1, life->call);
}

/* Free both queues */
static void end(struct life *life)
{
	unmake(&life->out);
	unmake(&life->in);
	close(life->call);
	close(life->kick);
	close(life->wake);
}

/* Two senders and two sleeping receivers share queues that are stopped and started under them; a close ends the waits */
static void threads(void)
{
	pthread_t workers[5];
	struct life life;
	uint64_t one = 1;

	EACH_KIND(kind) {
		begin(&life, kind);
		pthread_create(&workers[0], NULL, carrier, &life);
		for (int i = 1; i < 3; i++)
			pthread_create(&workers[i], NULL, sender, &life);
		for (int i = 3; i < 5; i++)
			pthread_create(&workers[i], NULL, receiver, &life);
		while (life.received < TURNS) {
			struct fp_counters counters;

			fp_stop(life.out.queue);
			fp_stop(life.in.queue);
			fp_start(life.out.queue);
			fp_start(life.in.queue);
			fp_read_counters(life.in.queue, &counters);
			CHECK(counters.frames <= TURNS + 64);
			usleep(100);
		}
		pthread_join(workers[1], NULL);
		pthread_join(workers[2], NULL);
		CHECK(write(life.wake, &one, sizeof(one)) == sizeof(one));
		fp_close(life.in.queue);
		fp_close(life.out.queue);
		life.ending = true;
		pthread_join(workers[0], NULL);
		pthread_join(workers[3], NULL);
		pthread_join(workers[4], NULL);
		CHECK(life.sent >= TURNS && life.received <= life.sent);
		CHECK(life.out.queue->counters.kicks > 0);
		end(&life);
	}
}

/* Thread: closes the queue when another thread waits for it */
static void *closer(void *argument)
{
	struct life *life = argument;

	while (!atomic_load(&life->in.queue->waiters))
		sched_yield();
	fp_close(life->in.queue);
	return NULL;
}

/* What ends a wait: frames, time, a hang-up, a wake, a close by another thread; a queue that is stopped is waited for */
static void waits(void)
{
	int ends[2], control[2];
	uint8_t frame[64] = { 0 };
	uint32_t lengths[4];
	struct life life;
	pthread_t thread;
	uint64_t one = 1;

	EACH_KIND(kind) {
		begin(&life, kind);
		CHECK(fp_wait(&life.in.queue, 0, -1, -1, 0) == -EINVAL);
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, 0) == 0);
		CHECK(fp_wait(&life.in.queue, 1, -1, life.wake, 3 * MILLISECOND) == 0);
		CHECK(peer_deliver(&life.in.peer, frame, 64, kind->mergeable));
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, -1) == 1);
		CHECK(!peer_wants_interrupt(&life.in.peer));
		CHECK(fp_receive(life.in.queue, frame, 64, lengths, 1) == 1);
		CHECK(write(life.call, &one, sizeof(one)) == sizeof(one));	/* a notification without a frame: the wait goes on */
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, 3 * MILLISECOND) == 0);
		CHECK(write(life.wake, &one, sizeof(one)) == sizeof(one));
		CHECK(fp_wait(&life.in.queue, 1, -1, life.wake, -1) == -ESHUTDOWN);
		CHECK(pipe(ends) == 0 && pipe(control) == 0);
		close(control[1]);
		CHECK(fp_wait(&life.in.queue, 1, control[0], -1, -1) == -ECONNRESET);
		fp_stop(life.in.queue);
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, 20 * MILLISECOND) == 0);
		attach_events(&life.in, kind, -1, ends[0]);	/* a socket works like an eventfd until it hangs up */
		close(ends[1]);
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, -1) == -EBADMSG);
		CHECK(fp_fault_of(life.in.queue) == FP_BAD_EVENT);
		attach_events(&life.in, kind, -1, life.call);
		pthread_create(&thread, NULL, closer, &life);
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, -1) == -ESHUTDOWN);
		pthread_join(thread, NULL);
		close(control[0]);
		close(ends[0]);
		end(&life);
	}
}

/** struct tally - A queue that counts what it is asked
 * @until:	So many looks are in vain before there is a frame, none with -1
 * @looks, @arms: How often it was asked whether there are frames, and for a notification
 */
struct tally {
	struct fp_queue queue;
	int until;
	int looks;
	int arms;
};

/* As in struct fp_operations */
static int tally_ready(struct fp_queue *queue)
{
	struct tally *tally = (struct tally *)queue;

	tally->looks++;
	return tally->until >= 0 && tally->looks > tally->until;
}

/* As in struct fp_operations */
static int tally_arm(struct fp_queue *queue)
{
	((struct tally *)queue)->arms++;
	return 1;
}

/* As in struct fp_operations */
static void tally_disarm(struct fp_queue *queue)
{
	(void)queue;
}

/* Whether a wait for a queue looks for frames before it asks for a notification */
static bool looks_first(struct tally *tally)
{
	struct fp_queue *queue = &tally->queue;

	tally->looks = tally->arms = 0;
	CHECK(fp_wait(&queue, 1, -1, -1, -1) == 1);
	return tally->looks > 0;
}

/* A wait looks before it sleeps: each one while that finds frames, and fewer the more looks were in vain; not when time is short */
static void looks(void)
{
	static const struct fp_operations operations = { .ready = tally_ready, .arm = tally_arm, .disarm = tally_disarm };
	struct tally tally = { .queue = { .operations = &operations, .event = -1 } };
	struct fp_queue *queue = &tally.queue;
	int looked = 0;

	for (int turn = 0; turn < 100; turn++)
		CHECK(looks_first(&tally) && tally.looks == 1 && !tally.arms);
	CHECK(fp_sleep(&queue, 1, -1, -1, -1) == 1 && tally.looks == 1 && tally.arms == 1);
	CHECK(fp_wait(&queue, 1, -1, -1, 1) == 1 && tally.looks == 1 && tally.arms == 2);

	tally.until = -1;
	for (int turn = 0; turn < 63 + 2 * 64; turn++) {
		looked += looks_first(&tally);
		CHECK(tally.arms == 1);
	}
	CHECK(looked == 6 + 2);		/* the turns 0, 2, 6, 14, 30, 62, and then one of 64 */

	tally.until = 0;
	while (!looks_first(&tally))
		CHECK(tally.arms == 1);
	CHECK(looks_first(&tally) && !tally.arms);
}

static const struct {
	const char *name;
	void (*run)(void);
} trials[] = {
	{ "threads", threads }, { "waits", waits }, { "looks", looks },
};

/* Run the trial of that name */
int main(int argc, char **argv)
{
	srand(argc > 2 ? (unsigned int)atoi(argv[2]) : 1);
	for (size_t i = 0; argc > 1 && i < sizeof(trials) / sizeof(*trials); i++) {
		if (strcmp(argv[1], trials[i].name))
			continue;
		trials[i].run();
		return 0;
	}
	fprintf(stderr, "%s NAME [SEED]\n", argv[0]);
	return 2;
}
