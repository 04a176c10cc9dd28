/* SPDX-License-Identifier: Apache-2.0 */
/* vring.h - a split virtqueue in shared memory, as virtio 1.x lays it out; for driver.c and device.c */

#ifndef FASTPATH_VRING_H
#define FASTPATH_VRING_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "virtio 1.x is little-endian, and this code swaps no bytes"
#endif

#define DESC_NEXT	1	/* VIRTQ_DESC_F_NEXT: the chain goes on */
#define DESC_WRITE	2	/* VIRTQ_DESC_F_WRITE: the device may write */
#define DESC_INDIRECT	4	/* VIRTQ_DESC_F_INDIRECT: the buffer is a table of descriptors */
#define NO_INTERRUPT	1	/* VIRTQ_AVAIL_F_NO_INTERRUPT */
#define NO_NOTIFY	1	/* VIRTQ_USED_F_NO_NOTIFY */
#define NUM_BUFFERS	10	/* offset of that field in the header of a frame: its last two bytes */

struct desc {
	uint64_t address;
	uint32_t length;
	uint16_t flags;
	uint16_t next;
};

struct avail {
	uint16_t flags;
	uint16_t index;
	uint16_t ring[];
};

struct used_element {
	uint32_t id;
	uint32_t length;
};

struct used {
	uint16_t flags;
	uint16_t index;
	struct used_element ring[];
};

#endif /* FASTPATH_VRING_H */
