/* SPDX-License-Identifier: Apache-2.0 */
/* device_guest.h - guests made of random bytes, for trials of both kinds of a device's rings; a trial ends with main() of here
 *
 * The guest's memory is on the heap and has exactly its announced size, like the buffers for frames: an access to one byte too many
 * ends the program.
 *
 *   explore SEED ROUNDS	bytes become a guest, see run(); bytes that reach new code are kept and varied further. Needs the
 *				device's code to be compiled with -fsanitize-coverage=trace-pc
 *   scribble SEED ROUNDS	another thread writes into rings and descriptors while bursts are under way
 *   shrink SEED ROUNDS		another thread truncates the memory while bursts are under way
 *
 * With -DLIBFUZZER libFuzzer chooses the bytes instead.
 */

#ifndef DEVICE_GUEST_H
#define DEVICE_GUEST_H

#define _GNU_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"
#include "events.h"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); abort(); } } while (0)
#define EDGES 65536
#define CORPUS 4096
#define LONGEST 1024
#define USER 0x7f0000000000
#define RING 32
#define MEMORY 16384

struct input;

/** struct guest - What a trial says of its kind of ring
 * @place:	Choose where the parts of a ring are, and which features, as the input says
 * @last:	User address behind the last part
 * @begin:	Make a first input with valid descriptors, so that the search does not start from nothing
 * @lay:	Write valid descriptors of RING buffers, at the beginning of memory
 * @refill:	Make all buffers of a ring available
 * @scribble:	Thread: writes into rings and descriptors of lay(), until it is over
 * @ring:	The ring of lay()
 */
struct guest {
	void (*place)(struct fp_ring *ring, struct input *input, uint8_t how);
	uint64_t (*last)(const struct fp_ring *ring);
	size_t (*begin)(uint8_t *data);
	void (*lay)(uint8_t *data, int transmit);
	void (*refill)(const struct fp_ring *ring, uint8_t *data, struct fp_queue *queue);
	void *(*scribble)(void *);
	struct fp_ring ring;
};

static uint64_t seed;
static uint8_t edges[EDGES];
static uintptr_t former;
static int fresh;
static unsigned int faults;	/* bit for each enum fp_fault that was seen */

#ifndef LIBFUZZER
void __sanitizer_cov_trace_pc(void);

/* The compiler inserts a call of this in each block of code: note which block follows which, and whether that was new */
void __sanitizer_cov_trace_pc(void)
{
	uintptr_t here = (uintptr_t)__builtin_return_address(0) * 0x9e3779b97f4a7c15u >> 40;
	uint8_t *edge = &edges[(here ^ former) % EDGES];

	if (*edge < 4) {
		fresh |= !*edge;
		(*edge)++;
	}
	former = here >> 1;
}

#endif

/* A random number below @below (xorshift) */
static uint32_t chance(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 16) % below);
}

struct input {
	const uint8_t *data;
	size_t left;
};

/* The next @bytes of the input as a number, fewer at its end */
static uint64_t next(struct input *input, size_t bytes)
{
	uint64_t value = 0;

	if (bytes > input->left)
		bytes = input->left;
	if (bytes)
		memcpy(&value, input->data, bytes);
	input->data += bytes;
	input->left -= bytes;
	return value;
}

/* Frames in a buffer that has no byte to spare */
static int burst(struct fp_queue *queue, int transmit, struct input *input)
{
	uint32_t shortest = fp_overhead(queue) + 14, count = 1 + next(input, 1) % 8, i;
	uint32_t stride = shortest + next(input, 1) * (next(input, 1) % 64);
	uint8_t *frames = calloc(count, stride);
	uint32_t *lengths = calloc(count, sizeof(*lengths));
	int result;

	CHECK(frames && lengths);
	if (transmit) {
		for (i = 0; i < count; i++)
			lengths[i] = shortest + next(input, 2) % (stride - shortest + 1);
		result = fp_send(queue, frames, stride, lengths, count);
	} else {
		result = fp_receive(queue, frames, stride, lengths, count);
		for (i = 0; (int)i < result; i++)
			CHECK(lengths[i] > fp_overhead(queue) && lengths[i] <= stride);
	}
	CHECK(result <= (int)count);
	free(frames);
	free(lengths);
	return result;
}

/* Bursts, waits and writes of the guest, as the input says, until a fault */
static void operate(const struct guest *guest, struct fp_queue *queue, const struct fp_ring *ring, int transmit,
		    const struct fp_region *region, struct input *input)
{
	int rounds = 0, result = 0;

	while (input->left && rounds++ < 32) {
		switch (next(input, 1) % 5) {
		case 0:
		case 1:
			result = burst(queue, transmit, input);
			break;
		case 2:
			result = fp_wait(&queue, 1, -1, -1, 0);
			break;
		case 3:
			/* What a guest does: write something somewhere */
			{
				size_t at = next(input, 2) % region->size, length = 1 + next(input, 1) % 16;

				if (length > region->size - at)
					length = region->size - at;
				while (length--)
					region->data[at++] = (uint8_t)next(input, 1);
			}
			break;
		case 4:
			guest->refill(ring, region->data, queue);
			break;
		}
		if (result < 0) {
			CHECK(fp_fault_of(queue));
			faults |= 1u << fp_fault_of(queue);
			CHECK(burst(queue, transmit, input) < 0);
			break;
		}
	}
}

/* The greater of two addresses */
static uint64_t further(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Run a guest made of bytes: they give the sizes and contents of its rings and memory, and the events */
static void run(const struct guest *guest, const uint8_t *data, size_t size)
{
	struct input input = { data, size };
	uint8_t how = (uint8_t)next(&input, 1);
	int transmit = how & 1, alarm = eventfd(0, EFD_NONBLOCK), call = eventfd(0, EFD_NONBLOCK);
	uint32_t ring_size = 1u << (how >> 1 & 7), i;
	struct fp_ring ring = { .size = ring_size, .kick = alarm, .call = call, .mergeable = how >> 4 & 1 };
	struct fp_region regions[2] = { { 0 } };
	struct fp_memory *memory = fp_memory_new();
	struct fp_queue *queue = fp_device_new(transmit, alarm);

	CHECK(memory && queue);
	guest->place(&ring, &input, how);
	i = (uint32_t)next(&input, 2);
	queue->headers = i >> 15;
	regions[0] = (struct fp_region){ .guest = 0, .user = USER, .size = 1 + i % 16384 };
	if (how & 0x80)		/* The last ring ends where the memory does, or beyond */
		regions[0].size = guest->last(&ring) - USER - next(&input, 1) % 16;
	regions[1] = (struct fp_region){ .guest = regions[0].size + next(&input, 1) % 2, .user = 0, .size = next(&input, 1) };
	for (i = 0; i < 2; i++) {
		if (!(regions[i].data = malloc(regions[i].size)))
			CHECK(!"memory");
		memset(regions[i].data, 0, regions[i].size);
		(void)fp_memory_put(memory, &regions[i]);
	}
	if (how & 0x40)
		ring.base = (uint32_t)next(&input, ring.packed ? 4 : 2);
	for (i = 0; i < regions[0].size && i < size / 2; i++)
		regions[0].data[i] = (uint8_t)next(&input, 1);
	if (!fp_device_attach(queue, memory, &ring)) {
		fp_start(queue);
		operate(guest, queue, &ring, transmit, &regions[0], &input);
	}
	fp_close(queue);
	fp_device_detach(queue);
	fp_device_free(queue);
	fp_memory_free(memory);
	for (i = 0; i < 2; i++)
		free(regions[i].data);
	close(alarm);
	close(call);
}

/* Change the input in up to six places; its size */
static size_t vary(uint8_t *data, size_t size)
{
	static const uint64_t edgy[] = { 0, 1, 11, 12, 13, 255, 256, 32767, 32768, 65535, 65536, 0xffffffff, 0x100000000, UINT64_MAX };
	uint32_t times = 1 + chance(6);

	while (times--) {
		size_t at = chance((uint32_t)size), width = (size_t)1 << chance(4);

		if (width > size - at)
			width = 1;
		switch (chance(4)) {
		case 0:
			data[at] ^= (uint8_t)(1u << chance(8));
			break;
		case 1:
			data[at] = (uint8_t)chance(256);
			break;
		case 2:
			memcpy(data + at, &edgy[chance(sizeof(edgy) / sizeof(edgy[0]))], width);
			break;
		case 3:
			memmove(data + at, data + chance((uint32_t)(size - width + 1)), width);
			break;
		}
	}
	return size;
}

/* Search @rounds times for code that was not reached before */
static void explore(const struct guest *guest, uint32_t rounds)
{
	static uint8_t *corpus[CORPUS];
	uint32_t kept = 0, i, reached = 0;

	for (i = 0; i < rounds; i++) {
		uint8_t *data = malloc(LONGEST);
		size_t size = LONGEST;

		CHECK(data);
		if (!kept || !chance(8)) {
			size = guest->begin(data);
		} else {
			memcpy(data, corpus[chance(kept)], LONGEST);
			size = vary(data, size);
		}
		fresh = 0;
		former = 0;
		run(guest, data, size);
		if (fresh && kept < CORPUS)
			corpus[kept++] = data;
		else
			free(data);
	}
	for (i = 0; i < EDGES; i++)
		reached += !!edges[i];
	for (i = 0; i < kept; i++)
		free(corpus[i]);
	printf("%u edges, %u kept, faults %#x\n", reached, kept, faults);
}

static uint8_t *shared;
static int shared_fd = -1;
static _Atomic int over, shrunk;

/* Thread: truncates the memory after a moment */
static void *shrink(void *none)
{
	usleep((useconds_t)(rand() % 300));
	CHECK(!ftruncate(shared_fd, rand() % 2 ? 0 : 4096));
	shrunk = 1;
	return none;
}

/* Bursts in a queue of each direction in turn, while the other thread does its work */
static void poll_while(const struct guest *guest, void *(*other)(void *), uint32_t rounds)
{
	static const uint8_t script[64] = { 3, 40, 40, 1, 2, 3 };
	uint32_t round, bursts = 0, i;

	for (round = 0; round < rounds; round++) {
		int transmit = (int)(round & 1);
		struct fp_region region = { .guest = 0, .user = USER, .size = MEMORY };
		struct fp_memory *memory = fp_memory_new();
		struct fp_queue *queue = fp_device_new(transmit, -1);
		pthread_t thread;

		if (other == shrink) {
			shared_fd = memfd_create("trial", 0);
			CHECK(shared_fd >= 0 && !ftruncate(shared_fd, MEMORY));
			CHECK(!fp_memory_add(memory, &region, shared_fd, 0));
			shared = memory->regions[0].data;
		} else {
			shared = region.data = calloc(1, MEMORY);
			CHECK(shared && !fp_memory_put(memory, &region));
		}
		guest->lay(shared, transmit);
		CHECK(!fp_device_attach(queue, memory, &guest->ring));
		fp_start(queue);
		over = shrunk = 0;
		CHECK(!pthread_create(&thread, NULL, other, NULL));
		for (i = 0; i < 100000; i++) {
			struct input input = { script, sizeof(script) };

			if (other == shrink && !shrunk)
				i = 0;	/* on a busy machine its turn may come late */
			if (other == guest->scribble && i == 50)
				break;
			guest->refill(&guest->ring, shared, queue);
			if (burst(queue, transmit, &input) < 0 || fp_wait(&queue, 1, -1, -1, 0) < 0)
				break;
			bursts++;
		}
		faults |= 1u << fp_fault_of(queue);
		CHECK(other == guest->scribble || fp_fault_of(queue) == FP_MEMORY_GONE);
		over = 1;
		pthread_join(thread, NULL);
		fp_close(queue);
		fp_device_detach(queue);
		fp_device_free(queue);
		fp_memory_free(memory);
		if (other == shrink)
			close(shared_fd);
		else
			free(shared);
	}
	printf("%u bursts, faults %#x\n", bursts, faults);
}

/* Run the trial of that name; 2 for an unknown one. libFuzzer calls run() itself */
__attribute__((unused)) static int run_trial(const struct guest *guest, int argc, char **argv)
{
	uint32_t rounds;

	if (argc != 4)
		return 2;
	seed = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15u | 1;
	srand((unsigned int)seed);
	rounds = (uint32_t)strtoul(argv[3], NULL, 0);
	if (!strcmp(argv[1], "explore"))
		explore(guest, rounds);
	else if (!strcmp(argv[1], "scribble"))
		poll_while(guest, guest->scribble, rounds);
	else if (!strcmp(argv[1], "shrink"))
		poll_while(guest, shrink, rounds);
	else
		return 2;
	CHECK(!fp_guard_count());
	return 0;
}

#endif /* DEVICE_GUEST_H */
