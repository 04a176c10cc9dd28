// SPDX-License-Identifier: Apache-2.0
/* events.c - eventfds that another process has too
 *
 * THEORY OF OPERATION
 *
 * A write to an eventfd blocks when its counter is full, unless O_NONBLOCK is set. That flag belongs to the open file, which the
 * other side shares: it can clear the flag and fill the counter at any moment, also between a look of ours and our write, and
 * hold a thread of ours for good. Linux has one way to add to an eventfd that cannot block: asynchronous I/O does so when a
 * request is completed. The request here is a read of no bytes from a file of our own, complete before io_submit() returns.
 *
 * One context serves the whole process. Where there is none (seccomp, no support in the kernel, a child after fork()), the write
 * is made after a look: a process that wins that race may then hold it.
 */

#define _GNU_SOURCE

#include <fcntl.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/aio_abi.h>

#include "events.h"

#define IN_FLIGHT 64	/* completed requests that may wait to be collected */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static aio_context_t context;	/* 0: there is none */
static int nothing = -1;	/* an empty file */

/** begin() - Open the context and the empty file, once in a process; where that fails there is none */
static void begin(void)
{
	aio_context_t made = 0;

	nothing = memfd_create("fastpath-nothing", MFD_CLOEXEC);
	if (nothing >= 0 && !syscall(SYS_io_setup, IN_FLIGHT, &made))
		context = made;
}

/** collect() - Let go of requests that are complete, so that there is room for new ones; waits for none */
static void collect(void)
{
	struct io_event done[IN_FLIGHT];
	struct timespec now = { 0, 0 };

	(void)!syscall(SYS_io_getevents, context, 0, IN_FLIGHT, done, &now);
}

/**
 * complete() - Add one to an eventfd by completing a request
 * @fd:		eventfd
 *
 * Return: 1 when it was done, 0 when it cannot be done in this way
 */
static int complete(int fd)
{
	struct iocb request, *requests = &request;
	unsigned int attempt;
	uint8_t none;

	for (attempt = 0; attempt < 3; attempt++) {
		memset(&request, 0, sizeof(request));
		request.aio_lio_opcode = IOCB_CMD_PREAD;
		request.aio_fildes = (uint32_t)nothing;
		request.aio_buf = (uintptr_t)&none;
		request.aio_flags = IOCB_FLAG_RESFD;
		request.aio_resfd = (uint32_t)fd;
		if (syscall(SYS_io_submit, context, 1, &requests) == 1)
			return 1;
		if (errno != EAGAIN)
			return 0;
		collect();
	}
	return 0;
}

/**
 * fp_notify() - Add one to an eventfd, and never wait
 * @fd:		eventfd that another process may have too
 *
 * Return: 1; 0 when nothing was added, because its counter is full or it is no eventfd
 */
int fp_notify(int fd)
{
	struct pollfd watch = { .fd = fd, .events = POLLOUT };
	uint64_t one = 1;

	pthread_once(&once, begin);
	if (context && complete(fd))
		return 1;
	if (poll(&watch, 1, 0) != 1 || !(watch.revents & POLLOUT))
		return 0;
	return write(fd, &one, sizeof(one)) == sizeof(one);
}
