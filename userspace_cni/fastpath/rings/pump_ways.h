/* SPDX-License-Identifier: Apache-2.0 */
/* pump_ways.h - the two directions of a pump, for pump.c alone; see pump_ways.c */

#ifndef FASTPATH_PUMP_WAYS_H
#define FASTPATH_PUMP_WAYS_H

#include "pump.h"

int fp_pump_to_ring(struct fp_pump *pump, struct fp_queue *tx, int64_t now);
int fp_pump_to_tap(struct fp_pump *pump, struct fp_queue *rx);
uint64_t fp_pump_oversize(const struct fp_queue *rx);

#endif /* FASTPATH_PUMP_WAYS_H */
