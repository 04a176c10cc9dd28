// SPDX-License-Identifier: Apache-2.0
/* segments_trial.c - merges and cuts frames for a test that judges the result: segments_trial < requests > answers
 *
 * A request is M, whether frames have virtio headers, their number, and frames; or C, the longest frame and the capacity of a burst,
 * the number 1, and a frame. A frame is its length and its bytes, all numbers have 32 bits in the machine's order. The answer to M is
 * the number of frames, and for each of how many it was made, their bytes, and a frame; to C the result of fp_cut_begin(), the number
 * of frames, and these; to S the steps since the last one: how often a branch of the product's code was taken, which is what a
 * burst costs on any machine. segments_trial.py builds it with sanitizers; every frame lies in memory of just its size.
 */

#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cut_segments.h"
#include "merge_segments.h"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what); exit(1); } } while (0)

static uint32_t steps;

void __sanitizer_cov_trace_pc(void);

/* Count a step: the compiler calls this from each block of the product's code */
void __sanitizer_cov_trace_pc(void)
{
	steps++;
}

/* The next number of the request */
static uint32_t number(void)
{
	uint32_t value;

	CHECK(fread(&value, sizeof(value), 1, stdin) == 1);
	return value;
}

/* Write a number of the answer */
static void answer(uint32_t value)
{
	CHECK(fwrite(&value, sizeof(value), 1, stdout) == 1);
}

/* Merge a burst; its frames lie at the ends of their places, so that a sanitizer sees what is read behind the last one */
static void merge(void)
{
	static struct fp_merge merge;
	bool headers = number();
	uint32_t count = number(), stride = 0, lengths[FP_MERGE_FRAMES];
	uint8_t *given[FP_MERGE_FRAMES], *frames;

	CHECK(count && count <= FP_MERGE_FRAMES);
	for (uint32_t i = 0; i < count; i++) {
		lengths[i] = number();
		given[i] = malloc(lengths[i]);
		CHECK(fread(given[i], 1, lengths[i], stdin) == lengths[i]);
		stride = stride < lengths[i] ? lengths[i] : stride;
	}
	frames = malloc((size_t)(count - 1) * stride + lengths[count - 1]);
	for (uint32_t i = 0; i < count; i++) {
		memcpy(frames + (size_t)i * stride, given[i], lengths[i]);
		free(given[i]);
	}
	memset(&merge, 0xa5, sizeof(merge));
	merge.oldest = 0;
	fp_merge_segments(&merge, frames, stride, lengths, count, headers);
	answer(merge.count);
	for (uint32_t i = 0; i < merge.count; i++) {
		const struct fp_merged *merged = &merge.merged[i];
		uint32_t bytes = 0;

		for (uint32_t piece = 0; piece < merged->piece_count; piece++)
			bytes += (uint32_t)merged->pieces[piece].iov_len;
		answer(merged->frames);
		answer(merged->bytes);
		answer(bytes);
		for (uint32_t piece = 0; piece < merged->piece_count; piece++)
			CHECK(fwrite(merged->pieces[piece].iov_base, 1, merged->pieces[piece].iov_len, stdout) ==
			      merged->pieces[piece].iov_len);
	}
	free(frames);
}

/* Cut a frame into bursts of some capacity */
static void cut(void)
{
	uint32_t longest = number(), capacity = number(), count = 0, made, length, *lengths = malloc(capacity * sizeof(*lengths));
	uint8_t *frame, *frames = malloc((size_t)capacity * longest);
	struct fp_cut cut;
	char *output;
	size_t bytes;
	FILE *memory = open_memstream(&output, &bytes);
	int result;

	CHECK(lengths && frames && memory && number() == 1);
	length = number();
	frame = malloc(length);
	CHECK(fread(frame, 1, length, stdin) == length);
	result = fp_cut_begin(&cut, frame, length, longest);
	answer((uint32_t)result);
	while (!result && (made = fp_cut_next(&cut, frames, longest, lengths, capacity))) {
		for (uint32_t i = 0; i < made; i++) {
			CHECK(lengths[i] <= longest);
			CHECK(fwrite(&lengths[i], sizeof(*lengths), 1, memory) == 1);
			CHECK(fwrite(frames + (size_t)i * longest, 1, lengths[i], memory) == lengths[i]);
		}
		count += made;
	}
	CHECK(!fclose(memory));
	answer(count);
	CHECK(fwrite(output, 1, bytes, stdout) == bytes);
	free(output);
	free(frame);
	free(frames);
	free(lengths);
}

/* Answer requests until there are no more */
int main(void)
{
	int what;

	while ((what = getchar()) != EOF) {
		if (what == 'M') {
			merge();
		} else if (what == 'C') {
			cut();
		} else {
			answer(steps);
			steps = 0;
		}
		CHECK(!fflush(stdout));
	}
	return 0;
}
