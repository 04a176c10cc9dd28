// SPDX-License-Identifier: Apache-2.0
/* paths.c - system calls for safe paths, mounts and namespaces
 *
 * THEORY OF OPERATION
 *
 * A pod writes in directories in which we act as root. Neither POSIX calls nor Python's os module can open a path "below this
 * directory and through no link", nor make a mount that has its flags before other processes can see it. Linux can:
 *
 *   openat2()         opens below a directory and refuses links (Linux 5.6: the oldest kernel that is supported)
 *   open_tree()       clones one mount into a detached one, which has a file descriptor and no mount point yet (5.2)
 *   mount_setattr()   sets flags on that detached mount (5.12; "nosymfollow" 5.14)
 *   move_mount()      gives it its mount point, named by a file descriptor, so that no path is walked again (5.2)
 *
 * A directory of bounded size for a pod is a file system in memory of its own, made with mount().
 *
 * All of them go through syscall(2): the libc of Debian 12 has wrappers for only some, other libcs have none. Each function
 * here is one system call, holds no state and allocates nothing; the caller takes every decision.
 *
 * On error each returns -1 with errno set by the kernel; ENOSYS means that the kernel lacks the call.
 */

#define _GNU_SOURCE

#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paths.h"

/**
 * linux_openat2() - Open a path under rules of resolution
 * @dirfd:	Directory at which a relative @path begins
 * @path:	Path to open
 * @flags:	O_* flags; O_CLOEXEC is always added
 * @mode:	Permissions of a file made by O_CREAT, 0 otherwise (the kernel insists)
 * @resolve:	RESOLVE_* flags
 *
 * Return: file descriptor, -1 on error (ELOOP: a link, EXDEV: leads out of @dirfd)
 */
int linux_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode,
		  uint64_t resolve)
{
	struct open_how how;

	/* The kernel requires zero in fields that this program does not know */
	memset(&how, 0, sizeof(how));
	how.flags = flags | O_CLOEXEC;
	how.mode = mode;
	how.resolve = resolve;

	return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
}

/**
 * linux_open_tree() - Clone the file or directory at a path into a detached mount
 * @dirfd:	Directory, or with an empty @path the object itself
 * @path:	Name below @dirfd, or ""; a link in its last component is not followed
 *
 * The clone has no mounts below it: AT_RECURSIVE is not given, because the clone must show only the one directory or file.
 *
 * Return: file descriptor of the detached mount, which vanishes when it is closed before linux_move_mount(); -1 on error
 */
int linux_open_tree(int dirfd, const char *path)
{
	unsigned int flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC |
			     AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;

	return (int)syscall(SYS_open_tree, dirfd, path, flags);
}

/**
 * linux_mount_setattr() - Set flags and propagation of a mount
 * @fd:		The root of the mount: from linux_open_tree(), or opened with O_PATH
 * @attributes:	MOUNT_ATTR_* flags to add; none is cleared
 * @propagation: MS_PRIVATE and the like, 0 to leave it
 *
 * Return: 0, -1 on error (ENOSYS before Linux 5.12, EINVAL for "nosymfollow" before 5.14)
 */
int linux_mount_setattr(int fd, uint64_t attributes, uint64_t propagation)
{
	struct mount_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.attr_set = attributes;
	attr.propagation = propagation;

	return (int)syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr,
			    sizeof(attr));
}

/**
 * linux_move_mount() - Attach a detached mount
 * @tree:	Detached mount from linux_open_tree()
 * @target:	The object to mount over, opened with O_PATH: no path is walked, so no process can swap it meanwhile
 *
 * Return: 0, -1 on error (ENOENT: @target has been unlinked)
 */
int linux_move_mount(int tree, int target)
{
	unsigned int flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;

	return (int)syscall(SYS_move_mount, tree, "", target, "", flags);
}

/**
 * linux_mount_tmpfs() - Mount a new, empty file system in memory
 * @target:	Mount point, a directory that no pod can write
 * @flags:	MS_NODEV and the like
 * @options:	Options of tmpfs(5), as "size=1m,mode=0777"
 *
 * Return: 0, -1 on error (EINVAL: an option that the kernel does not know)
 */
int linux_mount_tmpfs(const char *target, unsigned long flags, const char *options)
{
	return (int)syscall(SYS_mount, "tmpfs", target, "tmpfs", flags, options);
}

/**
 * linux_umount2() - Detach a mount
 * @path:	Mount point; /proc/self/fd/N names exactly the mount whose root N was opened on
 * @flags:	MNT_DETACH and the like
 *
 * Return: 0, -1 on error (EINVAL: not a mount point)
 */
int linux_umount2(const char *path, int flags)
{
	return (int)syscall(SYS_umount2, path, flags);
}

/**
 * linux_setns() - Move the calling thread, and no other, into a namespace
 * @fd:		Namespace
 * @nstype:	CLONE_NEW* that @fd must be, 0 for any
 *
 * Return: 0, -1 on error (EINVAL: @fd is no namespace of that type)
 */
int linux_setns(int fd, int nstype)
{
	return (int)syscall(SYS_setns, fd, nstype);
}

/**
 * linux_inotify_init() - Make an instance that tells of changes of directories
 *
 * Return: file descriptor that never blocks, -1 on error (EMFILE: fs.inotify.max_user_instances)
 */
int linux_inotify_init(void)
{
	return (int)syscall(SYS_inotify_init1, IN_CLOEXEC | IN_NONBLOCK);
}

/**
 * linux_inotify_add_watch() - Have an instance tell of changes in a directory
 * @fd:		The instance
 * @path:	The directory
 * @mask:	IN_* events
 *
 * Return: number of the watch, -1 on error (ENOENT: no such directory; ENOSPC: fs.inotify.max_user_watches)
 */
int linux_inotify_add_watch(int fd, const char *path, uint32_t mask)
{
	return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}
