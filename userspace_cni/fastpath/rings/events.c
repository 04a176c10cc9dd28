// SPDX-License-Identifier: Apache-2.0
/* events.c - eventfds that we share with another process
 *
 * THEORY OF OPERATION
 *
 * A write to an eventfd blocks when its counter is full, unless O_NONBLOCK is set. That flag belongs to the open file, which the
 * other side shares. The other side can clear the flag and fill the counter at any moment, even between our poll() and our
 * write(), and block our thread for ever. Linux has one way to add to an eventfd that never blocks: asynchronous I/O adds to it
 * when a request is completed. The request here reads no bytes from a file of our own, and is complete before io_submit() returns.
 *
 * One context serves the whole process. Where there is none (seccomp, no support in the kernel, a child after fork()), poll()
 * is followed by write(): a process that wins that race can block the write.
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

#define IN_FLIGHT 64	/* completed requests that may wait for collect() */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static aio_context_t context;	/* 0 for none */
static int nothing = -1;	/* an empty file */

/** begin() - Open the context and the empty file, once in a process; on failure there is no context */
static void begin(void)
{
	aio_context_t made = 0;

	nothing = memfd_create("fastpath-nothing", MFD_CLOEXEC);
	if (nothing >= 0 && !syscall(SYS_io_setup, IN_FLIGHT, &made))
		context = made;
}

/** collect() - Drop completed requests, to make room for new ones; never waits */
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
 * Return: 1 when one was added, 0 when it cannot be added in this way
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
 * fp_notify() - Add one to an eventfd without waiting
 * @fd:		eventfd that another process may have too
 *
 * Return: 1; 0 when nothing was added, because its counter is full or @fd is no eventfd
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
