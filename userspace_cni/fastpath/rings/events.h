/* SPDX-License-Identifier: Apache-2.0 */
/* events.h - eventfds that we share with another process; see events.c */

#ifndef FASTPATH_EVENTS_H
#define FASTPATH_EVENTS_H

int fp_notify(int fd);

#endif /* FASTPATH_EVENTS_H */
