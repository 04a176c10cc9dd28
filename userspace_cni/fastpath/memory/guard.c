// SPDX-License-Identifier: Apache-2.0
/* guard.c - mappings of memory that its owner may take away
 *
 * THEORY OF OPERATION
 *
 * A front-end lends us its memory as a file. It may truncate that file while we copy a frame, and hugepage files cannot be
 * sealed against that. The access then raises SIGBUS, which would end this process and every other connection in it.
 *
 * Therefore each such mapping has an entry in a table that one handler of SIGBUS reads. On a fault inside a mapping the handler
 * marks it as gone and replaces all of it by zero pages of our own. The access is repeated and succeeds, the burst ends, and its
 * caller checks the mark before it uses anything that it has read. Any other SIGBUS goes to the previous handler, the way the
 * kernel would have called it.
 *
 * The handler takes no lock and calls nothing but mmap(), sigaction() and the like. It skips an entry that is being changed: no
 * thread can be inside a mapping that is not made yet or that is being removed, as its queues have been stopped. Before and
 * after each mapping are pages that cannot be touched. Every address is checked before it is used; those pages catch an access
 * that a wrong check lets through.
 *
 * The first mapping installs the handler, and a later one installs it again if it finds another handler there. The kernel ends
 * a process whose fault finds SIGBUS blocked, whatever the handler: see fp_guard_unblock().
 */

#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "guard.h"

#define PREVIOUS 16	/* times that another handler can be found in our place */

/* File systems whose pages come from this machine alone: a FUSE server could let a page fault wait for ever */
static const unsigned long local[] = {
	0x01021994,	/* tmpfs, memfd */
	0x958458f6,	/* hugetlbfs, memfd with MFD_HUGETLB */
	0x858458f6,	/* ramfs */
	0xef53,		/* ext2 to ext4 */
	0x58465342,	/* xfs */
	0x9123683e,	/* btrfs */
};

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct fp_guard guards[FP_GUARDS];
static _Atomic uint32_t highest;	/* entries ever used */
static int used;			/* entries in use */

static struct sigaction previous[PREVIOUS];
static _Atomic int latest = -1;		/* index of the handler that ours replaced last */
static _Atomic int chaining;		/* thread that is in that handler, or has left it by longjmp() */

/**
 * replace() - Put zero pages in place of the mapping that an address belongs to
 * @address:	Where the fault was
 *
 * Return: whether the address is in one of our mappings, and is zero now
 */
static bool replace(uintptr_t address)
{
	uint32_t count = atomic_load_explicit(&highest, memory_order_acquire);
	uint32_t i;

	for (i = 0; i < count; i++) {
		struct fp_guard *g = &guards[i];
		uint32_t before = atomic_load_explicit(&g->sequence, memory_order_acquire);
		uintptr_t start = atomic_load_explicit(&g->start, memory_order_relaxed);
		uintptr_t length = atomic_load_explicit(&g->length, memory_order_relaxed);

		atomic_thread_fence(memory_order_acquire);
		if ((before & 1) || before != atomic_load_explicit(&g->sequence, memory_order_relaxed))
			continue;
		if (!start || address < start || address - start >= length)
			continue;

		/* Set the mark first: a thread that reads zeros must find it */
		atomic_store(&g->gone, 1);
		return mmap((void *)start, length, PROT_READ | PROT_WRITE,
			    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
	}
	return false;
}

/**
 * die() - Do what SIGBUS does without a handler
 * @info:	The signal
 *
 * A fault happens again when the handler returns; a signal that was sent has to be sent again.
 */
static void die(siginfo_t *info)
{
	struct sigaction none;

	memset(&none, 0, sizeof(none));
	none.sa_handler = SIG_DFL;
	sigaction(SIGBUS, &none, NULL);
	if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
		syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, info);
}

/**
 * chain() - Pass a signal to the handler that ours replaced
 * @number:	SIGBUS
 * @info:	The signal
 * @context:	The thread's registers
 */
static void chain(int number, siginfo_t *info, void *context)
{
	const struct sigaction *old = &previous[atomic_load_explicit(&latest, memory_order_acquire)];
	int self = (int)syscall(SYS_gettid);
	bool sent = info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
	bool plain = !(old->sa_flags & SA_SIGINFO);

	if (plain && old->sa_handler == SIG_IGN && sent)
		return;
	/* A handler that was installed after ours restores ours and raises the signal again, when it has done its work */
	if ((plain && (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN)) || (sent && atomic_load(&chaining) == self)) {
		die(info);
		return;
	}
	atomic_store(&chaining, self);
	if (old->sa_flags & SA_RESETHAND) {
		struct sigaction none;

		memset(&none, 0, sizeof(none));
		none.sa_handler = SIG_DFL;
		sigaction(SIGBUS, &none, NULL);
	}
	if (plain)
		old->sa_handler(number);
	else
		old->sa_sigaction(number, info, context);
	atomic_store(&chaining, 0);
}

/**
 * on_bus_error() - Handle SIGBUS
 * @number:	SIGBUS
 * @info:	Where and why; the address means nothing when the signal was sent (raise(), kill())
 * @context:	The thread's registers
 */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
	bool fault = info->si_code == BUS_ADRERR || info->si_code == BUS_MCEERR_AR;
	int saved = errno;

	if (!fault || !replace((uintptr_t)info->si_addr))
		chain(number, info, context);
	errno = saved;
}

/**
 * install() - Make on_bus_error() the handler of SIGBUS; the caller holds the lock
 *
 * Return: 0, or -EBUSY when other handlers have replaced ours PREVIOUS times
 */
static int install(void)
{
	int next = atomic_load(&latest) + 1;
	struct sigaction now, ours;

	if (sigaction(SIGBUS, NULL, &now))
		return -errno;
	if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)
		return 0;
	if (next == PREVIOUS)
		return -EBUSY;

	memset(&ours, 0, sizeof(ours));
	ours.sa_sigaction = on_bus_error;
	ours.sa_mask = now.sa_mask;
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (now.sa_flags & (SA_NODEFER | SA_RESTART));
	previous[next] = now;
	atomic_store_explicit(&latest, next, memory_order_release);
	return sigaction(SIGBUS, &ours, NULL) ? -errno : 0;
}

/**
 * publish() - Show the handler a mapping, or that it was removed
 * @guard:	Entry
 * @start:	First byte, 0 for none
 * @length:	Bytes
 */
static void publish(struct fp_guard *guard, uintptr_t start, uintptr_t length)
{
	atomic_fetch_add_explicit(&guard->sequence, 1, memory_order_acq_rel);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&guard->start, start, memory_order_relaxed);
	atomic_store_explicit(&guard->length, length, memory_order_relaxed);
	atomic_fetch_add_explicit(&guard->sequence, 1, memory_order_release);
}

/**
 * claim() - Take a free entry of the table
 * @guard:	Set to it
 *
 * The entry counts as used from here on, because @around is set.
 *
 * Return: 0, -ENFILE when no entry is free, -EBUSY when the handler cannot be installed
 */
static int claim(struct fp_guard **guard)
{
	uint32_t i = 0;
	int rc;

	pthread_mutex_lock(&changing);
	rc = install();
	while (!rc && i < FP_GUARDS && guards[i].around)
		i++;
	if (!rc && i == FP_GUARDS)
		rc = -ENFILE;
	if (!rc) {
		*guard = &guards[i];
		(*guard)->around = MAP_FAILED;
		used++;
		if (i >= atomic_load(&highest))
			atomic_store_explicit(&highest, i + 1, memory_order_release);
	}
	pthread_mutex_unlock(&changing);
	return rc;
}

/**
 * yield() - Give an entry back
 * @guard:	Entry without a mapping
 */
static void yield(struct fp_guard *guard)
{
	pthread_mutex_lock(&changing);
	guard->data = NULL;
	guard->around = NULL;
	used--;
	pthread_mutex_unlock(&changing);
}

/**
 * check_file() - Check that a file's pages can be touched without waiting for a server
 * @fd:		File
 * @end:	Bytes that it must have
 * @block:	Set to the size of its pages
 *
 * Return: 0, -EMEDIUMTYPE: no file in memory or on a local disk, -ENODATA: the file is shorter than @end
 */
static int check_file(int fd, uint64_t end, uint64_t *block)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct statfs fs;
	struct stat st;
	unsigned int i;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	if (fstatfs(fd, &fs))
		return -errno;
	for (i = 0; i < sizeof(local) / sizeof(local[0]); i++) {
		if ((unsigned long)fs.f_type == local[i])
			break;
	}
	if (i == sizeof(local) / sizeof(local[0]))
		return -EMEDIUMTYPE;
	if (st.st_size < 0 || (uint64_t)st.st_size < end)
		return -ENODATA;

	*block = (uint64_t)st.st_blksize;
	if (*block < page || *block > 1ULL << 30 || (*block & (*block - 1)))
		*block = page;
	return 0;
}

/**
 * map_between() - Map a part of a file between pages that cannot be touched
 * @guard:	Entry to fill
 * @fd:		File
 * @offset:	Where the part begins
 * @length:	Its bytes
 * @block:	Size of the file's pages
 *
 * Return: 0, -errno of mmap()
 */
static int map_between(struct fp_guard *guard, int fd, uint64_t offset, uint64_t length, uint64_t block)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = offset & ~(block - 1);
	uint64_t span = (offset + length - start + block - 1) & ~(block - 1);
	uint64_t reserved = span + block + 2 * page;
	uint8_t *around, *data;

	around = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (around == MAP_FAILED)
		return -errno;
	data = (uint8_t *)(((uintptr_t)around + page + block - 1) & ~(uintptr_t)(block - 1));
	if (mmap(data, span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)start) == MAP_FAILED) {
		int error = errno;

		munmap(around, reserved);
		return -error;
	}
	madvise(data, span, MADV_DONTDUMP);	/* A core dump must not hold the other side's data */
	guard->around = around;
	guard->reserved = reserved;
	guard->data = data + (offset - start);
	atomic_store(&guard->gone, 0);
	publish(guard, (uintptr_t)data, span);
	return 0;
}

/**
 * fp_guard_map() - Map a part of another process's file, to read and to write
 * @fd:		File; may be closed afterwards
 * @offset:	Where the part begins, bytes
 * @length:	Its bytes
 * @guard:	Set to the mapping
 *
 * No page is touched: the memory may be sparse, and the kernel charges us for pages that we touch.
 *
 * Return: 0, -EOVERFLOW: @offset or @length is out of range, -EMEDIUMTYPE: no file in memory or on a local disk,
 *         -ENODATA: the file is shorter, -ENFILE: FP_GUARDS are in use, or -errno of mmap() (EACCES: not open to read and write)
 */
int fp_guard_map(int fd, uint64_t offset, uint64_t length, struct fp_guard **guard)
{
	uint64_t block;
	int rc;

	if (!length || length > FP_GUARD_MAX || offset > FP_GUARD_MAX)
		return -EOVERFLOW;
	rc = check_file(fd, offset + length, &block);
	if (rc)
		return rc;
	rc = claim(guard);
	if (rc)
		return rc;
	rc = map_between(*guard, fd, offset, length, block);
	if (rc) {
		yield(*guard);
		*guard = NULL;
	}
	return rc;
}

/**
 * fp_guard_unmap() - Remove a mapping
 * @guard:	Mapping that no burst uses or will use: its queues are stopped or closed
 */
void fp_guard_unmap(struct fp_guard *guard)
{
	publish(guard, 0, 0);
	munmap(guard->around, guard->reserved);
	yield(guard);
}

/**
 * fp_guard_count() - Count the mappings of this process
 *
 * Return: number of mappings
 */
int fp_guard_count(void)
{
	int count;

	pthread_mutex_lock(&changing);
	count = used;
	pthread_mutex_unlock(&changing);
	return count;
}

/**
 * fp_guard_unblock() - Let SIGBUS reach its handler in the calling thread
 *
 * A program that reads its signals in one thread blocks all signals in the others, and a fault in such a thread ends the process.
 * This costs one system call per thread, at its first burst.
 */
void fp_guard_unblock(void)
{
	static _Thread_local bool done;
	sigset_t set;

	if (done)
		return;
	sigemptyset(&set);
	sigaddset(&set, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	done = true;
}
