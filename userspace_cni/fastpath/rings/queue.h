/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - the common part of both ends of a virtqueue; see queue.c
 *
 * A queue carries frames in one direction. It is one of two kinds: a "driver" owns memory and rings (the front-end, driver.c), a
 * "device" works on rings in memory that the other side has lent (the back-end, device.c). Callers need not know which:
 * fp_send(), fp_receive(), fp_wait() and fp_close() take either.
 */

#ifndef FASTPATH_QUEUE_H
#define FASTPATH_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_HEADER 12	/* bytes of struct virtio_net_hdr_mrg_rxbuf, with VIRTIO_F_VERSION_1 always before a frame */
#define FP_SHORTEST 14	/* bytes of the shortest frame that is sent: an Ethernet header */
#define FP_LARGEST 65553	/* bytes of the longest frame: an IP packet of 65,535 bytes behind an Ethernet header with a VLAN tag */
#define FP_LINE 64	/* bytes of a line of the processor's cache */
#define FP_WAIT_QUEUES 128	/* most queues of one fp_wait(): the queue pairs that a connection can have */

/** enum fp_state - Bits that say which thread may touch a queue
 * @FP_IDLE:	the next caller may take it
 * @FP_TAKEN:	a burst is under way in some thread
 * @FP_STOPPED:	not attached (any more): bursts carry nothing; a new queue has this state
 * @FP_CLOSED:	closed for ever
 */
enum fp_state {
	FP_IDLE = 0,
	FP_TAKEN = 1,
	FP_STOPPED = 2,
	FP_CLOSED = 4,
};

/** enum fp_fault - What the other side did to its half of the ring; the queue cannot be used until it is attached anew */
enum fp_fault {
	FP_SOUND,
	FP_INDEX_JUMP,		/* an index moved by more than the size of the ring, or backwards */
	FP_BAD_ID,		/* a descriptor's number beyond the ring, or one that is not with the other side */
	FP_LOOP,		/* a chain longer than the ring */
	FP_BAD_ADDRESS,		/* a buffer outside of the memory that was shared, or across its end */
	FP_BAD_LENGTH,		/* a length that does not fit the buffer, or no room for the header */
	FP_BAD_FLAGS,		/* a buffer of the wrong direction, or an indirect one, which was not negotiated */
	FP_MEMORY_GONE,		/* memory was taken away under us (SIGBUS, see guard.c) */
	FP_BAD_EVENT,		/* the file descriptor for notifications is not one that a thread can wait for */
};

/** struct fp_counters - What a queue has carried since it was made; the thread that has taken the queue writes, any may read
 *
 * fp_send() and fp_receive() count frames, bytes and refused; drivers and devices count oversize and kicks, with fp_count().
 */
struct fp_counters {
	uint64_t frames;
	uint64_t bytes;		/* of frames, without virtio headers */
	uint64_t refused;	/* frames that a send found no room for */
	uint64_t oversize;	/* received frames that did not fit in the caller's stride, dropped */
	uint64_t kicks;		/* notifications written for the other side */
};

struct fp_queue;

/** struct fp_operations - The functions of a kind of queue; the caller has taken the queue
 * @send:	Copy frames in; number of frames, or -EBADMSG with queue->fault set. Lengths have been found to be
 *		fp_overhead() + FP_SHORTEST to min(stride, queue->room), but another thread may write them: read each once, and check it
 * @receive:	Copy frames out; the same
 * @ready:	Whether there are frames, or room for some: 1, 0, -EBADMSG
 * @arm:	Ask the other side to notify us; 1 when frames are there already (then no notification is requested), 0, -EBADMSG
 * @disarm:	Ask the other side not to notify us
 */
struct fp_operations {
	int (*send)(struct fp_queue *queue, const uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
	int (*receive)(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);
	int (*ready)(struct fp_queue *queue);
	int (*arm)(struct fp_queue *queue);
	void (*disarm)(struct fp_queue *queue);
};

/** struct fp_queue - The part that both kinds begin with
 * @operations:	Its kind
 * @state:	Bits of enum fp_state; FP_IDLE to FP_TAKEN and back is the lock of a burst
 * @fault:	enum fp_fault
 * @event:	eventfd by which the other side notifies us (call for a driver, kick for a device), -1 for none; changed only
 *		while the queue is stopped
 * @headers:	Whether a frame of the caller's begins with its header of FP_HEADER bytes (struct virtio_net_hdr_mrg_rxbuf), as for
 *		offloads; then lengths, strides and @room include it. Set while the queue is stopped, before it is attached
 * @room:	Longest frame that can be sent, bytes
 * @waiters:	Threads inside fp_wait() and fp_sleep()
 * @misses:	Looks before a sleep that were in vain, one after the other; see look_first() in queue.c
 * @skips:	So many waits sleep before one looks again
 */
struct fp_queue {
	const struct fp_operations *operations;
	_Atomic uint32_t state;
	_Atomic uint32_t fault;
	int event;
	bool headers;
	uint32_t room;
	struct fp_counters counters;
	_Atomic uint32_t waiters;
	_Atomic uint32_t misses;
	_Atomic uint32_t skips;
};

/**
 * fp_overhead() - Bytes that are in front of each frame of the caller's
 * @queue:	The queue
 *
 * Return: FP_HEADER, or 0 when the caller's frames have no headers
 */
static inline uint32_t fp_overhead(const struct fp_queue *queue)
{
	return queue->headers ? FP_HEADER : 0;
}

/**
 * fp_count() - Add to a counter that other threads may read meanwhile
 * @counter:	Of a queue that the caller has taken
 * @more:	Number to add
 */
static inline void fp_count(uint64_t *counter, uint64_t more)
{
	__atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

int fp_take(struct fp_queue *queue);
void fp_release(struct fp_queue *queue);
void fp_stop(struct fp_queue *queue);
void fp_start(struct fp_queue *queue);
void fp_close(struct fp_queue *queue);
void fp_forget(struct fp_queue *queue);

int fp_send(struct fp_queue *queue, const void *frames, uint32_t stride, const uint32_t *lengths, uint32_t count);
int fp_receive(struct fp_queue *queue, void *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity);
int fp_wait(struct fp_queue *const *queues, uint32_t count, int control, int wake, int64_t timeout_ns);
int fp_sleep(struct fp_queue *const *queues, uint32_t count, int control, int wake, int64_t timeout_ns);

void fp_read_counters(const struct fp_queue *queue, struct fp_counters *counters);
uint32_t fp_fault_of(const struct fp_queue *queue);

#endif /* FASTPATH_QUEUE_H */
