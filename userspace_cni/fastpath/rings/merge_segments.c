// SPDX-License-Identifier: Apache-2.0
/* merge_segments.c - received frames merged into larger ones for a kernel
 *
 * THEORY OF OPERATION
 *
 * A kernel takes a frame of 64 KB for little more than the cost of one of 1500 bytes, if a virtio header says which segments it is
 * made of. So consecutive TCP segments of a burst become one frame: the first one's headers, changed, and the payloads of all, which
 * are not copied but named as pieces for writev(2). Only what is in the burst is merged; no frame waits for another.
 *
 * A frame's segments are as long as the first one's payload, but for the last, which may be shorter. The kernel may have to cut the
 * frame again, and must then get the very frames that were merged. So a segment joins only if it differs from the first in nothing but
 * what follows from its place: its length, sequence number and IPv4 identification, and FIN or PSH, with which a frame ends. These are
 * the rules of the kernel's own GRO. Frames with SYN, RST, URG or CWR, without payload, with IP options, and fragments go alone.
 *
 * UDP is not merged. The kernel's own GRO merges datagrams only for sockets that ask for it, which we cannot know; for all others it
 * would have to cut them again. Segments of a few bytes begin no frame: kernels refuse to cut to less than FP_GSO_LEAST.
 *
 * The frame's check word is left to be filled in, so that the kernel does not look at the segments' own any more. Each is checked before it is
 * merged; one that is wrong goes alone, for the kernel to drop and count. A frame that finds no other is not checked.
 *
 * Frames are written in the order in which the first of each came. A frame of a flow that cannot join its train ends it, so that a
 * flow's frames stay in order. A frame whose flow is not known, as it is a fragment, ends all trains.
 *
 * The cost of a burst is linear in its frames and bytes: each is compared with at most FP_MERGE_FLOWS trains, and summed up once.
 *
 * Pure: no system calls, no memory of its own.
 */

#define _GNU_SOURCE

#include "internet_sum.h"
#include "merge_segments.h"
#include "net_header.h"

#define LONGEST 65535		/* bytes of an IP packet */
#define PROTOCOL_ICMP6 58
#define DONT_FRAGMENT 0x4000

/** enum kind - What is to be done with a frame
 * @APART:	it goes alone, and is of no TCP flow
 * @UNKNOWN:	it goes alone, and may be of any flow
 * @ALONE:	it goes alone, and is of a flow
 * @DATA:	it may be merged
 */
enum kind { APART, UNKNOWN, ALONE, DATA };

/**
 * judge_ip() - Find IP's header and TCP's
 * @frame:	Frame
 * @length:	Its bytes
 * @segment:	ip, six, tcp, end and flow are set
 *
 * Return: DATA if this is TCP; APART or UNKNOWN if the frame goes alone
 */
static enum kind judge_ip(const uint8_t *frame, uint32_t length, struct fp_segment *segment)
{
	const uint8_t *ip;
	uint32_t type, word;

	if (length < FP_ETHERNET)
		return APART;
	segment->ip = fp_ip_at(frame, length, &type);
	segment->six = type == FP_TYPE_IP6;
	ip = frame + segment->ip;
	if (type != FP_TYPE_IP4 && !segment->six)
		return APART;
	segment->tcp = segment->ip + (segment->six ? FP_IP6 : FP_IP4);
	if (segment->tcp > length)
		return APART;
	if (segment->six) {
		if (ip[6] == FP_PROTOCOL_UDP || ip[6] == PROTOCOL_ICMP6)
			return APART;
		if (ip[0] >> 4 != 6 || ip[6] != FP_PROTOCOL_TCP)
			return UNKNOWN;
		segment->end = segment->tcp + fp_get16(ip + 4);
	} else {
		if (ip[9] != FP_PROTOCOL_TCP)
			return APART;
		if (ip[0] != 0x45 || fp_get16(ip + 6) & FP_FRAGMENT)
			return UNKNOWN;
		segment->end = segment->ip + fp_get16(ip + 2);
	}
	if (segment->end > length || segment->tcp + FP_TCP > segment->end)
		return UNKNOWN;

	/* Addresses and ports are side by side in both versions */
	segment->flow = 0;
	for (const uint8_t *at = ip + (segment->six ? 8 : 12); at <= frame + segment->tcp; at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		segment->flow = (segment->flow ^ word) * 0x9e3779b1u;
	}
	return DATA;
}

/**
 * judge() - Find a frame's headers, and whether it may be merged
 * @frame:	Frame
 * @length:	Its bytes
 * @header:	Its virtio header, NULL: it came without
 * @segment:	Set
 *
 * Return: what is to be done with the frame
 */
static enum kind judge(const uint8_t *frame, uint32_t length, const struct fp_net_header *header, struct fp_segment *segment)
{
	enum kind kind = judge_ip(frame, length, segment);
	const uint8_t *tcp;

	if (kind != DATA)
		return kind;
	tcp = frame + segment->tcp;
	segment->payload = segment->tcp + (tcp[12] >> 4) * 4u;
	segment->sound = false;
	if (segment->payload < segment->tcp + FP_TCP || segment->payload >= segment->end ||
	    tcp[13] & (FP_SYN | FP_RST | FP_URG | FP_CWR))
		return ALONE;
	if (header) {
		if (header->gso_type != FP_GSO_NONE)
			return ALONE;
		if (header->flags & FP_NEEDS_CSUM &&
		    (le16toh(header->csum_start) != segment->tcp || le16toh(header->csum_offset) != FP_TCP_CHECK))
			return ALONE;
		segment->sound = header->flags & (FP_NEEDS_CSUM | FP_DATA_VALID);
	}
	return DATA;
}

/**
 * pseudo_sum() - Add the words of the pseudo header
 * @frame:	Frame
 * @segment:	Its headers
 * @length:	Bytes of TCP's header and payload
 *
 * Return: the sum, not folded
 */
static uint64_t pseudo_sum(const uint8_t *frame, const struct fp_segment *segment, uint32_t length)
{
	uint32_t bytes = segment->six ? 32 : 8;

	return fp_sum(frame + segment->tcp - bytes, bytes) + htobe16(FP_PROTOCOL_TCP) + htobe16((uint16_t)length);
}

/**
 * is_sound() - Check the words that sum up the bytes, once
 * @frame:	Frame
 * @segment:	Its headers; sound is set
 *
 * IPv4's word is checked even if a virtio header vouches for TCP's: it does not for IP.
 *
 * Return: whether they are right
 */
static bool is_sound(const uint8_t *frame, struct fp_segment *segment)
{
	uint32_t length = segment->end - segment->tcp;

	if (!segment->six && fp_fold(fp_sum(frame + segment->ip, FP_IP4)) != 0xffff)
		return false;
	if (!segment->sound)
		segment->sound = fp_fold(pseudo_sum(frame, segment, length) + fp_sum(frame + segment->tcp, length)) == 0xffff;
	return segment->sound;
}

/**
 * is_of_flow() - Compare the addresses and ports of two frames
 * @one, @two:	Frames
 * @a, @b:	Their headers
 *
 * Return: whether they are the same
 */
static bool is_of_flow(const uint8_t *one, const struct fp_segment *a, const uint8_t *two, const struct fp_segment *b)
{
	uint32_t addresses = a->six ? 32 : 8;

	return a->six == b->six && a->flow == b->flow &&
	       !memcmp(one + a->tcp - addresses, two + b->tcp - addresses, addresses + 4);
}

/**
 * is_alike() - Compare what all segments of a frame have in common
 * @one:	The first segment, without FIN and PSH
 * @two:	Another one of its flow
 * @a, @b:	Their headers
 *
 * Return: whether it is the same
 */
static bool is_alike(const uint8_t *one, const struct fp_segment *a, const uint8_t *two, const struct fp_segment *b)
{
	const uint8_t *ip1 = one + a->ip, *ip2 = two + b->ip, *tcp1 = one + a->tcp, *tcp2 = two + b->tcp;
	uint32_t options = a->payload - a->tcp - FP_TCP;

	if (a->ip != b->ip || a->payload != b->payload || memcmp(one, two, a->ip))
		return false;
	if (a->six && (memcmp(ip1, ip2, 4) || ip1[7] != ip2[7]))	/* class and label, hop limit */
		return false;
	if (!a->six && (ip1[1] != ip2[1] || ip1[8] != ip2[8] || memcmp(ip1 + 6, ip2 + 6, 2)))	/* service, TTL, flags */
		return false;
	return !memcmp(tcp1 + 8, tcp2 + 8, 5) && tcp1[13] == (tcp2[13] & ~(FP_FIN | FP_PSH)) &&
	       !memcmp(tcp1 + 14, tcp2 + 14, 2) && !memcmp(tcp1 + 18, tcp2 + 18, 2 + options);
}

/**
 * is_next() - See whether a frame follows those of a train
 * @one:	The train's first frame
 * @a:		Its headers
 * @train:	The train
 * @two:	A frame that is_alike()
 * @b:		Its headers
 *
 * Return: whether it does
 */
static bool is_next(const uint8_t *one, const struct fp_segment *a, struct fp_train *train, const uint8_t *two,
		    const struct fp_segment *b)
{
	uint32_t more = b->end - b->payload, id, other;

	if (more > a->end - a->payload || a->payload - a->ip + train->bytes + more > LONGEST ||
	    fp_get32(two + b->tcp + 4) != fp_get32(one + a->tcp + 4) + train->bytes)
		return false;
	if (a->six)
		return true;

	/* A kernel that cuts the frame counts up; a frame that may not be fragmented has no use for its number (RFC 6864) */
	id = fp_get16(one + a->ip + 4);
	other = fp_get16(two + b->ip + 4);
	if (train->count == 1)
		train->same_id = id == other;
	if (train->same_id)
		return id == other && fp_get16(one + a->ip + 6) & DONT_FRAGMENT;
	return other == ((id + train->count) & 0xffff);
}

/**
 * shut() - Let no more frames join a train
 * @merge:	Burst
 * @place:	The train's among the open ones
 */
static void shut(struct fp_merge *merge, uint32_t place)
{
	merge->open_count--;
	merge->open_flow[place] = merge->open_flow[merge->open_count];
	merge->open_train[place] = merge->open_train[merge->open_count];
}

/**
 * begin_train() - Have a frame written behind all that came before
 * @merge:	Burst
 * @number:	The frame's
 * @place:	Place of an open train of its flow, which is shut; open_count: none
 * @open:	Whether frames may join it
 */
static void begin_train(struct fp_merge *merge, uint32_t number, uint32_t place, bool open)
{
	struct fp_segment *segment = &merge->segments[number];

	merge->trains[merge->count] = (struct fp_train){
		.first = number, .last = number, .count = 1, .bytes = open ? segment->end - segment->payload : 0,
	};
	if (open) {
		if (place == FP_MERGE_FLOWS)
			place = merge->oldest++ % FP_MERGE_FLOWS;
		else if (place == merge->open_count)
			merge->open_count++;
		merge->open_flow[place] = segment->flow;
		merge->open_train[place] = merge->count;
	} else if (place < merge->open_count) {
		shut(merge, place);
	}
	merge->count++;
}

/**
 * sort_in() - Have a frame join a train, or begin one
 * @merge:	Burst
 * @frames:	The first frame
 * @stride:	Bytes from one to the next
 * @number:	The frame's
 * @data:	Whether it may be merged
 */
static void sort_in(struct fp_merge *merge, const uint8_t *frames, uint32_t stride, uint32_t number, bool data)
{
	struct fp_segment *segment = &merge->segments[number], *first;
	const uint8_t *frame = frames + (size_t)number * stride, *head;
	bool ends = frame[segment->tcp + 13] & (FP_FIN | FP_PSH), tiny = segment->end < segment->payload + FP_GSO_LEAST;
	struct fp_train *train;
	uint32_t place;

	for (place = 0; place < merge->open_count; place++) {
		if (merge->open_flow[place] != segment->flow)
			continue;
		train = &merge->trains[merge->open_train[place]];
		first = &merge->segments[train->first];
		head = frames + (size_t)train->first * stride;
		if (!is_of_flow(head, first, frame, segment))
			continue;
		if (data && is_alike(head, first, frame, segment) && is_next(head, first, train, frame, segment) &&
		    is_sound(head, first)) {
			if (!is_sound(frame, segment)) {
				data = false;
				break;
			}
			merge->segments[train->last].next = number;
			train->last = number;
			train->count++;
			train->bytes += segment->end - segment->payload;
			if (ends || segment->end - segment->payload < first->end - first->payload)
				shut(merge, place);
			return;
		}
		break;
	}
	begin_train(merge, number, place, data && !ends && !tiny);
}

/**
 * write_headers() - Change the headers of a train's first frame to those of all
 * @merge:	Burst
 * @train:	Train of two frames or more
 * @frame:	Its first frame
 * @last:	Its last frame
 * @header:	Virtio header, set
 */
static void write_headers(const struct fp_merge *merge, const struct fp_train *train, uint8_t *frame, const uint8_t *last,
			  struct fp_net_header *header)
{
	const struct fp_segment *first = &merge->segments[train->first];
	uint8_t *ip = frame + first->ip, *tcp = frame + first->tcp;
	uint32_t end = first->payload + train->bytes;

	if (first->six) {
		fp_put16(ip + 4, end - first->tcp);
	} else {
		fp_put16(ip + 2, end - first->ip);
		fp_put16(ip + 10, 0);
		fp_put_word(ip + 10, (uint16_t)~fp_fold(fp_sum(ip, FP_IP4)));
	}
	tcp[13] |= last[merge->segments[train->last].tcp + 13] & (FP_FIN | FP_PSH);
	fp_put_word(tcp + FP_TCP_CHECK, fp_fold(pseudo_sum(frame, first, end - first->tcp)));
	*header = (struct fp_net_header){
		.flags = FP_NEEDS_CSUM,
		.gso_type = first->six ? FP_GSO_TCP6 : FP_GSO_TCP4,
		.hdr_len = htole16((uint16_t)first->payload),
		.gso_size = htole16((uint16_t)(first->end - first->payload)),
		.csum_start = htole16((uint16_t)first->tcp),
		.csum_offset = htole16(FP_TCP_CHECK),
	};
}

/**
 * add_piece() - Append bytes to a frame
 * @merged:	Frame
 * @bytes:	First byte
 * @length:	How many
 */
static void add_piece(struct fp_merged *merged, void *bytes, uint32_t length)
{
	merged->pieces[merged->piece_count++] = (struct iovec){ .iov_base = bytes, .iov_len = length };
}

/**
 * fp_merge_segments() - Merge the frames of a burst
 * @merge:	Set; what it names is there as long as @frames are
 * @frames:	The first frame; headers of frames are changed
 * @stride:	Bytes from one to the next
 * @lengths:	Bytes of each
 * @count:	How many, at most FP_MERGE_FRAMES
 * @headers:	Whether each begins with its virtio header, which is counted in its length
 */
void fp_merge_segments(struct fp_merge *merge, uint8_t *frames, uint32_t stride, const uint32_t *lengths, uint32_t count, bool headers)
{
	const uint32_t skipped = headers ? FP_HEADER : 0;
	struct iovec *pieces = merge->pieces;
	uint32_t i, number;

	merge->count = merge->open_count = 0;
	for (i = 0; i < count; i++) {
		uint8_t *frame = frames + (size_t)i * stride;
		struct fp_net_header header;
		enum kind kind = APART;

		if (headers && lengths[i] >= FP_HEADER)
			memcpy(&header, frame, sizeof(header));
		if (lengths[i] >= skipped)
			kind = judge(frame + skipped, lengths[i] - skipped, headers ? &header : NULL, &merge->segments[i]);
		if (kind == UNKNOWN)
			merge->open_count = 0;
		if (kind == APART || kind == UNKNOWN)
			begin_train(merge, i, merge->open_count, false);
		else
			sort_in(merge, frames + skipped, stride, i, kind == DATA);
	}
	for (i = 0; i < merge->count; i++) {
		const struct fp_train *train = &merge->trains[i];
		struct fp_merged *merged = &merge->merged[i];
		uint8_t *frame = frames + (size_t)train->first * stride;
		void *header = headers ? (void *)frame : &merge->headers[i];

		*merged = (struct fp_merged){ .pieces = pieces, .frames = train->count, .bytes = lengths[train->first] - skipped };
		if (!headers) {
			merge->headers[i] = (struct fp_net_header){ 0 };
			add_piece(merged, header, FP_HEADER);
		}
		if (train->count == 1) {
			add_piece(merged, frame, lengths[train->first]);
		} else {
			struct fp_net_header written;

			write_headers(merge, train, frame + skipped, frames + (size_t)train->last * stride + skipped, &written);
			memcpy(header, &written, sizeof(written));
			add_piece(merged, frame, skipped + merge->segments[train->first].end);
		}
		for (number = train->first; number != train->last;) {
			const struct fp_segment *segment;

			number = merge->segments[number].next;
			segment = &merge->segments[number];
			add_piece(merged, frames + (size_t)number * stride + skipped + segment->payload, segment->end - segment->payload);
			merged->bytes += lengths[number] - skipped;
		}
		pieces += merged->piece_count;
	}
}
