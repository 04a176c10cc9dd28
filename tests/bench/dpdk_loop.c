// SPDX-License-Identifier: Apache-2.0
/* dpdk_loop.c - what fp_blast() does, with DPDK's ethdev: the other half of the comparison in fastpath.py
 *
 * dpdk_loop EAL-ARGUMENTS -- QUEUES LEAST
 *
 * Ports 0 and 1 are two virtio_user devices with so many queue pairs each. LEAST is how many frames are asked for at a time at least,
 * for a receive function that gives none when it is asked for fewer. When a frame has gone each way it prints "ready". Then each
 * line on stdin is a run, and its result a line of JSON on stdout:
 *
 *	SECONDS RATE LENGTH BATCH WAYS TOUCH
 *	bounce
 *
 * One thread sends bursts of BATCH frames of LENGTH bytes on each queue of port 0, each frame copied into its buffer, and receives on
 * port 1 (with WAYS=2 the reverse too); with TOUCH=1 it compares eight bytes of each received frame. RATE is in frames a second over
 * all; 0: as many as are taken, and received frames are counted per window of a millisecond. With a rate, as many frames are sent as
 * fall due in the time, but for TIMES_LATE times as long at most, and what is on its way is still received. "bounce" sends ECHOES
 * single frames there and back, and tells the median of their round trips.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_memcpy.h>

#define RING 256
#define LARGEST_BATCH 256
#define LONGEST 1518
#define SHORTEST 64
#define MARK_AT 14
#define MARK 8
#define CLOCK_EVERY 4		/* turns between looks at the clock, without a rate */
#define WINDOWS 60000
#define ADDRESSES 14
#define READY_TRIES 10000	/* of a millisecond */
#define TIMES_LATE 1.02
#define LAST_MS 10		/* for frames on their way */
#define ECHOES 1001
#define LOST_MS 20

struct order {
	double seconds, rate;
	uint16_t length, batch, ways;
	bool touch;
};

struct result {
	uint64_t sent, received, foreign;
	double seconds;
	uint32_t count;
};

static uint8_t frame[LONGEST];
static uint32_t windows[WINDOWS];
static struct rte_mempool *pool;
static uint16_t queues, least;

/* Start a port, or end the program */
static void open_port(uint16_t port)
{
	struct rte_eth_conf conf = { 0 };
	bool well = rte_eth_dev_configure(port, queues, queues, &conf) >= 0;

	for (uint16_t queue = 0; well && queue < queues; queue++)
		well = rte_eth_tx_queue_setup(port, queue, RING, SOCKET_ID_ANY, NULL) >= 0 &&
		       rte_eth_rx_queue_setup(port, queue, RING, SOCKET_ID_ANY, NULL, pool) >= 0;
	if (!well || rte_eth_dev_start(port) < 0)
		rte_exit(1, "port %u cannot be started\n", port);
}

/* Send one burst, each frame copied; frames sent */
static uint16_t transmit(uint16_t port, uint16_t queue, const struct order *order)
{
	struct rte_mbuf *mbufs[LARGEST_BATCH];
	uint16_t sent;

	if (rte_pktmbuf_alloc_bulk(pool, mbufs, order->batch))
		return 0;
	for (uint16_t i = 0; i < order->batch; i++) {
		if (order->length == SHORTEST)	/* of a length that the compiler knows it is quicker */
			memcpy(rte_pktmbuf_mtod(mbufs[i], void *), frame, SHORTEST);
		else
			rte_memcpy(rte_pktmbuf_mtod(mbufs[i], void *), frame, order->length);
		mbufs[i]->data_len = order->length;
		mbufs[i]->pkt_len = order->length;
	}
	sent = rte_eth_tx_burst(port, queue, mbufs, order->batch);
	if (sent < order->batch)
		rte_pktmbuf_free_bulk(mbufs + sent, order->batch - sent);
	return sent;
}

/* Receive one burst and free it; frames received, of which @foreign grows by those that are not ours */
static uint16_t receive(uint16_t port, uint16_t queue, const struct order *order, uint64_t *foreign)
{
	struct rte_mbuf *mbufs[LARGEST_BATCH];
	uint16_t received = rte_eth_rx_burst(port, queue, mbufs, RTE_MAX(order->batch, least));

	for (uint16_t i = 0; order->touch && i < received; i++)
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
	for (uint16_t i = 0; order->touch && i < received; i++)
		*foreign += !!memcmp(rte_pktmbuf_mtod_offset(mbufs[i], uint8_t *, MARK_AT), frame + MARK_AT, MARK);
	if (received)
		rte_pktmbuf_free_bulk(mbufs, received);
	return received;
}

/* Receive what is there for so many milliseconds; frames received */
static uint64_t drain(const struct order *order, unsigned int milliseconds, uint64_t *foreign)
{
	uint64_t end = rte_rdtsc() + rte_get_tsc_hz() / 1000 * milliseconds, received = 0;

	do {
		for (uint16_t port = 0; port < 2; port++)
			for (uint16_t queue = 0; queue < queues; queue++)
				received += receive(port, queue, order, foreign);
	} while (rte_rdtsc() < end);
	return received;
}

/* Send a frame each way again and again until both arrive, or end the program */
static void await_path(void)
{
	struct order order = { .length = SHORTEST, .batch = 1 };
	uint64_t foreign = 0;
	bool came[2] = { false, false };

	for (int tries = 0; !came[0] || !came[1]; tries++) {
		if (tries == READY_TRIES)
			rte_exit(1, "no frame comes through the switch\n");
		for (uint16_t port = 0; port < 2; port++)
			transmit(port, 0, &order);
		rte_delay_ms(1);
		for (uint16_t port = 0; port < 2; port++)
			for (uint16_t queue = 0; queue < queues; queue++)
				came[port] |= receive(port, queue, &order, &foreign) > 0;
	}
}

/* Which of two times is longer, for qsort() */
static int longer(const void *one, const void *other)
{
	const uint64_t *a = one, *b = other;

	return (*a > *b) - (*a < *b);
}

/* Single frames there and back; nanoseconds of the median, in which a lost one counts with LOST_MS */
static double bounce(void)
{
	static uint64_t times[ECHOES];
	struct order order = { .length = SHORTEST, .batch = 1 };
	uint64_t foreign = 0, limit = rte_get_tsc_hz() / 1000 * LOST_MS;

	drain(&order, LAST_MS, &foreign);
	for (int i = 0; i < ECHOES; i++) {
		uint64_t start = rte_rdtsc();

		for (uint16_t port = 0; port < 2; port++) {
			bool came = false;

			transmit(port, 0, &order);
			while (!came && rte_rdtsc() - start < limit)
				for (uint16_t queue = 0; queue < queues; queue++)
					came |= receive(!port, queue, &order, &foreign) > 0;
		}
		times[i] = rte_rdtsc() - start;
	}
	qsort(times, ECHOES, sizeof(times[0]), longer);
	return (double)times[ECHOES / 2] * 1e9 / (double)rte_get_tsc_hz();
}

/* One burst each way on each queue, if one is due at that time, and what is there received */
static void turn(const struct order *order, struct result *result, double due)
{
	for (uint16_t way = 0; way < order->ways; way++) {
		for (uint16_t queue = 0; queue < queues; queue++) {
			if ((double)result->sent <= due)
				result->sent += transmit(way, queue, order);
			result->received += receive(!way, queue, order, &result->foreign);
		}
	}
}

/* As many as are taken, counted in windows */
static void load(const struct order *order, struct result *result)
{
	double hz = (double)rte_get_tsc_hz();
	uint64_t start = rte_rdtsc(), window = start, now = start, before = 0, end = start + (uint64_t)(order->seconds * hz);

	while (now < end) {
		for (int turns = 0; turns < CLOCK_EVERY; turns++)
			turn(order, result, 1e18);
		now = rte_rdtsc();
		if ((double)(now - window) < hz / 1000)
			continue;
		if (result->count < WINDOWS)
			windows[result->count++] = (uint32_t)((double)(result->received - before) * (hz / 1000) / (double)(now - window));
		window = now;
		before = result->received;
	}
	result->seconds = (double)(now - start) / hz;
}

/* At the rate, for so many frames */
static void pace(const struct order *order, struct result *result)
{
	double hz = (double)rte_get_tsc_hz(), total = order->rate * order->seconds, passed = 0;
	uint64_t start = rte_rdtsc();

	while ((double)result->sent < total && passed < TIMES_LATE * order->seconds) {
		turn(order, result, passed * order->rate);
		passed = (double)(rte_rdtsc() - start) / hz;
	}
	result->seconds = passed;
	result->received += drain(order, LAST_MS, &result->foreign);
}

/* The runs; see above */
int main(int argc, char **argv)
{
	static const uint8_t addresses[ADDRESSES] = { 2, 0, 0, 0, 0, 11, 2, 0, 0, 0, 0, 10, 0x88, 0xb5 };
	int used = rte_eal_init(argc, argv);
	char line[256];

	if (used < 0 || argc - used != 3)
		rte_exit(1, "dpdk_loop EAL-ARGUMENTS -- QUEUES LEAST\n");
	queues = (uint16_t)atoi(argv[used + 1]);
	least = (uint16_t)atoi(argv[used + 2]);
	pool = rte_pktmbuf_pool_create("frames", 8191, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!pool || !queues || least > LARGEST_BATCH || rte_eth_dev_count_avail() != 2)
		rte_exit(1, "no memory, no two ports, or a number that cannot be\n");
	memcpy(frame, addresses, sizeof(addresses));
	memset(frame + MARK_AT, 0x5a, MARK);
	open_port(0);
	open_port(1);
	await_path();
	printf("ready\n");
	fflush(stdout);

	while (fgets(line, sizeof(line), stdin)) {
		struct order order;
		struct result result = { 0 };
		uint64_t earlier = 0;
		int touch;

		if (!strcmp(line, "bounce\n")) {
			printf("{\"nanoseconds\": %f}\n", bounce());
			fflush(stdout);
			continue;
		}
		if (sscanf(line, "%lf %lf %hu %hu %hu %d", &order.seconds, &order.rate, &order.length, &order.batch, &order.ways,
			   &touch) != 6 || !order.batch || order.batch > LARGEST_BATCH || order.length < SHORTEST ||
		    order.length > LONGEST || !order.ways || order.ways > 2)
			rte_exit(1, "a run that cannot be: %s", line);
		order.touch = touch;
		drain(&order, LAST_MS, &earlier);
		if (order.rate > 0)
			pace(&order, &result);
		else
			load(&order, &result);
		printf("{\"sent\": %lu, \"received\": %lu, \"foreign\": %lu, \"seconds\": %f, \"windows\": [", result.sent, result.received,
		       result.foreign, result.seconds);
		for (uint32_t i = 0; i < result.count; i++)
			printf("%s%u", i ? ", " : "", windows[i]);
		printf("]}\n");
		fflush(stdout);
	}
	rte_eth_dev_stop(0);
	rte_eth_dev_stop(1);
	return 0;
}
