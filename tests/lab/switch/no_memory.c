/* Loaded before DPDK's libraries: while the file $NO_MEMORY_WHILE is there, DPDK has no memory for the device of a new connection.
 *
 * That is what it asks for without a name, and larger than the longest path, which is a part of it (lib/vhost: struct virtio_net).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

typedef void *(*allocator)(const char *, size_t, unsigned);

/* Refuses what a new connection needs while the file is there, and has DPDK's own function serve all else. */
void *rte_zmalloc(const char *type, size_t size, unsigned align)
{
	const char *file = getenv("NO_MEMORY_WHILE");
	allocator real = (allocator)dlsym(RTLD_NEXT, "rte_zmalloc");

	if (type == NULL && size > PATH_MAX && file != NULL && access(file, F_OK) == 0)
		return NULL;
	return real(type, size, align);
}
