"""What Python's standard library can not do on Linux: a small C library, bound with cffi.

Each topic is a pair of C files, its declarations for Python (`*.cdef`) and a typed module (`paths`) which is the only one to be
imported from elsewhere. C does single, bounded operations; decisions are taken in Python. Nothing here imports from the rest of
the program, logs, or keeps state.
"""

from userspace_cni.fastpath._native import ffi, lib

__all__ = ["ffi", "lib"]
