// SPDX-License-Identifier: Apache-2.0
/* driver.c - the driver's side of a virtqueue: ours when we are the front-end
 *
 * THEORY OF OPERATION
 *
 * A split ring, as virtio 1.x has it, in memory of ours that the other side maps: it may write there at any time and anything. So
 * what it writes is read once and looked at before it is used, and nothing of ours that matters is kept there.
 *
 * With VIRTIO_F_IN_ORDER buffers come back in the order in which they were given. Then the avail ring is the identity for ever,
 * descriptor i belongs to buffer i, and a burst is: write frames, set lengths that differ, one release store of avail.idx. Without
 * it there is a list of free descriptors, and the avail ring is written.
 *
 * What costs time is cache lines that wander between two cores, so:
 *   - a frame starts on a cache line of its own, the header of 12 bytes at the end of the line before, which nobody ever dirties
 *     (we zero it once, and the other side writes only what differs);
 *   - descriptors are written only when they change;
 *   - a transmit queue reads used.idx only when its room is too small, and descriptors come back unread;
 *   - a receive queue gives buffers back in lumps of a quarter of the ring;
 *   - all lines of a burst are prefetched before the first is touched;
 *   - a line that was written is handed over (CLDEMOTE): measured, that is a tenth of the throughput.
 *
 * Order of memory accesses: used.idx is loaded with acquire before what it covers is read, avail.idx is stored with release after
 * what it covers is written. One full fence stands between the store of avail.idx and the load of used.flags, and one between the
 * store of avail.flags and the last look at used.idx before sleeping: without them both sides could miss each other.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "events.h"
#include "vring.h"

#define LINE 64
#define PAGE 4096
#define HEADER_AT (LINE - FP_HEADER)	/* in a buffer: the frame then starts on a line */
#define LARGEST_RING 32768
#define LARGEST_ROOM 65535
#define SMALL_RING 16			/* buffers go back at once */

/** struct driver - A queue of this kind; all indices run freely and wrap at 65536
 * @queue:	What every queue has
 * @desc, avail, used: The ring, in shared memory
 * @buffers:	@size buffers of @pitch bytes, in shared memory
 * @size:	Descriptors, a power of two
 * @span:	Bytes of a buffer from its header on: what a descriptor covers
 * @made:	avail.idx to be; [@seen, @made) are with the other side or, up to @used, back
 * @published:	avail.idx as the other side sees it
 * @seen:	used.idx up to which we have worked
 * @behind:	used.idx as last loaded
 * @lump:	Received buffers that are given back at once
 * @kick:	eventfd by which we notify the other side, -1 for none
 * @free:	Without IN_ORDER, of a transmit queue: numbers of descriptors that are ours, the first @frees; of a receive
 *		queue: what is in the avail ring, which can not be believed when it is read back
 * @lent:	Without IN_ORDER, per descriptor: it is with the other side
 */
struct driver {
	struct fp_queue queue;
	struct desc *desc;
	struct avail *avail;
	struct used *used;
	uint8_t *buffers;
	uint32_t size;
	uint32_t pitch;
	uint32_t span;
	uint32_t lump;
	uint16_t made;
	uint16_t published;
	uint16_t seen;
	uint16_t behind;
	bool transmit;
	bool in_order;
	bool mergeable;
	int kick;
	uint32_t frees;
	uint16_t *free;
	uint8_t *lent;
};

static inline struct driver *driver_of(struct fp_queue *queue)
{
	return (struct driver *)queue;	/* its first member */
}

static inline uint8_t *frame_at(const struct driver *driver, uint32_t id)
{
	return driver->buffers + (size_t)id * driver->pitch + LINE;
}

static inline uint32_t slot(const struct driver *driver, uint16_t index)
{
	return index & (driver->size - 1);
}

static int faulty(struct driver *driver, enum fp_fault fault)
{
	atomic_store(&driver->queue.fault, fault);
	return -EBADMSG;
}

/* memcpy without the call for what is common and short. At most 16 bytes are moved at a time, each wholly within both ranges. */
static inline void copy(uint8_t *restrict to, const uint8_t *restrict from, size_t length)
{
	if (length > 2 * LINE || length < 16) {
		memcpy(to, from, length);
		return;
	}
	if (length > LINE) {
		memcpy(to, from, LINE);
		to += LINE;
		from += LINE;
		length -= LINE;
		if (length < 16) {	/* reach back into what has been copied */
			memcpy(to + length - 16, from + length - 16, 16);
			return;
		}
	}
	if (length >= 32) {
		memcpy(to, from, 32);
		memcpy(to + length - 32, from + length - 32, 32);
	} else {
		memcpy(to, from, 16);
		memcpy(to + length - 16, from + length - 16, 16);
	}
}

static inline void prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));	/* gcc takes it for an option of the CPU; it is none any more */
#else
	__builtin_prefetch(line, 1);
#endif
}

/* A line that was written is read by another core next: let it have it from the cache that both share, which is faster than from
 * ours. A hint, and on processors that do not know it no instruction at all. */
static inline void hand_over(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("cldemote %0" : : "m"(*(const char *)line));
#else
	(void)line;
#endif
}

/* Load used.idx; what it covers may be read afterwards, and ours be written that is back. */
static inline int look(struct driver *driver)
{
	uint16_t index = __atomic_load_n(&driver->used->index, __ATOMIC_ACQUIRE);

	if ((uint16_t)(index - driver->seen) > (uint16_t)(driver->published - driver->seen))
		return faulty(driver, FP_INDEX_JUMP);
	driver->behind = index;
	return 0;
}

/* Let the other side see what was made, and notify it unless it does not want that */
static void publish(struct driver *driver)
{
	if (!driver->in_order && !driver->transmit)
		while (driver->published != driver->made)
			driver->lent[driver->free[slot(driver, driver->published++)]] = 1;
	__atomic_store_n(&driver->avail->index, driver->made, __ATOMIC_RELEASE);
	hand_over(driver->avail);
	driver->published = driver->made;
	if (driver->kick < 0)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (__atomic_load_n(&driver->used->flags, __ATOMIC_RELAXED) & NO_NOTIFY)
		return;
	fp_count(&driver->queue.counters.kicks, (uint64_t)fp_notify(driver->kick));
}

/* Without IN_ORDER: take back what was used for sending */
static int reclaim(struct driver *driver)
{
	while (driver->seen != driver->behind) {
		uint32_t id = __atomic_load_n(&driver->used->ring[slot(driver, driver->seen)].id, __ATOMIC_RELAXED);

		if (id >= driver->size || !driver->lent[id])
			return faulty(driver, FP_BAD_ID);
		driver->lent[id] = 0;
		driver->free[driver->frees++] = (uint16_t)id;
		driver->seen++;
	}
	return 0;
}

/* How many of @count frames there is room for */
static inline int room_for(struct driver *driver, uint32_t count)
{
	uint32_t room = driver->size - (uint16_t)(driver->made - driver->seen);

	if (room < count) {
		if (look(driver) < 0)
			return -EBADMSG;
		if (driver->in_order)
			driver->seen = driver->behind;
		else if (reclaim(driver) < 0)
			return -EBADMSG;
		room = driver->size - (uint16_t)(driver->made - driver->seen);
	}
	return (int)(room < count ? room : count);
}

/* The descriptor for the next frame, @ahead of those that were made */
static inline uint32_t next_id(const struct driver *driver, uint32_t ahead)
{
	if (driver->in_order)
		return slot(driver, (uint16_t)(driver->made + ahead));
	return driver->free[driver->frees - 1 - ahead];
}

/* Put a descriptor where the other side will find it, once it is published */
static inline void lend(struct driver *driver, uint32_t id)
{
	if (!driver->in_order) {
		__atomic_store_n(&driver->avail->ring[slot(driver, driver->made)], (uint16_t)id, __ATOMIC_RELAXED);
		if (driver->transmit) {
			driver->lent[id] = 1;
			driver->frees--;
		} else {
			driver->free[slot(driver, driver->made)] = (uint16_t)id;
		}
	}
	driver->made++;
}

static inline void describe(struct driver *driver, uint32_t id, uint32_t length)
{
	if (driver->desc[id].length != FP_HEADER + length)
		driver->desc[id].length = FP_HEADER + length;
}

static int driver_send(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count)
{
	struct driver *driver = driver_of(queue);
	uint32_t longest = stride < queue->room ? stride : queue->room, id, length;
	int room = room_for(driver, count), i;

	if (room <= 0)
		return room;
	for (i = 0; i < room; i++)
		prefetch_to_write(frame_at(driver, next_id(driver, (uint32_t)i)));
	for (i = 0; i < room; i++) {
		length = __atomic_load_n(&lengths[i], __ATOMIC_RELAXED);
		if (length > longest)
			break;
		id = next_id(driver, 0);
		copy(frame_at(driver, id), frames + (size_t)i * stride, length);
		hand_over(frame_at(driver, id));
		describe(driver, id, length);
		lend(driver, id);
	}
	publish(driver);
	return i;
}

/* The next buffer that came back: its number and its length, or -EBADMSG */
static inline int take_back(struct driver *driver, uint32_t *length)
{
	const struct used_element *element = &driver->used->ring[slot(driver, driver->seen)];
	uint32_t id = __atomic_load_n(&element->id, __ATOMIC_RELAXED);

	*length = __atomic_load_n(&element->length, __ATOMIC_RELAXED);
	if (driver->in_order ? id != slot(driver, driver->seen) : id >= driver->size || !driver->lent[id])
		return faulty(driver, FP_BAD_ID);
	if (*length > driver->span)
		return faulty(driver, FP_BAD_LENGTH);
	if (!driver->in_order)
		driver->lent[id] = 0;
	driver->seen++;
	return (int)id;
}

/* Buffers of a frame whose first buffer comes next: 1 without MRG_RXBUF, 0 while some of them are not there yet */
static inline int merged(struct driver *driver)
{
	uint16_t back = (uint16_t)(driver->behind - driver->seen), count;
	uint32_t id;

	if (!driver->mergeable)
		return 1;
	id = __atomic_load_n(&driver->used->ring[slot(driver, driver->seen)].id, __ATOMIC_RELAXED);
	if (id >= driver->size)
		return faulty(driver, FP_BAD_ID);
	memcpy(&count, frame_at(driver, id) - FP_HEADER + NUM_BUFFERS, sizeof(count));
	__asm__ volatile("" : "+r"(count));	/* read once */
	if (!count || count > driver->size)
		return faulty(driver, FP_LOOP);
	return count <= back ? count : 0;
}

/* Copy the frame that lies in the next @parts buffers. Its length, or -1 when it does not fit, or -EBADMSG */
static inline int assemble(struct driver *driver, uint8_t *to, uint32_t stride, int parts)
{
	uint32_t length, done = 0;
	bool fits = true;
	int id;

	for (int part = 0; part < parts; part++) {
		uint32_t header = part ? 0 : FP_HEADER;

		if ((id = take_back(driver, &length)) < 0)
			return id;
		if (length < header)
			return faulty(driver, FP_BAD_LENGTH);
		length -= header;
		fits = fits && length <= stride - done;
		if (fits) {
			copy(to + done, frame_at(driver, (uint32_t)id) - FP_HEADER + header, length);
			done += length;
		}
		lend(driver, (uint32_t)id);
	}
	return fits ? (int)done : -1;
}

/* Buffers that have come back, to be looked at: loads used.idx only when there are fewer than wanted */
static inline int arrived(struct driver *driver, uint32_t wanted)
{
	if ((uint16_t)(driver->behind - driver->seen) < wanted && look(driver) < 0)
		return -EBADMSG;
	return (uint16_t)(driver->behind - driver->seen);
}

static void prefetch_received(const struct driver *driver, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = slot(driver, (uint16_t)(driver->seen + i));
		uint32_t id = driver->in_order ? at : __atomic_load_n(&driver->used->ring[at].id, __ATOMIC_RELAXED);

		if (id < driver->size)
			__builtin_prefetch(frame_at(driver, id));
	}
}

static void recycle(struct driver *driver)
{
	if ((uint16_t)(driver->made - driver->published) >= driver->lump)
		publish(driver);
}

static int driver_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	struct driver *driver = driver_of(queue);
	int back = arrived(driver, capacity), parts, length;
	uint32_t count = 0;

	if (back <= 0)
		return back;
	prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	while (count < capacity && driver->seen != driver->behind) {
		if ((parts = merged(driver)) <= 0)
			break;
		length = assemble(driver, frames + (size_t)count * stride, stride, parts);
		if (length >= 0)
			lengths[count++] = (uint32_t)length;
		else if (length == -1)
			fp_count(&queue->counters.oversize, 1);
		else
			break;
	}
	if (count || !atomic_load_explicit(&queue->fault, memory_order_relaxed)) {
		recycle(driver);
		return (int)count;
	}
	return -EBADMSG;
}

static int driver_arm(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);

	if (driver->made != driver->published)
		publish(driver);
	if (driver->seen != driver->behind)
		return 1;
	__atomic_store_n(&driver->avail->flags, 0, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_seq_cst);
	if (look(driver) < 0)
		return -EBADMSG;
	if (driver->seen == driver->behind)
		return 0;
	__atomic_store_n(&driver->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
	return 1;
}

static void driver_disarm(struct fp_queue *queue)
{
	__atomic_store_n(&driver_of(queue)->avail->flags, NO_INTERRUPT, __ATOMIC_RELAXED);
}

static const struct fp_operations operations = {
	.send = driver_send,
	.receive = driver_receive,
	.arm = driver_arm,
	.disarm = driver_disarm,
};

static size_t rounded(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

static size_t avail_at(uint32_t size)
{
	return rounded(size * sizeof(struct desc), LINE);
}

static size_t used_at(uint32_t size)
{
	return avail_at(size) + rounded(sizeof(struct avail) + (size + 1) * sizeof(uint16_t), LINE);
}

static size_t buffers_at(uint32_t size)
{
	return used_at(size) + rounded(sizeof(struct used) + size * sizeof(struct used_element) + sizeof(uint16_t), LINE);
}

static size_t pitch_of(uint32_t room)
{
	return LINE + rounded(room, LINE);
}

/**
 * fp_driver_bytes() - Shared memory that one queue needs
 * @size:	Descriptors
 * @room:	Longest frame that one buffer holds, bytes
 *
 * Return: bytes, a multiple of 4096
 */
size_t fp_driver_bytes(uint32_t size, uint32_t room)
{
	return rounded(buffers_at(size) + size * pitch_of(room), PAGE);
}

/**
 * fp_driver_new() - Make a queue, stopped
 * @memory:	fp_driver_bytes() of shared memory, on a cache line; it must outlive the queue
 * @size:	Descriptors, a power of two, 2 to 32768
 * @room:	Longest frame that one buffer holds, 14 to 65535 bytes
 * @transmit:	1: sends, 0: receives
 *
 * Return: the queue; NULL with errno set: EINVAL, ENOMEM
 */
struct fp_queue *fp_driver_new(void *memory, uint32_t size, uint32_t room, int transmit)
{
	struct driver *driver;

	if (size < 2 || size > LARGEST_RING || size & (size - 1) || room < FP_SHORTEST || room > LARGEST_ROOM ||
	    (uintptr_t)memory % LINE) {
		errno = EINVAL;
		return NULL;
	}
	if (!(driver = aligned_alloc(LINE, rounded(sizeof(*driver), LINE))))
		return NULL;
	memset(driver, 0, sizeof(*driver));
	driver->queue.operations = &operations;
	driver->queue.state = FP_STOPPED;
	driver->queue.event = -1;
	driver->queue.room = room;
	driver->desc = memory;
	driver->avail = (struct avail *)((uint8_t *)memory + avail_at(size));
	driver->used = (struct used *)((uint8_t *)memory + used_at(size));
	driver->buffers = (uint8_t *)memory + buffers_at(size);
	driver->size = size;
	driver->pitch = (uint32_t)pitch_of(room);
	driver->span = driver->pitch - HEADER_AT;
	driver->lump = size <= SMALL_RING ? 1 : size / 4;
	driver->transmit = transmit;
	driver->kick = -1;
	driver->free = calloc(size, sizeof(*driver->free));
	driver->lent = calloc(size, sizeof(*driver->lent));
	if (!driver->free || !driver->lent) {
		fp_driver_free(&driver->queue);
		errno = ENOMEM;
		return NULL;
	}
	return &driver->queue;
}

/* Rings and headers as they are before the first frame; a receive queue's buffers are all given */
static void lay_out(struct driver *driver)
{
	memset(driver->desc, 0, (size_t)(driver->buffers - (uint8_t *)driver->desc));
	for (uint32_t id = 0; id < driver->size; id++) {
		uint8_t *header = frame_at(driver, id) - FP_HEADER;

		memset(header, 0, FP_HEADER);
		header[NUM_BUFFERS] = driver->transmit ? 0 : 1;
		driver->desc[id].address = (uint64_t)(uintptr_t)header;
		driver->desc[id].length = driver->transmit ? FP_HEADER : driver->span;
		driver->desc[id].flags = driver->transmit ? 0 : DESC_WRITE;
		driver->avail->ring[id] = (uint16_t)id;
		driver->lent[id] = !driver->transmit;
		driver->free[id] = (uint16_t)(driver->size - 1 - id);
	}
	driver->avail->flags = NO_INTERRUPT;
	driver->made = driver->transmit ? 0 : (uint16_t)driver->size;
	driver->published = driver->made;
	driver->seen = driver->behind = 0;
	driver->frees = driver->transmit ? driver->size : 0;
	__atomic_store_n(&driver->avail->index, driver->made, __ATOMIC_RELEASE);
}

/**
 * fp_driver_attach() - Prepare for a new connection
 * @queue:	A driver, stopped; it stays so until fp_start()
 * @in_order:	VIRTIO_F_IN_ORDER was negotiated
 * @mergeable:	VIRTIO_NET_F_MRG_RXBUF was negotiated
 * @kick:	eventfd by which the other side is notified, or -1
 * @call:	eventfd by which it notifies us, not blocking, or -1. Both stay the caller's
 *
 * Forgets what was in the ring: what was sent and not seen to be used may be lost, what was received and not fetched is.
 */
void fp_driver_attach(struct fp_queue *queue, int in_order, int mergeable, int kick, int call)
{
	struct driver *driver = driver_of(queue);

	driver->in_order = in_order;
	driver->mergeable = mergeable && !driver->transmit;
	driver->kick = kick;
	queue->event = call;
	atomic_store(&queue->fault, FP_SOUND);
	lay_out(driver);
}

/**
 * fp_driver_rings() - Where the three parts of the ring are
 * @queue:	A driver
 * @rings:	Set to our addresses of descriptors, avail ring, used ring
 */
void fp_driver_rings(struct fp_queue *queue, uint64_t rings[3])
{
	struct driver *driver = driver_of(queue);

	rings[0] = (uint64_t)(uintptr_t)driver->desc;
	rings[1] = (uint64_t)(uintptr_t)driver->avail;
	rings[2] = (uint64_t)(uintptr_t)driver->used;
}

/**
 * fp_driver_free() - Free a queue, not its shared memory
 * @queue:	A driver, closed; nobody may use it any more, not even to learn that it is closed
 */
void fp_driver_free(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);

	free(driver->free);
	free(driver->lent);
	free(driver);
}

/**
 * fp_driver_is() - Whether a queue is of this kind
 * @queue:	Any queue
 */
bool fp_driver_is(const struct fp_queue *queue)
{
	return queue->operations == &operations;
}

/**
 * fp_driver_fill() - Write a frame into all buffers of an idle transmit queue, for fp_driver_repeat()
 * @queue:	A driver that transmits, taken; what is under way from it may be overwritten
 * @frame:	The frame
 * @length:	Its bytes, at most the queue's room
 */
void fp_driver_fill(struct fp_queue *queue, const void *frame, uint32_t length)
{
	struct driver *driver = driver_of(queue);

	for (uint32_t id = 0; id < driver->size; id++)
		memcpy(frame_at(driver, id), frame, length);
}

/**
 * fp_driver_repeat() - Send what buffers hold already
 * @queue:	A driver that transmits, taken; see fp_driver_fill()
 * @length:	Bytes of each frame
 * @count:	Frames
 *
 * Return: frames sent, or -EBADMSG
 */
int fp_driver_repeat(struct fp_queue *queue, uint32_t length, uint32_t count)
{
	struct driver *driver = driver_of(queue);
	int room = room_for(driver, count);

	if (room <= 0)
		return room;
	for (int i = 0; i < room; i++) {
		uint32_t id = next_id(driver, 0);

		describe(driver, id, length);
		lend(driver, id);
	}
	publish(driver);
	return room;
}

/**
 * fp_driver_discard() - Receive frames, and count them, without copying them
 * @queue:	A driver that receives, taken
 * @capacity:	Most frames
 * @mark:	Eight bytes that ours have behind the Ethernet header, which is looked for, or NULL: nothing is looked at
 * @foreign:	Incremented for each frame without
 *
 * Return: frames, or -EBADMSG
 */
int fp_driver_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	struct driver *driver = driver_of(queue);
	int back = arrived(driver, capacity), parts, id;
	uint32_t count = 0, length;
	uint64_t bytes = 0;

	if (mark && back > 0)
		prefetch_received(driver, (uint32_t)back < capacity ? (uint32_t)back : capacity);
	for (; back > 0 && count < capacity && driver->seen != driver->behind; count++) {
		if ((parts = merged(driver)) <= 0)
			break;
		for (int part = 0; part < parts; part++) {
			uint32_t header = part ? 0 : FP_HEADER;

			if ((id = take_back(driver, &length)) < 0)
				return id;
			if (length < header)
				return faulty(driver, FP_BAD_LENGTH);
			bytes += length - header;
			if (mark && !part && memcmp(frame_at(driver, (uint32_t)id) + FP_SHORTEST, mark, FP_MARK))
				++*foreign;
			lend(driver, (uint32_t)id);
		}
	}
	if (back < 0 || atomic_load_explicit(&queue->fault, memory_order_relaxed))
		return -EBADMSG;
	fp_count(&queue->counters.frames, count);
	fp_count(&queue->counters.bytes, bytes);
	recycle(driver);
	return (int)count;
}
