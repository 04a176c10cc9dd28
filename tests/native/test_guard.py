"""Mappings of memory that another process may take away, and the handler of SIGBUS; tests that may die run in a child process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from userspace_cni.fastpath._native import ffi, lib

MEMORY = Path(__file__).parents[2] / "userspace_cni" / "fastpath" / "memory"
BEGIN = """
import ctypes, faulthandler, mmap, os, resource, signal, sys, threading
from userspace_cni.fastpath._native import ffi, lib
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def file(size=8192, flags=0):
    fd = os.memfd_create("guarded", flags)
    os.ftruncate(fd, size)
    return fd

def guard(fd, size=8192):
    made = ffi.new("struct fp_guard **")
    assert lib.fp_guard_map(fd, 0, size, made) == 0
    return made[0]

def fault():
    fd = file()
    mapped = mmap.mmap(fd, 8192)
    os.ftruncate(fd, 0)
    return mapped[0]
"""


def _child(script: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", BEGIN + dedent(script)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def memfd() -> Iterator[int]:
    """A file in memory of two pages."""
    fd = os.memfd_create("guarded")
    os.ftruncate(fd, 8192)
    yield fd
    os.close(fd)


def _map(fd: int, offset: int, length: int) -> tuple[int, Any]:
    guard: Any = ffi.new("struct fp_guard **")
    return lib.fp_guard_map(fd, offset, length, guard), guard[0]


def test_mapping_is_shared(memfd: int) -> None:
    """A byte that is written through a mapping is in the file, counted from the requested offset, aligned or not."""
    result, guard = _map(memfd, 100, 8092)
    assert result == 0
    ffi.buffer(guard.data, 8092)[:5] = b"hello"
    assert os.pread(memfd, 5, 100) == b"hello"
    before = lib.fp_guard_count()
    lib.fp_guard_unmap(guard)
    assert lib.fp_guard_count() == before - 1


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 0, errno.EOVERFLOW),
        (0, 2**64 - 1, errno.EOVERFLOW),
        (2**63, 4096, errno.EOVERFLOW),
        (0, 8193, errno.ENODATA),
        (8192, 1, errno.ENODATA),
    ],
)
def test_what_cannot_be_mapped(memfd: int, offset: int, length: int, expected: int) -> None:
    """Zero bytes, more than the file has, and ranges beyond all addresses are refused before the kernel is asked."""
    assert _map(memfd, offset, length)[0] == -expected


def test_what_is_no_memory() -> None:
    """A pipe, a socket, a device and a file of /proc are no memory; a file that is open only for reading cannot be mapped."""
    ends = os.pipe()
    for fd in ends:
        assert _map(fd, 0, 1)[0] == -errno.EMEDIUMTYPE
        os.close(fd)
    for path, expected in (("/dev/zero", errno.EMEDIUMTYPE), ("/proc/self/maps", errno.EMEDIUMTYPE), (__file__, errno.EACCES)):
        fd = os.open(path, os.O_RDONLY)
        assert _map(fd, 0, 1)[0] in {-expected, -errno.EMEDIUMTYPE}
        os.close(fd)
    assert _map(-1, 0, 1)[0] == -errno.EBADF


def test_memory_taken_away_reads_as_zeros() -> None:
    """A fault inside a mapping is survived in any thread: the mapping reads as zeros; another mapping is untouched."""
    done = _child("""
        fds = [file(), file()]
        guards = [guard(fd) for fd in fds]
        for each in guards:
            each.data[5000] = 7
        os.ftruncate(fds[0], 0)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(guards[0].data[5000]))
        thread.start()
        thread.join()
        guards[0].data[0] = 9
        print(seen, guards[0].data[0], guards[1].data[5000], [each.gone for each in guards])
        for each in guards:
            lib.fp_guard_unmap(each)
        print(lib.fp_guard_count())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] 9 7 [1, 0]\n0\n", "")


def test_hugepages_that_are_not_there() -> None:
    """Memory of a file of hugepages faults when there are none; that is survived as well."""
    done = _child("""
        try:
            fd = file(2 << 20, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
        except OSError:
            print("[0]")
            raise SystemExit(0)
        it = guard(fd, 2 << 20)
        os.ftruncate(fd, 0)
        print([it.data[4096]])
        lib.fp_guard_unmap(it)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]\n", "")


def test_a_fault_of_others_ends_the_process() -> None:
    """A fault outside our mappings ends the process with SIGBUS, as without us."""
    assert _child("guard(file()); fault()").returncode == -signal.SIGBUS


def test_ignoring_does_not_help_against_a_fault() -> None:
    """With SIGBUS ignored before us, a fault still ends the process, as in the kernel; a signal that is sent does not."""
    done = _child("""
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
        guard(file())
        os.kill(os.getpid(), signal.SIGBUS)
        signal.raise_signal(signal.SIGBUS)
        print("alive", flush=True)
        fault()
    """)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "alive\n")


def test_a_signal_that_is_sent_ends_the_process() -> None:
    """SIGBUS sent by a process is no fault, whatever its address field has: without a handler before us our process dies."""
    for send in ("os.kill(os.getpid(), signal.SIGBUS)", "signal.raise_signal(signal.SIGBUS)"):
        assert _child(f"guard(file()); {send}; print('alive')").returncode == -signal.SIGBUS


def test_a_handler_of_python_is_called() -> None:
    """A handler that Python had installed before us still gets the signal."""
    done = _child("""
        signal.signal(signal.SIGBUS, lambda number, frame: print("handled", number))
        guard(file())
        signal.raise_signal(signal.SIGBUS)
    """)
    assert (done.returncode, done.stdout) == (0, f"handled {signal.SIGBUS:d}\n")


@pytest.mark.parametrize("order", ["before", "after", "between"])
def test_faulthandler_goes_on_working(order: str) -> None:
    """Python's faulthandler, enabled before or after us, prints its traceback for foreign faults, and none for ours."""
    enable = "faulthandler.enable()"
    done = _child(f"""
        {enable if order == "before" else ""}
        fds = [file(), file()]
        first = guard(fds[0])
        {enable if order != "before" else ""}
        if {order == "between"}:
            fds[0], first = fds[1], guard(fds[1])
        if {order != "after"}:
            os.ftruncate(fds[0], 0)
            assert first.data[0] == 0 and first.gone
        print("alive", flush=True)
        fault()
    """)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "alive\n")
    assert done.stderr.count("Fatal Python error: Bus error") == 1


def test_burst_in_a_thread_that_blocks_signals() -> None:
    """A thread that blocks all signals, as many programs' threads do, survives a fault in a burst like any other."""
    done = _child("""
        import socket
        sys.path.insert(0, ".")
        from tests.lab.frames.lender import Lender
        from userspace_cni.fastpath.vhost.back_end import BackEnd
        from userspace_cni.fastpath.fastpath_errors import RingFault
        ours, theirs = socket.socketpair()
        with Lender(theirs) as lender, BackEnd(ours) as back_end:
            lender.attach()
            os.ftruncate(lender.memfd, 0)
            def burst():
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                try:
                    back_end.pairs[0].receive_frames()
                except RingFault as fault:
                    print(fault.reason.name)
            thread = threading.Thread(target=burst)
            thread.start()
            thread.join()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "MEMORY_GONE\n", "")


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C program with our handler, and with handlers that Python cannot install."""
    target = tmp_path_factory.mktemp("guard") / "trial"
    flags = (
        ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if request.param == "sanitized" else ["-O2"]
    )
    own = [Path(__file__).with_name("guard_trial.c"), MEMORY / "guard.c"]
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *flags, f"-I{MEMORY}", "-o", target, *own, "-pthread"], check=True
    )
    return target


@pytest.mark.parametrize("case", ["siginfo", "plain", "resethand", "nodefer", "race", "many"])
def test_in_c(trial: Path, case: str) -> None:
    """Handlers with and without SA_SIGINFO, for one use, nested; mappings that come and go while others fault; a full table."""
    done = subprocess.run([trial, case], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("case", ["before", "behind"])
def test_pages_around_cannot_be_touched(trial: Path, case: str) -> None:
    """An access before or behind a mapping ends the process: no memory of ours is next to foreign memory."""
    done = subprocess.run([trial, case], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.returncode == -signal.SIGSEGV or "SEGV" in done.stderr
