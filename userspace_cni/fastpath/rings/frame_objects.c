// SPDX-License-Identifier: Apache-2.0
/* frame_objects.c - the frames of a burst as Python's bytes, and such bytes as a burst: the extension module _frames
 *
 * A step of the interpreter for each frame costs as much as the frame, and so do calls of several functions over all of them. So
 * each direction is one call. Both copy between objects and a burst's buffer, which is memory of this process alone: the other
 * side of a ring cannot change what has been copied. They hold the GIL, so that no other thread of Python changes the list of
 * frames meanwhile; one that writes to the buffer or to its lengths may change what is copied, but not where.
 *
 * Python's own allocator has objects of up to 512 bytes. For a longer one it calls malloc(3) and free(3), which take longer than it
 * takes to copy 512 bytes. So a burst keeps the longer ones that it made, and uses one again to which there is no other reference.
 *
 * Addresses are numbers here. Only rings/burst.py and rings/queue_pair.py call this, with those of a Burst that they hold.
 */

#define PY_SSIZE_T_CLEAN

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define LINE 64		/* bytes of a cache line */
#define SHORTEST_KEPT 480	/* shorter bytes are made by Python's own allocator; it takes 512 bytes with their head of 33 */
#define LONGEST_KEPT 2048	/* longer ones are not kept, so that a burst of many does not hold much memory */

/**
 * address() - Read a number as an address
 * @number:	A Python int
 *
 * Return: the address; NULL with an exception for what is no number, or is 0
 */
static void *address(PyObject *number)
{
	void *pointer = PyLong_AsVoidPtr(number);

	if (!pointer && !PyErr_Occurred())
		PyErr_SetString(PyExc_ValueError, "no memory is at address 0");
	return pointer;
}

/**
 * forget_hash() - Have the hash of bytes computed anew
 * @object:	Bytes whose content has changed
 */
static void forget_hash(PyObject *object)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"	/* because CPython may leave it out one day */
	((PyBytesObject *)object)->ob_shash = -1;
#pragma GCC diagnostic pop
}

/**
 * made_of() - Make bytes of a frame
 * @frame:	The frame
 * @length:	Its bytes
 * @kept:	List of bytes that were made before, or None in their places
 * @place:	The place in @kept that this frame may use
 *
 * Bytes that only @kept has a reference to are written again: no other code can look at them, as no other code has them.
 *
 * Return: bytes, a new reference; NULL with an exception
 */
static PyObject *made_of(const char *frame, uint32_t length, PyObject *kept, size_t place)
{
	PyObject *object;

	if (length < SHORTEST_KEPT || length > LONGEST_KEPT || place >= (size_t)PyList_GET_SIZE(kept))
		return PyBytes_FromStringAndSize(frame, length);
	object = PyList_GET_ITEM(kept, (Py_ssize_t)place);
	if (Py_REFCNT(object) == 1 && PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) == (Py_ssize_t)length) {
		memcpy(PyBytes_AS_STRING(object), frame, length);
		forget_hash(object);
		Py_INCREF(object);
		return object;
	}
	if (!(object = PyBytes_FromStringAndSize(frame, length)))
		return NULL;
	Py_INCREF(object);
	PyList_SetItem(kept, (Py_ssize_t)place, object);	/* it cannot fail: the place is there */
	return object;
}

/**
 * cut() - cut(frames, stride, lengths, count, kept, /): copies of the first frames of a burst
 * @self:	Module
 * @args:	Address of the frames, bytes from one to the next, address of their lengths (uint32_t), number of frames, and the burst's
 *		own list of bytes that may be used again, None at first; no other code has that list
 * @given:	5
 *
 * Return: a list of bytes; NULL with a ValueError when a frame is longer than @stride
 */
static PyObject *cut(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
	const uint32_t *lengths;
	size_t stride, count;
	const char *frame;
	PyObject *list;

	(void)self;
	if (given != 5 || !PyList_CheckExact(args[4])) {
		PyErr_SetString(PyExc_TypeError, "cut() takes four numbers and a list");
		return NULL;
	}
	if (!(frame = address(args[0])) || !(lengths = address(args[2])))
		return NULL;
	stride = PyLong_AsSize_t(args[1]);
	count = PyLong_AsSize_t(args[3]);
	if (PyErr_Occurred() || !(list = PyList_New((Py_ssize_t)count)))
		return NULL;
	for (size_t i = 0; i < count; i++, frame += stride) {
		uint32_t length = __atomic_load_n(&lengths[i], __ATOMIC_RELAXED);
		PyObject *object = NULL;

		if (length > stride)
			PyErr_Format(PyExc_ValueError, "a frame has %lu bytes, the burst's stride is %zu", (unsigned long)length,
				     stride);
		else
			object = made_of(frame, length, args[4], i);
		if (!object) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SET_ITEM(list, (Py_ssize_t)i, object);
	}
	return list;
}

/**
 * widest() - Find the length of the longest frame
 * @items:	Objects
 * @count:	How many
 *
 * Return: bytes; -1 when an object is not of the type bytes
 */
static Py_ssize_t widest(PyObject *const *items, Py_ssize_t count)
{
	Py_ssize_t most = 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		if (!PyBytes_CheckExact(items[i]))
			return -1;
		if (PyBytes_GET_SIZE(items[i]) > most)
			most = PyBytes_GET_SIZE(items[i]);
	}
	return most;
}

/**
 * lay() - lay(frames, room, size, lengths, count, /): copy frames into a burst's buffer
 * @self:	Module
 * @args:	List or tuple of bytes, address and bytes of the buffer, address of the lengths (uint32_t), how many frames there are
 * @given:	5
 *
 * Return: bytes from frame to frame, whole cache lines; -1, and nothing is copied, when it is not a list or tuple of so many bytes
 *	   objects, or there is no room; NULL with an exception
 */
static PyObject *lay(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
	Py_ssize_t count, most;
	size_t size, stride;
	PyObject **items;
	uint32_t *lengths;
	char *room;

	(void)self;
	if (given != 5)
		return PyErr_Format(PyExc_TypeError, "lay() takes 5 arguments, not %zd", given);
	if (!(room = address(args[1])) || !(lengths = address(args[3])))
		return NULL;
	size = PyLong_AsSize_t(args[2]);
	count = PyLong_AsSsize_t(args[4]);
	if (PyErr_Occurred())
		return NULL;
	if (!PyList_Check(args[0]) && !PyTuple_Check(args[0]))
		return PyLong_FromLong(-1);
	items = PySequence_Fast_ITEMS(args[0]);
	if (PySequence_Fast_GET_SIZE(args[0]) != count || (most = widest(items, count)) < 0 || (size_t)most > size ||
	    most > UINT32_MAX - LINE)
		return PyLong_FromLong(-1);
	stride = ((size_t)most + LINE - 1) / LINE * LINE;
	if (stride && (size_t)count > size / stride)
		return PyLong_FromLong(-1);
	for (Py_ssize_t i = 0; i < count; i++, room += stride) {
		lengths[i] = (uint32_t)PyBytes_GET_SIZE(items[i]);
		memcpy(room, PyBytes_AS_STRING(items[i]), lengths[i]);
	}
	return PyLong_FromSize_t(stride);
}

static PyMethodDef functions[] = {
	{ "cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, "cut(frames, stride, lengths, count, kept, /)\n--\n\n" },
	{ "lay", (PyCFunction)(void (*)(void))lay, METH_FASTCALL, "lay(frames, room, size, lengths, count, /)\n--\n\n" },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_frames",
	.m_size = 0,
	.m_methods = functions,
};

/**
 * PyInit__frames() - Define the module, for Python's import
 *
 * Return: its definition
 */
PyMODINIT_FUNC PyInit__frames(void)
{
	return PyModuleDef_Init(&module);
}
