"""Objects of C that Python owns are freed last, also by the collector."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import userspace_cni
from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.memory.owned import own


def test_freed_after_all_that_refers_to_it() -> None:
    """In a cycle of garbage it is freed after each finalizer, whichever was made first, and later still if one keeps it."""
    events: list[str] = []
    kept: list[Any] = []

    def free(pointer: Any) -> None:
        events.append("freed")
        lib.fp_memory_free(pointer)

    class User:
        def __init__(self, pointer: Any) -> None:
            self.pointer, self.itself = pointer, self

        def __del__(self) -> None:
            events.append("finalizer")
            kept.append(self.pointer)
            assert not lib.fp_memory_gone(self.pointer)

    User(own(lib.fp_memory_new(), free))
    gc.collect()
    assert events == ["finalizer"]
    kept.clear()
    gc.collect()
    assert events == ["finalizer", "freed"]


def test_freed_with_the_last_reference() -> None:
    """It is freed once, with the pointer that C returned, and without the collector."""
    freed: list[int] = []

    def free(pointer: Any) -> None:
        freed.append(int(ffi.cast("uintptr_t", pointer)))
        lib.fp_memory_free(pointer)

    pointer = own(lib.fp_memory_new(), free)
    address, pointers = int(ffi.cast("uintptr_t", pointer)), [pointer] * 2
    del pointer
    pointers.pop()
    assert freed == []
    pointers.pop()
    assert freed == [address]


def test_nothing_else_frees() -> None:
    """No module leaves it to a finalizer of cffi's, which the collector calls in any order."""
    room = Path(userspace_cni.__file__).parent
    assert [str(file) for file in room.rglob("*.py") if "ffi.gc(" in file.read_text()] == []
