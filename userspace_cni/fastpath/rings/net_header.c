// SPDX-License-Identifier: Apache-2.0
/* net_header.c - whether the header of a frame agrees with the frame, and what it vouches for
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
 * A header may also say that the check word of TCP or UDP was found to be right (FP_DATA_VALID). Some programs then leave the word out:
 * passt did until 2025. A guest's driver for virtio believes them, but the kernel behind a tap looks at the word itself, and drops the
 * frame. So a word that is not right is made right. The sender could have written it: nothing is trusted with more than that.
 *
 * This is pure: it works on a frame in the caller's own memory, and makes no system call.
 */

#define _GNU_SOURCE

#include <string.h>

#include "internet_sum.h"
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

/** struct packet - The payload of an IP packet
 * @at, @end:	Where it begins and ends
 * @protocol:	What it is
 * @four:	Whether this is IPv4
 */
struct packet {
	uint32_t at;
	uint32_t end;
	uint32_t protocol;
	bool four;
};

/**
 * find_packet() - Find the payload of an IP packet that is whole, and add the words of its addresses
 * @frame:	Frame, without its virtio header
 * @length:	Its bytes
 * @packet:	Set
 *
 * Extension headers of IPv6 are not followed: then the protocol is that of the first one.
 *
 * Return: the sum, not folded; 0: this is no IP packet, a fragment, or not whole
 */
static uint64_t find_packet(const uint8_t *frame, uint32_t length, struct packet *packet)
{
	uint32_t type, ip = fp_ip_at(frame, length, &type);
	const uint8_t *head = frame + ip;

	packet->four = type == FP_TYPE_IP4;
	if (packet->four && ip + FP_IP4 <= length && head[0] >> 4 == 4 && !(fp_get16(head + 6) & FP_FRAGMENT)) {
		packet->at = ip + (head[0] & 15u) * 4;
		packet->end = ip + fp_get16(head + 2);
		packet->protocol = head[9];
		return packet->at >= ip + FP_IP4 && packet->end <= length ? fp_sum(head + 12, 8) : 0;
	}
	if (type == FP_TYPE_IP6 && ip + FP_IP6 <= length && head[0] >> 4 == 6) {
		packet->at = ip + FP_IP6;
		packet->end = packet->at + fp_get16(head + 4);
		packet->protocol = head[6];
		return packet->end <= length ? fp_sum(head + 8, 32) : 0;
	}
	return 0;
}

/**
 * fp_complete_check() - Make the check word of TCP or UDP right, if it is not
 * @frame:	Header of FP_HEADER bytes, and a frame that is sound and is not to be segmented
 * @length:	Bytes of both
 *
 * A frame whose lengths do not agree with it stays as it is, and so does UDP over IPv4 without a check word.
 */
void fp_complete_check(uint8_t *frame, uint32_t length)
{
	struct packet packet;
	uint32_t check, bytes;
	uint64_t sum;
	uint16_t word;

	frame += FP_HEADER;
	sum = find_packet(frame, length - FP_HEADER, &packet);
	if (!sum)
		return;
	if (packet.protocol == FP_PROTOCOL_TCP && packet.at + FP_TCP <= packet.end) {
		check = packet.at + FP_TCP_CHECK;
		bytes = packet.end - packet.at;
	} else if (packet.protocol == FP_PROTOCOL_UDP && packet.at + FP_UDP <= packet.end) {
		check = packet.at + FP_UDP_CHECK;
		bytes = fp_get16(frame + packet.at + 4);
		if (bytes < FP_UDP || packet.at + bytes > packet.end || (packet.four && !fp_get16(frame + check)))
			return;
	} else {
		return;
	}

	sum += htobe16((uint16_t)packet.protocol) + htobe16((uint16_t)bytes) + fp_sum(frame + packet.at, bytes);
	if (fp_fold(sum) == 0xffff)
		return;
	memcpy(&word, frame + check, sizeof(word));
	word = (uint16_t)~fp_fold(sum - word);
	fp_put_word(frame + check, word || packet.protocol == FP_PROTOCOL_TCP ? word : 0xffff);
}
