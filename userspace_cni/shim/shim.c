// SPDX-License-Identifier: Apache-2.0
/* shim.c - what the container runtime executes: one CNI call, handed to the agent
 *
 * THEORY OF OPERATION
 *
 * The runtime starts this program with a verb in CNI_COMMAND and the configuration on stdin; stdout and the exit code are the
 * answer. A long-lived agent does the work. This program takes less than a millisecond and needs nothing on the host:
 *
 *   1. environment    the verb and the forwarded variables are checked; VERSION is answered at once, from a constant
 *   2. stdin          is read to its end
 *   3. request        one HTTP/1.1 POST on the agent's unix socket: a header per variable, stdin as the body
 *   4. answer         its body is printed; status 2xx exits 0, any other exits 1; warnings in its head go to stderr
 *
 * No JSON is parsed here, and no part of an answer is printed before all of it is there: the caller gets one document or none.
 *
 * Two calls must not be lost, whatever happens to the agent:
 *
 *   DEL   without a definite answer (the agent is absent, silent, or dies meanwhile) goes to the spool, a directory of files whose
 *         DELs the agent carries out later, and succeeds. It fails when the spool cannot be written: then the runtime tries again.
 *   ADD   whose answer cannot be written to stdout is undone by a DEL of our own, because the runtime has not learned of it. (An
 *         ADD that is killed or gives up closes the connection: the agent sees that and undoes it.)
 *
 * An agent that is restarted refuses connections for a moment. ADD and CHECK wait for it, for a runtime that is told "try again"
 * comes again after 15 s. They wait only where an agent was since the boot: the file of its socket's lock stays when it ends. A
 * connection that the kernel resets was closed with bytes unread, so that no verb has run: the request is sent once more.
 *
 * A file of the spool is complete and durable before it has its name: temporary name, fsync, rename, fsync of the directory. All of
 * that, and the counting before it, is done under a lock on the directory. So the bound is exact, and a temporary file seen under
 * the lock has no living writer. The lock is the kernel's and dies with its holder.
 *
 * Every wait is in ppoll(2) and ends at a deadline on CLOCK_MONOTONIC, after those of the drivers and the agent, and before the
 * runtime's. SIGTERM, SIGINT and SIGHUP are unblocked only there: they end the wait; then a DEL is spooled, any other verb fails.
 *
 * The call is for the agent at the socket of the settings. That agent must have the same state directory, unless the environment
 * names a socket and nothing else, and the same run directory if the environment names one. The request carries these; an agent
 * that has others refuses it. So a call with half an environment gets an error that names both sides, and never reaches another
 * agent's switch.
 *
 * There is no allocation: buffers are static and as large as the protocol allows; the kernel gives pages only for the used part.
 *
 * CONTENTS
 *
 *   bounds and fixed texts   deadlines, sizes, what is answered without an agent
 *   tables                   the settings written into this file, the verbs, the forwarded variables
 *   types                    and the one call that is served
 *   texts                    messages, and JSON strings
 *   time and signals         clocks, which boot this is, waiting that a signal ends
 *   environment              variables, and the arguments in CNI_ARGS
 *   streams                  stdin, stdout, stderr: reading, answering, log lines, errors of our own
 *   refusals                 calls that no agent could serve
 *   settings                 from the environment and from this file
 *   request                  the bytes that are sent, and spooled
 *   agent                    connection, exchange, the head of its answer
 *   spool                    DELs that wait for the agent
 *   verbs                    how each is served, and main()
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* -- bounds and fixed texts --------------------------------------------------------------------------------------------------- */

/* Milliseconds since the start; tests shorten them. The time between PATIENCE_MS and DEADLINE_MS is for the spool. */
#ifndef DEADLINE_MS
#define DEADLINE_MS	45000	/* the end, whatever happens */
#endif
#define LOCK_MS		(DEADLINE_MS - 500)	/* the end of waiting for the spool's lock: the rest is for writing an error */
#ifndef PATIENCE_MS
#define PATIENCE_MS	42000	/* the end of waiting for stdin, the agent and stdout: more than the agent's own 40 s */
#endif
#ifndef STATUS_MS
#define STATUS_MS	10000	/* the same for STATUS, during which runtimes delay all other calls */
#endif
#ifndef BACKLOG_MS
#define BACKLOG_MS	5000	/* how long to try to connect to an agent that does not accept */
#endif
#ifndef RETURN_MS
#define RETURN_MS	3000	/* how long an agent that has ended may take to come back */
#endif
#define NAP_MS		32	/* the longest pause between two attempts to connect */

#define STDIN_MAX	(4 << 20)
#define ANSWER_MAX	(16 << 20)
#define ANSWER_HEAD_MAX	(64 << 10)
#define VALUES_MAX	(64 << 10)			/* all forwarded variables together */
#define HEAD_MAX	(3 * (VALUES_MAX + AGENT_DIRS_MAX) + 2048)	/* each byte as %XX, and the headers' names */
#define NUMBER_MAX	16
#define DIRECTORY_MAX	250				/* of a setting, with the NUL */
#define SOCKET_NAME	"/agent.sock"			/* below run_dir */
#define LOCK_SUFFIX	".lock"				/* behind the socket's path */
#define SPOOL_NAME	"/spool"			/* below state_dir */
#define SPOOL_PATH_MAX	(DIRECTORY_MAX + sizeof(SPOOL_NAME) - 1)
#define AGENT_DIRS_MAX	(2 * DIRECTORY_MAX)		/* both directories that the agent must have */
#define SOCKET_PATH_MAX	sizeof(((struct sockaddr_un *)0)->sun_path)
#define SUMMARY_MAX	96				/* of a build, with the NUL */
#define BOOT_ID_LEN	36
#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define CHUNK		4096	/* PIPE_BUF: what a pipe that is ready takes without blocking */
#define ALNUM		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#define PLAIN		ALNUM "_-./:,;@+%"	/* characters that need no quotes in a log */
#define IFNAME_MAX	15	/* bytes of an interface's name */
#define SHOWN_MAX	128	/* of a value in a message */
#define WARNING		"userspace-cni-warning-"	/* a header of an answer, and a number behind it */
#define WARNINGS_MAX	16	/* of one answer */

#define BOOT_ID_FILE	"/proc/sys/kernel/random/boot_id"
#define ABOUT		"userspace-cni: CNI plugin for vhost-user interfaces on OVS-DPDK (type 'userspace')\n"
#define VERSIONS	"\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
#define VERSION_ANSWER	"{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[" VERSIONS
#define FORMER_ANSWER	"{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\"," VERSIONS
#define FORMER_NAME	"ovn_cni"	/* the file's name for networks of that type, which may have earlier versions */
#define VERSION_TEXT	"CNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
#define HINT		"A container runtime runs it with CNI_COMMAND set; for people: userspace-cni --help\n"
#define VERSION_LATEST	"1.1.0"

/* -- tables ------------------------------------------------------------------------------------------------------------------- */

/* CNI SPEC 1.1.0, section "Error" */
enum {
	ERROR_ENVIRONMENT = 4,
	ERROR_INPUT = 5,
	ERROR_DECODE = 6,
	ERROR_CONFIG = 7,
	ERROR_AGAIN = 11,
	ERROR_NOT_SERVING = 50,
};

/* The settings, which `userspace-cni install` writes over these defaults in the file: each text padded with NUL, the number in
 * decimal. They are keys of docs/settings.md, not values derived from them, because a variable of the environment replaces one
 * key, here as in the agent. shim/__init__.py knows this layout. Volatile: the compiler must not use the defaults as constants.
 */
static const volatile struct {
	char magic[32];
	char socket[SOCKET_PATH_MAX];	/* "" for the one in run_dir */
	char run_dir[DIRECTORY_MAX];
	char state_dir[DIRECTORY_MAX];
	char spool_max[NUMBER_MAX];
} installed = {
	"userspace-cni/shim/settings/2",
	"",
	"/run/userspace-cni",
	"/var/lib/cni/userspace",
	"1024",
};

/* The build of the program that this file is of, in one line, written by `userspace-cni install` as the settings are */
static const volatile struct {
	char magic[32];
	char summary[SUMMARY_MAX];
} built = {
	"userspace-cni/shim/build/1",
	"",
};

static const struct verb {
	const char *name;
	const char *path;
	int away_code;	/* code of the error when the agent does not answer */
	int patience;	/* when to give up, in milliseconds since the start */
	int absence;	/* how long to wait for an agent that has ended, in milliseconds */
} verbs[] = {
	{ "ADD",	"add",		ERROR_AGAIN,		PATIENCE_MS,	RETURN_MS },
	{ "DEL",	"del",		ERROR_AGAIN,		PATIENCE_MS,	0 },
	{ "CHECK",	"check",	ERROR_AGAIN,		PATIENCE_MS,	RETURN_MS },
	{ "GC",		"gc",		ERROR_AGAIN,		PATIENCE_MS,	0 },
	{ "STATUS",	"status",	ERROR_NOT_SERVING,	STATUS_MS,	0 },
	{ "VERSION",	"",		0,			0,		0 },
};
#define ADD		(&verbs[0])
#define DEL		(&verbs[1])
#define VERSION		(&verbs[5])

static const struct forwarded {
	const char *variable;
	const char *header;
} forwarded[] = {
	{ "CNI_CONTAINERID",	"Cni-Containerid" },
	{ "CNI_NETNS",		"Cni-Netns" },
	{ "CNI_IFNAME",		"Cni-Ifname" },
	{ "CNI_ARGS",		"Cni-Args" },
	{ "CNI_PATH",		"Cni-Path" },
	{ "CNI_NETNS_OVERRIDE",	"Cni-Netns-Override" },
	{ "TRACEPARENT",	"Traceparent" },
	{ "TRACESTATE",		"Tracestate" },
	{ "BAGGAGE",		"Baggage" },
};

/* -- types -------------------------------------------------------------------------------------------------------------------- */

/**
 * struct note - A message, or the reason for a failure
 * @text:	Its text; cut off when it does not fit
 */
struct note {
	char text[1024];
};

/**
 * struct settings - Settings from the environment, or else from this file, key by key
 * @socket:	Path of the agent's socket
 * @state_dir:	State directory, which the agent must have too
 * @spool:	Directory below @state_dir for the DELs
 * @spool_max:	How many DELs it takes
 * @run_dir:	Run directory if the environment names one, else "": then the agent may have any
 */
struct settings {
	char socket[SOCKET_PATH_MAX];
	char state_dir[DIRECTORY_MAX];
	char spool[SPOOL_PATH_MAX];
	unsigned long spool_max;
	char run_dir[DIRECTORY_MAX];
};

/**
 * struct request - One call as it is sent to the agent
 * @head:	Request line, headers and the blank line
 * @head_len:	Bytes of @head
 * @called:	When the runtime called, in nanoseconds of CLOCK_BOOTTIME
 * @body:	All of stdin
 * @body_len:	Bytes of @body
 */
struct request {
	char head[HEAD_MAX];
	size_t head_len;
	uint64_t called;
	char body[STDIN_MAX + 1];	/* the extra byte shows that stdin is too long */
	size_t body_len;
};

/**
 * struct answer - The agent's answer
 * @bytes:	Head and body, as received
 * @len:	Bytes in @bytes
 * @status:	HTTP status, once the head is complete; 0 before
 * @body:	Where the body begins in @bytes
 * @body_len:	Bytes of the body, as announced
 */
struct answer {
	char bytes[ANSWER_HEAD_MAX + ANSWER_MAX];
	size_t len;
	int status;
	size_t body;
	size_t body_len;
};

/**
 * struct line - A line of the log, no longer than a pipe takes without blocking
 * @bytes:	The line so far
 * @end:	Where the next byte goes
 * @json:	Whether the line is a JSON object
 */
struct line {
	char bytes[CHUNK];
	char *end;
	bool json;
};

static struct request request;
static struct answer answer;
static struct timespec started;
static sigset_t original_mask;		/* the signal mask that we were started with */
static volatile sig_atomic_t stopped;	/* the signal that asked us to stop */

/* -- texts -------------------------------------------------------------------------------------------------------------------- */

/**
 * note() - Write a message
 * @note:	Set to the message
 * @format:	As in printf(3)
 *
 * Return: the text of @note
 */
__attribute__((format(printf, 2, 3)))
static const char *note(struct note *note, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(note->text, sizeof(note->text), format, arguments);
	va_end(arguments);

	return note->text;
}

/**
 * reason() - Describe an error number
 * @error:	Error number
 *
 * Return: text, never "no such file or directory": with these words in its error, runtimes take a failed DEL for done
 */
static const char *reason(int error)
{
	return error == ENOENT ? "path is absent" : strerror(error);
}

/**
 * quote() - Write text as a JSON string
 * @out:	Set to the string
 * @room:	Bytes of room in @out, nine at least; a byte of @text takes six at most, and text without room is cut off
 * @text:	Text; bytes that are not ASCII are written as \xNN, as they may not be UTF-8
 *
 * Return: the byte after the string
 */
static char *quote(char *out, size_t room, const char *text)
{
	const char *last = out + room - 8;	/* behind it is room for one more character, the quote and a NUL */

	*out++ = '"';
	for (; *text && out <= last; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			out += sprintf(out, "\\%c", c);
		else if (c < 0x20)
			out += sprintf(out, "\\u%04x", c);
		else if (c >= 0x7f)
			out += sprintf(out, "\\\\x%02x", c);
		else
			*out++ = *text;
	}
	*out++ = '"';
	*out = '\0';

	return out;
}

/* -- time and signals --------------------------------------------------------------------------------------------------------- */

/**
 * elapsed() - Measure the time since the start
 *
 * Return: milliseconds
 */
static int64_t elapsed(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);

	return (int64_t)(now.tv_sec - started.tv_sec) * 1000 + (now.tv_nsec - started.tv_nsec) / 1000000;
}

/**
 * boottime() - Read the time since the machine was started, which no clock setting changes
 *
 * Return: nanoseconds
 */
static uint64_t boottime(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);

	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/**
 * read_boot_id() - Read the ID of the machine's current boot
 * @id:		Set to the ID, with a NUL
 *
 * Return: 0, else -1 with errno set
 */
static int read_boot_id(char id[BOOT_ID_LEN + 1])
{
	int fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, id, BOOT_ID_LEN);
	close(fd);
	id[BOOT_ID_LEN] = '\0';
	if (n == BOOT_ID_LEN && strspn(id, "0123456789abcdef-") == BOOT_ID_LEN)
		return 0;
	errno = EIO;

	return -1;
}

/**
 * stop() - Handle a signal that ends a call
 * @signal:	Signal number
 */
static void stop(int signal)
{
	stopped = signal;
}

/**
 * hold_signals() - Block the signals that end a call, except within await()
 *
 * A signal that was ignored when we were started (nohup) remains ignored.
 */
static void hold_signals(void)
{
	static const int stopping[] = { SIGTERM, SIGINT, SIGHUP };
	struct sigaction action = { .sa_handler = stop }, before;
	sigset_t held;
	size_t i;

	sigemptyset(&held);
	for (i = 0; i < COUNT(stopping); i++)
		sigaddset(&held, stopping[i]);
	sigprocmask(SIG_BLOCK, &held, &original_mask);

	for (i = 0; i < COUNT(stopping); i++) {
		if (!sigaction(stopping[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaction(stopping[i], &action, NULL);
	}

	action.sa_handler = SIG_IGN;
	sigaction(SIGPIPE, &action, NULL);	/* write(2) returns an error instead */
	sigaction(SIGXFSZ, &action, NULL);
}

/**
 * await() - Wait until a file descriptor is ready
 * @fd:		Descriptor; -1 only waits
 * @events:	POLLIN, POLLOUT
 * @until:	When to give up, in milliseconds since the start
 *
 * After @until it still polls once, so that input that is ready is not lost.
 *
 * Return: true when the next call on @fd will not block, though it may fail; false when time is up or a signal asked us to stop
 */
static bool await(int fd, short events, int64_t until)
{
	struct pollfd poll = { .fd = fd, .events = events };

	while (!stopped) {
		int64_t left = until > elapsed() ? until - elapsed() : 0;
		struct timespec limit = { .tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000 };

		if (ppoll(&poll, 1, &limit, &original_mask) > 0)
			return true;
		if (elapsed() >= until)
			return false;
	}

	return false;
}

/* -- environment -------------------------------------------------------------------------------------------------------------- */

/**
 * value_of() - Read a variable of the environment
 * @name:	Name
 *
 * Return: its value; "" for an unset variable too, because runtimes export unused variables as ""
 */
static const char *value_of(const char *name)
{
	const char *value = getenv(name);

	return value ? value : "";
}

/**
 * argument_of() - Read an argument in CNI_ARGS
 * @name:	Name of the argument
 * @value:	Set to its last value, "" for none
 *
 * Return: the text of @value
 */
static const char *argument_of(const char *name, struct note *value)
{
	const char *item = value_of("CNI_ARGS");
	size_t len = strlen(name);

	value->text[0] = '\0';
	while (*item) {
		size_t all = strcspn(item, ";");

		if (!strncmp(item, name, len) && item[len] == '=')
			note(value, "%.*s", (int)(all - len - 1), item + len + 1);
		item += all + (item[all] == ';');
	}

	return value->text;
}

/* -- streams ------------------------------------------------------------------------------------------------------------------ */

/**
 * fill_standard_fds() - Keep our own descriptors off 0, 1 and 2
 *
 * A descriptor that was closed at the start is opened on "/" with O_PATH: reading and writing fail as on a closed one, and "/"
 * exists in an empty chroot too.
 */
static void fill_standard_fds(void)
{
	int fd;

	for (fd = 0; fd < 3; fd++) {
		if (fcntl(fd, F_GETFD) < 0 && open("/", O_PATH | O_CLOEXEC) != fd)
			_exit(1);
	}
}

/**
 * write_out() - Write to a descriptor of the runtime's, which may block; we must not set O_NONBLOCK, as the runtime shares it
 * @fd:		Descriptor
 * @bytes:	What to write
 * @len:	Bytes of it
 * @until:	When to give up, in milliseconds since the start
 *
 * Return: 0, else the error number
 */
static int write_out(int fd, const char *bytes, size_t len, int64_t until)
{
	while (len) {
		ssize_t n;

		if (!await(fd, POLLOUT, until))
			return stopped ? EINTR : ETIMEDOUT;

		n = write(fd, bytes, len < CHUNK ? len : CHUNK);
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		} else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
			return n ? errno : EIO;
		}
	}

	return 0;
}

/**
 * add_field() - Add a field to a line of the log
 * @line:	Line
 * @key:	Name of the field
 * @value:	Value; "" adds no field
 * @most:	Bytes that the value may take
 */
static void add_field(struct line *line, const char *key, const char *value, size_t most)
{
	if (!*value)
		return;

	line->end += sprintf(line->end, line->json ? "%s\"%s\": " : "%s%s=",
			     line->end == line->bytes ? (line->json ? "{" : "") : line->json ? ", " : " ", key);
	if (!line->json && !value[strspn(value, PLAIN)] && strlen(value) < most)
		line->end += sprintf(line->end, "%s", value);
	else
		line->end = quote(line->end, most, value);
}

/**
 * log_line() - Write one line for people to stderr, in the form of the agent's log (base/log.py)
 * @level:	error, warning or info
 * @message:	What was tried and what happened
 * @details:	What to look at, "" for nothing
 *
 * Never waits and never fails: the log must not change the result of a verb.
 */
static void log_line(const char *level, const char *message, const char *details)
{
	static struct line line;
	struct pollfd ready = { .fd = STDERR_FILENO, .events = POLLOUT };
	struct note when, pod, name, namespace;
	struct timespec now;
	struct tm tm;

	line.end = line.bytes;
	line.json = !strcmp(value_of("USERSPACE_CNI_LOG_FORMAT"), "json");

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	note(&when, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
	     tm.tm_sec, (int)(now.tv_nsec / 1000000));
	pod.text[0] = '\0';
	if (*argument_of("K8S_POD_NAME", &name))
		note(&pod, "%.250s/%.250s", argument_of("K8S_POD_NAMESPACE", &namespace), name.text);

	/* all limits together, with the keys, are less than a line's size */
	add_field(&line, "time", when.text, 40);
	add_field(&line, "level", level, 20);
	add_field(&line, "msg", message, 1300);
	add_field(&line, "verb", value_of("CNI_COMMAND"), 40);
	add_field(&line, "pod", pod.text, 520);
	add_field(&line, "container", value_of("CNI_CONTAINERID"), 280);
	add_field(&line, "interface", value_of("CNI_IFNAME"), 100);
	add_field(&line, "details", details, 1600);
	line.end += sprintf(line.end, line.json ? "}\n" : "\n");

	if (poll(&ready, 1, 0) > 0 && write(STDERR_FILENO, line.bytes, (size_t)(line.end - line.bytes)) < 0)
		return;
}

/**
 * fail() - Answer with an error of our own
 * @code:	CNI error code
 * @message:	What was tried and what happened
 * @details:	What to look at, "" for nothing
 *
 * Return: exit code of this program
 */
static int fail(int code, const char *message, const char *details)
{
	static char json[2 * 6 * sizeof(struct note) + 96];
	const char *last = json + sizeof(json);
	char *end = json;

	stopped = 0;	/* else write_out() would not write: this error may be about that very signal */
	log_line("error", message, details);

	end += sprintf(end, "{\"cniVersion\":\"" VERSION_LATEST "\",\"code\":%d,\"msg\":", code);
	end = quote(end, (size_t)(last - end), message);
	if (*details) {
		end += sprintf(end, ",\"details\":");
		end = quote(end, (size_t)(last - end), details);
	}
	end += sprintf(end, "}\n");
	write_out(STDOUT_FILENO, json, (size_t)(end - json), DEADLINE_MS);

	return 1;
}

/**
 * read_stdin() - Read the network configuration to its end
 *
 * Return: 0, else the exit code of this program: the error is written then
 */
static int read_stdin(void)
{
	const char *when = NULL;
	struct note why;

	while (!when && request.body_len <= STDIN_MAX) {
		ssize_t n;

		if (!await(STDIN_FILENO, POLLIN, PATIENCE_MS)) {
			if (!stopped)
				return fail(ERROR_INPUT, note(&why, "reading the network configuration from stdin: no end within %d s",
							      PATIENCE_MS / 1000), "the runtime has to close it");
			when = "before stdin ended";
			continue;
		}

		n = read(STDIN_FILENO, request.body + request.body_len, sizeof(request.body) - request.body_len);
		if (n > 0) {
			request.body_len += (size_t)n;
		} else if (!n) {
			await(-1, 0, elapsed());	/* a signal with the end: a dying runtime may have cut stdin off */
			if (!stopped)
				return 0;
			when = "as stdin ended";
		} else if (errno != EINTR && errno != EAGAIN) {
			return fail(ERROR_INPUT, note(&why, "reading the network configuration from stdin: %s", reason(errno)), "");
		}
	}

	if (when)
		return fail(ERROR_AGAIN, note(&why, "stopped by signal %d %s", (int)stopped, when),
			    "nothing was done; try again later");

	return fail(ERROR_CONFIG, "the network configuration on stdin is too large",
		    note(&why, "it may have %d bytes", STDIN_MAX));
}

/* -- refusals ----------------------------------------------------------------------------------------------------------------- */

/**
 * check_values() - Refuse variables that cannot be sent in a header
 *
 * Return: 0, else the exit code of this program: the error is written then
 */
static int check_values(void)
{
	const char *longest = forwarded[0].variable;
	size_t i, sum = 0, most = 0;
	struct note what, why;

	for (i = 0; i < COUNT(forwarded); i++) {
		const char *value = value_of(forwarded[i].variable);
		size_t len = strlen(value), at;

		for (at = 0; at < len; at++) {
			unsigned char c = (unsigned char)value[at];

			if (c < 0x20 || c == 0x7f)
				return fail(ERROR_ENVIRONMENT, note(&what, "%s holds a control character", forwarded[i].variable),
					    note(&why, "byte 0x%02x at offset %zu", c, at));
		}
		if (len > most) {
			most = len;
			longest = forwarded[i].variable;
		}
		sum += len;
	}

	if (sum > VALUES_MAX)
		return fail(ERROR_ENVIRONMENT, note(&what, "%s is too long", longest),
			    note(&why, "it has %zu bytes; all CNI_* and trace variables together may have %d", most, VALUES_MAX));

	return 0;
}

/**
 * check_required() - Refuse a DEL without its required variables, with the agent's own error
 *
 * Return: 0, else the exit code of this program: the error is written then
 */
static int check_required(void)
{
	bool id = *value_of("CNI_CONTAINERID"), ifname = *value_of("CNI_IFNAME");
	struct note what;

	if (id && ifname)
		return 0;

	return fail(ERROR_ENVIRONMENT, note(&what, "required environment variables are missing: [%s%s%s]",
					    id ? "" : "CNI_CONTAINERID", id || ifname ? "" : ",", ifname ? "" : "CNI_IFNAME"),
		    "CNI_COMMAND is DEL");
}

/**
 * refuse_useless() - Find out whether no agent could ever serve a DEL, so that it must not be spooled
 * @why:	Set to the reason
 *
 * Return: CNI code, 0 for a DEL that may be served
 */
static int refuse_useless(struct note *why)
{
	const char *id = value_of("CNI_CONTAINERID"), *ifname = value_of("CNI_IFNAME");
	const char *begin = request.body, *end = request.body + request.body_len;

	if (!strchr(ALNUM, *id) || id[strspn(id, ALNUM "_.-")]) {
		note(why, "CNI_CONTAINERID '%.*s' is not a container ID", SHOWN_MAX, id);
		return ERROR_ENVIRONMENT;
	}
	if (strlen(ifname) > IFNAME_MAX || strpbrk(ifname, "/: ")) {
		note(why, "CNI_IFNAME '%.*s' is not an interface name", SHOWN_MAX, ifname);
		return ERROR_ENVIRONMENT;
	}
	while (begin < end && strchr(" \t\r\n", *begin))
		begin++;
	while (end > begin && strchr(" \t\r\n", end[-1]))
		end--;
	if (end - begin < 2 || *begin != '{' || end[-1] != '}') {
		note(why, "the network configuration on stdin is not a JSON object");
		return ERROR_DECODE;
	}

	return 0;
}

/* -- settings ----------------------------------------------------------------------------------------------------------------- */

/**
 * is_path() - Whether a setting can be a path
 * @path:	Setting
 * @len:	Bytes that it may have
 *
 * Return: true for an absolute path without ".."
 */
static bool is_path(const char *path, size_t len)
{
	const char *part = path;

	if (*path != '/' || strlen(path) > len)
		return false;

	while ((part = strstr(part, "/.."))) {
		part += 3;
		if (*part == '/' || !*part)
			return false;
	}

	return true;
}

/**
 * same_path() - Whether two absolute paths are spelled alike but for slashes
 * @one:	Path
 * @other:	Another
 *
 * Return: true when they are
 */
static bool same_path(const char *one, const char *other)
{
	for (;; one++, other++) {
		if (*one == '/' || *other == '/') {
			size_t slashes = strspn(one, "/"), others = strspn(other, "/");

			if ((!slashes && *one) || (!others && *other))
				return false;
			one += slashes;
			other += others;
		}
		if (*one != *other)
			return false;
		if (!*one)
			return true;
	}
}

/**
 * copy_installed() - Read a text out of the settings in this file
 * @to:		Set to the text
 * @from:	Field of installed
 * @size:	Its size
 */
static void copy_installed(char *to, const volatile char *from, size_t size)
{
	while (--size && *from)
		*to++ = *from++;
	*to = '\0';
}

/**
 * read_directory() - Read a setting that is a directory
 * @variable:	Variable of the environment
 * @from:	Field of installed
 * @to:		Set to the directory, DIRECTORY_MAX bytes
 * @wrong:	Set to the variable's name when its value is not allowed
 */
static void read_directory(const char *variable, const volatile char *from, char *to, const char **wrong)
{
	const char *value = value_of(variable);

	copy_installed(to, from, DIRECTORY_MAX);
	if (is_path(value, DIRECTORY_MAX - 1) && value[strspn(value, "/.")])
		strcpy(to, value);
	else if (*value)
		*wrong = variable;
}

/**
 * socket_in() - Make the path of the agent's socket in a run directory
 * @run_dir:	Directory
 * @socket:	Set to the path, SOCKET_PATH_MAX bytes
 *
 * Return: false when its path is too long for a socket
 */
static bool socket_in(const char *run_dir, char *socket)
{
	if (strlen(run_dir) + sizeof(SOCKET_NAME) > SOCKET_PATH_MAX)
		return false;
	strcpy(socket, run_dir);
	strcat(socket, SOCKET_NAME);

	return true;
}

/**
 * read_settings() - Read the settings in force
 * @settings:	Set to them
 * @what:	Set to the variable whose value is not allowed
 * @why:	Set to the rule for its value
 *
 * The rule is the agent's (docs/settings.md): the environment replaces settings in this file, key by key; the socket is `socket`,
 * or without one it is in `run_dir`.
 *
 * Return: true when all can be used
 */
static bool read_settings(struct settings *settings, struct note *what, struct note *why)
{
	const char *socket = value_of("USERSPACE_CNI_SOCKET"), *max = value_of("USERSPACE_CNI_SPOOL_MAX"), *wrong = NULL;
	const size_t socket_max = sizeof(settings->socket) - 1;
	char number[NUMBER_MAX], run_dir[DIRECTORY_MAX], *end;

	note(why, "it must be an absolute path without '..', a directory of its own, of at most %d bytes", DIRECTORY_MAX - 1);
	read_directory("USERSPACE_CNI_STATE_DIR", installed.state_dir, settings->state_dir, &wrong);
	read_directory("USERSPACE_CNI_RUN_DIR", installed.run_dir, run_dir, &wrong);
	strcpy(settings->run_dir, *value_of("USERSPACE_CNI_RUN_DIR") ? run_dir : "");
	sprintf(settings->spool, "%s" SPOOL_NAME, settings->state_dir);

	copy_installed(settings->socket, installed.socket, sizeof(installed.socket));
	if (*socket && is_path(socket, socket_max)) {
		strcpy(settings->socket, socket);
	} else if (*socket) {
		wrong = "USERSPACE_CNI_SOCKET";
		note(why, "it must be an absolute path without '..', of at most %zu bytes", socket_max);
	} else if (!*settings->socket && !socket_in(run_dir, settings->socket)) {
		wrong = "USERSPACE_CNI_RUN_DIR";
		note(why, "the agent's socket is in it, and its path may have %zu bytes", socket_max);
	}

	copy_installed(number, installed.spool_max, sizeof(installed.spool_max));
	settings->spool_max = strtoul(*max ? max : number, &end, 10);
	if (*end || (*max && (*max < '0' || *max > '9')) || !settings->spool_max || settings->spool_max >= 1000000) {
		wrong = "USERSPACE_CNI_SPOOL_MAX";
		note(why, "it must be greater than 0 and less than a million");
	}
	if (wrong)
		note(what, "environment variable %s is '%.*s'", wrong, SHOWN_MAX, value_of(wrong));

	return !wrong;
}

/**
 * warn_of_override() - Warn that the environment overrules a setting that this file was installed with
 * @settings:	Settings in force
 *
 * A trial does that on purpose. A variable that is set by mistake would send calls to another agent, and no log would show why.
 */
static void warn_of_override(const struct settings *settings)
{
	const char *variable = *value_of("USERSPACE_CNI_SOCKET") ? "USERSPACE_CNI_SOCKET" : "USERSPACE_CNI_RUN_DIR";
	char socket[SOCKET_PATH_MAX], directory[DIRECTORY_MAX];
	struct note what, why;

	copy_installed(socket, installed.socket, sizeof(installed.socket));
	copy_installed(directory, installed.run_dir, sizeof(installed.run_dir));
	if ((*socket || socket_in(directory, socket)) && !same_path(settings->socket, socket))
		log_line("warning",
			 note(&what, "%s is in the environment: this call goes to the agent on %s", variable, settings->socket),
			 note(&why, "this file was installed for the agent on %s", socket));

	copy_installed(directory, installed.state_dir, sizeof(installed.state_dir));
	if (!same_path(settings->state_dir, directory))
		log_line("warning", note(&what, "USERSPACE_CNI_STATE_DIR is in the environment: this call uses the records in %s",
					 settings->state_dir),
			 note(&why, "this file was installed for those in %s", directory));
}

/* -- request ------------------------------------------------------------------------------------------------------------------ */

/**
 * header() - Write one header, unless its value is empty
 * @out:	Set to the header
 * @name:	Its name
 * @value:	Its value, in three bytes per byte at most; "" for none
 *
 * Return: the byte after it
 */
static char *header(char *out, const char *name, const char *value)
{
	if (!*value)
		return out;

	out += sprintf(out, "%s: ", name);
	for (; *value; value++) {
		if (strchr(ALNUM "._/:;=,-", *value))
			*out++ = *value;
		else
			out += sprintf(out, "%%%02X", (unsigned char)*value);
	}

	return out + sprintf(out, "\r\n");
}

/**
 * make_head() - Write the request line and the headers; check_values() and read_settings() have checked that they fit
 * @path:	Verb, as in the path
 * @settings:	Settings, which say which agent must serve the call
 *
 * The agent orders calls by their time: a DEL that it reads late must not undo an attachment that was made after the DEL.
 */
static void make_head(const char *path, const struct settings *settings)
{
	/* a caller that names a socket may name another agent than this file's, so this file's state directory does not count */
	const bool by_socket = *value_of("USERSPACE_CNI_SOCKET") && !*value_of("USERSPACE_CNI_STATE_DIR");
	char boot_id[BOOT_ID_LEN + 1];
	char *end = request.head;
	size_t i;

	end += sprintf(end, "POST /api/v1/%s HTTP/1.1\r\nHost: userspace-cni\r\nUserspace-Cni-Protocol: 1\r\n", path);
	for (i = 0; i < COUNT(forwarded); i++)
		end = header(end, forwarded[i].header, value_of(forwarded[i].variable));
	end = header(end, "Userspace-Cni-State-Dir", by_socket ? "" : settings->state_dir);
	end = header(end, "Userspace-Cni-Run-Dir", settings->run_dir);
	if (!read_boot_id(boot_id))
		end += sprintf(end, "Called-Boot-Id: %s\r\nCalled-Boottime-Ns: %llu\r\n", boot_id,
			       (unsigned long long)request.called);
	end += sprintf(end, "Content-Length: %zu\r\nConnection: close\r\n\r\n", request.body_len);
	request.head_len = (size_t)(end - request.head);
}

/* -- agent -------------------------------------------------------------------------------------------------------------------- */

/**
 * was_here() - Whether an agent has listened on a socket since the boot
 * @path:	The socket
 *
 * Return: true when the file of its lock is there: it stays when the agent ends, in whatever way
 */
static bool was_here(const char *path)
{
	char lock[SOCKET_PATH_MAX + sizeof(LOCK_SUFFIX)];

	sprintf(lock, "%s" LOCK_SUFFIX, path);

	return !access(lock, F_OK);
}

/**
 * connect_agent() - Open a connection to the agent
 * @path:	Its socket
 * @absence:	How long to wait for an agent that has ended, in milliseconds
 * @until:	When to give up, in milliseconds since the start
 *
 * A full backlog is no refusal: the agent may be busy. The kernel does not signal when there is room, nor when an agent listens
 * again, so we try again and again.
 *
 * Return: file descriptor, else -1 with errno set
 */
static int connect_agent(const char *path, int absence, int64_t until)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int64_t nap = 1, began = elapsed();

	if (fd < 0)
		return -1;

	strcpy(address.sun_path, path);
	while (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		int64_t end = began;

		error = errno;
		if (error == EAGAIN)
			end += BACKLOG_MS;
		else if ((error == ECONNREFUSED || error == ENOENT) && absence && was_here(path))
			end += absence;
		if (elapsed() + nap < end && elapsed() + nap < until) {
			await(-1, 0, elapsed() + nap);
			nap += nap < NAP_MS ? nap : 0;
			if (!stopped)
				continue;
		}
		close(fd);
		errno = stopped ? EINTR : error;
		return -1;
	}

	return fd;
}

/**
 * send_some() - Send as much of the request as the socket takes
 * @fd:		Connection
 * @sent:	Bytes sent so far
 *
 * Return: bytes sent, else -1 with errno set
 */
static ssize_t send_some(int fd, size_t sent)
{
	size_t head = request.head_len, in_body = sent > head ? sent - head : 0;
	struct iovec parts[2] = {
		{ .iov_base = request.head + (sent < head ? sent : head), .iov_len = sent < head ? head - sent : 0 },
		{ .iov_base = request.body + in_body, .iov_len = request.body_len - in_body },
	};
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	return sendmsg(fd, &message, MSG_NOSIGNAL);
}

/**
 * next_line() - Find the end of a header in an answer's head
 * @at:		Where it begins; moved to the next header
 * @end:	End of the head, where the blank line begins
 *
 * Return: its end, before CR and LF; NULL when no header is left
 */
static const char *next_line(const char **at, const char *end)
{
	const char *line_end;

	if (*at >= end)
		return NULL;
	line_end = memmem(*at, (size_t)(end - *at), "\r\n", 2);
	if (!line_end)
		line_end = end;
	*at = line_end + 2;

	return line_end;
}

/**
 * read_length() - Read the head's Content-Length
 * @head:	First header, after the status line
 * @end:	End of the head, where the blank line begins
 *
 * Return: bytes of the body; -1 when the header is absent, there twice, no number, or too large
 */
static long read_length(const char *head, const char *end)
{
	static const char name[] = "content-length:";
	const char *line = head, *line_end;
	long length = -1;

	for (; (line_end = next_line(&head, end)); line = head) {
		const char *at = line + strlen(name);

		if (at < line_end && !strncasecmp(line, name, strlen(name))) {
			if (length >= 0)
				return -1;
			while (at < line_end && *at == ' ')
				at++;
			for (length = at < line_end ? 0 : -1; at < line_end; at++) {
				if (*at < '0' || *at > '9' || length > ANSWER_MAX)
					return -1;
				length = length * 10 + (*at - '0');
			}
		}
	}

	return length > ANSWER_MAX ? -1 : length;
}

/**
 * read_answer() - Parse the answer as far as it has come
 * @fresh:	Bytes that have come since the last call
 *
 * Return: 1 when it is whole, 0 when more has to come, -1 when it is no answer of the agent
 */
static int read_answer(size_t fresh)
{
	static const char line[] = "HTTP/1.1 ";
	size_t known = answer.len < strlen(line) ? answer.len : strlen(line);
	size_t from = answer.len - fresh > 3 ? answer.len - fresh - 3 : 0;
	const char *digit = answer.bytes + strlen(line), *end;
	long length;

	if (!answer.status) {
		if (memcmp(answer.bytes, line, known))
			return -1;
		end = memmem(answer.bytes + from, answer.len - from, "\r\n\r\n", 4);
		if (!end)
			return answer.len < ANSWER_HEAD_MAX ? 0 : -1;
		if (end < digit + 3 || digit[0] < '2' || digit[0] > '5' || digit[1] < '0' || digit[1] > '9' ||
		    digit[2] < '0' || digit[2] > '9' || (digit[3] != ' ' && digit[3] != '\r'))
			return -1;

		length = read_length(memmem(digit, (size_t)(end + 2 - digit), "\r\n", 2) + 2, end);
		if (length < 0)
			return -1;
		answer.status = (digit[0] - '0') * 100 + (digit[1] - '0') * 10 + (digit[2] - '0');
		answer.body = (size_t)(end - answer.bytes) + 4;
		answer.body_len = (size_t)length;
		if (answer.body + answer.body_len > sizeof(answer.bytes))
			return -1;
	}

	return answer.len - answer.body >= answer.body_len;
}

/**
 * digit_of() - Read a hexadecimal digit
 * @digit:	Digit
 *
 * Return: 0 to 15, -1 for anything else
 */
static int digit_of(char digit)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";
	const char *at = digit ? strchr(digits, digit) : NULL;

	return at ? (int)(at - digits) % 16 : -1;
}

/**
 * decode() - Read the value of a header, in which a byte may be written as %XX
 * @note:	Set to the text; cut off when it does not fit
 * @value:	Where it begins
 * @end:	Where it ends
 *
 * A NUL would end the text, so it becomes a blank.
 */
static void decode(struct note *note, const char *value, const char *end)
{
	size_t len = 0;

	while (value < end && len < sizeof(note->text) - 1) {
		int high = -1, low = -1;

		if (*value == '%' && end - value > 2) {
			high = digit_of(value[1]);
			low = digit_of(value[2]);
		}
		if (high >= 0 && low >= 0) {
			note->text[len++] = high || low ? (char)(high << 4 | low) : ' ';
			value += 3;
		} else {
			note->text[len++] = *value ? *value : ' ';
			value++;
		}
	}
	note->text[len] = '\0';
}

/**
 * log_warnings() - Log the agent's warnings
 *
 * They are about the caller's own configuration, whose author does not read the agent's log.
 */
static void log_warnings(void)
{
	const char *head = answer.bytes, *line = head, *end = answer.bytes + answer.body - 4, *line_end;
	struct note warning;
	int count = 0;

	for (; count < WARNINGS_MAX && (line_end = next_line(&head, end)); line = head) {
		const char *colon = memchr(line, ':', (size_t)(line_end - line));

		if (!colon || colon - line < (ptrdiff_t)strlen(WARNING) || strncasecmp(line, WARNING, strlen(WARNING)))
			continue;
		for (colon++; colon < line_end && *colon == ' '; colon++)
			;
		decode(&warning, colon, line_end);
		if (*warning.text) {
			log_line("warning", warning.text, "");
			count++;
		}
	}
}

/* Why there is no answer to a request that the agent never had whole: not all of it could be sent, or the kernel resets the
 * connection, which it does when it was closed with bytes unread (unix_release_sock() in Linux)
 */
static const char unserved[] = "it broke the connection before it had answered";

/**
 * exchange() - Send the request and read the answer
 * @fd:		Connection
 * @until:	When to give up, in milliseconds since the start
 *
 * An agent may answer before it has read the whole request (too large), and then close: its answer is still read.
 *
 * Return: NULL when the answer is whole, else the reason; unserved when the agent has not had the whole request and never will
 */
static const char *exchange(int fd, int64_t until)
{
	const size_t whole = request.head_len + request.body_len;
	size_t sent = 0, total = whole;

	answer.len = 0;
	answer.status = 0;
	for (;;) {
		ssize_t n;

		if (!await(fd, sent < total ? POLLIN | POLLOUT : POLLIN, until))
			return stopped ? "we were asked to stop while it worked" : "it was silent until the deadline";

		if (sent < total) {
			n = send_some(fd, sent);
			if (n >= 0)
				sent += (size_t)n;
			else if (errno != EAGAIN && errno != EINTR)
				total = sent;	/* the agent takes no more */
		}

		n = recv(fd, answer.bytes + answer.len, sizeof(answer.bytes) - answer.len, 0);
		if (n > 0) {
			int state;

			answer.len += (size_t)n;
			state = read_answer((size_t)n);
			if (state)
				return state > 0 ? NULL : "what it says is no answer of an agent";
		} else if (n == 0) {
			return sent < whole ? unserved : "it closed the connection before it had answered";
		} else if (errno != EAGAIN && errno != EINTR) {
			return unserved;
		}
	}
}

/**
 * ask_agent() - Call the agent
 * @settings:	Settings
 * @verb:	Verb: how long it waits for an agent that has ended; the answer to ADD must have a body, like every refusal
 * @until:	When to give up, in milliseconds since the start
 * @why:	Set to the reason for a failure
 *
 * Return: true when it answered
 */
static bool ask_agent(const struct settings *settings, const struct verb *verb, int64_t until, struct note *why)
{
	int attempts = verb->absence ? 2 : 1;
	const char *problem;

	do {
		int64_t began = elapsed();
		int fd = connect_agent(settings->socket, verb->absence, until);

		if (fd < 0) {
			note(why, "connecting for %d ms: %s", (int)(elapsed() - began), reason(errno));
			return false;
		}
		problem = exchange(fd, until);
		close(fd);
	} while (problem == unserved && --attempts);

	if (!problem) {
		log_warnings();
		if (!answer.body_len && (verb == ADD || answer.status >= 300))
			problem = "it answered nothing";
	}
	if (problem)
		note(why, "%s", problem);

	return !problem;
}

/* -- spool -------------------------------------------------------------------------------------------------------------------- */

/**
 * close_file() - Close a file of ours after its last use
 * @fd:		File
 * @failed:	Whether that use has failed and set errno
 *
 * Return: 0 when neither has failed, else -1 with errno of the first failure
 */
static int close_file(int fd, int failed)
{
	int error = errno;

	if (close(fd) && !failed)
		return -1;
	errno = error;

	return failed ? -1 : 0;
}

/**
 * flush_directory() - Make the names in a directory durable
 * @path:	Directory
 *
 * Return: 0, else -1 with errno set
 */
static int flush_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -1 : close_file(fd, fsync(fd));
}

/**
 * make_directory() - Make a directory and what is missing above it, each 0700 and durable
 * @path:	Absolute path
 *
 * Return: 0, else -1 with errno set
 */
static int make_directory(const char *path)
{
	char prefix[SPOOL_PATH_MAX] = "", parent[SPOOL_PATH_MAX] = "/";
	const char *slash = path;

	do {
		size_t len;

		slash = strchr(slash + 1, '/');
		len = slash ? (size_t)(slash - path) : strlen(path);
		memcpy(prefix, path, len);
		prefix[len] = '\0';
		if (!mkdir(prefix, 0700)) {
			if (flush_directory(parent))
				return -1;
		} else if (errno != EEXIST) {
			return -1;
		}
		strcpy(parent, prefix);
	} while (slash);

	return 0;
}

/**
 * open_spool() - Open the spool, after making it if it is missing, and take its lock
 * @path:	Directory
 *
 * The lock is polled, because flock(2) has no deadline. Its holder only writes one small file.
 *
 * Return: file descriptor that holds the lock, else -1 with errno set (ETIMEDOUT: other processes held it until the deadline)
 */
static int open_spool(const char *path)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	const struct timespec nap = { .tv_nsec = 2000000 };
	int fd = open(path, flags), error;

	if (fd < 0 && errno == ENOENT && !make_directory(path))
		fd = open(path, flags);
	if (fd < 0)
		return -1;

	while (flock(fd, LOCK_EX | LOCK_NB)) {
		error = errno;
		if ((error == EWOULDBLOCK || error == EINTR) && elapsed() < LOCK_MS) {
			nanosleep(&nap, NULL);
			continue;
		}
		close(fd);
		errno = error == EWOULDBLOCK ? ETIMEDOUT : error;
		return -1;
	}

	return fd;
}

/**
 * is_entry() - Whether a file of the spool is a DEL: its name begins with 20 digits and a dash
 * @name:	Name in the spool
 *
 * Return: true for a DEL
 */
static bool is_entry(const char *name)
{
	return strspn(name, "0123456789") == 20 && name[20] == '-';
}

/**
 * count_entries() - Count the DELs in the spool, and remove temporary files of dead writers
 * @spool:	Spool, whose lock we hold
 *
 * Return: number of DELs, else -1 with errno set
 */
static long count_entries(int spool)
{
	/* What getdents64(2) fills in; readdir(3) would allocate */
	struct entry {
		uint64_t inode;
		int64_t offset;
		uint16_t length;
		uint8_t type;
		char name[];
	};
	static _Alignas(struct entry) char listing[32 << 10];
	long n, at, count = 0;

	while ((n = syscall(SYS_getdents64, spool, listing, sizeof(listing))) > 0) {
		for (at = 0; at < n; at += ((struct entry *)(listing + at))->length) {
			const char *name = ((struct entry *)(listing + at))->name;

			if (is_entry(name))
				count++;
			else if (!strncmp(name, ".tmp-", 5))
				unlinkat(spool, name, 0);
		}
	}

	return n < 0 ? -1 : count;
}

/**
 * write_all() - Write to a file of ours
 * @fd:		File
 * @bytes:	What to write
 * @len:	Bytes of it
 *
 * Return: 0, else -1 with errno set
 */
static int write_all(int fd, const char *bytes, size_t len)
{
	while (len) {
		ssize_t n = write(fd, bytes, len);

		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		} else if (n == 0 || errno != EINTR) {
			return -1;
		}
	}

	return 0;
}

/**
 * write_entry() - Put the request durably in the spool
 * @spool:	Spool, whose lock we hold
 *
 * Return: 0, else -1 with errno set
 */
static int write_entry(int spool)
{
	char temporary[80];
	const char *name = temporary + strlen(".tmp-");
	uint32_t random = 0;
	int fd, error;

	/* Needed only for two DELs of one nanosecond and one pid in two pid namespaces: without entropy yet, zero is good enough */
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
		random = 0;
	sprintf(temporary, ".tmp-%020llu-%ld-%08x", (unsigned long long)request.called, (long)getpid(), random);

	fd = openat(spool, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	if (close_file(fd, write_all(fd, request.head, request.head_len) || write_all(fd, request.body, request.body_len) ||
			   fsync(fd)) ||
	    renameat(spool, temporary, spool, name)) {
		error = errno;
		unlinkat(spool, temporary, 0);
		errno = error;
		return -1;
	}

	return fsync(spool);	/* if this fails, the DEL may be served twice, which is harmless */
}

/**
 * spool_request() - Keep a DEL for the agent
 * @settings:	Settings
 * @why:	Set to the reason for a failure
 *
 * Return: true when it is durable
 */
static bool spool_request(const struct settings *settings, struct note *why)
{
	char boot_id[BOOT_ID_LEN + 1];
	bool done = false;
	long count;
	int spool;

	if (read_boot_id(boot_id)) {	/* without it the request has no time, and the agent cannot order it */
		note(why, "reading " BOOT_ID_FILE ": %s", reason(errno));
		return false;
	}
	spool = open_spool(settings->spool);
	if (spool < 0) {
		note(why, "opening and locking it: %s", reason(errno));
		return false;
	}

	count = count_entries(spool);
	if (count < 0)
		note(why, "reading it: %s", reason(errno));
	else if ((unsigned long)count >= settings->spool_max)
		note(why, "it is full: it holds %ld and may hold %lu", count, settings->spool_max);
	else if (write_entry(spool))
		note(why, "writing to it: %s", reason(errno));
	else
		done = true;
	close(spool);

	return done;
}

/* -- verbs -------------------------------------------------------------------------------------------------------------------- */

/* Outcome of a DEL */
enum fate {
	FATE_ANSWERED,	/* done, or refused for a reason that will not change */
	FATE_SPOOLED,
	FATE_LOST,
	FATE_REFUSED,	/* no agent could ever serve it */
};

/**
 * deliver_del() - Give the DEL in the request to the agent, else to the spool
 * @settings:	Settings
 * @why:	Set to the reason, unless the agent has answered
 *
 * An agent that is overloaded or stopping (503) or did not get the request in time (408) has not decided anything; a request that
 * it does not understand (other 4xx) it will not understand from the spool either.
 *
 * Return: outcome
 */
static enum fate deliver_del(const struct settings *settings, struct note *why)
{
	struct note silence, refusal;

	if (ask_agent(settings, DEL, PATIENCE_MS, &silence)) {
		if (answer.status <= 500 && answer.status != 408)
			return FATE_ANSWERED;
		note(&silence, "it answered with HTTP status %d", answer.status);
	}
	if (refuse_useless(why))
		return FATE_REFUSED;
	if (!spool_request(settings, &refusal)) {
		note(why, "agent on %s: %s; spool %s: %s", settings->socket, silence.text, settings->spool, refusal.text);
		return FATE_LOST;
	}
	note(why, "agent on %s: %s; spool %s", settings->socket, silence.text, settings->spool);

	return FATE_SPOOLED;
}

/**
 * print_answer() - Print the agent's answer
 *
 * Return: true when it could be written
 */
static bool print_answer(void)
{
	struct note why;
	int error = write_out(STDOUT_FILENO, answer.bytes + answer.body, answer.body_len, PATIENCE_MS);

	if (error)
		log_line("error", note(&why, "the answer could not be written to stdout: %s", reason(error)), "");

	return !error;
}

/**
 * del() - Serve a DEL
 * @settings:	Settings
 *
 * Return: exit code of this program
 */
static int del(const struct settings *settings)
{
	struct note why;

	switch (deliver_del(settings, &why)) {
	case FATE_ANSWERED:
		return print_answer() && answer.status < 300 ? 0 : 1;
	case FATE_SPOOLED:
		log_line("warning", "the agent does not answer: this DEL is spooled, and done when it does", why.text);
		return 0;
	case FATE_REFUSED:
		return fail(refuse_useless(&why), why.text, "it was not kept for the agent");
	case FATE_LOST:
		break;
	}

	return fail(ERROR_AGAIN, "the agent does not answer, and this DEL cannot be spooled", why.text);
}

/**
 * undo_add() - Undo an ADD of which the runtime has not learned
 * @settings:	Settings
 *
 * Return: exit code of this program
 */
static int undo_add(const struct settings *settings)
{
	struct note why;

	request.called = boottime();	/* it must be later than the ADD's time */
	make_head(DEL->path, settings);
	switch (deliver_del(settings, &why)) {
	case FATE_ANSWERED:
		if (answer.status >= 300)
			log_line("error", "the ADD that could not be reported is not undone: the agent refuses its DEL",
				 note(&why, "HTTP status %d; see the agent's log", answer.status));
		else
			log_line("info", "the ADD that could not be reported is undone", "");
		break;
	case FATE_SPOOLED:
		log_line("warning", "the ADD that could not be reported will be undone: its DEL is spooled", why.text);
		break;
	case FATE_REFUSED:
	case FATE_LOST:
		log_line("error", "the ADD that could not be reported is not undone, and its DEL cannot be spooled", why.text);
		break;
	}

	return 1;
}

/**
 * call() - Serve any verb but DEL and VERSION
 * @settings:	Settings
 * @verb:	Verb
 *
 * Return: exit code of this program
 */
static int call(const struct settings *settings, const struct verb *verb)
{
	struct note what, why, details;

	if (!ask_agent(settings, verb, verb->patience, &why)) {
		if (stopped)
			return fail(verb->away_code, note(&what, "stopped by signal %d", (int)stopped),
				    "the agent undoes what it was doing; try again later");
		return fail(verb->away_code, note(&what, "the agent on %s does not answer: %s", settings->socket, why.text),
			    note(&details, "is `userspace-cni agent` running on this node, and does it serve this socket? "
				 "`userspace-cni install` writes its path into this file"));
	}
	if (!print_answer())
		return verb == ADD && answer.status < 300 ? undo_add(settings) : 1;

	return answer.status < 300 ? 0 : 1;
}

/**
 * describe_build() - Tell which build of the program this file is of
 * @line:	Set to a line of text
 *
 * Return: the text of @line
 */
static const char *describe_build(struct note *line)
{
	char summary[SUMMARY_MAX];

	copy_installed(summary, built.summary, sizeof(summary));
	if (!*summary)
		return note(line, "userspace-cni unknown: `userspace-cni install` writes the version into the file that it installs\n");

	return note(line, "userspace-cni %s\n", summary);
}

/**
 * about() - Describe this program to a person who runs it by hand
 * @argument:	The first argument, "" without one: `--version` asks for nothing but the build
 *
 * Return: exit code of this program
 */
static int about(const char *argument)
{
	struct settings settings;
	struct note what, why;
	const char *text = describe_build(&why);

	if (!strcmp(argument, "--version"))
		return write_out(STDOUT_FILENO, text, strlen(text), DEADLINE_MS) ? 1 : 0;
	write_out(STDERR_FILENO, ABOUT VERSION_TEXT HINT, strlen(ABOUT VERSION_TEXT HINT), DEADLINE_MS);
	write_out(STDERR_FILENO, text, strlen(text), DEADLINE_MS);
	if (!read_settings(&settings, &what, &why)) {
		log_line("error", what.text, why.text);
		return 0;
	}
	text = note(&why, "agent's socket: %s\nspool of DELs while it is away: %s (at most %lu)\n", settings.socket,
		    settings.spool, settings.spool_max);
	write_out(STDERR_FILENO, text, strlen(text), DEADLINE_MS);

	return 0;
}

/**
 * find_verb() - Find the verb of a command
 * @command:	CNI_COMMAND
 *
 * Return: verb, NULL for none
 */
static const struct verb *find_verb(const char *command)
{
	size_t i;

	for (i = 0; i < COUNT(verbs); i++) {
		if (!strcmp(command, verbs[i].name))
			return &verbs[i];
	}

	return NULL;
}

/**
 * versions() - What VERSION answers
 * @path:	By which the runtime has called this file: the file sees no network, so it goes by its name
 *
 * Return: answer
 */
static const char *versions(const char *path)
{
	const char *name = strrchr(path, '/');

	return strcmp(name ? name + 1 : path, FORMER_NAME) ? VERSION_ANSWER : FORMER_ANSWER;
}

/**
 * main() - Serve one CNI call
 * @count:	Number of arguments
 * @arguments:	The first is the path of this file; a second one has an effect only without a verb
 *
 * Return: exit code
 */
int main(int count, char **arguments)
{
	const char *command = value_of("CNI_COMMAND");
	const struct verb *verb = find_verb(command);
	struct settings settings;
	struct note what, why;

	clock_gettime(CLOCK_MONOTONIC, &started);
	request.called = boottime();
	fill_standard_fds();
	hold_signals();
	umask(077);

	if (!*command)
		return about(count > 1 ? arguments[1] : "");
	if (!verb)
		return fail(ERROR_ENVIRONMENT, note(&what, "CNI_COMMAND is '%.*s': not a verb", SHOWN_MAX, command),
			    "it must be one of ADD, DEL, CHECK, GC, STATUS, VERSION");
	if (verb == VERSION) {
		const char *known = versions(count ? arguments[0] : "");

		return write_out(STDOUT_FILENO, known, strlen(known), DEADLINE_MS) ? 1 : 0;
	}
	if (*value_of("USERSPACE_CNI_DELEGATED"))
		return fail(ERROR_CONFIG, "the network's 'ipam.type' leads back to this plugin",
			    "it leases no addresses: name host-local or static");

	if ((verb == DEL && check_required()) || check_values())
		return 1;
	if (!read_settings(&settings, &what, &why))
		return fail(ERROR_CONFIG, what.text, why.text);
	warn_of_override(&settings);
	if (read_stdin())
		return 1;
	make_head(verb->path, &settings);

	return verb == DEL ? del(&settings) : call(&settings, verb);
}
