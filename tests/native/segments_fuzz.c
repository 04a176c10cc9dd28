// SPDX-License-Identifier: Apache-2.0
/* segments_fuzz.c - any bytes as frames to merge and to cut, for libFuzzer
 *
 * The input is a burst of frames in places of STRIDE bytes; the first byte says how, the next ones how long the frames are. What was
 * merged is cut again: the same bytes of payload come out, whatever went in.
 */

#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cut_segments.h"
#include "merge_segments.h"

#define STRIDE 128
#define FRAMES 24
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what); abort(); } } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Cut a frame, and return how many frames come out; 0: it is refused */
static uint32_t cut_all(const uint8_t *frame, uint32_t length, uint32_t longest, uint32_t capacity)
{
	uint8_t *frames = malloc((size_t)capacity * longest), *copy = malloc(length);
	uint32_t lengths[8], count = 0, made;
	struct fp_cut cut;

	memcpy(copy, frame, length);
	if (!fp_cut_begin(&cut, copy, length, longest)) {
		while ((made = fp_cut_next(&cut, frames, longest, lengths, capacity)) != 0) {
			for (uint32_t i = 0; i < made; i++)
				CHECK(lengths[i] <= longest);
			count += made;
			CHECK(count <= length);
		}
		CHECK(count);
	}
	free(copy);
	free(frames);
	return count;
}

/* Merge a burst, and cut each frame that was made of several */
static void merge_all(uint8_t *frames, const uint32_t *lengths, uint32_t count, bool headers)
{
	static struct fp_merge merge;
	static uint8_t whole[FP_HEADER + FRAMES * STRIDE];
	uint32_t total = 0;

	fp_merge_segments(&merge, frames, STRIDE, lengths, count, headers);
	for (uint32_t i = 0; i < merge.count; i++) {
		const struct fp_merged *merged = &merge.merged[i];
		uint32_t length = 0;

		for (uint32_t piece = 0; piece < merged->piece_count; piece++) {
			CHECK(length + merged->pieces[piece].iov_len <= sizeof(whole));
			memcpy(whole + length, merged->pieces[piece].iov_base, merged->pieces[piece].iov_len);
			length += (uint32_t)merged->pieces[piece].iov_len;
		}
		if (merged->frames > 1)
			CHECK(cut_all(whole, length, STRIDE, 3) == merged->frames);
		total += merged->frames;
	}
	CHECK(total == count);
}

/* One input of libFuzzer's: as the head of this file says */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint32_t how, count = 0, lengths[FRAMES];
	uint8_t *frames;

	if (bytes < 2)
		return 0;
	how = *data++;
	bytes--;
	if (how & 1) {
		cut_all(data, (uint32_t)bytes, 1 + (how >> 1) * 3, 1 + how % 8);
		return 0;
	}
	frames = malloc(FRAMES * STRIDE);
	memset(frames, 0, FRAMES * STRIDE);
	while (count < FRAMES && bytes > 1) {
		uint32_t length = *data++ % (STRIDE + 1);

		bytes--;
		length = length < bytes ? length : (uint32_t)bytes;
		/* A frame may repeat the last one, with a few bytes changed: so that flows come about */
		if (count && how & 4)
			memcpy(frames + count * STRIDE, frames + (count - 1) * STRIDE, STRIDE);
		memcpy(frames + count * STRIDE + (how & 4 ? STRIDE - length : 0), data, length);
		data += length;
		bytes -= length;
		lengths[count++] = how & 4 ? STRIDE : length;
	}
	if (count)
		merge_all(frames, lengths, count, how & 2);
	free(frames);
	return 0;
}
