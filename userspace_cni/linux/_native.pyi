# Types of the compiled extension: what the *.cdef declare. Pointers to C structures are Any.

from _cffi_backend import FFI

ffi: FFI

class _Lib:
    RESOLVE_NO_MAGICLINKS: int
    RESOLVE_NO_SYMLINKS: int
    RESOLVE_BENEATH: int
    MOUNT_ATTR_NOSUID: int
    MOUNT_ATTR_NODEV: int
    MOUNT_ATTR_NOEXEC: int
    MOUNT_ATTR_NOSYMFOLLOW: int
    MS_PRIVATE: int
    MS_NOSUID: int
    MS_NODEV: int
    MS_NOEXEC: int
    MNT_DETACH: int
    CLONE_NEWNET: int
    IN_CLOSE_WRITE: int
    IN_ATTRIB: int
    IN_MOVE: int
    IN_DELETE: int
    IN_DELETE_SELF: int
    IN_MOVE_SELF: int
    IN_ONLYDIR: int

    def linux_openat2(self, dirfd: int, path: bytes, flags: int, mode: int, resolve: int, /) -> int: ...
    def linux_open_tree(self, dirfd: int, path: bytes, /) -> int: ...
    def linux_mount_setattr(self, fd: int, attributes: int, propagation: int, /) -> int: ...
    def linux_move_mount(self, tree: int, target: int, /) -> int: ...
    def linux_mount_tmpfs(self, target: bytes, flags: int, options: bytes, /) -> int: ...
    def linux_umount2(self, path: bytes, flags: int, /) -> int: ...
    def linux_setns(self, fd: int, nstype: int, /) -> int: ...
    def linux_inotify_init(self, /) -> int: ...
    def linux_inotify_add_watch(self, fd: int, path: bytes, mask: int, /) -> int: ...

lib: _Lib
