/* SPDX-License-Identifier: Apache-2.0 */
/* net_header.h - the header of a frame that says which work is left to the receiver: checksum and segmentation; see net_header.c */

#ifndef FASTPATH_NET_HEADER_H
#define FASTPATH_NET_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "queue.h"

#define NET_NEEDS_CSUM	1	/* VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum at @csum_start + @csum_offset is to be completed */
#define NET_DATA_VALID	2	/* VIRTIO_NET_HDR_F_DATA_VALID: the sender has verified the checksum */
#define NET_GSO_NONE	0
#define NET_GSO_TCPV4	1
#define NET_GSO_TCPV6	4
#define NET_GSO_ECN	0x80	/* added to a type: the first segment alone has the flag CWR */
#define NET_GSO_LEAST	8	/* least @gso_size: the kernel's TCP_MIN_GSO_SIZE */

/** struct net_header - struct virtio_net_hdr_mrg_rxbuf of virtio 1.x, FP_HEADER bytes without an alignment
 * @flags:	NET_NEEDS_CSUM, NET_DATA_VALID
 * @gso_type:	NET_GSO_*: whether the frame is to be cut into segments of TCP
 * @hdr_len:	With a type: bytes of all headers of the frame; a hint
 * @gso_size:	With a type: bytes of payload of each segment but the last
 * @csum_start:	Where the checksum begins, from the beginning of the frame
 * @csum_offset: Where it is stored, from @csum_start
 * @buffers:	Buffers that the frame lies in; what a ring gives and takes sets it itself
 */
struct net_header {
	uint8_t flags;
	uint8_t gso_type;
	uint16_t hdr_len;
	uint16_t gso_size;
	uint16_t csum_start;
	uint16_t csum_offset;
	uint16_t buffers;
} __attribute__((packed));

_Static_assert(sizeof(struct net_header) == FP_HEADER, "the header of virtio 1.x");

bool fp_header_sound(const uint8_t *frame, uint32_t length, uint32_t longest);

#endif /* FASTPATH_NET_HEADER_H */
