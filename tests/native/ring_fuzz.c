// SPDX-License-Identifier: Apache-2.0
/* ring_fuzz.c - random events and lies between driver*.c and its other side: ring_fuzz [SEED], or with libFuzzer */

#define _GNU_SOURCE

#include "ring_end.h"

#define BURST 40	/* frames at once; from 16 on a receive queue may expect a stream */

/** struct input - Bytes that decide what happens */
struct input {
	const uint8_t *data;
	size_t left;
};

/* A number from the input, 0 when that is used up */
static uint32_t draw(struct input *input, uint32_t below)
{
	uint32_t value = 0;

	for (int i = 0; i < 2 && input->left; i++, input->left--)
		value = value << 8 | *input->data++;
	return value % below;
}

/* Write something into a packed ring as the other side may, mostly nearly right */
static void scribble_packed(struct end *end, struct input *input)
{
	struct peer *peer = &end->peer;
	uint16_t index = (uint16_t)(peer->done + draw(input, 4));
	uint8_t *header = peer_address(peer, (uint16_t)draw(input, end->size));

	switch (draw(input, 7)) {
	case 0:
		peer_use(peer, draw(input, end->size + 2), draw(input, end->room + 80));
		break;
	case 1:
		peer_use_lump(peer, draw(input, end->size), draw(input, end->room), 1 + draw(input, end->size));
		break;
	case 2:
		peer_flag(peer, index, peer_turn(peer, index, draw(input, 2)));
		break;
	case 3:
		peer_flag(peer, index, (uint16_t)draw(input, 65536));
		break;
	case 4:
		__atomic_store_n(peer_tail(peer, index), (uint64_t)draw(input, 65536) << 48 | (0 - (uint64_t)draw(input, 20)) >> 16,
				 __ATOMIC_RELAXED);
		break;
	case 5:
		header[10 + draw(input, 2)] = (uint8_t)draw(input, 3);
		break;
	default:
		*(uint16_t *)(peer->used + 2) = (uint16_t)draw(input, 4);
	}
	peer_publish(peer);
}

/* Write something as the other side may, mostly nearly right */
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

/* Take a correct step of the other side; it checks what it reads too, as the avail ring may have been overwritten */
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

/* Do something that a user of the queue may do, and check its result */
static void act(struct end *end, struct input *input, uint8_t *frames, uint32_t *lengths)
{
	uint32_t count = draw(input, BURST), stride = fp_overhead(end->queue) + SHORTEST + draw(input, 200);
	uint64_t foreign = 0;
	int result;

	for (uint32_t i = 0; i < BURST; i++)
		lengths[i] = draw(input, 40) ? stride : draw(input, 300);
	if (!end->transmit && !draw(input, 4)) {
		result = fp_fault_of(end->queue) ? -EBADMSG : fp_driver_discard(end->queue, count, frames, &foreign);
	} else if (!end->transmit && !draw(input, 4)) {
		result = fp_fault_of(end->queue) ? -EBADMSG : fp_driver_heads(end->queue, frames, stride - SHORTEST, lengths, count);
		for (int i = 0; i < result; i++)
			CHECK(lengths[i] >= fp_overhead(end->queue) && lengths[i] <= FP_LARGEST + fp_overhead(end->queue));
	} else if (!draw(input, 8)) {
		result = fp_wait(&end->queue, 1, -1, -1, 0);
	} else if (end->transmit) {
		result = fp_send(end->queue, frames, stride, lengths, count);
	} else {
		result = fp_receive(end->queue, frames, stride, lengths, count);
		for (int i = 0; i < result; i++)
			CHECK(lengths[i] >= fp_overhead(end->queue) && lengths[i] <= stride);
	}
	CHECK(result <= BURST && (result >= 0 || result == -EBADMSG || result == -EMSGSIZE || result == -EINVAL));
	CHECK(result != -EBADMSG || fp_fault_of(end->queue) != FP_SOUND);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Run the sequence of events that @data encodes; returns 0, as libFuzzer requires */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct input input = { data, bytes };
	const struct kind *kind = &kinds[draw(&input, KINDS)];
	bool transmit = draw(&input, 2);
	struct end end = make(2u << draw(&input, 6), 64 + draw(&input, 100), transmit);
	uint8_t *frames = calloc(BURST, 300);
	uint32_t lengths[BURST];

	end.queue->headers = draw(&input, 2);
	attach(&end, kind);
	end.peer.shuffled = false;
	while (input.left) {
		switch (draw(&input, 8)) {
		case 0:
			if (kind->packed)
				scribble_packed(&end, &input);
			else
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

#ifndef LIBFUZZER
/* Run sequences of random bytes, from an optional seed */
int main(int argc, char **argv)
{
	uint8_t data[2048];

	srand(argc > 1 ? (unsigned int)atoi(argv[1]) : 1);
	for (int round = 0; round < 6000; round++) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)rand();
		LLVMFuzzerTestOneInput(data, (size_t)rand() % sizeof(data));
	}
	return 0;
}
#endif
