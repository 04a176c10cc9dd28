// SPDX-License-Identifier: Apache-2.0
/* tap_calls.c - what a system call for each frame of a tap costs, beside the same calls in batches of io_uring
 *
 *   gcc -O2 -o /tmp/tap_calls tests/bench/tap_calls.c && unshare -n /tmp/tap_calls
 *
 * Each line: bytes of a frame, frames of a batch, and nanoseconds of processor time for a frame that is written or read by a call of
 * its own, then by io_uring, and their ratio: medians of rounds in turns. What is written are frames of a type that no program here reads;
 * what is read was sent by a packet socket, whose time does not count.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH 32
#define ROUNDS 15
#define BATCHES 600
#define LARGEST 65536
#define TYPE 0x88b5
#define NEED(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

/** struct ring - The parts of an io_uring that are used here */
struct ring {
	int fd;
	_Atomic uint32_t *sq_tail, *cq_head, *cq_tail;
	uint32_t sq_mask, cq_mask, *sq_array;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *results;
};

static uint8_t frames[BATCH][LARGEST];

/* Processor time of this thread, nanoseconds */
static int64_t used(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* A ring with room for a batch */
static struct ring make_ring(void)
{
	struct io_uring_params p = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN };
	struct ring ring = { .fd = (int)syscall(SYS_io_uring_setup, BATCH, &p) };
	size_t sq = p.sq_off.array + p.sq_entries * 4, cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	uint8_t *at, *done;

	NEED(ring.fd >= 0);
	at = mmap(NULL, sq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
	done = mmap(NULL, cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
	ring.entries = mmap(NULL, p.sq_entries * sizeof(*ring.entries), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
			    IORING_OFF_SQES);
	NEED(at != MAP_FAILED && done != MAP_FAILED && ring.entries != MAP_FAILED);
	ring.sq_tail = (void *)(at + p.sq_off.tail);
	ring.sq_mask = *(uint32_t *)(at + p.sq_off.ring_mask);
	ring.sq_array = (void *)(at + p.sq_off.array);
	ring.cq_head = (void *)(done + p.cq_off.head);
	ring.cq_tail = (void *)(done + p.cq_off.tail);
	ring.cq_mask = *(uint32_t *)(done + p.cq_off.ring_mask);
	ring.results = (void *)(done + p.cq_off.cqes);
	return ring;
}

/* Do @count reads or writes at once */
static void by_ring(struct ring *ring, int tap, int op, uint32_t length, uint32_t count)
{
	uint32_t tail = *ring->sq_tail, head;

	for (uint32_t i = 0; i < count; i++, tail++) {
		struct io_uring_sqe *entry = &ring->entries[tail & ring->sq_mask];

		memset(entry, 0, sizeof(*entry));
		entry->opcode = (uint8_t)op;
		entry->fd = tap;
		entry->addr = (uintptr_t)frames[i];
		entry->len = op == IORING_OP_READ ? LARGEST : length;
		entry->off = (uint64_t)-1;
		ring->sq_array[tail & ring->sq_mask] = tail & ring->sq_mask;
	}
	*ring->sq_tail = tail;
	NEED(syscall(SYS_io_uring_enter, ring->fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0) == count);
	for (head = *ring->cq_head; head != *ring->cq_tail; head++) {
		int found = ring->results[head & ring->cq_mask].res;

		if (found != (int)length) {
			fprintf(stderr, "io_uring: %s\n", strerror(-found));
			exit(1);
		}
	}
	*ring->cq_head = head;
}

/* The same, a call each */
static void by_calls(int tap, int op, uint32_t length, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		ssize_t found = op == IORING_OP_READ ? read(tap, frames[i], LARGEST) : write(tap, frames[i], length);

		NEED(found == (ssize_t)length);
	}
}

/* Processor time of a frame in one round */
static int64_t measure(struct ring *ring, int tap, int packets, int op, uint32_t length, uint32_t count)
{
	int64_t sum = 0, before;

	for (int batch = 0; batch < BATCHES; batch++) {
		for (uint32_t i = 0; op == IORING_OP_READ && i < count; i++)
			NEED(send(packets, frames[i], length, 0) == (ssize_t)length);
		before = used();
		if (ring)
			by_ring(ring, tap, op, length, count);
		else
			by_calls(tap, op, length, count);
		sum += used() - before;
	}
	return sum / BATCHES / count;
}

/* Order of numbers, for qsort() */
static int order(const void *a, const void *b)
{
	int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;

	return (one > other) - (one < other);
}

/* Measure both ways in turns, and print the medians */
static void compare(struct ring *ring, int tap, int packets, int op, uint32_t length, uint32_t count)
{
	int64_t calls[ROUNDS], batched[ROUNDS];

	for (int round = 0; round < ROUNDS; round++) {
		calls[round] = measure(NULL, tap, packets, op, length, count);
		batched[round] = measure(ring, tap, packets, op, length, count);
	}
	qsort(calls, ROUNDS, sizeof(*calls), order);
	qsort(batched, ROUNDS, sizeof(*batched), order);
	printf("%s %5u bytes, batch %2u: calls %5ld ns, io_uring %5ld ns, ratio %.2f\n", op == IORING_OP_READ ? "read " : "write", length,
	       count, (long)calls[ROUNDS / 2], (long)batched[ROUNDS / 2], (double)batched[ROUNDS / 2] / (double)calls[ROUNDS / 2]);
}

/* Make a tap, and compare */
int main(void)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
	int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK), control = socket(AF_INET, SOCK_DGRAM, 0);
	int packets = socket(AF_PACKET, SOCK_RAW, 0);
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(TYPE) };
	struct ring ring = make_ring();

	NEED(tap >= 0 && control >= 0 && packets >= 0 && !ioctl(tap, TUNSETIFF, &request));
	request.ifr_mtu = 65000;
	NEED(!ioctl(control, SIOCSIFMTU, &request));
	NEED(!ioctl(control, SIOCGIFFLAGS, &request));
	request.ifr_flags |= IFF_UP | IFF_NOARP;
	NEED(!ioctl(control, SIOCSIFFLAGS, &request));
	NEED(!ioctl(control, SIOCGIFINDEX, &request));
	at.sll_ifindex = request.ifr_ifindex;
	usleep(300000);
	while (read(tap, frames[0], LARGEST) > 0) {	/* what IPv6 sends when a link comes up */
	}
	NEED(!bind(packets, (struct sockaddr *)&at, sizeof(at)));
	for (int i = 0; i < BATCH; i++) {
		memset(frames[i], 0xff, 6);
		memcpy(frames[i] + 6, "\x02\0\0\0\0\1\x88\xb5", 8);
	}
	for (int op = 0; op < 2; op++)
		for (uint32_t length = 64; length <= 64000; length = length == 64 ? 1514 : length == 1514 ? 64000 : 65535)
			for (uint32_t count = 1; count <= BATCH; count = count == 1 ? 4 : count * 8)
				compare(&ring, tap, packets, op ? IORING_OP_READ : IORING_OP_WRITE, length, count);
	return 0;
}
