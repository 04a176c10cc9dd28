// SPDX-License-Identifier: Apache-2.0
/* net_header.c - whether the header of a frame agrees with the frame
 *
 * THEORY OF OPERATION
 *
 * Headers come from a switch or a guest, which may write anything. Who gets the frame acts on them: the kernel behind a tap, or the
 * switch behind a ring, which may have to cut the frame into 65,000 segments, or to write a checksum somewhere. So a header passes
 * only if
 *
 *   - it has no flag and no type but those of segment.h: what was not negotiated is not passed on;
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
#include "segment.h"

/**
 * tcp_is_at() - Whether the IP header is whole, and TCP begins where the checksum does
 * @frame:	Frame, without its virtio header
 * @length:	Its bytes
 * @tcp:	Where the checksum begins
 * @type:	FP_GSO_TCP4 or FP_GSO_TCP6
 *
 * Return: whether
 */
static bool tcp_is_at(const uint8_t *frame, uint32_t length, uint32_t tcp, int type)
{
	uint32_t found, ip = fp_ip_at(frame, length, &found);

	if (found != (type == FP_GSO_TCP4 ? FP_TYPE_IP4 : FP_TYPE_IP6))
		return false;
	if (type == FP_GSO_TCP4)
		return ip + FP_IP4 <= tcp && frame[ip] >> 4 == 4 && ip + (frame[ip] & 15u) * 4 == tcp && frame[ip + 9] == FP_PROTOCOL_TCP;
	return ip + FP_IP6 <= tcp && frame[ip] >> 4 == 6 && (frame[ip + 6] != FP_PROTOCOL_TCP || ip + FP_IP6 == tcp);
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
	struct fp_net_header header;
	uint32_t start, payload;
	int type;

	if (length < FP_HEADER + FP_ETHERNET)
		return false;
	memcpy(&header, frame, sizeof(header));
	frame += FP_HEADER;
	length -= FP_HEADER;
	if (!(header.flags | header.gso_type))
		return length <= longest;	/* all other fields have no meaning then */
	if (header.flags & ~(FP_NEEDS_CSUM | FP_DATA_VALID))
		return false;
	start = header.csum_start;
	if (header.flags & FP_NEEDS_CSUM && (start < FP_ETHERNET || start + header.csum_offset + 2 > length))
		return false;
	if (header.gso_type == FP_GSO_NONE)
		return length <= longest;

	type = header.gso_type & ~FP_GSO_ECN;
	if ((type != FP_GSO_TCP4 && type != FP_GSO_TCP6) || !(header.flags & FP_NEEDS_CSUM))
		return false;
	if (header.csum_offset != FP_TCP_CHECK || start + FP_TCP > length || !tcp_is_at(frame, length, start, type))
		return false;
	payload = start + (uint32_t)(frame[start + 12] >> 4) * 4;
	return payload >= start + FP_TCP && payload < length && header.hdr_len <= length && header.gso_size >= FP_GSO_LEAST &&
	       payload + header.gso_size <= longest && length <= FP_LARGEST;
}
