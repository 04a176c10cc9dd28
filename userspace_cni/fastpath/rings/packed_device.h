/* SPDX-License-Identifier: Apache-2.0 */
/* packed_device.h - internals of a device's packed virtqueue: for packed_device*.c and device.c alone; see packed_device.c */

#ifndef FASTPATH_PACKED_DEVICE_H
#define FASTPATH_PACKED_DEVICE_H

#include "device_ring.h"
#include "packed_ring.h"

#define PACKED_AHEAD	32	/* buffers that are looked up before the first of them is copied, so that their misses overlap */

/** struct packed_buffer - A buffer that is one descriptor, looked up
 * @data:	Our address of it
 * @length:	Bytes of it, FP_HEADER at least
 * @id:		Its number, to be repeated
 */
struct packed_buffer {
	uint8_t *data;
	uint32_t length;
	uint16_t id;
};

/** struct packed_chain - A chain of descriptors that is being followed
 * @at:		Its next descriptor, when @more
 * @word:	Length, id and flags of that one, loaded at once
 * @left:	How many descriptors may still follow
 * @more:	Whether there is a next descriptor
 * @id:		Number of the buffer: that of the last descriptor read
 */
struct packed_chain {
	struct packed_place at;
	uint64_t word;
	uint32_t left;
	bool more;
	uint16_t id;
};

/**
 * packed_word() - Put a descriptor's second half together, or a used descriptor
 * @length:	Bytes
 * @id:		Number of the buffer
 * @flags:	Flags
 *
 * Return: the eight bytes
 */
static inline uint64_t packed_word(uint32_t length, uint16_t id, uint16_t flags)
{
	return length | (uint64_t)id << 32 | (uint64_t)flags << 48;
}

/**
 * packed_length() - Take the bytes of a buffer out of its descriptor's word
 * @word:	Word
 *
 * Return: bytes
 */
static inline uint32_t packed_length(uint64_t word)
{
	return (uint32_t)word;
}

/**
 * packed_id() - Take the number of a buffer out of its descriptor's word
 * @word:	Word
 *
 * Return: number
 */
static inline uint16_t packed_id(uint64_t word)
{
	return (uint16_t)(word >> 32);
}

/**
 * packed_flags() - Take the flags out of a descriptor's word
 * @word:	Word
 *
 * Return: flags
 */
static inline uint16_t packed_flags(uint64_t word)
{
	return (uint16_t)(word >> 48);
}

/**
 * packed_second_half() - Address of a descriptor's length, id and flags, which are loaded and stored at once
 * @device:	Device
 * @slot:	Number of the descriptor
 *
 * Return: the address; descriptors are aligned to 16 bytes
 */
static inline uint64_t *packed_second_half(const struct fp_device *device, uint32_t slot)
{
	return (uint64_t *)(void *)&device->packed[slot].length;
}

/**
 * packed_look() - Load length, id and flags of a descriptor
 * @device:	Device
 * @slot:	Its number
 *
 * When the flags show that it is available, its address may be read afterwards.
 *
 * Return: its word
 */
static inline uint64_t packed_look(const struct fp_device *device, uint32_t slot)
{
	return __atomic_load_n(packed_second_half(device, slot), __ATOMIC_ACQUIRE);
}

/**
 * packed_offered() - Whether a descriptor is available
 * @word:	Its word
 * @at:		Its place
 *
 * Return: whether
 */
static inline bool packed_offered(uint64_t word, const struct packed_place *at)
{
	return (packed_flags(word) & PACKED_TURN) == at->available;
}

/**
 * packed_spent() - Whether a descriptor has been used already
 * @word:	Its word
 * @at:		Its place
 *
 * Return: whether
 */
static inline bool packed_spent(uint64_t word, const struct packed_place *at)
{
	return (packed_flags(word) & PACKED_TURN) == (at->available == PACKED_AVAIL ? PACKED_TURN : 0);
}

/**
 * packed_advance() - Go on in the ring
 * @device:	Device
 * @at:		Place, changed
 * @count:	Descriptors, at most all of the ring
 */
static inline void packed_advance(const struct fp_device *device, struct packed_place *at, uint32_t count)
{
	at->slot += count;
	if (at->slot >= device->size) {
		at->slot -= device->size;
		at->available ^= PACKED_TURN;
	}
}

/**
 * packed_find() - Check a descriptor, and find its buffer
 * @device:	Device
 * @slot:	Its number
 * @word:	Its word, of an available descriptor
 * @data:	Set to our address of the buffer; NULL for an empty one
 *
 * The address is read once: the guest may change it meanwhile.
 *
 * Return: 0, -EBADMSG
 */
static inline int packed_find(struct fp_device *device, uint32_t slot, uint64_t word, uint8_t **data)
{
	uint64_t address = __atomic_load_n(&device->packed[slot].address, __ATOMIC_RELAXED);
	uint32_t length = packed_length(word);
	uint16_t flags = packed_flags(word);

	*data = NULL;
	if ((flags & DESC_INDIRECT) || !(flags & DESC_WRITE) != !device->transmit)
		return fail(device, FP_BAD_FLAGS);
	if (length && !(*data = fp_by_guest(device->memory, address, length)))
		return fail(device, FP_BAD_ADDRESS);
	return 0;
}

/**
 * packed_gather() - Look buffers up that are one descriptor each, and ask the processor for their first bytes
 * @device:	Device
 * @at:		Place of the first
 * @buffers:	Set
 * @most:	Most buffers
 *
 * It stops at a buffer that is anything else, be it a chain, too short for a header or forbidden: packed_step() tells which. Most
 * buffers are in the first region.
 *
 * Return: buffers
 */
static inline uint32_t packed_gather(const struct fp_device *device, struct packed_place at, struct packed_buffer *buffers,
				     uint32_t most)
{
	const struct fp_region *region = &device->memory->regions[0];
	uint16_t ours = device->transmit ? DESC_WRITE : 0;
	uint32_t count;

	for (count = 0; count < most; count++) {
		struct packed_buffer *buffer = &buffers[count];
		uint64_t word = packed_look(device, at.slot), address, offset;
		uint32_t length = packed_length(word);

		if ((packed_flags(word) & (PACKED_TURN | DESC_NEXT | DESC_WRITE | DESC_INDIRECT)) != (at.available | ours) ||
		    length < FP_HEADER)
			break;
		address = __atomic_load_n(&device->packed[at.slot].address, __ATOMIC_RELAXED);
		offset = address - region->guest;
		if (offset < region->size && length <= region->size - offset)
			buffer->data = region->data + offset;
		else if (!(buffer->data = fp_by_guest(device->memory, address, length)))
			break;
		buffer->length = length;
		buffer->id = packed_id(word);
		if (ours) {
			__builtin_prefetch(buffer->data);
			__builtin_prefetch(buffer->data + FP_HEADER, 1);
		} else {
			__builtin_prefetch(buffer->data + FP_HEADER);
		}
		packed_advance(device, &at, 1);
	}
	return count;
}

/**
 * packed_begin() - Begin to follow a chain
 * @device:	Device
 * @at:		Place of its first descriptor
 * @chain:	Set to it; @left stays as it is, and is not 0
 *
 * Return: 1, 0 when it is not available
 */
static inline int packed_begin(const struct fp_device *device, const struct packed_place *at, struct packed_chain *chain)
{
	chain->at = *at;
	chain->word = packed_look(device, at->slot);
	chain->more = packed_offered(chain->word, at);
	return chain->more;
}

/**
 * packed_step() - Read the next descriptor of a chain
 * @device:	Device
 * @chain:	Chain that has a next descriptor
 * @data:	Set to our address of the buffer; NULL for an empty one, which the caller must skip
 * @length:	Set to its bytes
 *
 * The driver makes the first descriptor of a chain available last, so that all others are available by then: one that is not
 * does not belong to it.
 *
 * Return: 0, -EBADMSG
 */
static inline int packed_step(struct fp_device *device, struct packed_chain *chain, uint8_t **data, uint32_t *length)
{
	if (packed_find(device, chain->at.slot, chain->word, data))
		return -EBADMSG;
	*length = packed_length(chain->word);
	chain->id = packed_id(chain->word);
	chain->more = packed_flags(chain->word) & DESC_NEXT;
	chain->left--;
	packed_advance(device, &chain->at, 1);
	if (!chain->more)
		return 0;
	if (!chain->left)
		return fail(device, FP_LOOP);
	chain->word = packed_look(device, chain->at.slot);
	return packed_offered(chain->word, &chain->at) ? 0 : fail(device, FP_BAD_ID);
}

/**
 * packed_publish() - Hand buffers back, and notify the driver unless it has asked for no notification
 * @device:	Device
 * @count:	Buffers, of which device->uses tells
 *
 * The driver looks at descriptors in order. So the first one is stored last, and shows it all of them at once.
 */
static inline void packed_publish(struct fp_device *device, uint32_t count)
{
	struct packed_place at = device->place;
	uint16_t wrote = device->transmit ? DESC_WRITE : 0;
	uint64_t *first = packed_second_half(device, at.slot), head = 0;
	uint32_t i;

	for (i = 0; i < count; i++) {
		uint64_t use = device->uses[i];
		uint16_t turn = at.available == PACKED_AVAIL ? PACKED_TURN : 0;
		uint64_t word = packed_word(packed_length(use), packed_id(use), turn | wrote);

		if (i)
			__atomic_store_n(packed_second_half(device, at.slot), word, __ATOMIC_RELAXED);
		else
			head = word;
		packed_advance(device, &at, packed_flags(use));
	}
	device->place = at;
	__atomic_store_n(first, head, __ATOMIC_RELEASE);
	if (device->call < 0)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (packed_notified(device->driver_area))
		fp_count(&device->queue.counters.kicks, (uint64_t)fp_notify(device->call));
}

/* The operations; see struct fp_operations */
int fp_packed_device_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
int fp_packed_device_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_packed_device_ready(struct fp_queue *queue);
int fp_packed_device_arm(struct fp_queue *queue);
void fp_packed_device_disarm(struct fp_queue *queue);

int fp_packed_device_locate(struct fp_device *device, const struct fp_memory *memory, const struct fp_ring *ring);
uint32_t fp_packed_device_base(const struct fp_device *device);

#endif /* FASTPATH_PACKED_DEVICE_H */
