// SPDX-License-Identifier: Apache-2.0
/* pump_headers_trial.c - a pump with headers between a socket pair, which stands for the tap, and rings that a script writes
 *
 * Random frames with headers that are right, nearly right or nonsense come from both sides, in every mode of the pump. Sanitizers see
 * each byte too far; here it is checked that no header goes out that does not agree with its frame, that what a header vouches for is right
 * at the tap, and that frames are counted.
 * test_pump.py builds it.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_header.h"
#include "pump.h"
#include "segment.h"

#define LONGEST 1518
#define ROUNDS 3000
#define BURST 24
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what); exit(1); } } while (0)

/** struct script - A queue that takes what it likes, and gives random frames; it must begin with the queue */
struct script {
	struct fp_queue queue;
	uint64_t given;
	bool cuts;	/* no large frame may come */
};

/* A frame with its header, mostly TCP of one flow, in memory of @room bytes; its length */
static uint32_t draw(uint8_t *to, uint32_t room, uint32_t *sequence)
{
	uint32_t payload = rand() % 4 ? 1000 : (uint32_t)rand() % (rand() % 2 ? 20000 : 1400), length = 54 + payload;
	struct fp_net_header header = { 0 };
	uint8_t *frame = to + FP_HEADER;
	uint32_t sum = 0;

	if (FP_HEADER + length > room)
		length = room - FP_HEADER;
	memset(frame, 0, length);
	memcpy(frame + 12, "\x08\x00\x45", 3);
	fp_put16(frame + 16, length - 14);
	frame[20] = 0x40;	/* may not be fragmented */
	frame[23] = FP_PROTOCOL_TCP;
	for (int at = 14; at < 34; at += 2)
		sum += fp_get16(frame + at);
	fp_put16(frame + 24, ~((sum & 0xffff) + (sum >> 16)));
	fp_put32(frame + 38, *sequence);
	frame[46] = 0x50;
	frame[47] = 0x10;
	*sequence += length - 54;
	header.flags = rand() % 3 ? FP_NEEDS_CSUM : FP_DATA_VALID;
	header.csum_start = 34;
	header.csum_offset = FP_TCP_CHECK;
	if (length > LONGEST || !(rand() % 8)) {
		header.flags = FP_NEEDS_CSUM;
		header.gso_type = FP_GSO_TCP4;
		header.gso_size = 1400;
		header.hdr_len = 54;
	}
	memcpy(to, &header, sizeof(header));
	for (int lies = rand() % 3 ? 0 : rand() % 4; lies > 0; lies--)
		to[(uint32_t)rand() % (rand() % 2 ? FP_HEADER : FP_HEADER + 60)] = (uint8_t)rand();
	return rand() % 20 ? FP_HEADER + length : FP_HEADER + (uint32_t)rand() % 60;
}

/* Check what the pump sends, and take some of it */
static int script_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	const struct script *script = (const struct script *)queue;
	uint32_t taken = count ? (uint32_t)rand() % (count + 1) : 0;

	for (uint32_t i = 0; i < taken; i++) {
		uint8_t *copy = malloc(lengths[i]);	/* without a byte to spare */

		CHECK(copy);
		memcpy(copy, frames + (size_t)i * stride, lengths[i]);
		CHECK(fp_header_sound(copy, lengths[i], LONGEST));
		CHECK(!(copy[0] & FP_DATA_VALID));	/* a driver must not say it */
		CHECK(!script->cuts || (lengths[i] <= FP_HEADER + LONGEST && !copy[0] && !copy[1]));
		free(copy);
	}
	return (int)taken;
}

/* Give random frames, once for each call of run() */
static int script_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	static uint32_t sequence;
	struct script *script = (struct script *)queue;
	uint32_t count = script->given++ ? 0 : (uint32_t)rand() % (capacity + 1);

	if (count > BURST)
		count = BURST;	/* what the socket has room for */
	for (uint32_t i = 0; i < count; i++)
		lengths[i] = draw(frames + (size_t)i * stride, stride, &sequence);
	return (int)count;
}

/* As in struct fp_operations */
static int script_arm(struct fp_queue *queue)
{
	(void)queue;
	return 0;
}

/* As in struct fp_operations */
static void script_disarm(struct fp_queue *queue)
{
	(void)queue;
}

static const struct fp_operations operations = { script_send, script_receive, NULL, script_arm, script_disarm };	/* a pump looks itself, then sleeps */

/* Check what has come to the tap; how many frames that was */
static uint64_t look(int tap)
{
	uint64_t count = 0;
	static uint8_t got[FP_HEADER + FP_LARGEST + 1];
	ssize_t length;

	while ((length = recv(tap, got, sizeof(got), MSG_DONTWAIT)) >= 0) {
		uint8_t *copy = malloc((size_t)length);

		CHECK(copy);
		memcpy(copy, got, (size_t)length);
		CHECK(fp_header_sound(copy, (uint32_t)length, LONGEST));
		if ((copy[0] & (FP_NEEDS_CSUM | FP_DATA_VALID)) == FP_DATA_VALID)
			fp_complete_check(copy, (uint32_t)length);
		CHECK(!memcmp(copy, got, (size_t)length));	/* it was right, if there is one */
		free(copy);
		count++;
	}
	CHECK(errno == EAGAIN);
	return count;
}

/* Rounds of frames from both sides, in the four modes in turn */
int main(void)
{
	struct script tx = { .queue = { .operations = &operations, .event = -1, .headers = true } }, rx = tx;
	int tap[2], control[2], stop = eventfd(0, EFD_NONBLOCK), room = 4 << 20;
	static uint8_t frame[FP_HEADER + FP_LARGEST];
	struct fp_pump *pump;
	uint32_t sequence = 0;
	uint64_t written = 0;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tap) && !socketpair(AF_UNIX, SOCK_STREAM, 0, control));
	for (int end = 0; end < 2; end++)
		(void)setsockopt(tap[end], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	CHECK((pump = fp_pump_new(tap[0], stop, LONGEST, true)));
	pump->hold_ns = 0;
	srand(1);
	for (int round = 0; round < ROUNDS; round++) {
		tx.cuts = round >> 1 & 1;
		tx.queue.room = FP_HEADER + (tx.cuts ? LONGEST : FP_LARGEST);
		fp_pump_offload(pump, tx.cuts, round & 1);
		for (int i = rand() % 8; i > 0; i--) {
			uint32_t length = draw(frame, sizeof(frame), &sequence);

			(void)send(tap[1], frame, length, MSG_DONTWAIT);
		}
		rx.given = 0;
		CHECK(fp_pump_run(pump, &tx.queue, &rx.queue, control[0], -1, 100000) == FP_PUMP_SLICE);
		written += look(tap[1]);
	}
	CHECK(pump->to_ring.frames > ROUNDS && pump->to_ring.dropped && pump->to_tap.frames > ROUNDS && pump->to_tap.dropped);
	CHECK(written + ROUNDS < pump->to_tap.frames);	/* others were merged */
	tx.queue.headers = false;
	CHECK(fp_pump_run(pump, &tx.queue, &rx.queue, control[0], -1, 0) == -EINVAL);
	fp_pump_free(pump);
	close(tap[0]);
	close(tap[1]);
	close(control[0]);
	close(control[1]);
	close(stop);
	return 0;
}
