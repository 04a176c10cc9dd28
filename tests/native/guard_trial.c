// SPDX-License-Identifier: Apache-2.0
/* guard_trial.c - tests that Python cannot make: handlers of every kind, and thousands of faults; exits 0 on success */

#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard.h"

#define PAGE 4096
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static sigjmp_buf back;
static volatile uintptr_t where;
static volatile int calls;

/* A file in memory */
static int file(size_t size)
{
	int fd = memfd_create("trial", 0);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)size));
	return fd;
}

/* A guarded mapping of the first page of a file */
static struct fp_guard *guard(int fd)
{
	struct fp_guard *made;

	CHECK(!fp_guard_map(fd, 0, PAGE, &made));
	return made;
}

/* A page that faults when it is read, in a mapping that is not guarded */
static volatile uint8_t *foreign(void)
{
	int fd = file(PAGE);
	volatile uint8_t *data = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(data != MAP_FAILED && !ftruncate(fd, 0));
	close(fd);
	return data;
}

/* A handler with SA_SIGINFO that leaves by a jump */
static void with_info(int number, siginfo_t *info, void *context)
{
	CHECK(number == SIGBUS && context);
	where = (uintptr_t)info->si_addr;
	calls++;
	siglongjmp(back, 1);
}

/* A handler without SA_SIGINFO that leaves by a jump */
static void without(int number)
{
	CHECK(number == SIGBUS);
	calls++;
	siglongjmp(back, 1);
}

/* A handler that enters itself again, as SA_NODEFER allows, and leaves by a jump the second time */
static void again(int number)
{
	calls++;
	if (calls == 1)
		raise(number);
}

/* Make one of two functions the handler of SIGBUS, before ours */
static void install(void (*plain)(int), void (*info)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	if (info)
		action.sa_sigaction = info;
	else
		action.sa_handler = plain;
	action.sa_flags = flags | (info ? SA_SIGINFO : 0);
	CHECK(!sigaction(SIGBUS, &action, NULL));
}

/* Foreign faults reach the previous handler, @times times; a fault in a guarded mapping does not */
static void chained(int times)
{
	struct fp_guard *ours;
	int fd = file(PAGE), i;

	ours = guard(fd);
	for (i = 0; i < times; i++) {
		volatile uint8_t *data = foreign();

		calls = 0;
		where = 0;
		if (!sigsetjmp(back, 1)) {
			(void)*data;
			CHECK(!"came back");
		}
		CHECK(calls == 1 && (!where || where == (uintptr_t)data));
	}
	CHECK(!ftruncate(fd, 0) && ours->data[0] == 0 && ours->gone);
	fp_guard_unmap(ours);
}

static _Atomic int over;

/* Thread: makes mappings and removes them */
static void *comes_and_goes(void *none)
{
	while (!over) {
		int fd = file(PAGE);
		struct fp_guard *g = guard(fd);

		g->data[1] = 1;
		close(fd);
		fp_guard_unmap(g);
	}
	return none;
}

/* Faults are survived while mappings come and go in other threads */
static void race(void)
{
	pthread_t threads[2];
	int i;

	for (i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, comes_and_goes, NULL));
	for (i = 0; i < 2000; i++) {
		int fd = file(PAGE);
		struct fp_guard *g = guard(fd);

		CHECK(!g->gone);
		CHECK(!ftruncate(fd, 0) && g->data[PAGE - 1] == 0 && g->gone);
		close(fd);
		fp_guard_unmap(g);
	}
	over = 1;
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(!fp_guard_count());
}

/* The table can be filled, its last entry works, and one more is refused */
static void many(void)
{
	static struct fp_guard *all[FP_GUARDS];
	struct fp_guard *more;
	int fd = file(PAGE), i;

	for (i = 0; i < FP_GUARDS; i++)
		all[i] = guard(fd);
	CHECK(fp_guard_map(fd, 0, PAGE, &more) == -ENFILE);
	CHECK(!ftruncate(fd, 0) && all[FP_GUARDS - 1]->data[0] == 0);
	CHECK(all[FP_GUARDS - 1]->gone && !all[0]->gone);
	for (i = 0; i < FP_GUARDS; i++)
		fp_guard_unmap(all[i]);
	CHECK(!fp_guard_count());
}

/* A previous handler that enters itself again is taken for one that calls ours: the process ends, in a child */
static void nested(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		raise(SIGBUS);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* Run the trial of that name; "before" and "behind" end with the signal that they provoke */
int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	volatile uint8_t *data = NULL;

	if (!strcmp(name, "siginfo")) {
		install(NULL, with_info, 0);
		chained(100);
	} else if (!strcmp(name, "plain")) {
		install(without, NULL, 0);
		chained(100);
	} else if (!strcmp(name, "resethand")) {
		struct sigaction now;

		install(without, NULL, SA_RESETHAND);
		guard(file(PAGE));
		if (!sigsetjmp(back, 1))
			(void)*foreign();
		CHECK(calls == 1 && !sigaction(SIGBUS, NULL, &now) && now.sa_handler == SIG_DFL);
	} else if (!strcmp(name, "nodefer")) {
		install(again, NULL, SA_NODEFER);
		guard(file(PAGE));
		nested();
	} else if (!strcmp(name, "race")) {
		race();
	} else if (!strcmp(name, "many")) {
		many();
	} else if (!strcmp(name, "before")) {
		data = guard(file(PAGE))->data - 1;
	} else if (!strcmp(name, "behind")) {
		data = guard(file(PAGE))->data + PAGE;
	} else {
		return 2;
	}
	return data ? *data : 0;
}
