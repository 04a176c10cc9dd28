// SPDX-License-Identifier: Apache-2.0
/* tap_queues.c - what a second queue of a tap brings, with a core of its own for its thread and without
 *
 *   gcc -O2 -pthread -o /tmp/tap_queues tests/bench/tap_queues.c && unshare -n /tmp/tap_queues
 *
 * Threads write frames to a tap for a while, as `userspace-cni tap` writes what comes from the switch; no program here reads their
 * type. Each line: bytes of a frame, and thousands of frames a second of all threads together, medians of rounds in turns, by one
 * thread, by two threads with a queue each on one core, by two on two cores, and by two that share one queue on two cores; then the
 * ratios to the first. On a node of two cores the switch's polling thread has the second one.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 9
#define TURN_NS 100000000
#define LARGEST 65536
#define WAYS 4
#define NEED(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

/** struct writer - A thread that writes to a queue of the tap, on a core, until a time */
struct writer {
	int queue, core;
	uint32_t length;
	int64_t until;
	uint64_t done;
	pthread_t thread;
};

/** struct way - How many threads write, and whether the second has a queue and a core of its own */
static const struct way {
	int threads, queues, cores;
} ways[WAYS] = { { 1, 1, 1 }, { 2, 2, 1 }, { 2, 2, 2 }, { 2, 1, 2 } };

/* Nanoseconds */
static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Write until the time is over */
static void *writes(void *argument)
{
	struct writer *writer = argument;
	uint8_t frame[LARGEST] = "\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\1\x88\xb5";
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(writer->core, &own);
	NEED(!sched_setaffinity(0, sizeof(own), &own));
	while (now() < writer->until)
		for (int i = 0; i < 8; i++, writer->done++)
			NEED(write(writer->queue, frame, writer->length) == (ssize_t)writer->length);
	return NULL;
}

/* Thousands of frames a second */
static double measure(const int queues[2], const struct way *way, uint32_t length)
{
	struct writer writers[2];
	int64_t start = now();
	uint64_t done = 0;

	for (int i = 0; i < way->threads; i++) {
		writers[i] = (struct writer){ .queue = queues[i % way->queues], .core = i % way->cores, .length = length,
					      .until = start + TURN_NS };
		NEED(!pthread_create(&writers[i].thread, NULL, writes, &writers[i]));
	}
	for (int i = 0; i < way->threads; i++) {
		pthread_join(writers[i].thread, NULL);
		done += writers[i].done;
	}
	return (double)done * 1e6 / (double)(now() - start);
}

/* Order of numbers, for qsort() */
static int order(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

/* Measure all ways in turns, and print the medians */
static void compare(const int queues[2], uint32_t length)
{
	double found[WAYS][ROUNDS], medians[WAYS];

	for (int round = 0; round < ROUNDS; round++)
		for (int way = 0; way < WAYS; way++)
			found[way][round] = measure(queues, &ways[way], length);
	printf("%5u bytes: kframes/s", length);
	for (int way = 0; way < WAYS; way++) {
		qsort(found[way], ROUNDS, sizeof(double), order);
		medians[way] = found[way][ROUNDS / 2];
		printf(" %7.0f", medians[way]);
	}
	printf("; ratios %.2f %.2f %.2f\n", medians[1] / medians[0], medians[2] / medians[0], medians[3] / medians[0]);
}

/* Make a tap of two queues, and compare */
int main(void)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE };
	int control = socket(AF_INET, SOCK_DGRAM, 0), queues[2];

	for (int i = 0; i < 2; i++) {
		NEED((queues[i] = open("/dev/net/tun", O_RDWR)) >= 0);
		request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE;
		NEED(!ioctl(queues[i], TUNSETIFF, &request));
	}
	request.ifr_mtu = 65000;
	NEED(control >= 0 && !ioctl(control, SIOCSIFMTU, &request));
	NEED(!ioctl(control, SIOCGIFFLAGS, &request));
	request.ifr_flags |= IFF_UP | IFF_NOARP;
	NEED(!ioctl(control, SIOCSIFFLAGS, &request));
	for (uint32_t length = 64; length <= 64000; length = length == 64 ? 1514 : length == 1514 ? 64000 : 65535)
		compare(queues, length);
	return 0;
}
