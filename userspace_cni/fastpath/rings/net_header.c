// SPDX-License-Identifier: Apache-2.0
/* net_header.c - whether the header of a frame agrees with the frame
 *
 * THEORY OF OPERATION
 *
 * Headers come from a switch or a guest, which may write anything. Who gets the frame acts on them: the kernel behind a tap, or the
 * switch behind a ring, which may have to cut the frame into 65,000 segments, or to write a checksum somewhere. So a header passes
 * only if
 *
 *   - it has no flag and no type but those of net_header.h: what was not negotiated is not passed on;
 *   - a checksum lies in the frame, behind the Ethernet header;
 *   - a frame that is to be segmented is TCP over the IP version that its type says, with whole headers and some payload;
 *     its segments fit into the receiver's MTU and are not tiny; and its checksum is TCP's;
 *   - a frame that is not to be segmented fits into the MTU.
 *
 * Extension headers of IPv6 are not followed: the place of the checksum says where TCP begins.
 *
 * This is pure: it reads a frame in the caller's own memory, and makes no system call.
 */

#include <string.h>

#include "net_header.h"

#define ETHERNET	14
#define TAG		4	/* bytes of a VLAN tag */
#define TAGS_MAX	2
#define IPV4		20	/* shortest header */
#define IPV6		40
#define TCP		20	/* shortest header */
#define TCP_CHECKSUM	16	/* its offset in the header */
#define PROTOCOL_TCP	6

/**
 * number_at() - Read two bytes in the order of the network
 * @bytes:	Their address
 *
 * Return: the number
 */
static inline uint32_t number_at(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] << 8 | bytes[1];
}

/**
 * ip_at() - Find the IP header
 * @frame:	Frame, without its virtio header
 * @length:	Its bytes, ETHERNET or more
 * @type:	EtherType that is wanted
 *
 * Return: its offset, 0 when the frame has another type
 */
static uint32_t ip_at(const uint8_t *frame, uint32_t length, uint32_t type)
{
	uint32_t at = ETHERNET;

	for (int tags = 0; tags <= TAGS_MAX && at <= length; tags++, at += TAG) {
		uint32_t found = number_at(frame + at - 2);

		if (found == type)
			return at;
		if (found != 0x8100 && found != 0x88a8)
			return 0;
	}
	return 0;
}

/**
 * tcp_is_at() - Whether the IP header is whole, and TCP begins where the checksum does
 * @frame:	Frame, without its virtio header
 * @length:	Its bytes
 * @tcp:	Where the checksum begins
 * @type:	NET_GSO_TCPV4 or NET_GSO_TCPV6
 *
 * Return: whether
 */
static bool tcp_is_at(const uint8_t *frame, uint32_t length, uint32_t tcp, int type)
{
	uint32_t ip = ip_at(frame, length, type == NET_GSO_TCPV4 ? 0x0800 : 0x86dd);

	if (!ip)
		return false;
	if (type == NET_GSO_TCPV4)
		return ip + IPV4 <= tcp && frame[ip] >> 4 == 4 && ip + (frame[ip] & 15u) * 4 == tcp && frame[ip + 9] == PROTOCOL_TCP;
	return ip + IPV6 <= tcp && frame[ip] >> 4 == 6 && (frame[ip + 6] != PROTOCOL_TCP || ip + IPV6 == tcp);
}

/**
 * fp_header_sound() - Whether a frame may be passed on with its header
 * @frame:	Header of FP_HEADER bytes, and the frame
 * @length:	Bytes of both
 * @longest:	Bytes of the longest frame without a header, and of the longest segment, that the receiver takes
 *
 * Return: false: the frame has to be dropped
 */
bool fp_header_sound(const uint8_t *frame, uint32_t length, uint32_t longest)
{
	struct net_header header;
	uint32_t start, payload;
	int type;

	if (length < FP_HEADER + ETHERNET)
		return false;
	memcpy(&header, frame, sizeof(header));
	frame += FP_HEADER;
	length -= FP_HEADER;
	if (!(header.flags | header.gso_type))
		return length <= longest;	/* all other fields have no meaning then */
	if (header.flags & ~(NET_NEEDS_CSUM | NET_DATA_VALID))
		return false;
	start = header.csum_start;
	if (header.flags & NET_NEEDS_CSUM && (start < ETHERNET || start + header.csum_offset + 2 > length))
		return false;
	if (header.gso_type == NET_GSO_NONE)
		return length <= longest;

	type = header.gso_type & ~NET_GSO_ECN;
	if ((type != NET_GSO_TCPV4 && type != NET_GSO_TCPV6) || !(header.flags & NET_NEEDS_CSUM))
		return false;
	if (header.csum_offset != TCP_CHECKSUM || start + TCP > length || !tcp_is_at(frame, length, start, type))
		return false;
	payload = start + (uint32_t)(frame[start + 12] >> 4) * 4;
	return payload >= start + TCP && payload < length && header.hdr_len <= length && header.gso_size >= NET_GSO_LEAST &&
	       payload + header.gso_size <= longest && length <= FP_LARGEST;
}
