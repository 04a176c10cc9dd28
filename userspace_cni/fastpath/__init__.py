"""vhost-user, and what else Python's standard library cannot do on Linux: a library, with a small part in C, bound with cffi.

Messages and decisions are Python; C does single, bounded operations: system calls (`sys`), mappings that others can take away
(`memory`), virtqueues of either side and loops that Python is too slow for (`rings`). What Python uses of a C file is declared
beside it (`*.cdef`), and typed modules hide it. Users import those: of `vhost` the `front_end`, the `back_end` and `sockets`,
of `rings` a `queue_pair`, a `burst` and the `generator`, of `memory` the `hugepages`, of `sys` the `paths` and the `deadline`,
and `tap` and `errors`. What needs no C loads none. Nothing here imports from the rest of the program, logs, or keeps state but
the one SIGBUS handler of `memory/guard.c`.
"""
