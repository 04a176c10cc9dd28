// SPDX-License-Identifier: Apache-2.0
/* ring_trial.c - trials of queue.c and driver.c against ring_peer.h: ring_trial NAME [SEED]
 *
 * Shared memory is from the heap, and what is not a ring, or the part of a buffer that its descriptor covers, is poisoned after the
 * attachment: AddressSanitizer sees each byte too far. A trial that fails says where and ends with 1.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ring_peer.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(where, bytes) ((void)(where))
#define ASAN_UNPOISON_MEMORY_REGION(where, bytes) ((void)(where))
#endif

#define CHECK(condition) do { if (!(condition)) fail(__LINE__, #condition); } while (0)
#define SHORTEST 14
#define LONGEST 9018
#define MILLISECOND 1000000
#define SECOND (1000 * (int64_t)MILLISECOND)
#define TURNS 20000		/* of the trials with threads */

static void fail(int line, const char *what)
{
	fprintf(stderr, "line %d: not so: %s\n", line, what);
	exit(1);
}

/** struct end - A queue of ours, its memory, and the other side
 * @queue, @memory, @bytes, @peer: They
 * @size, @room, @transmit: As fp_driver_new() has it
 */
struct end {
	struct fp_queue *queue;
	uint8_t *memory;
	size_t bytes;
	struct peer peer;
	uint32_t size;
	uint32_t room;
	bool transmit;
};

/** struct kind - What was negotiated */
struct kind {
	bool in_order;
	bool mergeable;
};

static const struct kind kinds[] = { { true, false }, { false, false }, { true, true }, { false, true } };

#define EACH_KIND(kind) for (const struct kind *kind = kinds; kind < kinds + sizeof(kinds) / sizeof(*kinds); kind++)

static void fence_off(const struct end *end)
{
	uint64_t rings[3];

	fp_driver_rings(end->queue, rings);
	ASAN_POISON_MEMORY_REGION(end->memory, end->bytes);
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[0], end->size * 16);
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[1], 4 + end->size * 2);
	ASAN_UNPOISON_MEMORY_REGION((uint8_t *)(uintptr_t)rings[2], 4 + end->size * 8);
	for (uint32_t id = 0; id < end->size; id++) {
		uint8_t *header = peer_address(&end->peer, (uint16_t)id);

		CHECK((uintptr_t)(header + HEADER) % 64 == 0);
		CHECK(header >= end->memory && header + HEADER + end->room <= end->memory + end->bytes);
		ASAN_UNPOISON_MEMORY_REGION(header, end->transmit ? HEADER + end->room : peer_length(&end->peer, (uint16_t)id));
	}
}

static void attach_events(struct end *end, const struct kind *kind, int kick, int call)
{
	ASAN_UNPOISON_MEMORY_REGION(end->memory, end->bytes);
	fp_stop(end->queue);
	fp_driver_attach(end->queue, kind->in_order, kind->mergeable, kick, call);
	peer_attach(&end->peer, end->queue, end->size, !kind->in_order);
	fence_off(end);
	fp_start(end->queue);
}

static void attach(struct end *end, const struct kind *kind)
{
	attach_events(end, kind, -1, -1);
}

static struct end make(uint32_t size, uint32_t room, bool transmit)
{
	struct end end = { .size = size, .room = room, .transmit = transmit, .bytes = fp_driver_bytes(size, room) };

	CHECK(end.bytes % 4096 == 0);
	CHECK((end.memory = aligned_alloc(64, end.bytes)));
	memset(end.memory, 0xa5, end.bytes);
	CHECK((end.queue = fp_driver_new(end.memory, size, room, transmit)));
	return end;
}

static void unmake(struct end *end)
{
	fp_close(end->queue);
	fp_driver_free(end->queue);
	free(end->peer.held);
	ASAN_UNPOISON_MEMORY_REGION(end->memory, end->bytes);
	free(end->memory);
}

static void paint(uint8_t *frame, uint32_t length, uint32_t number)
{
	for (uint32_t i = 0; i < length; i++)
		frame[i] = (uint8_t)(number + i * 7 + (i >> 8));
	memcpy(frame, &number, sizeof(number));
}

static void carry(struct end *out, struct end *in, const struct kind *kind)
{
	uint32_t length;
	uint8_t *frame;

	while (peer_available(&in->peer) + in->peer.holds > in->size / 2 && (frame = peer_fetch(&out->peer, &length)))
		CHECK(peer_deliver(&in->peer, frame, length, kind->mergeable));
	peer_release(&out->peer, out->peer.shuffled ? out->peer.holds / 4 : 0);
}

/* One frame through both rings, between pieces of heap of exactly its length */
static void one(struct end *out, struct end *in, const struct kind *kind, uint32_t length)
{
	uint8_t *sent = malloc(length), *received = malloc(length);
	uint32_t got = 0;

	paint(sent, length, length);
	CHECK(fp_send(out->queue, sent, length, &length, 1) == 1);
	carry(out, in, kind);
	CHECK(fp_receive(in->queue, received, length, &got, 1) == 1);
	CHECK(got == length && !memcmp(sent, received, length));
	CHECK(fp_receive(in->queue, received, length, &got, 1) == 0);
	free(sent);
	free(received);
}

/* Frames of every length arrive bit-identical, over one buffer or many */
static void lengths(void)
{
	static const uint32_t rooms[] = { LONGEST, 1518, 100, 64 };

	EACH_KIND(kind) {
		for (unsigned int i = 0; i < (kind->mergeable ? 4 : 1); i++) {
			struct end out = make(64, LONGEST, true), in = make(512, rooms[i], false);

			attach(&out, kind);
			attach(&in, kind);
			for (uint32_t length = SHORTEST; length <= LONGEST; length += i ? 7 : 1)
				one(&out, &in, kind, length);
			one(&out, &in, kind, LONGEST);
			unmake(&out);
			unmake(&in);
		}
	}
}

static uint32_t compare(const uint8_t *frames, uint32_t stride, const uint32_t *lengths, int count, uint32_t next)
{
	uint8_t expected[2048];

	for (int i = 0; i < count; i++, next++) {
		paint(expected, lengths[i], next);
		CHECK(lengths[i] == SHORTEST + next % 300);
		CHECK(!memcmp(frames + (size_t)i * stride, expected, lengths[i]));
	}
	return next;
}

/* Bursts of all counts while 16-bit indices wrap several times */
static void wrap_with(uint32_t size, const struct kind *kind, uint32_t frames_wanted)
{
	struct end out = make(size, 512, true), in = make(size, kind->mergeable ? 128 : 512, false);
	uint8_t *frames = malloc(64 * 512);
	uint32_t next = 0, expected = 0, lengths[64];

	attach(&out, kind);
	attach(&in, kind);
	while (expected < frames_wanted) {
		int count = rand() % 64 + 1, sent;

		for (int i = 0; i < count; i++) {
			lengths[i] = SHORTEST + (next + (uint32_t)i) % 300;
			paint(frames + i * 512, lengths[i], next + (uint32_t)i);
		}
		sent = fp_send(out.queue, frames, 512, lengths, (uint32_t)count);
		CHECK(sent >= 0 && sent <= count);
		next += (uint32_t)sent;
		carry(&out, &in, kind);
		count = fp_receive(in.queue, frames, 512, lengths, (uint32_t)(rand() % 64 + 1));
		CHECK(count >= 0);
		expected = compare(frames, 512, lengths, count, expected);
	}
	CHECK(in.queue->counters.frames == expected && out.queue->counters.frames == next);
	free(frames);
	unmake(&out);
	unmake(&in);
}

static void wrap(void)
{
	EACH_KIND(kind) {
		wrap_with(8, kind, 66000);
		wrap_with(256, kind, 66000);
	}
	wrap_with(2, &kinds[0], 66000);
	wrap_with(32768, &kinds[0], 140000);
	wrap_with(32768, &kinds[1], 140000);
}

/* A full ring takes what fits, counts the rest, and goes on when room comes back; lengths that can not be are refused */
static void full(void)
{
	EACH_KIND(kind) {
		struct end out = make(64, 100, true);
		uint8_t *frames = calloc(100, 128);
		uint32_t lengths[100], length;

		attach(&out, kind);
		for (int i = 0; i < 100; i++)
			lengths[i] = 60;
		CHECK(fp_send(out.queue, frames, 128, lengths, 0) == 0);
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == 40);
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == 24);
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == 0);
		CHECK(out.queue->counters.refused == 16 + 40 && out.queue->counters.bytes == 64 * 60);
		for (int i = 0; i < 10; i++)
			CHECK(peer_fetch(&out.peer, &length) && length == 60);
		peer_release(&out.peer, 0);
		lengths[3] = 101;
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == 3);
		CHECK(fp_send(out.queue, frames, 128, lengths + 3, 40) == -EMSGSIZE);
		lengths[3] = 13;
		CHECK(fp_send(out.queue, frames, 128, lengths + 3, 40) == -EINVAL);
		CHECK(fp_send(out.queue, frames, 59, lengths, 40) == -EINVAL);
		CHECK(fp_send(out.queue, frames, 128, lengths + 4, 40) == 7);
		fp_stop(out.queue);
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == 0);
		fp_start(out.queue);
		fp_close(out.queue);
		CHECK(fp_send(out.queue, frames, 128, lengths, 40) == -ESHUTDOWN);
		fp_close(out.queue);
		free(frames);
		unmake(&out);
	}
}

/* A frame longer than the stride is dropped and counted, and its neighbours arrive; one that lacks buffers waits for them */
static void oversize(void)
{
	EACH_KIND(kind) {
		struct end in = make(64, kind->mergeable ? 64 : 512, false);
		uint8_t *frames = malloc(8 * 200), frame[500];
		uint32_t lengths[8];

		attach(&in, kind);
		for (uint32_t number = 0; number < 6; number++) {
			uint32_t length = number % 2 ? 500 : 200;

			paint(frame, length, number);
			CHECK(peer_deliver(&in.peer, frame, length, kind->mergeable));
		}
		CHECK(fp_receive(in.queue, frames, 200, lengths, 8) == 3);
		for (uint32_t i = 0; i < 3; i++) {
			paint(frame, 200, 2 * i);
			CHECK(lengths[i] == 200 && !memcmp(frames + 200 * i, frame, 200));
		}
		CHECK(in.queue->counters.oversize == 3);
		CHECK(fp_receive(in.queue, NULL, 0, NULL, 0) == 0);
		if (kind->mergeable) {
			uint16_t kept = in.peer.done;

			CHECK(peer_deliver(&in.peer, frame, 200, true));
			in.peer.done--;
			peer_publish(&in.peer);
			CHECK(fp_receive(in.queue, frames, 200, lengths, 8) == 0);
			in.peer.done++;
			peer_publish(&in.peer);
			CHECK((uint16_t)(in.peer.done - kept) > 1);
			CHECK(fp_receive(in.queue, frames, 200, lengths, 8) == 1);
		}
		free(frames);
		unmake(&in);
	}
}

/** enum lie - What the other side may write */
enum lie {
	JUMP_AHEAD, JUMP_BACK, ID_BEYOND, ID_HUGE, ID_TWICE, LONG, HUGE_LENGTH, SHORT, NONE_MERGED, TOO_MANY_MERGED, LONG_PART, LIES
};

/* Deliver a good frame and then the lie; what is to be found, FP_SOUND when the lie means nothing with this @kind */
static enum fp_fault tell(enum lie lie, struct end *in, const struct kind *kind, uint8_t *header)
{
	struct peer *peer = &in->peer;
	uint16_t id = peer_next(peer);
	uint32_t span = peer_length(peer, id);

	memset(header = peer_address(peer, id), 0, HEADER);
	header[10] = 1;
	switch (lie) {
	case JUMP_AHEAD:
		peer->done = (uint16_t)(peer->done + in->size + 1);
		return FP_INDEX_JUMP;
	case JUMP_BACK:
		peer->done--;
		return FP_INDEX_JUMP;
	case ID_BEYOND:
		peer_use(peer, in->size, 100);
		return FP_BAD_ID;
	case ID_HUGE:
		peer_use(peer, 0xffffffff, 100);
		return FP_BAD_ID;
	case ID_TWICE:
		peer_use(peer, id, 100);
		peer_use(peer, id, 100);
		return FP_BAD_ID;
	case LONG:
		peer_use(peer, id, span + 1);
		return FP_BAD_LENGTH;
	case HUGE_LENGTH:
		peer_use(peer, id, 0xffffffff);
		return FP_BAD_LENGTH;
	case SHORT:
		peer_use(peer, id, HEADER - 1);
		return FP_BAD_LENGTH;
	case NONE_MERGED:
		header[10] = 0;
		peer_use(peer, id, 100);
		return kind->mergeable ? FP_LOOP : FP_SOUND;
	case TOO_MANY_MERGED:
		header[11] = 1;
		peer_use(peer, id, 100);
		return kind->mergeable ? FP_LOOP : FP_SOUND;
	default:
		header[10] = 2;
		peer_use(peer, id, span);
		peer_use(peer, peer_next(peer), kind->mergeable ? span + 1 : span);
		return kind->mergeable ? FP_BAD_LENGTH : FP_SOUND;
	}
}

/* Give a buffer back with an empty frame in it */
static void give_unused(struct peer *peer)
{
	uint16_t id = peer->held[--peer->holds];

	peer_address(peer, id)[10] = 1;
	peer_use(peer, id, HEADER);
}

static void hostile_receive(const struct kind *kind, enum lie lie)
{
	struct end in = make(64, 200, false);
	uint8_t *frames = malloc(8 * 300), frame[100] = { 0 };
	uint32_t lengths[8];
	enum fp_fault fault;
	int count;

	attach(&in, kind);
	CHECK(peer_deliver(&in.peer, frame, 100, kind->mergeable));
	CHECK(fp_receive(in.queue, frames, 300, lengths, 8) == 1);
	in.peer.shuffled = false;
	while (in.peer.holds)		/* what the shuffling peer has taken aside goes back unharmed */
		give_unused(&in.peer);
	peer_publish(&in.peer);
	while ((count = fp_receive(in.queue, frames, 300, lengths, 8)) > 0)
		;
	CHECK(count == 0);
	fault = tell(lie, &in, kind, NULL);
	peer_publish(&in.peer);
	while ((count = fp_receive(in.queue, frames, 300, lengths, 8)) > 0)
		;
	CHECK(fp_fault_of(in.queue) == fault);
	CHECK(count == (fault ? -EBADMSG : 0));
	CHECK(fp_receive(in.queue, frames, 300, lengths, 8) == (fault ? -EBADMSG : 0));
	CHECK(fp_wait(&in.queue, 1, -1, -1, 0) == (fault ? -EBADMSG : 0));

	attach(&in, kind);
	CHECK(peer_deliver(&in.peer, frame, 100, kind->mergeable));
	CHECK(fp_receive(in.queue, frames, 300, lengths, 8) == 1);
	free(frames);
	unmake(&in);
}

static void hostile_send(const struct kind *kind, enum lie lie)
{
	struct end out = make(64, 200, true);
	uint8_t *frames = calloc(64, 200);
	uint32_t lengths[64], length;
	enum fp_fault fault = lie <= JUMP_BACK ? FP_INDEX_JUMP : FP_BAD_ID;

	for (int i = 0; i < 64; i++)
		lengths[i] = 200;
	attach(&out, kind);
	CHECK(fp_send(out.queue, frames, 200, lengths, 64) == 64);
	for (int i = 0; i < 8; i++)
		CHECK(peer_fetch(&out.peer, &length));
	out.peer.shuffled = false;
	if (lie == JUMP_AHEAD)
		out.peer.done = 65;
	else if (lie == JUMP_BACK)
		out.peer.done--;
	else if (lie == ID_BEYOND)
		peer_use(&out.peer, 64, 0);
	else if (lie == ID_HUGE)
		peer_use(&out.peer, 0xffffffff, 0);
	else if (lie == ID_TWICE)
		peer_use(&out.peer, 3, 0), peer_use(&out.peer, 3, 0);
	peer_publish(&out.peer);
	if (kind->in_order && lie > JUMP_BACK) {	/* numbers are not read */
		CHECK(fp_send(out.queue, frames, 200, lengths, 64) > 0);
	} else {
		CHECK(fp_send(out.queue, frames, 200, lengths, 64) == -EBADMSG);
		CHECK(fp_fault_of(out.queue) == fault);
		CHECK(fp_send(out.queue, frames, 200, lengths, 64) == -EBADMSG);
		attach(&out, kind);
		CHECK(fp_send(out.queue, frames, 200, lengths, 64) == 64);
	}
	free(frames);
	unmake(&out);
}

/* Each lie in a used ring is named, and mended by a new attachment */
static void hostile(void)
{
	EACH_KIND(kind) {
		for (enum lie lie = 0; lie < LIES; lie++)
			hostile_receive(kind, lie);
		for (enum lie lie = 0; lie <= ID_TWICE; lie++)
			hostile_send(kind, lie);
	}
}

/** struct input - Bytes that decide what happens */
struct input {
	const uint8_t *data;
	size_t left;
};

static uint32_t draw(struct input *input, uint32_t below)
{
	uint32_t value = 0;

	for (int i = 0; i < 2 && input->left; i++, input->left--)
		value = value << 8 | *input->data++;
	return value % below;
}

/* Something that the other side may write, mostly nearly right */
static void scribble(struct end *end, struct input *input)
{
	uint32_t *element = (uint32_t *)(end->peer.used + 4) + 2 * draw(input, end->size);
	uint8_t *header = peer_address(&end->peer, (uint16_t)draw(input, end->size));

	switch (draw(input, 8)) {
	case 0:
		element[0] = draw(input, end->size + 2);
		break;
	case 1:
		element[1] = draw(input, end->room + 80);
		break;
	case 2:
		element[draw(input, 2)] = (uint32_t)(0 - draw(input, 20));
		break;
	case 3:
		header[10] = (uint8_t)draw(input, 5);
		break;
	case 4:
		header[11] = (uint8_t)draw(input, 2);
		break;
	case 5:
		end->peer.done = (uint16_t)(end->peer.done + draw(input, end->size + 2));
		break;
	case 6:
		*(uint16_t *)(end->peer.avail + 4 + 2 * draw(input, end->size)) = (uint16_t)draw(input, 65536);
		break;
	default:
		*(uint16_t *)end->peer.used = (uint16_t)draw(input, 2);
	}
	peer_publish(&end->peer);
}

/* A step of the other side that is right; it trusts nothing either, as the avail ring may have been scribbled on */
static void behave(struct end *end, struct input *input)
{
	struct peer *peer = &end->peer;
	uint32_t count = draw(input, 8);

	while (count-- && (int16_t)peer_available(peer) > 0) {
		uint16_t id = peer_next(peer);

		peer_use(peer, id, end->transmit ? 0 : HEADER + draw(input, end->room));
		if (!end->transmit && id < end->size)
			memset(peer_address(peer, id) + 10, 1, 1);
	}
	peer_publish(peer);
}

static void act(struct end *end, struct input *input, uint8_t *frames, uint32_t *lengths)
{
	uint32_t count = draw(input, 16), stride = SHORTEST + draw(input, 200);
	uint64_t foreign = 0;
	int result;

	for (uint32_t i = 0; i < 16; i++)
		lengths[i] = draw(input, 40) ? stride : draw(input, 300);
	if (!end->transmit && !draw(input, 4)) {
		result = fp_fault_of(end->queue) ? -EBADMSG : fp_driver_discard(end->queue, count, frames, &foreign);
	} else if (!draw(input, 8)) {
		result = fp_wait(&end->queue, 1, -1, -1, 0);
	} else if (end->transmit) {
		result = fp_send(end->queue, frames, stride, lengths, count);
	} else {
		result = fp_receive(end->queue, frames, stride, lengths, count);
		for (int i = 0; i < result; i++)
			CHECK(lengths[i] <= stride);
	}
	CHECK(result <= 16 && (result >= 0 || result == -EBADMSG || result == -EMSGSIZE || result == -EINVAL));
	CHECK(result != -EBADMSG || fp_fault_of(end->queue) != FP_SOUND);
}

/* One sequence of events that @data stands for */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct input input = { data, bytes };
	const struct kind *kind = &kinds[draw(&input, 4)];
	bool transmit = draw(&input, 2);
	struct end end = make(2u << draw(&input, 6), 64 + draw(&input, 100), transmit);
	uint8_t *frames = calloc(16, 300);
	uint32_t lengths[16];

	attach(&end, kind);
	end.peer.shuffled = false;
	while (input.left) {
		switch (draw(&input, 8)) {
		case 0:
			scribble(&end, &input);
			break;
		case 1: case 2: case 3:
			behave(&end, &input);
			break;
		default:
			act(&end, &input, frames, lengths);
		}
		if (fp_fault_of(end.queue) && !draw(&input, 3)) {
			attach(&end, kind);
			end.peer.shuffled = false;
		}
	}
	free(frames);
	unmake(&end);
	return 0;
}

/* Random events, half of them lies */
static void fuzz(void)
{
	uint8_t data[2048];

	for (int round = 0; round < 6000; round++) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)rand();
		LLVMFuzzerTestOneInput(data, (size_t)rand() % sizeof(data));
	}
}

/** struct life - What threads share
 * @out, @in:	The rings, carried by one thread
 * @kind:	As they are attached
 * @call:	eventfd of @in
 * @kick:	eventfd of @out
 * @ending:	The carrier is to leave
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

/* Receives by sleeping; leaves when it is told that all is over */
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

static void begin(struct life *life, const struct kind *kind)
{
	*life = (struct life){ .out = make(64, 64, true), .in = make(64, 64, false), .kind = kind };
	life->call = eventfd(0, EFD_NONBLOCK);
	life->kick = eventfd(0, EFD_NONBLOCK);
	life->wake = eventfd(0, EFD_NONBLOCK);
	attach_events(&life->out, kind, life->kick, -1);
	attach_events(&life->in, kind, -1, life->call);
}

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

static void *closer(void *argument)
{
	struct life *life = argument;

	while (!atomic_load(&life->in.queue->waiters))
		sched_yield();
	fp_close(life->in.queue);
	return NULL;
}

/* What ends a wait: frames, time, a hang-up, a wake, a close by somebody else; a queue that is stopped is waited for */
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
		CHECK(write(life.call, &one, sizeof(one)) == sizeof(one));	/* for nothing: it is slept on */
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, 3 * MILLISECOND) == 0);
		CHECK(write(life.wake, &one, sizeof(one)) == sizeof(one));
		CHECK(fp_wait(&life.in.queue, 1, -1, life.wake, -1) == -ESHUTDOWN);
		CHECK(pipe(ends) == 0 && pipe(control) == 0);
		close(control[1]);
		CHECK(fp_wait(&life.in.queue, 1, control[0], -1, -1) == -ECONNRESET);
		fp_stop(life.in.queue);
		CHECK(fp_wait(&life.in.queue, 1, -1, -1, 20 * MILLISECOND) == 0);
		attach_events(&life.in, kind, -1, ends[0]);	/* a notifier that nobody can tell from an eventfd, until it hangs up */
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

static const struct {
	const char *name;
	void (*run)(void);
} trials[] = {
	{ "lengths", lengths }, { "wrap", wrap }, { "full", full }, { "oversize", oversize }, { "hostile", hostile }, { "fuzz", fuzz },
	{ "threads", threads }, { "waits", waits },
};

#ifndef LIBFUZZER
int main(int argc, char **argv)
{
	srand(argc > 2 ? (unsigned int)atoi(argv[2]) : 1);
	for (size_t i = 0; argc > 1 && i < sizeof(trials) / sizeof(*trials); i++) {
		if (strcmp(argv[1], trials[i].name))
			continue;
		trials[i].run();
		return 0;
	}
	fprintf(stderr, "ring_trial NAME [SEED]\n");
	return 2;
}
#endif
