/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - system calls for safe paths, mounts and namespaces; see paths.c */

#ifndef LINUX_PATHS_H
#define LINUX_PATHS_H

#include <stdint.h>

#include <sys/inotify.h>

#include <linux/mount.h>
#include <linux/openat2.h>

/* Missing in kernel headers older than Linux 5.14 */
#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

/* From libc's sys/mount.h, which conflicts with linux/mount.h in older libcs */
#ifndef MNT_DETACH
#define MNT_DETACH 0x00000002
#endif

/* From libc's sched.h */
#ifndef CLONE_NEWNET
#define CLONE_NEWNET 0x40000000
#endif

int linux_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode,
		  uint64_t resolve);
int linux_open_tree(int dirfd, const char *path);
int linux_mount_setattr(int fd, uint64_t attributes, uint64_t propagation);
int linux_move_mount(int tree, int target);
int linux_mount_tmpfs(const char *target, unsigned long flags,
		      const char *options);
int linux_umount2(const char *path, int flags);
int linux_setns(int fd, int nstype);
int linux_inotify_init(void);
int linux_inotify_add_watch(int fd, const char *path, uint32_t mask);

#endif /* LINUX_PATHS_H */
