// SPDX-License-Identifier: Apache-2.0
/* packed_device_trial.c - guests with packed rings, against packed_device*.c under sanitizers; exits 0 on success
 *
 * Its trials are those of device_guest.h.
 */

#include "device_guest.h"

#define AVAIL 0x0080
#define USED 0x8000
#define NEXT 1
#define WRITE 2

/* The end of the last part */
static uint64_t last(const struct fp_ring *ring)
{
	uint64_t end = further(ring->descriptors + 16 * ring->size, ring->available + 4);

	return further(end, ring->used + 4);
}

/* Place descriptors and areas one after the other, in any order, or anywhere; any number of descriptors will do */
static void place(struct fp_ring *ring, struct input *input, uint8_t how)
{
	uint8_t kind = (uint8_t)next(input, 1);
	uint64_t bytes;

	if (kind & 0x80)
		ring->size -= ring->size / 4;
	bytes = 16 * ring->size;
	ring->packed = 1;
	ring->in_order = kind >> 6 & 1;
	ring->base = 0x80008000;
	ring->descriptors = USER + (kind % 3 == 2 ? 16 : 0);
	ring->available = kind % 3 == 2 ? USER : USER + bytes + (kind % 3 == 1 ? 4 : 0);
	ring->used = kind % 3 == 2 ? USER + 16 + bytes : USER + bytes + (kind % 3 == 1 ? 0 : 4);
	if (how & 0x20) {
		ring->descriptors += next(input, 2);
		ring->available += next(input, 2);
		ring->used += next(input, 2);
	}
}

/* Make a first input: descriptors of which some are available, some in chains */
static size_t begin(uint8_t *data)
{
	uint32_t log = chance(6), size = 1u << log, transmit = chance(2), many = chance(size + 1), i;
	uint8_t *at = data;
	int chains = !chance(3);

	memset(data, 0, LONGEST);
	*at++ = (uint8_t)(transmit | log << 1 | chance(2) << 4 | !chance(4) << 7);
	*at++ = (uint8_t)(chance(2) | chance(2) << 6);
	*at++ = 0xff;
	*at++ = 0x1f;
	if (*data & 0x80)
		*at++ = (uint8_t)(chance(2) ? 0 : chance(16));
	at += 2;
	for (i = 0; i < size && at < data + LONGEST / 2 - 16; i++) {
		uint64_t address = *data & 0x80 ? chance(10 * size) : 1500 + chance(6000);
		uint32_t length = 12 + chance(chance(2) && !(*data & 0x80) ? 2000 : 10 * size);
		uint16_t id = (uint16_t)chance(65536), flags = transmit ? WRITE : 0;

		if (i < many)
			flags |= AVAIL;
		if (chains && chance(3))
			flags |= NEXT;
		if (!chance(16))	/* About where the memory ends */
			address = 8192 - length + chance(3) - 1;
		memcpy(at, &address, 8);
		memcpy(at + 8, &length, 4);
		memcpy(at + 12, &id, 2);
		memcpy(at + 14, &flags, 2);
		at += 16;
	}
	while (at < data + LONGEST)
		*at++ = (uint8_t)chance(256);
	return LONGEST;
}

/* Thread: writes into descriptors, mostly into their flags, and into the driver area */
static void *scribble(void *none)
{
	while (!over) {
		uint64_t random = (uint64_t)rand() << 20 ^ (uint64_t)rand();
		uint8_t *at = shared + random % (16 * RING + 4);

		if (random >> 50 & 1)
			at = shared + 16 * (random % RING) + 14 + (random >> 49 & 1);
		__atomic_store_n(at, (uint8_t)(random >> 24), __ATOMIC_RELAXED);
	}
	return none;
}

/* Write buffers that are valid until the other thread writes there */
static void lay(uint8_t *data, int transmit)
{
	uint32_t i;

	for (i = 0; i < RING; i++) {
		uint64_t address = 4096 + 256 * i;
		uint32_t length = 256;
		uint16_t id = (uint16_t)i, flags = transmit ? WRITE : 0;

		memcpy(data + 16 * i, &address, 8);
		memcpy(data + 16 * i + 8, &length, 4);
		memcpy(data + 16 * i + 12, &id, 2);
		memcpy(data + 16 * i + 14, &flags, 2);
	}
}

/* Offer the guest's buffers anew, all of the ring; the first is made available last. A used descriptor has no length any more */
static void refill(const struct fp_ring *ring, uint8_t *data, struct fp_queue *queue)
{
	uint32_t base = fp_device_base(queue), i;

	for (i = ring->size; i--;) {
		uint32_t slot = (base & 0x7fff) + i, turn = base & 0x8000 ? AVAIL : USED;
		uint16_t *flags;
		uint32_t *length;

		if (slot >= ring->size) {
			slot -= ring->size;
			turn ^= AVAIL | USED;
		}
		flags = (uint16_t *)(void *)(data + (ring->descriptors - USER) + 16 * slot + 14);
		length = (uint32_t *)(void *)(data + (ring->descriptors - USER) + 16 * slot + 8);
		if (!(*flags & AVAIL) == !(*flags & USED))
			__atomic_store_n(length, 256, __ATOMIC_RELAXED);
		__atomic_store_n(flags, (uint16_t)((*flags & ~(AVAIL | USED)) | turn), __ATOMIC_RELEASE);
	}
}

static const struct guest guest = {
	place, last, begin, lay, refill, scribble,
	{ .size = RING, .base = 0x80008000, .kick = -1, .call = -1, .mergeable = 1, .packed = 1, .in_order = 1, .descriptors = USER,
	  .available = USER + 16 * RING, .used = USER + 16 * RING + 4 },
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
/* Run the trial of that name */
int main(int argc, char **argv)
{
	return run_trial(&guest, argc, argv);
}
#endif
