// SPDX-License-Identifier: Apache-2.0
/* places_trial.c - trials of where a transmit queue that sends in order has its frames: places_trial [SEED] */

#define _GNU_SOURCE

#include "ring_end.h"

/* Send up to @count frames of @length bytes, painted with numbers from @number on; return how many were taken */
static uint32_t send_painted(struct end *out, uint32_t number, uint32_t count, uint32_t length)
{
	uint8_t *frames = malloc((size_t)count * length);
	uint32_t *lengths = malloc(count * sizeof(*lengths));
	int sent;

	for (uint32_t i = 0; i < count; i++) {
		lengths[i] = length;
		paint(frames + (size_t)i * length, length, number + i);
	}
	CHECK((sent = fp_send(out->queue, frames, length, lengths, count)) >= 0);
	free(frames);
	free(lengths);
	return (uint32_t)sent;
}

/* Take a whole ring of frames of @length bytes; each lies @distance bytes behind the one before, and, if @known, as in @places */
static void take_lap(struct end *out, uint32_t length, uint32_t distance, uint8_t **places, bool known)
{
	uint32_t got;

	CHECK(send_painted(out, 0, 64, length) == 64);
	for (int i = 0; i < 64; i++) {
		uint8_t *frame = peer_fetch(&out->peer, &got);

		CHECK(frame && got == length && (!i || frame == places[i - 1] + distance) && (!known || frame == places[i]));
		places[i] = frame;
	}
}

/* Where frames lie: the same in the next lap; short ones in whole buffers; long ones wait until those before have come back */
static void beside(const struct kind *kind)
{
	struct end out = make(64, 1518, true);
	uint8_t *places[64];
	uint32_t length;

	attach(&out, kind);
	for (int lap = 0; lap < 3; lap++) {
		take_lap(&out, 100, 64 + 1536, places, lap);
		peer_release(&out.peer, 0);
	}
	for (int lap = 0; lap < 3; lap++) {
		peer_release(&out.peer, 0);
		take_lap(&out, 200, 64 + 256, places, lap);
	}
	peer_release(&out.peer, 64 - 4);		/* four times 320 bytes are too few for one of 1500 with its line before */
	CHECK(send_painted(&out, 0, 4, 1500) == 0);
	peer_release(&out.peer, 64 - 5);
	CHECK(send_painted(&out, 0, 5, 1500) == 1);
	peer_release(&out.peer, 0);
	CHECK(send_painted(&out, 1, 63, 1500) == 63 && send_painted(&out, 64, 1, 64) == 0);
	for (int i = 0; i < 64; i++)
		CHECK(peer_fetch(&out.peer, &length) && length == 1500);
	peer_release(&out.peer, 0);
	CHECK(!out.peer.misplaced);
	unmake(&out);
}

/* Frames of any lengths that the other side holds for any time stay as they were sent */
static void held(const struct kind *kind, uint32_t size)
{
	struct end out = make(size, 1518, true);
	uint32_t next = 0, seen = 0, length;
	uint8_t expected[1518], *frame;

	attach(&out, kind);
	while (seen < 30000) {
		bool idle = seen == next && !out.peer.holds;	/* there is room for a frame of any length */
		uint32_t sent = send_painted(&out, next, rand() % 40 + 1, SHORTEST + (uint32_t)rand() % (rand() % 4 ? 300 : 1505));

		CHECK(sent || !idle);
		next += sent;
		for (uint32_t i = (uint32_t)rand() % 40; i && (frame = peer_fetch(&out.peer, &length)); i--, seen++) {
			paint(expected, length, seen);
			CHECK(!memcmp(frame, expected, length));
		}
		peer_release(&out.peer, out.peer.holds ? (uint32_t)rand() % (out.peer.holds + 1) : 0);
		CHECK(!out.peer.misplaced);
	}
	unmake(&out);
}

/* Both, with packed and with split rings */
int main(int argc, char **argv)
{
	srand(argc > 1 ? (unsigned int)atoi(argv[1]) : 1);
	EACH_KIND(kind) {
		if (!kind->in_order || kind->mergeable)
			continue;
		beside(kind);
		held(kind, 8);
		held(kind, 128);
	}
	return 0;
}
