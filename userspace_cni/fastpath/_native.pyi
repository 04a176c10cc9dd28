# Types of the compiled extension: what paths.cdef declares.

from cffi import FFI

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
    MNT_DETACH: int
    CLONE_NEWNET: int

    def fp_openat2(self, dirfd: int, path: bytes, flags: int, mode: int, resolve: int, /) -> int: ...
    def fp_open_tree(self, dirfd: int, path: bytes, /) -> int: ...
    def fp_mount_setattr(self, fd: int, attributes: int, propagation: int, /) -> int: ...
    def fp_move_mount(self, tree: int, target: int, /) -> int: ...
    def fp_umount2(self, path: bytes, flags: int, /) -> int: ...
    def fp_setns(self, fd: int, nstype: int, /) -> int: ...

lib: _Lib
