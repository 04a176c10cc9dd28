// SPDX-License-Identifier: Apache-2.0
/* device_trial.c - guests with split rings, against device*.c under sanitizers; exits 0 on success
 *
 * Its trials are those of device_guest.h, and one more:
 *
 *   brim SEED ROUNDS		another thread keeps an eventfd full and blocking while it is notified
 */

#include "device_guest.h"

/* @address rounded up to an alignment */
static uint64_t up(uint64_t address, uint64_t alignment)
{
	return (address + alignment - 1) & ~(alignment - 1);
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
static void refill(const struct fp_ring *ring, uint8_t *data, struct fp_queue *queue)
{
	uint16_t index = (uint16_t)(fp_device_base(queue) + ring->size);

	memcpy(data + (ring->available - USER) + 2, &index, 2);
}

static const struct guest guest = {
	place, last, begin, lay, refill, scribble,
	{ .size = RING, .kick = -1, .call = -1, .mergeable = 1, .descriptors = USER, .available = USER + 16 * RING,
	  .used = USER + 16 * RING + 4 + 2 * RING },
};

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A guest made of the bytes that libFuzzer gives */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	run(&guest, data, size);
	return 0;
}
#else
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
	if (argc == 4 && !strcmp(argv[1], "brim")) {
		brim((uint32_t)strtoul(argv[3], NULL, 0));
		return 0;
	}
	return run_trial(&guest, argc, argv);
}
#endif
