/* SPDX-License-Identifier: Apache-2.0 */
/* net_header.h - whether the virtio header of a frame agrees with the frame, and what it vouches for; see net_header.c */

#ifndef FASTPATH_NET_HEADER_H
#define FASTPATH_NET_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#define FP_GSO_LEAST	8	/* bytes of the shortest segments that a frame may be cut into: the kernel's TCP_MIN_GSO_SIZE */

bool fp_header_sound(const uint8_t *frame, uint32_t length, uint32_t longest);
void fp_complete_check(uint8_t *frame, uint32_t length);

#endif /* FASTPATH_NET_HEADER_H */
