// SPDX-License-Identifier: Apache-2.0
/* device_trial.c - guests made of random bytes, against device*.c under sanitizers; exits 0 on success
 *
 * The guest's memory is on the heap and has exactly its announced size, like the buffers for frames: an access to one byte too many
 * ends the program.
 *
 *   explore SEED ROUNDS	bytes become a guest, see run(); bytes that reach new code are kept and varied further. Needs
 *				device*.c to be compiled with -fsanitize-coverage=trace-pc
 *   scribble SEED ROUNDS	another thread writes into rings and descriptors while bursts are under way
 *   shrink SEED ROUNDS		another thread truncates the memory while bursts are under way
 *   brim SEED ROUNDS		another thread keeps an eventfd full and blocking while it is notified
 */

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

static uint64_t seed;
static uint8_t edges[EDGES];
static uintptr_t former;
static int fresh;
static unsigned int faults;	/* bit for each enum fp_fault that was seen */

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
static void operate(struct fp_queue *queue, int transmit, uint8_t *data, size_t size, struct input *input)
{
	int rounds = 0, result = 0;

	while (input->left && rounds++ < 32) {
		switch (next(input, 1) % 4) {
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
				size_t at = next(input, 2) % size, length = 1 + next(input, 1) % 16;

				if (length > size - at)
					length = size - at;
				while (length--)
					data[at++] = (uint8_t)next(input, 1);
			}
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

/* @address rounded up to an alignment */
static uint64_t up(uint64_t address, uint64_t alignment)
{
	return (address + alignment - 1) & ~(alignment - 1);
}

/* The greater of two addresses */
static uint64_t further(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The end of the last ring */
static uint64_t last(const struct fp_ring *ring)
{
	uint64_t end = further(ring->descriptors + 16 * ring->size, ring->available + 4 + 2 * ring->size);

	return further(end, ring->used + 4 + 8 * ring->size);
}

/* Place the three rings one after the other, in any order, or anywhere */
static void place(struct fp_ring *ring, struct input *input, uint8_t how)
{
	uint32_t size = ring->size, order = next(input, 1) % 3;

	ring->descriptors = USER;
	ring->available = USER + 16 * size;
	ring->used = up(ring->available + 4 + 2 * size, 4);
	if (order == 1)
		ring->available = ring->used + 4 + 8 * size;
	if (order == 2)
		ring->descriptors = up(ring->used + 4 + 8 * size, 16);
	if (how & 0x20) {
		ring->descriptors += next(input, 2);
		ring->available += next(input, 2);
		ring->used += next(input, 2);
	}
}

/* Run a guest made of bytes: they give the sizes and contents of its rings and memory, and the events */
static void run(const uint8_t *data, size_t size)
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
	place(&ring, &input, how);
	i = (uint32_t)next(&input, 2);
	queue->headers = i >> 15;
	regions[0] = (struct fp_region){ .guest = 0, .user = USER, .size = 1 + i % 16384 };
	if (how & 0x80)		/* The last ring ends where the memory does, or beyond */
		regions[0].size = last(&ring) - USER - next(&input, 1) % 16;
	regions[1] = (struct fp_region){ .guest = regions[0].size + next(&input, 1) % 2, .user = 0, .size = next(&input, 1) };
	for (i = 0; i < 2; i++) {
		if (!(regions[i].data = malloc(regions[i].size)))
			CHECK(!"memory");
		memset(regions[i].data, 0, regions[i].size);
		(void)fp_memory_put(memory, &regions[i]);
	}
	ring.base = how & 0x40 ? next(&input, 2) : 0;
	for (i = 0; i < regions[0].size && i < size / 2; i++)
		regions[0].data[i] = (uint8_t)next(&input, 1);
	if (!fp_device_attach(queue, memory, &ring)) {
		fp_start(queue);
		operate(queue, transmit, regions[0].data, regions[0].size, &input);
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

/* Make a first input with a valid descriptor table, so that the search does not start from nothing */
static size_t begin(uint8_t *data)
{
	uint32_t log = chance(6), size = 1u << log, transmit = chance(2), i;
	uint8_t *at = data;
	uint16_t index = (uint16_t)chance(size + 1);

	memset(data, 0, LONGEST);
	*at++ = (uint8_t)(transmit | log << 1 | chance(2) << 4 | !chance(4) << 7);
	*at++ = (uint8_t)chance(3);
	*at++ = 0xff;
	*at++ = (uint8_t)(0x1f | chance(2) << 7);
	if (*data & 0x80)
		*at++ = (uint8_t)(chance(2) ? 0 : chance(16));
	at += 2;
	for (i = 0; i < size && at < data + LONGEST / 2 - 80; i++) {
		uint64_t address = *data & 0x80 ? chance(10 * size) : 1500 + chance(6000);
		uint32_t length = 12 + chance(chance(2) && !(*data & 0x80) ? 2000 : 10 * size);
		uint16_t flags = (uint16_t)((transmit ? 2 : 0) | !chance(4)), next_one = (uint16_t)chance(size);

		if (!chance(16))	/* About where the memory ends */
			address = 8192 - length + chance(3) - 1;
		memcpy(at, &address, 8);
		memcpy(at + 8, &length, 4);
		memcpy(at + 12, &flags, 2);
		memcpy(at + 14, &next_one, 2);
		at += 16;
	}
	memcpy(at + 2, &index, 2);
	at += 4;
	for (i = 0; i < size; i++, at += 2)
		*at = (uint8_t)chance(size);
	while (at < data + LONGEST)
		*at++ = (uint8_t)chance(256);
	return LONGEST;
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
static void explore(uint32_t rounds)
{
	static uint8_t *corpus[CORPUS];
	uint32_t kept = 0, i, reached = 0;

	for (i = 0; i < rounds; i++) {
		uint8_t *data = malloc(LONGEST);
		size_t size = LONGEST;

		CHECK(data);
		if (!kept || !chance(8)) {
			size = begin(data);
		} else {
			memcpy(data, corpus[chance(kept)], LONGEST);
			size = vary(data, size);
		}
		fresh = 0;
		former = 0;
		run(data, size);
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

#define RING 32
#define MEMORY 16384

static uint8_t *shared;
static int shared_fd = -1;
static _Atomic int over, shrunk;

/* Thread: writes into descriptors and avail ring */
static void *scribble(void *none)
{
	while (!over) {
		uint64_t random = (uint64_t)rand() << 20 ^ (uint64_t)rand();
		uint8_t *at = shared + random % (16 * RING + 4 + 2 * RING);

		if (random >> 50 & 1)
			at = shared + 16 * RING + 2;	/* avail.idx */
		__atomic_store_n(at, (uint8_t)(random >> 24), __ATOMIC_RELAXED);
	}
	return none;
}

/* Thread: truncates the memory after a moment */
static void *shrink(void *none)
{
	usleep((useconds_t)(rand() % 300));
	CHECK(!ftruncate(shared_fd, rand() % 2 ? 0 : 4096));
	shrunk = 1;
	return none;
}

/* Write chains that are valid until the other thread writes there */
static void lay(uint8_t *data, int transmit)
{
	uint32_t i;

	for (i = 0; i < RING; i++) {
		uint64_t address = 4096 + 256 * i;
		uint32_t length = 256;
		uint16_t flags = transmit ? 2 : 0;

		memcpy(data + 16 * i, &address, 8);
		memcpy(data + 16 * i + 8, &length, 4);
		memcpy(data + 16 * i + 12, &flags, 2);
		data[16 * RING + 4 + 2 * i] = (uint8_t)i;
	}
}

/* Offer the guest's buffers anew, all of the ring */
static void make_available(uint8_t *data, struct fp_queue *queue)
{
	uint16_t index = (uint16_t)(fp_device_base(queue) + RING);

	memcpy(data + 16 * RING + 2, &index, 2);
}

/* Bursts in a queue of each direction in turn, while the other thread does its work */
static void poll_while(void *(*other)(void *), uint32_t rounds)
{
	static const uint8_t script[64] = { 3, 40, 40, 1, 2, 3 };
	uint32_t round, bursts = 0, i;

	for (round = 0; round < rounds; round++) {
		int transmit = (int)(round & 1);
		struct fp_ring ring = { .size = RING, .kick = -1, .call = -1, .mergeable = 1, .descriptors = USER };
		struct fp_region region = { .guest = 0, .user = USER, .size = MEMORY };
		struct fp_memory *memory = fp_memory_new();
		struct fp_queue *queue = fp_device_new(transmit, -1);
		pthread_t thread;

		ring.available = USER + 16 * RING;
		ring.used = ring.available + 4 + 2 * RING;
		if (other == shrink) {
			shared_fd = memfd_create("trial", 0);
			CHECK(shared_fd >= 0 && !ftruncate(shared_fd, MEMORY));
			CHECK(!fp_memory_add(memory, &region, shared_fd, 0));
			shared = memory->regions[0].data;
		} else {
			shared = region.data = calloc(1, MEMORY);
			CHECK(shared && !fp_memory_put(memory, &region));
		}
		lay(shared, transmit);
		CHECK(!fp_device_attach(queue, memory, &ring));
		fp_start(queue);
		over = shrunk = 0;
		CHECK(!pthread_create(&thread, NULL, other, NULL));
		for (i = 0; i < 100000; i++) {
			struct input input = { script, sizeof(script) };

			if (other == shrink && !shrunk)
				i = 0;	/* on a busy machine its turn may come late */
			if (other == scribble && i == 50)
				break;
			make_available(shared, queue);
			if (burst(queue, transmit, &input) < 0 || fp_wait(&queue, 1, -1, -1, 0) < 0)
				break;
			bursts++;
		}
		faults |= 1u << fp_fault_of(queue);
		CHECK(other == scribble || fp_fault_of(queue) == FP_MEMORY_GONE);
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

static _Atomic uint32_t progress;

/* Thread: keeps the eventfd full and blocking; a writer that waits for room would wait for ever */
static void *fill_to_the_brim(void *none)
{
	int flags = fcntl(shared_fd, F_GETFL);
	uint64_t value;
	uint32_t seen;

	while (!over) {
		CHECK(!fcntl(shared_fd, F_SETFL, flags | O_NONBLOCK));
		(void)!read(shared_fd, &value, sizeof(value));
		value = UINT64_MAX - 1;
		(void)!write(shared_fd, &value, sizeof(value));
		seen = progress;
		CHECK(!fcntl(shared_fd, F_SETFL, flags & ~O_NONBLOCK));
		while (progress == seen && !over)
			;
	}
	return none;
}

/* Notify an eventfd @rounds times that another thread keeps full: no write may block */
static void brim(uint32_t rounds)
{
	uint32_t notified = 0, i;
	pthread_t thread;

	shared_fd = eventfd(0, EFD_NONBLOCK);
	CHECK(shared_fd >= 0 && !pthread_create(&thread, NULL, fill_to_the_brim, NULL));
	for (i = 0; i < rounds; i++, progress++)
		notified += (uint32_t)fp_notify(shared_fd);
	over = 1;
	pthread_join(thread, NULL);
	close(shared_fd);
	printf("%u of %u, faults 0\n", notified, rounds);
}

/* Run the trial of that name */
int main(int argc, char **argv)
{
	uint32_t rounds;

	if (argc != 4)
		return 2;
	seed = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15u | 1;
	srand((unsigned int)seed);
	rounds = (uint32_t)strtoul(argv[3], NULL, 0);
	if (!strcmp(argv[1], "explore"))
		explore(rounds);
	else if (!strcmp(argv[1], "scribble"))
		poll_while(scribble, rounds);
	else if (!strcmp(argv[1], "shrink"))
		poll_while(shrink, rounds);
	else if (!strcmp(argv[1], "brim"))
		brim(rounds);
	else
		return 2;
	CHECK(!fp_guard_count());
	return 0;
}
