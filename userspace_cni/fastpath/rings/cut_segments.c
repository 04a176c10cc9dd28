// SPDX-License-Identifier: Apache-2.0
/* cut_segments.c - large frames of a kernel cut into frames of a wire
 *
 * THEORY OF OPERATION
 *
 * A kernel that may leave segmentation to its link gives TCP's payload in frames of up to 64 KB, with a virtio header that says how
 * long the segments are to be, and leaves the check word to us in other frames, too. So one read from a tap brings what would be 45
 * reads at an MTU of 1500. Each segment is the frame's headers with its own lengths, sequence number, IPv4 identification and check
 * words, and its part of the payload, which is copied and summed up in one pass. FIN and PSH are the last segment's, CWR the first's.
 *
 * The header comes from somewhere else, so all of it is judged before the first segment is made: what does not fit the frame is an
 * error, and nothing of it is sent. hdr_len is not read, because it is only a hint (virtio 1.2, 5.1.6.2). A frame may become more
 * segments than the caller has room for, at worst one for each byte: so they are made as room comes, and nothing is kept here but
 * how far that is.
 *
 * Pure: no system calls, no memory of its own.
 */

#define _GNU_SOURCE

#include <errno.h>

#include "cut_segments.h"
#include "internet_sum.h"
#include "segment.h"

/**
 * judge_segments() - Find the headers of a frame that is to be cut, and judge them
 * @cut:	Its frame, length, from and check are set; the others are set here
 * @gso_type:	What the virtio header says that it is, without FP_GSO_ECN
 * @gso_size:	How long the segments are to be
 *
 * The header of IPv6 may have extensions: each segment gets them.
 *
 * Return: 0; -EINVAL: they are not what the virtio header says
 */
static int judge_segments(struct fp_cut *cut, uint8_t gso_type, uint32_t gso_size)
{
	const uint8_t *frame = cut->frame, *ip;
	uint32_t type, tcp;

	cut->four = gso_type == FP_GSO_TCP4;
	if ((!cut->four && gso_type != FP_GSO_TCP6) || !gso_size || !cut->check || cut->check != cut->from + FP_TCP_CHECK)
		return -EINVAL;
	cut->ip = fp_ip_at(frame, cut->length, &type);
	ip = frame + cut->ip;
	if (cut->from + FP_TCP > cut->length || cut->from < cut->ip + (cut->four ? FP_IP4 : FP_IP6))
		return -EINVAL;
	if (cut->four && (type != FP_TYPE_IP4 || ip[0] >> 4 != 4 || cut->ip + (ip[0] & 15u) * 4 != cut->from ||
			  ip[9] != FP_PROTOCOL_TCP || fp_get16(ip + 2) != cut->length - cut->ip || fp_get16(ip + 6) & FP_FRAGMENT))
		return -EINVAL;
	if (!cut->four && (type != FP_TYPE_IP6 || ip[0] >> 4 != 6 || fp_get16(ip + 4) != cut->length - cut->ip - FP_IP6))
		return -EINVAL;
	tcp = (frame[cut->from + 12] >> 4) * 4u;
	if (tcp < FP_TCP || cut->from + tcp > cut->length)
		return -EINVAL;
	cut->head = cut->from + tcp;
	cut->size = gso_size;
	return 0;
}

/**
 * fp_cut_begin() - Judge a frame that is to be cut, or only to be summed up
 * @cut:	Set
 * @frame:	Virtio header and frame, as a tap with IFF_VNET_HDR gives it; unchanged until fp_cut_next() returns 0
 * @length:	Bytes of both
 * @longest:	Bytes of the longest frame that may come out, without a virtio header
 *
 * Return: 0; -EINVAL: the header does not fit the frame; -EMSGSIZE: a frame that comes out would be too long
 */
int fp_cut_begin(struct fp_cut *cut, const uint8_t *frame, uint32_t length, uint32_t longest)
{
	struct fp_net_header header;
	int result;

	memset(cut, 0, sizeof(*cut));
	if (length < FP_HEADER + FP_SHORTEST || length > FP_HEADER + FP_LARGEST)
		return -EINVAL;
	memcpy(&header, frame, sizeof(header));
	cut->frame = frame + FP_HEADER;
	cut->length = cut->head = length - FP_HEADER;
	if (header.flags & FP_NEEDS_CSUM) {
		cut->from = le16toh(header.csum_start);
		cut->check = cut->from + le16toh(header.csum_offset);
		if (cut->from < FP_ETHERNET || cut->check + 2 > cut->length)
			return -EINVAL;
	}
	if (header.gso_type != FP_GSO_NONE) {
		result = judge_segments(cut, header.gso_type & ~FP_GSO_ECN, le16toh(header.gso_size));
		if (result < 0)
			return result;
	}
	if ((cut->length - cut->head > cut->size ? cut->head + cut->size : cut->length) > longest)
		return -EMSGSIZE;
	cut->more = true;
	return 0;
}

/**
 * change_headers() - Give a segment the numbers that are its own
 * @cut:	The frame; what was handed out before this segment
 * @segment:	A copy of its headers
 * @payload:	Bytes of payload
 */
static void change_headers(const struct fp_cut *cut, uint8_t *segment, uint32_t payload)
{
	uint8_t *ip = segment + cut->ip, *tcp = segment + cut->from;
	uint32_t length = cut->head + payload - cut->ip;

	if (cut->four) {
		fp_put16(ip + 2, length);
		fp_put16(ip + 4, fp_get16(ip + 4) + cut->done / cut->size);
		fp_put16(ip + 10, 0);
		fp_put_word(ip + 10, (uint16_t)~fp_fold(fp_sum(ip, cut->from - cut->ip)));
	} else {
		fp_put16(ip + 4, length - FP_IP6);
	}
	fp_put32(tcp + 4, fp_get32(tcp + 4) + cut->done);
	if (cut->done)
		tcp[13] &= (uint8_t)~FP_CWR;
	if (cut->head + cut->done + payload < cut->length)
		tcp[13] &= (uint8_t)~(FP_FIN | FP_PSH);
}

/**
 * make_segment() - Make the next segment, or the one frame of a frame that is not cut
 * @cut:	The frame; what was handed out before this segment
 * @segment:	Room for it
 *
 * The check word has the sum of the pseudo header, with the length of all the payload; a segment has another one.
 *
 * Return: its bytes
 */
static uint32_t make_segment(const struct fp_cut *cut, uint8_t *segment)
{
	uint32_t left = cut->length - cut->head - cut->done, payload = left < cut->size ? left : cut->size;
	const uint8_t *from = cut->frame + cut->head + cut->done;
	uint64_t sum;
	uint16_t word;

	if (!cut->check) {
		memcpy(segment, cut->frame, cut->length);
		return cut->length;
	}
	if (!cut->size) {
		memcpy(segment, cut->frame, cut->from);
		sum = fp_sum_copy(segment + cut->from, cut->frame + cut->from, cut->length - cut->from);
		payload = 0;
	} else {
		memcpy(segment, cut->frame, cut->head);
		change_headers(cut, segment, payload);
		sum = fp_sum(segment + cut->from, cut->head - cut->from) + fp_sum_copy(segment + cut->head, from, payload);
		/* The lengths differ by less than 2^16, and a ones' complement sum is subtracted by adding its complement */
		sum += htobe16((uint16_t)(cut->head - cut->from + payload));
		sum += htobe16((uint16_t)~(cut->length - cut->from));
	}
	word = (uint16_t)~fp_fold(sum);
	fp_put_word(segment + cut->check, word ? word : 0xffff);	/* 0 would mean for UDP that there is none */
	return cut->head + payload;
}

/**
 * fp_cut_next() - Make the next segments of a frame
 * @cut:	As fp_cut_begin() has set it
 * @frames:	Room for segments, without virtio headers
 * @stride:	Bytes from one to the next, at least the longest of fp_cut_begin()
 * @lengths:	Set to the bytes of each
 * @capacity:	How many there is room for
 *
 * Return: how many were made; 0 with a @capacity: all were
 */
uint32_t fp_cut_next(struct fp_cut *cut, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	uint32_t count = 0;

	for (; count < capacity && cut->more; count++) {
		lengths[count] = make_segment(cut, frames + (size_t)count * stride);
		cut->done += cut->size;
		cut->more = cut->size && cut->done < cut->length - cut->head;
	}
	return count;
}
