// SPDX-License-Identifier: Apache-2.0
/* net_header_trial.c - headers that agree with their frame, that lie, that vouch, and random ones; see test_offloads.py
 *
 * A frame is on the heap and has no byte to spare. The command line names a trial; it ends with 0 without output, or prints which
 * expectation was not met. With -DLIBFUZZER it is a target of libFuzzer.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_header.h"
#include "segment.h"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define LONGEST 1518

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Complete a copy that has exactly its length: two bytes change at most, and a second time none; whether some did */
static bool completes(const uint8_t *data, size_t bytes)
{
	uint8_t *copy = malloc(bytes), *again = malloc(bytes);
	size_t first = 0;
	bool changed;

	CHECK(copy && again);
	memcpy(copy, data, bytes);
	fp_complete_check(copy, (uint32_t)bytes);
	while (first < bytes && copy[first] == data[first])
		first++;
	changed = first < bytes;
	CHECK(!changed || first + 2 >= bytes || !memcmp(copy + first + 2, data + first + 2, bytes - first - 2));
	memcpy(again, copy, bytes);
	fp_complete_check(again, (uint32_t)bytes);
	CHECK(!memcmp(again, copy, bytes));
	free(copy);
	free(again);
	return changed;
}

/* Judge the bytes as they are, and what passed once more by what must be true of it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fp_net_header header;

	if (bytes > FP_HEADER + FP_LARGEST || !fp_header_sound(data, (uint32_t)bytes, LONGEST))
		return 0;
	memcpy(&header, data, sizeof(header));
	bytes -= FP_HEADER;
	CHECK(bytes >= 14);
	if (header.flags & FP_NEEDS_CSUM)
		CHECK(header.csum_start >= 14 && (size_t)header.csum_start + header.csum_offset + 2 <= bytes);
	if (!header.flags && !header.gso_type) {
		CHECK(bytes <= LONGEST);
		return 0;
	}
	CHECK(header.gso_type || bytes <= LONGEST);
	if (header.flags == FP_DATA_VALID)
		(void)completes(data, FP_HEADER + bytes);
	if (header.gso_type) {
		CHECK(header.gso_size >= 8 && header.hdr_len <= bytes && header.csum_start + 20u < bytes);
		CHECK(header.csum_start + 20u + header.gso_size <= LONGEST);
	}
	return 0;
}

#ifndef LIBFUZZER
/** struct frame - A frame that is right, to be spoiled */
struct frame {
	struct fp_net_header header;
	uint8_t bytes[FP_LARGEST + 1];
	uint32_t length;	/* without the header */
};

static struct frame frame;

/* Judge a copy that has exactly its length */
static bool sound_of(uint32_t length)
{
	uint8_t *copy = malloc(FP_HEADER + length);
	bool sound;

	CHECK(copy);
	memcpy(copy, &frame.header, FP_HEADER);
	memcpy(copy + FP_HEADER, frame.bytes, length);
	sound = fp_header_sound(copy, FP_HEADER + length, LONGEST);
	free(copy);
	return sound;
}

/* Judge the whole frame */
static bool sound(void)
{
	return sound_of(frame.length);
}

/* Make the frame a large one of TCP with this many VLAN tags */
static void large(int type, int tags, uint32_t length)
{
	uint32_t ip = 14 + 4 * (uint32_t)tags, tcp = ip + (type == FP_GSO_TCP4 ? 20 : 40);

	memset(&frame, 0, sizeof(frame));
	for (int tag = 0; tag < tags; tag++)
		frame.bytes[12 + 4 * tag] = 0x81;
	memcpy(frame.bytes + ip - 2, type == FP_GSO_TCP4 ? "\x08\x00\x45" : "\x86\xdd\x60", 3);
	frame.bytes[ip + (type == FP_GSO_TCP4 ? 9 : 6)] = 6;
	frame.bytes[tcp + 12] = 0x80;
	frame.header = (struct fp_net_header){ FP_NEEDS_CSUM, (uint8_t)type, (uint16_t)(tcp + 32), 1400, (uint16_t)tcp, 16, 0 };
	frame.length = length;
}

/* What the kernel, guests and switches write passes */
static void honest(void)
{
	large(FP_GSO_TCP4, 0, 1514);
	frame.header = (struct fp_net_header){ 0 };
	CHECK(sound());
	frame.header.hdr_len = frame.header.csum_start = 0xffff;	/* without meaning */
	CHECK(sound());
	frame.header = (struct fp_net_header){ .flags = FP_NEEDS_CSUM, .csum_start = 34, .csum_offset = 16 };
	CHECK(sound());
	frame.header.flags = FP_DATA_VALID;
	CHECK(sound());
	for (int tags = 0; tags < 3; tags++) {
		static const uint32_t lengths[] = { 100, 1514, 9000, 65535, FP_LARGEST };

		for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
			large(FP_GSO_TCP4, tags, lengths[i]);
			CHECK(sound());
			frame.header.gso_type |= FP_GSO_ECN;
			CHECK(sound());
			large(FP_GSO_TCP6, tags, lengths[i] < 120 ? 120 : lengths[i]);
			CHECK(sound());
		}
	}
	large(FP_GSO_TCP6, 0, 9000);	/* extension headers of 8 bytes */
	frame.bytes[20] = 0;
	memmove(frame.bytes + 62, frame.bytes + 54, 32);
	frame.header.csum_start = 62;
	CHECK(sound());
}

#define LIE(change) do { large(type, tags, 9000); change; CHECK(!sound()); } while (0)

/* Each field that lies is noticed */
static void hostile(void)
{
	for (int type = FP_GSO_TCP4; type <= FP_GSO_TCP6; type += FP_GSO_TCP6 - FP_GSO_TCP4) {
		for (int tags = 0; tags < 3; tags++) {
			uint32_t ip = 14 + 4 * (uint32_t)tags, tcp = ip + (type == FP_GSO_TCP4 ? 20 : 40);

			LIE(frame.header.gso_size = 0);
			LIE(frame.header.gso_size = FP_GSO_LEAST - 1);
			LIE(frame.header.gso_size = 1500);
			LIE(frame.header.gso_size = 0xffff);
			LIE(frame.header.hdr_len = 9001);
			LIE(frame.header.csum_start = 9000 - 19);
			LIE(frame.header.csum_start = 0xffff);
			LIE(frame.header.csum_start = (uint16_t)(tcp + 4));
			LIE(frame.header.csum_start = (uint16_t)(tcp - 4));
			LIE(frame.header.csum_start = 0);
			LIE(frame.header.csum_offset = 6);
			LIE(frame.header.csum_offset = 0xffff);
			LIE(frame.header.flags = 0);
			LIE(frame.header.flags = FP_DATA_VALID);
			LIE(frame.header.flags |= 4);
			LIE(frame.header.flags |= 0x80);
			LIE(frame.header.gso_type = (uint8_t)(type == FP_GSO_TCP4 ? FP_GSO_TCP6 : FP_GSO_TCP4));
			LIE(frame.header.gso_type = FP_GSO_ECN);
			LIE(frame.header.gso_type = 3);
			LIE(frame.header.gso_type = 5);
			LIE(frame.header.gso_type |= 0x40);
			LIE(frame.header.gso_type = 0);		/* too long, when nothing cuts it */
			LIE(frame.header = (struct fp_net_header){ 0 });
			LIE(frame.bytes[ip] = (uint8_t)(type == FP_GSO_TCP4 ? 0x60 : 0x45));
			LIE(frame.bytes[ip - 1] = 0x06);
			LIE(frame.bytes[ip - 2] = 0x81);
			LIE(frame.bytes[tcp + 12] = 0x40);
			LIE(frame.bytes[tcp + 12] = 0xf0; frame.length = tcp + 60);
			LIE(frame.length = FP_LARGEST + 1);
			LIE(frame.length = tcp + 32);		/* without payload */
			if (type == FP_GSO_TCP4) {
				LIE(frame.bytes[ip] = 0x46);
				LIE(frame.bytes[ip] = 0x44);
				LIE(frame.bytes[ip + 9] = 17);
			} else {
				LIE(frame.bytes[ip + 6] = 6; frame.header.csum_start = (uint16_t)(tcp + 8));
			}
			large(type, tags, 9000);
			for (uint32_t length = 0; length <= tcp + 32; length++)
				CHECK(!sound_of(length));
		}
	}
	large(FP_GSO_TCP4, 3, 9000);	/* more tags than are looked through */
	CHECK(!sound());
	frame.header = (struct fp_net_header){ .flags = FP_NEEDS_CSUM, .csum_start = 34, .csum_offset = 16 };
	frame.length = 51;
	CHECK(!sound());
	frame.length = 52;
	CHECK(sound());
	frame.header.csum_start = 13;
	CHECK(!sound());
	frame.header = (struct fp_net_header){ 0 };
	frame.length = LONGEST + 1;
	CHECK(!sound());
}

/* Random changes of frames that are right */
static void fuzz(void)
{
	srand(1);
	for (int round = 0; round < 300000; round++) {
		uint32_t length = 14 + (uint32_t)rand() % 200;
		uint8_t *copy = malloc(FP_HEADER + length);

		CHECK(copy);
		large(rand() % 2 ? FP_GSO_TCP4 : FP_GSO_TCP6, rand() % 4, length);
		for (int changes = rand() % 4; changes > 0; changes--) {
			if (rand() % 2)
				((uint8_t *)&frame.header)[rand() % FP_HEADER] = (uint8_t)rand();
			else
				frame.bytes[(uint32_t)rand() % length] = (uint8_t)rand();
		}
		memcpy(copy, &frame.header, FP_HEADER);
		memcpy(copy + FP_HEADER, frame.bytes, length);
		LLVMFuzzerTestOneInput(copy, FP_HEADER + length);
		free(copy);
	}
}

/* Make the frame one of TCP or UDP with this many VLAN tags and bytes of payload, without a check word; where that is */
static uint32_t vouched(int protocol, int version, int tags, uint32_t payload)
{
	uint32_t ip = 14 + 4 * (uint32_t)tags, at = ip + (version == 4 ? 20 : 40), bytes = (protocol == 6 ? 20 : 8) + payload;

	large(version == 4 ? FP_GSO_TCP4 : FP_GSO_TCP6, tags, at + bytes);
	for (uint32_t i = ip + (version == 4 ? 12 : 8); i < frame.length; i++)
		frame.bytes[i] = (uint8_t)(i * 7 + 1);
	frame.bytes[ip + (version == 4 ? 9 : 6)] = (uint8_t)protocol;
	fp_put16(frame.bytes + ip + (version == 4 ? 2 : 4), version == 4 ? 20 + bytes : bytes);
	if (protocol == 17)
		fp_put16(frame.bytes + at + 4, bytes);
	frame.header = (struct fp_net_header){ .flags = FP_DATA_VALID };
	at += protocol == 6 ? 16 : 6;
	fp_put16(frame.bytes + at, 0);
	return at;
}

/* The word that RFC 1071 asks for, added up byte by byte; @check: where it is, and counts as 0 */
static uint32_t expected(int protocol, int version, int tags, uint32_t check)
{
	uint32_t ip = 14 + 4 * (uint32_t)tags, at = ip + (version == 4 ? 20 : 40), sum = (uint32_t)protocol + frame.length - at;

	for (uint32_t i = ip + (version == 4 ? 12 : 8); i < frame.length; i++)
		if (i != check && i != check + 1)
			sum += (i - at) & 1 ? frame.bytes[i] : (uint32_t)frame.bytes[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	sum = ~sum & 0xffff;
	return protocol == 17 && !sum ? 0xffff : sum;
}

/* Whether completing the frame changes it */
static bool changes(void)
{
	static uint8_t whole[FP_HEADER + sizeof(frame.bytes)];

	memcpy(whole, &frame.header, FP_HEADER);
	memcpy(whole + FP_HEADER, frame.bytes, frame.length);
	return completes(whole, FP_HEADER + frame.length);
}

/* A check word for which a header vouches is made right; where there is none to be, nothing changes */
static void checks(void)
{
	for (int protocol = 6; protocol <= 17; protocol += 11) {
		for (int version = 4; version <= 6; version += 2) {
			for (int tags = 0; tags < 3; tags++) {
				for (uint32_t payload = 0; payload < 1400; payload += payload < 70 ? 1 : 333) {
					uint32_t check = vouched(protocol, version, tags, payload), ip = 14 + 4 * (uint32_t)tags;
					uint32_t word = expected(protocol, version, tags, check);

					fp_put16(frame.bytes + check, 0xdead);
					fp_complete_check((uint8_t *)&frame, FP_HEADER + frame.length);
					CHECK(fp_get16(frame.bytes + check) == word);
					CHECK(!changes());
					fp_put16(frame.bytes + check, 0);
					CHECK(changes() == (protocol == 6 || version == 6));	/* UDP over IPv4 may have none */
					fp_put16(frame.bytes + check, word ^ 0x100);
					CHECK(changes());
					frame.length--;		/* it is not whole */
					CHECK(!changes());
					frame.length += 7;	/* padding does not count */
					CHECK(changes());
					frame.bytes[ip + (version == 4 ? 9 : 6)] = 1;
					CHECK(!changes());
				}
			}
		}
	}
	vouched(6, 4, 0, 100);
	frame.bytes[20] = 0x20;		/* a fragment */
	CHECK(!changes());
	vouched(6, 4, 0, 100);
	frame.bytes[14] = 0x44;		/* a header too short */
	CHECK(!changes());
	vouched(6, 4, 0, 100);
	fp_put16(frame.bytes + 16, 39);	/* no room for TCP */
	CHECK(!changes());
	vouched(17, 6, 0, 100);
	fp_put16(frame.bytes + 58, 7);	/* UDP is longer than that */
	CHECK(!changes());
	fp_put16(frame.bytes + 58, 109);
	CHECK(!changes());
	fp_put16(frame.bytes + 58, 50);	/* IP may have more */
	CHECK(changes());
}

static const struct {
	const char *name;
	void (*run)(void);
} trials[] = { { "honest", honest }, { "hostile", hostile }, { "checks", checks }, { "fuzz", fuzz } };

/* Run the trial of that name */
int main(int count, char **arguments)
{
	for (size_t i = 0; count > 1 && i < sizeof(trials) / sizeof(*trials); i++) {
		if (!strcmp(arguments[1], trials[i].name)) {
			trials[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no such trial\n");
	return 2;
}
#endif
