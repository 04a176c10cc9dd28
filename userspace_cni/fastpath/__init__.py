"""vhost-user, and what else Python's standard library cannot do on Linux: a library, with a small part in C, bound with cffi.

Messages and decisions are Python; C does single, bounded operations: system calls (`sys`), mappings that another process can
truncate (`memory`), virtqueues of either side and loops that Python is too slow for (`rings`). A *.cdef beside each C file
declares what Python uses of it, and typed modules hide it. Users import these modules: of `vhost` the `front_end`, the `back_end`
and `sockets`, of `rings` the `queue_pair`, the `burst` and the `generator`, of `memory` the `hugepages`, of `sys` the `paths` and
the `deadline`, and `tap` and `errors`. A module that needs no C loads none. Nothing here imports from the rest of the program or
logs. The only global state is the SIGBUS handler of `memory/guard.c`.
"""
