"""Objects of C that Python owns: freed with the last reference to them, and not before.

`ffi.gc` is not enough: in a cycle of garbage the collector first calls all finalizers, in any order, and to free such an object
is one of them. A `__del__` in the same cycle, or an object that it brings back to life, may then use memory that is free. A plain
pointer is unknown to the collector, so that it goes after everything that refers to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from userspace_cni.fastpath._native import ffi


def own(pointer: Any, free: Callable[[Any], None]) -> Any:
    """Have `free` called with `pointer`, as C returned it, once there is no reference to this very object; returns it.

    What is left at the end of the process is not freed: a thread may use it until then.
    """
    weakref.finalize(pointer, free, ffi.cast(ffi.typeof(pointer), pointer)).atexit = False
    return pointer
