// SPDX-License-Identifier: Apache-2.0
/* packed_driver_receive.c - frames out of a packed ring, and asking for notifications; see packed_driver.h */

#define _GNU_SOURCE

#include "clock.h"
#include "packed_driver.h"

#define STREAM 16		/* frames: who has room for so many, and got them at once, is in the midst of a stream */
#define PATIENCE_NS 8000	/* how long the next burst of a stream is awaited as a whole */
#define NOT_MISSED 1		/* as @patience: nothing was waited for yet */

/**
 * look() - Look for buffers that came back, and note what the ring says of them
 * @driver:	Driver that receives
 * @wanted:	How many need to be known, with those that were found before
 *
 * Return: 0; -EBADMSG: a lie behind those that were found, or a length beyond the buffer
 */
static inline int look(struct driver *driver, uint32_t wanted)
{
	while ((uint16_t)(driver->behind - driver->seen) < wanted && driver->behind != driver->published) {
		uint64_t tail = load_tail(driver, driver->behind);
		struct used_element last = { id_of(tail), (uint32_t)tail };
		int count = buffers_used(driver, driver->behind, tail);

		if (count <= 0)
			return count;
		if (last.length > driver->span)
			return faulty(driver, FP_BAD_LENGTH);
		while (--count) {	/* with IN_ORDER: used completely, and not named */
			uint32_t at = slot(driver, driver->behind++);

			driver->back[at] = (struct used_element){ at, driver->span };
		}
		if (!driver->in_order)
			driver->lent[last.id] = 0;
		driver->back[slot(driver, driver->behind++)] = last;
	}
	return 0;
}

/**
 * underway() - Whether to wait for the rest of a stream's next burst
 * @driver:	Driver that receives; no buffer is known to be back
 * @wanted:	Buffers that the caller has room for
 *
 * A device writes a stream burst by burst. Each look at a line of descriptors that it is writing takes the line away from it for a
 * while. So after a burst that filled the caller's room, only the descriptor that the next such burst ends with is looked at, for
 * PATIENCE_NS at most. For the caller it is as if the frames came that much later.
 *
 * Return: true while the caller is to be told that nothing has come
 */
static inline bool underway(struct driver *driver, uint32_t wanted)
{
	uint16_t last = (uint16_t)(driver->seen + wanted - 1);
	int64_t now;

	if (!driver->patience || wanted < STREAM || wanted > (uint16_t)(driver->published - driver->seen))
		return false;
	if ((flags_of(load_tail(driver, last)) & PACKED_TURN) == packed_used(last, driver->size))
		return false;
	now = fp_now();
	if (driver->patience == NOT_MISSED)
		driver->patience = now + PATIENCE_NS;
	if (now >= driver->patience)
		driver->patience = 0;
	return driver->patience;
}

/**
 * arrived() - Count the buffers that have come back and were not taken yet
 * @driver:	Driver that receives
 * @wanted:	The ring is looked at only when fewer buffers than this are known to be back
 *
 * Return: number of buffers; -EBADMSG when there are none before a lie
 */
static inline int arrived(struct driver *driver, uint32_t wanted)
{
	uint16_t back = (uint16_t)(driver->behind - driver->seen);
	int result;

	if (back >= wanted || (!back && underway(driver, wanted)))
		return back;
	result = look(driver, wanted);
	back = (uint16_t)(driver->behind - driver->seen);
	if (back)
		driver->patience = back < wanted ? 0 : NOT_MISSED;
	return back ? back : result;
}

/**
 * next_back() - Number of the next buffer that came back
 * @driver:	Driver that receives; a buffer is back
 *
 * Return: its number
 */
static inline int next_back(const struct driver *driver)
{
	return (int)driver->back[slot(driver, driver->seen)].id;
}

/**
 * take_back() - Take the next buffer that came back
 * @driver:	Driver that receives; a buffer is back
 * @length:	Set to the bytes that the other side wrote, at most the buffer's size
 *
 * Return: number of the buffer, which is ours until lend()
 */
static inline int take_back(struct driver *driver, uint32_t *length)
{
	const struct used_element *element = &driver->back[slot(driver, driver->seen++)];

	*length = element->length;
	return (int)element->id;
}

/**
 * lend() - Give a buffer to the other side, which sees it after publish()
 * @driver:	Driver that receives
 * @id:		Its number, which is ours until then
 */
static inline void lend(struct driver *driver, uint32_t id)
{
	if (!driver->in_order)
		driver->free[slot(driver, driver->made)] = (uint16_t)id;
	driver->made++;
}

/**
 * give() - Describe and show buffers that were lent
 * @driver:	Driver that receives
 * @end:	Index behind the last of them
 */
static inline void give(struct driver *driver, uint16_t end)
{
	for (uint16_t index = driver->published; index != end; index++) {
		uint32_t at = slot(driver, index), id = driver->in_order ? at : driver->free[at];

		driver->lent[id] = 1;
		describe(driver, index, id, frame_at(driver, id), driver->span, DESC_WRITE);
	}
	show(driver, end);
}

/**
 * publish() - Show what was lent, in whole lines where the ring is large enough
 * @driver:	Driver that receives
 */
static inline void publish(struct driver *driver)
{
	give(driver, driver->lot < PACKED_LINE ? driver->made : (uint16_t)(driver->made - driver->made % PACKED_LINE));
}

/**
 * prefetch_received() - Bring the next frames into this core's cache before they are read
 * @driver:	Driver that receives
 * @count:	Buffers, which are back
 */
static inline void prefetch_received(const struct driver *driver, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		__builtin_prefetch(frame_at(driver, driver->back[slot(driver, (uint16_t)(driver->seen + i))].id));
}

#include "driver_receive.h"

/**
 * fp_packed_receive() - Receive a burst
 * @queue, @frames, @stride, @lengths, @capacity: As in struct fp_operations
 *
 * Return: frames, or -EBADMSG
 */
int fp_packed_receive(struct fp_queue *queue, uint8_t *frames, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	return receive_frames(queue, frames, stride, lengths, capacity, stride);
}

/**
 * fp_packed_heads() - Receive a burst, and copy only the beginning of each frame out
 * @queue, @heads, @stride, @lengths, @capacity: As in fp_driver_heads()
 *
 * Return: frames, or -EBADMSG
 */
int fp_packed_heads(struct fp_queue *queue, uint8_t *heads, uint32_t stride, uint32_t *lengths, uint32_t capacity)
{
	return receive_frames(queue, heads, stride, lengths, capacity, FP_LARGEST + fp_overhead(queue));
}

/**
 * fp_packed_discard() - Receive and count frames without copying them
 * @queue, @capacity, @mark, @foreign: As in fp_driver_discard()
 *
 * Return: frames, or -EBADMSG
 */
int fp_packed_discard(struct fp_queue *queue, uint32_t capacity, const uint8_t *mark, uint64_t *foreign)
{
	return discard_frames(queue, capacity, mark, foreign);
}

/**
 * fp_packed_ready() - Whether there are frames
 * @queue:	A driver, taken
 *
 * Return: 1, 0, -EBADMSG
 */
int fp_packed_ready(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);
	int back = driver->behind != driver->seen;

	if (!driver->transmit)
		give(driver, driver->made);
	driver->patience = 0;
	if (!back && driver->seen != driver->published)
		back = buffers_used(driver, driver->seen, load_tail(driver, driver->seen));
	return back > 0 ? 1 : back;
}

/**
 * fp_packed_arm() - Ask the other side to notify us of frames
 * @queue:	A driver, taken
 *
 * Return: 1 when frames are there already (then no notification is requested), 0, -EBADMSG
 */
int fp_packed_arm(struct fp_queue *queue)
{
	struct driver *driver = driver_of(queue);
	int ready = fp_packed_ready(queue);

	if (ready)
		return ready;
	packed_suppress(driver->wish, true);
	atomic_thread_fence(memory_order_seq_cst);
	ready = fp_packed_ready(queue);
	if (ready > 0)
		packed_suppress(driver->wish, false);
	return ready;
}

/**
 * fp_packed_disarm() - Ask the other side not to notify us
 * @queue:	A driver, taken
 */
void fp_packed_disarm(struct fp_queue *queue)
{
	packed_suppress(driver_of(queue)->wish, false);
}

/**
 * fp_packed_lay_out() - Write a packed ring; a receive queue gives all its buffers to the other side
 * @driver:	Driver, stopped; its ring is empty
 */
void fp_packed_lay_out(struct driver *driver)
{
	packed_suppress(driver->wish, false);
	driver->patience = 0;
	if (driver->transmit)
		return;
	for (uint32_t id = 0; id < driver->size; id++)
		lend(driver, id);
	give(driver, driver->made);
}
