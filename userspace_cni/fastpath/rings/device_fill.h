/* SPDX-License-Identifier: Apache-2.0 */
/* device_fill.h - writes a frame and its header into any buffers: for device_transmit.c and packed_device_transmit.c */

#ifndef FASTPATH_DEVICE_FILL_H
#define FASTPATH_DEVICE_FILL_H

#include <stdint.h>
#include <string.h>

#include "queue.h"
#include "vring.h"

static const uint8_t no_offload[FP_HEADER];

/**
 * write_header() - Write a header that says that its frame is in one buffer, unless it is there already
 * @data:	Where
 * @header:	The header; the number of its buffers there is not used
 *
 * Buffers come back with the header that they had, on a line of its own with most drivers: that line stays as it is in the
 * caches of both processors.
 */
static inline void write_header(uint8_t *data, const uint8_t *header)
{
	uint64_t first, old_first;
	uint32_t rest, old_rest;

	memcpy(&first, header, sizeof(first));
	memcpy(&rest, header + sizeof(first), sizeof(rest));
	rest = (rest & 0xffff) | 1u << 16;	/* NUM_BUFFERS */
	memcpy(&old_first, data, sizeof(first));
	memcpy(&old_rest, data + sizeof(first), sizeof(rest));
	if (old_first != first)
		memcpy(data, &first, sizeof(first));
	if (old_rest != rest)
		memcpy(data + sizeof(first), &rest, sizeof(rest));
}

/** struct fill - A frame that is being written into the guest's buffers
 * @header:	Its header, of FP_HEADER bytes; the number of its buffers there is not used
 * @frame:	Its bytes
 * @length:	Their number
 * @done:	Bytes written, of FP_HEADER + @length
 * @last:	Addresses of the header's last two bytes; a buffer may end between them
 */
struct fill {
	const uint8_t *header;
	const uint8_t *frame;
	uint32_t length;
	uint32_t done;
	uint8_t *last[2];
};

/**
 * fill_buffer() - Write as much of header and frame into a buffer as fits
 * @fill:	Frame; the number of its buffers is not known yet, and count_buffers() corrects what is written for it
 * @data:	Buffer
 * @room:	Bytes of it
 *
 * Return: bytes written
 */
static inline uint32_t fill_buffer(struct fill *fill, uint8_t *data, uint32_t room)
{
	uint32_t written = 0, part;

	if (!fill->done && room >= FP_HEADER) {
		write_header(data, fill->header);
		fill->last[0] = data + NUM_BUFFERS;
		fill->last[1] = data + NUM_BUFFERS + 1;
		fill->done = written = FP_HEADER;
	}
	while (fill->done < FP_HEADER && written < room) {
		if (fill->done >= NUM_BUFFERS)
			fill->last[fill->done - NUM_BUFFERS] = data + written;
		data[written++] = fill->done < NUM_BUFFERS ? fill->header[fill->done] : 0;
		fill->done++;
	}
	part = FP_HEADER + fill->length - fill->done;
	if (part > room - written)
		part = room - written;
	if (part) {
		memcpy(data + written, fill->frame + (fill->done - FP_HEADER), part);
		fill->done += part;
	}
	return written + part;
}

/**
 * count_buffers() - Write into a frame's header in how many buffers it is
 * @fill:	Frame that is written
 * @buffers:	Their number
 */
static inline void count_buffers(const struct fill *fill, uint32_t buffers)
{
	uint8_t count[] = { (uint8_t)buffers, (uint8_t)(buffers >> 8) };

	for (int i = 0; i < 2; i++)
		if (*fill->last[i] != count[i])
			*fill->last[i] = count[i];
}

#endif /* FASTPATH_DEVICE_FILL_H */
