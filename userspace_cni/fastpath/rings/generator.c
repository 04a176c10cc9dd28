// SPDX-License-Identifier: Apache-2.0
/* generator.c - bounded loops that load a datapath and measure its latency
 *
 * THEORY OF OPERATION
 *
 * A loop in Python costs more per burst than the burst itself. These two loops run for a bounded time without the interpreter, on
 * queues of either kind, through the calls that programs use, so that they measure what a program gets.
 *
 * fp_blast() keeps the source's ring full and the sink's empty from one thread. On a shared machine the average of a run depends
 * more on the scheduler than on the datapath, so frames are also counted per window of a millisecond or so. The clock is read
 * once in a few bursts, and the count of a window that took longer, because the thread was not running, is scaled down.
 *
 * fp_bounce() has one frame under way at a time: from the near pair to the far one, which sends it back with its MAC addresses
 * exchanged, or, without a far pair, from the near pair to itself.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "driver.h"
#include "generator.h"

#define MAC 6
#define CLOCK_EVERY 4		/* turns of a load's loop between looks at the clock */
#define POLLS 64		/* turns of an echo's loop without a frame between looks at the clock */
#define ROOM 9728		/* longest frame that an echo's loop reads: foreign ones may be long */
#define LOT 8			/* frames that an echo's loop takes at a time */

/** struct burst - Frames side by side
 * @frames:	On a cache line
 * @stride:	Bytes from one to the next
 * @lengths:	Bytes of each
 */
struct burst {
	uint8_t *frames;
	uint32_t stride;
	uint32_t lengths[FP_LARGEST_BATCH];
};

/**
 * make() - Make room for a burst
 * @burst:	Set; its frames are the caller's to free
 * @count:	Frames
 * @room:	Bytes of each
 *
 * Return: 0, -ENOMEM
 */
static int make(struct burst *burst, uint32_t count, uint32_t room)
{
	burst->stride = (room + FP_LINE - 1) / FP_LINE * FP_LINE;
	burst->frames = aligned_alloc(FP_LINE, (size_t)count * burst->stride);
	return burst->frames ? 0 : -ENOMEM;
}

/**
 * repeat() - Send the frames that a driver's buffers hold
 * @queue:	Driver that transmits, filled by fp_driver_fill()
 * @load:	Length and number of the frames
 *
 * Return: frames sent, or an error as fp_send()
 */
static int repeat(struct fp_queue *queue, const struct fp_load *load)
{
	int sent = fp_take(queue);

	if (sent <= 0)
		return sent;
	sent = queue->fault ? -EBADMSG : fp_driver_repeat(queue, load->length, load->batch);
	if (sent > 0) {
		fp_count(&queue->counters.frames, (uint64_t)sent);
		fp_count(&queue->counters.bytes, (uint64_t)sent * load->length);
	}
	fp_release(queue);
	return sent;
}

/**
 * discard() - Receive frames, and leave them in the driver's buffers
 * @queue:	Driver that receives
 * @load:	Number of frames, and whether to look for the mark; its foreign frames are counted
 *
 * Return: frames of ours, or what fp_receive() returns on error
 */
static int discard(struct fp_queue *queue, struct fp_load *load)
{
	uint64_t foreign = 0;
	int received = fp_take(queue);

	if (received <= 0)
		return received;
	received = queue->fault ? -EBADMSG : fp_driver_discard(queue, load->batch, load->touch ? load->frame + FP_SHORTEST : NULL,
							       &foreign);
	fp_release(queue);
	load->foreign += foreign;
	return received < 0 ? received : received - (int)foreign;
}

/**
 * fetch() - Receive into a buffer of our own
 * @queue:	Queue of any kind
 * @burst:	Buffer
 * @load:	Number of frames, and whether to look for the mark; its foreign frames are counted
 *
 * Return: frames of ours, or what fp_receive() returns on error
 */
static int fetch(struct fp_queue *queue, struct burst *burst, struct fp_load *load)
{
	int received = fp_receive(queue, burst->frames, burst->stride, burst->lengths, load->batch), own = received;

	for (int i = 0; load->touch && i < received; i++)
		if (memcmp(burst->frames + (size_t)i * burst->stride + FP_SHORTEST, load->frame + FP_SHORTEST, FP_MARK))
			own--;
	if (received > 0)
		load->foreign += (uint64_t)(received - own);
	return own;
}

/**
 * turn() - Send one burst, and receive one
 * @source:	Queue that transmits
 * @sink:	Queue that receives
 * @out:	Frames to send
 * @in:		Room for received frames
 * @load:	What to do; its counts grow
 *
 * Return: 0, or what fp_send() and fp_receive() return on error
 */
static int turn(struct fp_queue *source, struct fp_queue *sink, struct burst *out, struct burst *in, struct fp_load *load)
{
	int count;

	if (!load->copy && fp_driver_is(source))
		count = repeat(source, load);
	else
		count = fp_send(source, out->frames, out->stride, out->lengths, load->batch);
	if (count < 0)
		return count;
	load->sent += (uint64_t)count;

	count = fp_driver_is(sink) ? discard(sink, load) : fetch(sink, in, load);
	if (count < 0)
		return count;
	load->received += (uint64_t)count;
	return 0;
}

/**
 * prepare() - Make the frames to send on each way, and room for received ones
 * @sources:	Queue that transmits, of each way
 * @ways:	How many
 * @bursts:	Set: one for each way, the last for received frames; the caller frees their frames, on error too
 * @load:	Frames and their number
 *
 * Return: 0, -ENOMEM, -EMSGSIZE: a frame is too long for a queue, -ESHUTDOWN: a queue is closed
 */
static int prepare(struct fp_queue *const *sources, uint32_t ways, struct burst bursts[FP_WAYS + 1], const struct fp_load *load)
{
	int result;

	if (make(&bursts[FP_WAYS], load->batch, ROOM) < 0)
		return -ENOMEM;
	for (uint32_t way = 0; way < ways; way++) {
		const uint8_t *frame = way && load->back ? load->back : load->frame;

		if (make(&bursts[way], load->batch, load->length) < 0)
			return -ENOMEM;
		for (uint32_t i = 0; i < load->batch; i++) {
			memcpy(bursts[way].frames + (size_t)i * bursts[way].stride, frame, load->length);
			bursts[way].lengths[i] = load->length;
		}
		if (load->length > sources[way]->room)
			return -EMSGSIZE;
		if (load->copy || !fp_driver_is(sources[way]))
			continue;
		if ((result = fp_take(sources[way])) < 0)
			return result;
		if (!result)
			return 0;
		fp_driver_fill(sources[way], frame, load->length);
		fp_release(sources[way]);
	}
	return 0;
}

/** struct meter - Received frames per window
 * @start:	When the window began
 * @before:	Frames received until then
 * @count:	Windows so far
 */
struct meter {
	int64_t start;
	uint64_t before;
	uint32_t count;
};

/**
 * measure() - Count received frames per window
 * @meter:	The current window
 * @load:	Frames received so far; its windows are filled
 * @time:	By fp_now()
 *
 * The count of a window that took longer, because this thread was not running, is scaled down.
 */
static void measure(struct meter *meter, const struct fp_load *load, int64_t time)
{
	int64_t passed = time - meter->start;

	if (passed < load->window_ns)
		return;
	if (meter->count < load->window_count)
		load->windows[meter->count++] = (uint64_t)((double)(load->received - meter->before) * (double)load->window_ns /
							   (double)passed);
	meter->start = time;
	meter->before = load->received;
}

/**
 * run() - Send and receive until the time is over
 * @sources:	Queue that transmits, of each way
 * @sinks:	Queue that receives, of each way
 * @ways:	How many
 * @bursts:	From prepare()
 * @load:	How long to run; results
 *
 * Return: 0, or what fp_send() and fp_receive() return on error
 */
static int run(struct fp_queue *const *sources, struct fp_queue *const *sinks, uint32_t ways,
	       struct burst bursts[FP_WAYS + 1], struct fp_load *load)
{
	int64_t start = fp_now(), time = start;
	struct meter meter = { .start = start };
	int result = 0;

	while (!result && time - start < load->duration_ns) {
		for (unsigned int turns = 0; turns < CLOCK_EVERY; turns++)
			for (uint32_t way = 0; way < ways && !result; way++)
				result = turn(sources[way], sinks[way], &bursts[way], &bursts[FP_WAYS], load);
		time = fp_now();
		measure(&meter, load, time);
	}
	load->elapsed_ns = time - start;
	load->window_count = meter.count;
	return result;
}

/**
 * fp_blast() - Send as fast as frames are taken, receive what arrives
 * @sources:	A transmit queue per way
 * @sinks:	The receive queue where its frames are expected
 * @ways:	1 to FP_WAYS
 * @load:	What to send and how long; results
 *
 * Return: 0; -EINVAL; -ENOMEM; else as fp_send() and fp_receive()
 */
int fp_blast(struct fp_queue *const *sources, struct fp_queue *const *sinks, uint32_t ways, struct fp_load *load)
{
	uint32_t shortest = load->touch ? FP_SHORTEST + FP_MARK : FP_SHORTEST;
	struct burst bursts[FP_WAYS + 1] = { 0 };
	int result;

	if (!ways || ways > FP_WAYS || !load->batch || load->batch > FP_LARGEST_BATCH || load->length < shortest || load->window_ns <= 0)
		return -EINVAL;
	load->sent = load->received = load->foreign = 0;
	result = prepare(sources, ways, bursts, load);
	if (!result)
		result = run(sources, sinks, ways, bursts, load);
	for (uint32_t i = 0; i <= FP_WAYS; i++)
		free(bursts[i].frames);
	return result;
}

/**
 * exchange() - Exchange a frame's MAC addresses
 * @frame:	Frame
 */
static void exchange(uint8_t *frame)
{
	uint8_t kept[MAC];

	memcpy(kept, frame, MAC);
	memcpy(frame, frame + MAC, MAC);
	memcpy(frame + MAC, kept, MAC);
}

/**
 * look_for() - Receive, and look for the frame that is under way
 * @queue:	Queue that receives
 * @burst:	Room for received frames
 * @echo:	What was sent; its foreign frames are counted
 * @code:	Set to how many frames came, or to the error
 *
 * Return: the frame, in @burst; NULL when it is not there
 */
static uint8_t *look_for(struct fp_queue *queue, struct burst *burst, struct fp_echo *echo, int *code)
{
	uint8_t *found = NULL;

	*code = fp_receive(queue, burst->frames, burst->stride, burst->lengths, LOT);
	for (int i = 0; i < *code; i++) {
		uint8_t *frame = burst->frames + (size_t)i * burst->stride;

		if (!found && burst->lengths[i] == echo->length &&
		    !memcmp(frame + FP_SHORTEST, echo->frame + FP_SHORTEST, FP_ECHO_BYTES - FP_SHORTEST))
			found = frame;
		else
			echo->foreign++;
	}
	return found;
}

/**
 * send_one() - Send one frame, waiting for room
 * @queue:	Queue that transmits
 * @frame:	Frame
 * @length:	Its bytes
 * @until:	When to give up, by fp_now()
 *
 * Return: 0, -ETIMEDOUT, or as fp_send()
 */
static int send_one(struct fp_queue *queue, const uint8_t *frame, uint32_t length, int64_t until)
{
	int sent;

	do {
		sent = fp_send(queue, frame, length, &length, 1);
	} while (!sent && fp_now() < until);
	return sent < 0 ? sent : sent ? 0 : -ETIMEDOUT;
}

/**
 * pause_for() - Sleep, or go on polling, until there may be frames
 * @queue:	Queue that receives
 * @echo:	Whether to sleep
 * @until:	When to give up, by fp_now()
 * @polls:	Looks without a frame so far; incremented
 *
 * Return: 0, -ETIMEDOUT, or as fp_wait()
 */
static int pause_for(struct fp_queue *queue, const struct fp_echo *echo, int64_t until, unsigned int *polls)
{
	int64_t left;
	int result;

	if (!echo->sleep && ++*polls % POLLS)
		return 0;
	left = until - fp_now();
	if (left <= 0)
		return -ETIMEDOUT;
	if (!echo->sleep)
		return 0;
	result = fp_wait(&queue, 1, -1, -1, left);
	return result < 0 ? result : 0;
}

/**
 * await() - Receive until the frame that is under way comes
 * @queue:	Queue that receives
 * @burst:	Room for received frames
 * @echo:	What was sent
 * @until:	When to give up, by fp_now()
 * @frame:	Set to the frame, in @burst
 *
 * Return: 0, -ETIMEDOUT, or as fp_receive() and fp_wait()
 */
static int await(struct fp_queue *queue, struct burst *burst, struct fp_echo *echo, int64_t until, uint8_t **frame)
{
	unsigned int polls = 0;
	int code;

	while (!(*frame = look_for(queue, burst, echo, &code))) {
		if (!code)
			code = pause_for(queue, echo, until, &polls);
		else if (code > 0 && fp_now() >= until)	/* foreign frames may come for ever */
			code = -ETIMEDOUT;
		if (code < 0)
			return code;
	}
	return 0;
}

/**
 * once() - Send one frame there and back
 * @near, @far: As in fp_bounce()
 * @burst:	Room for received frames
 * @echo:	Frame and timeout
 *
 * Return: nanoseconds that it took; -ETIMEDOUT, or as fp_send(), fp_receive() and fp_wait()
 */
static int64_t once(struct fp_queue *const near[2], struct fp_queue *const far[2], struct burst *burst, struct fp_echo *echo)
{
	int64_t start = fp_now(), until = start + echo->timeout_ns;
	int code = send_one(near[0], echo->frame, echo->length, until);
	uint8_t *frame;

	if (!code && far && !(code = await(far[1], burst, echo, until, &frame))) {
		exchange(frame);
		code = send_one(far[0], frame, echo->length, until);
	}
	if (!code)
		code = await(near[1], burst, echo, until, &frame);
	return code ? code : fp_now() - start;
}

/**
 * fp_bounce() - Send frames one after the other, and measure how long each takes to come back
 * @near:	Transmit and receive queue where they start and end
 * @far:	The same where they are sent back, or NULL: the datapath sends them back
 * @echo:	What to send and how many; results
 *
 * Ends early when its budget is used up, or when a signal arrives.
 *
 * Return: how many were sent, each with its time; 0: none, as a signal arrived; -EINVAL; -ENOMEM; else as fp_send(),
 *	   fp_receive()
 */
int fp_bounce(struct fp_queue *const near[2], struct fp_queue *const far[2], struct fp_echo *echo)
{
	int64_t end = fp_now() + echo->budget_ns, took = 0;
	struct burst burst = { 0 };
	uint32_t done = 0;

	if (echo->length < FP_ECHO_BYTES || echo->length > ROOM)
		return -EINVAL;
	if (make(&burst, LOT, ROOM) < 0)
		return -ENOMEM;
	echo->foreign = 0;
	for (; done < echo->count && (!done || fp_now() < end); done++) {
		uint64_t number = echo->first + done;

		memcpy(echo->frame + FP_NUMBER_AT, &number, sizeof(number));
		took = once(near, far, &burst, echo);
		if (took < 0 && took != -ETIMEDOUT)
			break;
		echo->nanoseconds[done] = took < 0 ? -1 : took;
	}
	free(burst.frames);
	if (took < 0 && took != -ETIMEDOUT && took != -EINTR)
		return (int)took;
	return (int)done;
}
