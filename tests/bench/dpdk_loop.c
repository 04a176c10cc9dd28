// SPDX-License-Identifier: Apache-2.0
/* dpdk_loop.c - what fp_blast() does, with DPDK's ethdev: the other half of the comparison in fastpath.py
 *
 * dpdk_loop EAL-ARGUMENTS -- SECONDS BATCH WAYS TOUCH
 *
 * Ports 0 and 1 are two virtio_user devices. One thread sends bursts of 64-byte frames on port 0, each copied into its buffer, and
 * receives on port 1 (with WAYS=2 the reverse too); with TOUCH=1 it compares eight bytes of each received frame. Received frames
 * are counted per window of a millisecond. The result is one line of JSON.
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

#define RING 256
#define LARGEST_BATCH 256
#define FRAME 64
#define MARK_AT 14
#define MARK 8
#define CLOCK_EVERY 4
#define WINDOWS 60000

static uint8_t frame[FRAME];
static uint32_t windows[WINDOWS];
static uint64_t foreign;

/* Start a port with one queue each way, or end the program */
static void open_port(uint16_t port, struct rte_mempool *pool)
{
	struct rte_eth_conf conf = { 0 };

	if (rte_eth_dev_configure(port, 1, 1, &conf) < 0 || rte_eth_tx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL) < 0 ||
	    rte_eth_rx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL, pool) < 0 || rte_eth_dev_start(port) < 0)
		rte_exit(1, "port %u cannot be started\n", port);
}

/* Send one burst, each frame copied; frames sent */
static uint16_t transmit(uint16_t port, struct rte_mempool *pool, uint16_t batch)
{
	struct rte_mbuf *mbufs[LARGEST_BATCH];
	uint16_t sent;

	if (rte_pktmbuf_alloc_bulk(pool, mbufs, batch))
		return 0;
	for (uint16_t i = 0; i < batch; i++) {
		memcpy(rte_pktmbuf_mtod(mbufs[i], void *), frame, FRAME);
		mbufs[i]->data_len = FRAME;
		mbufs[i]->pkt_len = FRAME;
	}
	sent = rte_eth_tx_burst(port, 0, mbufs, batch);
	if (sent < batch)
		rte_pktmbuf_free_bulk(mbufs + sent, batch - sent);
	return sent;
}

/* Receive one burst and free it; frames received */
static uint16_t receive(uint16_t port, uint16_t batch, bool touch)
{
	struct rte_mbuf *mbufs[LARGEST_BATCH];
	uint16_t received = rte_eth_rx_burst(port, 0, mbufs, batch);

	for (uint16_t i = 0; touch && i < received; i++)
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
	for (uint16_t i = 0; touch && i < received; i++)
		foreign += !!memcmp(rte_pktmbuf_mtod_offset(mbufs[i], uint8_t *, MARK_AT), frame + MARK_AT, MARK);
	if (received)
		rte_pktmbuf_free_bulk(mbufs, received);
	return received;
}

/* The load; see above */
int main(int argc, char **argv)
{
	static const uint8_t addresses[] = { 2, 0, 0, 0, 0, 11, 2, 0, 0, 0, 0, 10, 0x88, 0xb5 };
	uint64_t hz, start, now, window, sent = 0, received = 0, before = 0;
	int used = rte_eal_init(argc, argv), ways;
	struct rte_mempool *pool;
	uint32_t count = 0;
	double seconds;
	uint16_t batch;
	bool touch;

	if (used < 0 || argc - used != 5)
		rte_exit(1, "dpdk_loop EAL-ARGUMENTS -- SECONDS BATCH WAYS TOUCH\n");
	argv += used;
	seconds = atof(argv[1]);
	batch = (uint16_t)atoi(argv[2]);
	ways = atoi(argv[3]);
	touch = atoi(argv[4]);
	pool = rte_pktmbuf_pool_create("frames", 8191, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!pool || !batch || batch > LARGEST_BATCH || rte_eth_dev_count_avail() != 2)
		rte_exit(1, "no memory, no two ports, or a batch that cannot be\n");
	memcpy(frame, addresses, sizeof(addresses));
	memset(frame + MARK_AT, 0x5a, MARK);
	open_port(0, pool);
	open_port(1, pool);

	hz = rte_get_tsc_hz();
	for (start = rte_rdtsc(); rte_rdtsc() - start < hz / 5;)	/* the switch takes notice of the ports */
		receive(1, batch, touch);
	foreign = 0;
	start = window = now = rte_rdtsc();
	while (now - start < (uint64_t)(seconds * (double)hz)) {
		for (int turns = 0; turns < CLOCK_EVERY; turns++) {
			for (uint16_t way = 0; way < ways; way++) {
				sent += transmit(way, pool, batch);
				received += receive(!way, batch, touch);
			}
		}
		now = rte_rdtsc();
		if (now - window < hz / 1000)
			continue;
		if (count < WINDOWS)
			windows[count++] = (uint32_t)((double)(received - before) * ((double)hz / 1000) / (double)(now - window));
		window = now;
		before = received;
	}
	printf("{\"sent\": %lu, \"received\": %lu, \"foreign\": %lu, \"seconds\": %f, \"windows\": [", sent, received, foreign,
	       (double)(now - start) / (double)hz);
	for (uint32_t i = 0; i < count; i++)
		printf("%s%u", i ? ", " : "", windows[i]);
	printf("]}\n");
	fflush(stdout);
	rte_eth_dev_stop(0);
	rte_eth_dev_stop(1);
	return 0;
}
