/* SPDX-License-Identifier: Apache-2.0 */
/* segment.h - the virtio header of a frame, and where IP and TCP keep what has to be changed when frames are merged or cut
 *
 * Source: Virtual I/O Device 1.2, 5.1.6; RFC 791, 8200, 9293.
 */

#ifndef FASTPATH_SEGMENT_H
#define FASTPATH_SEGMENT_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "queue.h"

#define FP_NEEDS_CSUM	1	/* flags: the check word has the pseudo header's sum, the rest is to be added */
#define FP_DATA_VALID	2	/* flags: the check word was found to be right */
#define FP_GSO_NONE	0
#define FP_GSO_TCP4	1
#define FP_GSO_TCP6	4
#define FP_GSO_ECN	0x80	/* with one of the others: the first segment alone has CWR */

#define FP_ETHERNET	14	/* bytes of the header without a tag */
#define FP_TAG		4	/* bytes of a VLAN tag */
#define FP_TYPE_IP4	0x0800
#define FP_TYPE_IP6	0x86dd
#define FP_TYPE_VLAN	0x8100
#define FP_TYPE_PROVIDER 0x88a8	/* a VLAN tag of 802.1ad, mostly the outer one of two */
#define FP_TAGS_MAX	2	/* VLAN tags that are looked through */
#define FP_IP4		20	/* bytes of the header without options */
#define FP_IP6		40
#define FP_FRAGMENT	0x3fff	/* behind the identification: more fragments, or an offset */
#define FP_TCP		20
#define FP_TCP_CHECK	16	/* where the check word is in TCP's header */
#define FP_UDP		8
#define FP_UDP_CHECK	6
#define FP_PROTOCOL_TCP	6
#define FP_PROTOCOL_UDP	17

#define FP_FIN		0x01	/* flags, byte 13 of TCP's header */
#define FP_SYN		0x02
#define FP_RST		0x04
#define FP_PSH		0x08
#define FP_URG		0x20
#define FP_CWR		0x80

/** struct fp_net_header - struct virtio_net_hdr_mrg_rxbuf, little-endian: FP_HEADER bytes */
struct fp_net_header {
	uint8_t flags;
	uint8_t gso_type;
	uint16_t hdr_len;
	uint16_t gso_size;
	uint16_t csum_start;
	uint16_t csum_offset;
	uint16_t num_buffers;
};

_Static_assert(sizeof(struct fp_net_header) == FP_HEADER, "virtio's header has 12 bytes");

/**
 * fp_get16() - Read a number of 16 bits in the network's order
 * @bytes:	Any address
 *
 * Return: the number
 */
static inline uint32_t fp_get16(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] << 8 | bytes[1];
}

/**
 * fp_get32() - Read a number of 32 bits in the network's order
 * @bytes:	Any address
 *
 * Return: the number
 */
static inline uint32_t fp_get32(const uint8_t *bytes)
{
	return fp_get16(bytes) << 16 | fp_get16(bytes + 2);
}

/**
 * fp_put16() - Write the low 16 bits of a number in the network's order
 * @bytes:	Any address
 * @number:	Number
 */
static inline void fp_put16(uint8_t *bytes, uint32_t number)
{
	bytes[0] = (uint8_t)(number >> 8);
	bytes[1] = (uint8_t)number;
}

/**
 * fp_put32() - Write a number of 32 bits in the network's order
 * @bytes:	Any address
 * @number:	Number
 */
static inline void fp_put32(uint8_t *bytes, uint32_t number)
{
	fp_put16(bytes, number >> 16);
	fp_put16(bytes + 2, number);
}

/**
 * fp_put_word() - Write a word of a sum in the machine's order, in which sums are
 * @bytes:	Any address
 * @word:	Word
 */
static inline void fp_put_word(uint8_t *bytes, uint16_t word)
{
	memcpy(bytes, &word, sizeof(word));
}

/**
 * fp_ip_at() - Find the header behind Ethernet's
 * @frame:	Frame of at least FP_ETHERNET bytes
 * @length:	Its bytes
 * @type:	Set to its EtherType, behind VLAN tags if it has some
 *
 * Return: where that header is; may be @length
 */
static inline uint32_t fp_ip_at(const uint8_t *frame, uint32_t length, uint32_t *type)
{
	uint32_t at = FP_ETHERNET;

	*type = fp_get16(frame + at - 2);
	for (int tags = 0; tags < FP_TAGS_MAX && length >= at + FP_TAG; tags++) {
		if (*type != FP_TYPE_VLAN && *type != FP_TYPE_PROVIDER)
			break;
		at += FP_TAG;
		*type = fp_get16(frame + at - 2);
	}
	return at;
}

#endif /* FASTPATH_SEGMENT_H */
