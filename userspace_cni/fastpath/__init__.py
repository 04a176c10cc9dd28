"""vhost-user, and what else Python's standard library can not do on Linux: a library, with a small part in C, bound with cffi.

Messages and decisions are Python; C does single, bounded operations: system calls (`paths`), mappings that others can take away
(`guard`), virtqueues of either side (`queue`, `driver`, `device`), loops that Python is too slow for (`generator`, `pump`).
Each C file has its declarations for Python beside it (`*.cdef`, none where only C uses it), and typed modules that hide it. Users
import those: `front_end`, `back_end`, `queue_pair`, `burst`, `generator`, `tap`, `memory`, `sockets`, `hugepages`, `paths`,
`errors`. Nothing here imports from the rest of the program, logs, or keeps state but the one SIGBUS handler of `guard`.
"""

from userspace_cni.fastpath._native import ffi, lib

__all__ = ["ffi", "lib"]
