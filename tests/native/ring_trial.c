// SPDX-License-Identifier: Apache-2.0
/* ring_trial.c - trials of queue.c and driver*.c against ring_peer.h: ring_trial NAME [SEED] */

#define _GNU_SOURCE

#include "ring_end.h"

#define LONGEST 9018

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
	CHECK(!out->peer.misplaced && !in->peer.misplaced);
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

/* Check frames against paint(), numbered from @next on; return the number after them */
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
	CHECK(!out.peer.misplaced && !in.peer.misplaced);
	free(frames);
	unmake(&out);
	unmake(&in);
}

/* Indices of 16 bits wrap, in rings of 2 to 32768 descriptors */
static void wrap(void)
{
	EACH_KIND(kind) {
		wrap_with(8, kind, 66000);
		wrap_with(256, kind, 66000);
	}
	for (unsigned int i = 0; i < KINDS; i += 4) {
		wrap_with(2, &kinds[i], 66000);
		wrap_with(32768, &kinds[i], 140000);
		wrap_with(32768, &kinds[i + 1], 140000);
	}
}

/* A full ring takes what fits, counts the rest, and goes on when room comes back; impossible lengths are refused */
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

/* Of frames that are taken by their heads, no byte behind the head is copied, and the lengths are whole; none is too long */
static void heads(void)
{
	EACH_KIND(kind) {
		struct end in = make(64, kind->mergeable ? 64 : 512, false);
		uint8_t *room = malloc(4 * 100), frame[500];
		uint32_t lengths[8];

		attach(&in, kind);
		in.peer.lumps = false;
		for (uint32_t stride = 100; stride <= 100; stride -= 50) {	/* 100, 50, 0 */
			memset(room, 0xee, 4 * 100);
			for (uint32_t number = 0; number < 4; number++) {
				paint(frame, 60 + 100 * number, number);
				CHECK(peer_deliver(&in.peer, frame, 60 + 100 * number, kind->mergeable));
			}
			CHECK(fp_take(in.queue) == 1);
			CHECK(fp_driver_heads(in.queue, room, stride, lengths, 8) == 4);
			CHECK(fp_driver_heads(in.queue, room, stride, lengths, 8) == 0);
			fp_release(in.queue);
			for (uint32_t number = 0; number < 4; number++) {
				uint32_t copied = stride < 60 || number ? stride : 60;

				paint(frame, 60 + 100 * number, number);
				CHECK(lengths[number] == 60 + 100 * number);
				CHECK(!memcmp(room + number * stride, frame, copied));
			}
			for (uint32_t at = 4 * stride; at < 4 * 100; at++)
				CHECK(room[at] == 0xee);
		}
		CHECK(!in.queue->counters.oversize && !in.peer.misplaced);
		free(room);
		unmake(&in);
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
		in.peer.lumps = false;
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

/* Deliver @count frames of 60 bytes */
static void deliver(struct end *in, uint32_t count, bool mergeable)
{
	uint8_t frame[60] = { 0 };

	while (count--)
		CHECK(peer_deliver(&in->peer, frame, sizeof(frame), mergeable));
}

/* After a full burst a packed ring awaits the next one as a whole, but not for long, and not when a wait has said that it is there */
static void stream(void)
{
	EACH_KIND(kind) {
		struct end in = make(256, 100, false);
		uint8_t *frames = malloc(32 * 100);
		uint32_t lengths[32];
		int count;

		attach(&in, kind);
		deliver(&in, 64, kind->mergeable);
		CHECK(fp_receive(in.queue, frames, 100, lengths, 32) == 32);
		CHECK(fp_receive(in.queue, frames, 100, lengths, 32) == 32);
		deliver(&in, 5, kind->mergeable);
		count = fp_receive(in.queue, frames, 100, lengths, 32);
		CHECK(count == (kind->packed ? 0 : 5));
		while (!count)
			count = fp_receive(in.queue, frames, 100, lengths, 32);
		CHECK(count == 5);
		deliver(&in, 5, kind->mergeable);
		CHECK(fp_receive(in.queue, frames, 100, lengths, 32) == 5);
		deliver(&in, 37, kind->mergeable);
		CHECK(fp_receive(in.queue, frames, 100, lengths, 32) == 32);
		CHECK(fp_wait(&in.queue, 1, -1, -1, 0) == 1);
		CHECK(fp_receive(in.queue, frames, 100, lengths, 32) == 5);
		free(frames);
		unmake(&in);
	}
}

/** enum lie - What the other side may write; of a packed ring the first two are flags of the other turn: used, and available */
enum lie {
	JUMP_AHEAD, JUMP_BACK, ID_BEYOND, ID_HUGE, ID_TWICE, LONG, HUGE_LENGTH, SHORT, NONE_MERGED, TOO_MANY_MERGED, LONG_PART, LIES
};

/* Show buffers that were not given, or take back some that were used; return the expected fault */
static enum fp_fault jump(struct peer *peer, bool ahead)
{
	if (peer->packed) {
		peer_flag(peer, peer->done, peer_turn(peer, (uint16_t)(peer->done + peer->size), ahead));
		return FP_BAD_FLAGS;
	}
	peer->done = (uint16_t)(peer->done + (ahead ? peer->size + 1 : UINT16_MAX));
	return FP_INDEX_JUMP;
}

/* Deliver a good frame and then the lie; return the expected fault, FP_SOUND when the lie has no meaning with this @kind */
static enum fp_fault tell(enum lie lie, struct end *in, const struct kind *kind, uint8_t *header)
{
	struct peer *peer = &in->peer;
	uint16_t id = peer_next(peer);
	uint32_t span = peer_length(peer, id);

	memset(header = peer_address(peer, id), 0, HEADER);
	header[10] = 1;
	switch (lie) {
	case JUMP_AHEAD:
	case JUMP_BACK:
		return jump(peer, lie == JUMP_AHEAD);
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

/* One @lie to a queue that receives is found and named, and the queue works after a new attachment */
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
	while (in.peer.holds)		/* buffers that the shuffling peer still holds go back unchanged */
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

/* The same for a queue that transmits */
static void hostile_send(const struct kind *kind, enum lie lie)
{
	struct end out = make(64, 200, true);
	uint8_t *frames = calloc(64, 200);
	uint32_t lengths[64], length, first = kind->in_order ? 0 : 3;
	enum fp_fault fault = FP_BAD_ID;

	for (int i = 0; i < 64; i++)
		lengths[i] = 200;
	attach(&out, kind);
	CHECK(fp_send(out.queue, frames, 200, lengths, 64) == 64);
	for (int i = 0; i < 8; i++)
		CHECK(peer_fetch(&out.peer, &length));
	out.peer.shuffled = false;
	if (lie == JUMP_AHEAD || lie == JUMP_BACK)
		fault = jump(&out.peer, lie == JUMP_AHEAD);
	else if (lie == ID_BEYOND)
		peer_use(&out.peer, 64, 0);
	else if (lie == ID_HUGE)
		peer_use(&out.peer, 0xffffffff, 0);
	else if (lie == ID_TWICE)
		peer_use(&out.peer, first, 0), peer_use(&out.peer, first, 0);
	peer_publish(&out.peer);
	if (!kind->packed && kind->in_order && lie > JUMP_BACK) {	/* numbers are not read */
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

/* Each lie in a used ring is named, and a new attachment clears the fault */
static void hostile(void)
{
	EACH_KIND(kind) {
		for (enum lie lie = 0; lie < LIES; lie++)
			hostile_receive(kind, lie);
		for (enum lie lie = 0; lie <= ID_TWICE; lie++)
			hostile_send(kind, lie);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} trials[] = {
	{ "lengths", lengths }, { "wrap", wrap }, { "full", full }, { "oversize", oversize }, { "heads", heads },
	{ "stream", stream }, { "hostile", hostile },
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
