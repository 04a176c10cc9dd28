"""Who runs on the processors of polling threads: processes, interrupts, and irqbalance(1), which would bring some there.

A polling thread needs all of its processor: whatever else runs there takes frames from it. Two looks some time apart tell what
ran in between, so that a process that has slept for days is not blamed for where it slept. The kernel's own threads are left out,
because most of them cannot be moved.
"""
# Files of proc(5) by the thousand: pathlib would double the cost.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.cpu_sets import read_list, read_mask
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import read_text, read_word

_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD in the field `flags` of proc_pid_stat(5)."""
_FLAGS, _USER, _SYSTEM, _PROCESSOR = 6, 11, 12, 36
"""Places in proc_pid_stat(5), counted from the field after the name in parentheses."""
_NUMBERS: Final = re.compile(r"^NSpid:\s*(.+)$", re.MULTILINE)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LEAST_SHARE: Final = 0.02
"""Of a processor: two ticks in a second, below which a share is chance."""
_BALANCER: Final = "irqbalance"


@dataclass(frozen=True)
class CpuUser:
    """A process that runs on some of the processors that were asked about, or may run nowhere else.

    `share`: of one processor, in its threads that were seen there. `cpus`: where. `bound`: a thread of it may only run there.
    """

    pid: int
    name: str
    cpus: frozenset[int]
    share: float
    bound: bool


@dataclass(frozen=True)
class CpuInterrupt:
    """An interrupt that came on some of these processors. `number`: its directory in /proc/irq; `count`: how often meanwhile."""

    number: int
    name: str
    cpus: frozenset[int]
    count: int


@dataclass(frozen=True)
class InterruptBalancer:
    """irqbalance(1), which runs. `spared`: processors to which it moves no interrupt; None where that cannot be read."""

    pid: int
    spared: frozenset[int] | None


@dataclass(frozen=True)
class CpuUse:
    """What runs on some processors beside their polling threads, in `seconds`."""

    seconds: float
    users: tuple[CpuUser, ...] = ()
    interrupts: tuple[CpuInterrupt, ...] = ()
    balancer: InterruptBalancer | None = None


def look_at_cpus(
    cpus: frozenset[int], seconds: float, besides: Collection[int], isolated: frozenset[int], root: HostRoot = HERE
) -> CpuUse:
    """What runs on `cpus` in the next `seconds`; the processes `besides` and this one are left out.

    `isolated`: what irqbalance spares when it is told nothing. Raises Unavailable where processes or interrupts are not seen.
    """
    _require_all_processes(root)
    left_out = {*besides, os.getpid()}
    began, threads, interrupts = time.monotonic(), dict(_threads()), _count_interrupts(cpus, root)
    time.sleep(seconds)
    passed, later = time.monotonic() - began, dict(_threads())
    later_interrupts = _count_interrupts(cpus, root)
    users: dict[int, CpuUser] = {}
    for tid, thread in later.items():
        if thread.pid not in left_out and not thread.of_kernel:
            _add_user(users, tid, thread, threads.get(tid), cpus, passed)
    found = [
        CpuInterrupt(number, name, _delivered_to(number, root) & cpus, count - interrupts.get(number, (0, ""))[0])
        for number, (count, name) in later_interrupts.items()
    ]
    return CpuUse(
        passed,
        tuple(sorted(users.values(), key=lambda user: (not user.bound, -user.share, user.pid))),
        tuple(each for each in found if each.count > 0 and each.cpus),
        _find_balancer(isolated),
    )


@dataclass(frozen=True)
class _Thread:
    pid: int
    name: str
    ticks: int
    cpu: int
    of_kernel: bool


def _require_all_processes(root: HostRoot) -> None:
    """Raise Unavailable in a PID namespace other than the host's: most processes are not seen there.

    The host's proc(5) tells of this process how it is called in each namespace in which it has a number.
    """
    numbers = _NUMBERS.search(read_word("/proc/self/status", root)) if root.elsewhere else None
    if numbers and len(numbers[1].split()) > 1:
        raise Unavailable("processes of the host are not seen from this container", "it needs hostPID: true")


def _threads() -> Iterator[tuple[int, _Thread]]:
    """Every thread by its number. psutil names processes and their threads, and does not say where each thread is."""
    import psutil

    for pid in psutil.pids():
        try:
            for tid in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8", errors="replace") as file:
                    before, _, after = file.read().rpartition(")")
                fields = after.split()
                ticks = int(fields[_USER]) + int(fields[_SYSTEM])
                of_kernel = bool(int(fields[_FLAGS]) & _KERNEL_THREAD)
                yield int(tid), _Thread(pid, before.partition("(")[2], ticks, int(fields[_PROCESSOR]), of_kernel)
        except (OSError, IndexError, ValueError):  # it has ended
            continue


def _add_user(
    users: dict[int, CpuUser], tid: int, now: _Thread, former: _Thread | None, cpus: frozenset[int], seconds: float
) -> None:
    with suppress(OSError):  # it has ended
        allowed = os.sched_getaffinity(tid)
        bound = allowed <= cpus
        used = (now.ticks - former.ticks if former else 0) / _TICKS / seconds
        share = used if now.cpu in cpus else 0.0
        if not bound and share < _LEAST_SHARE:
            return
        known = users.get(now.pid) or CpuUser(now.pid, _name_of(now.pid) or now.name, frozenset(), 0.0, bound=False)
        where = known.cpus | (allowed if bound else {now.cpu})
        users[now.pid] = CpuUser(now.pid, known.name, where, known.share + share, known.bound or bound)


def _name_of(pid: int) -> str:
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(pid).name()
    return ""


def _count_interrupts(cpus: frozenset[int], root: HostRoot) -> Mapping[int, tuple[int, str]]:
    """How often each numbered interrupt has come on these processors, and its name. Raises Unavailable."""
    text = read_text("/proc/interrupts", root)
    if not text:
        raise Unavailable("/proc/interrupts is not there", "is /proc mounted?")
    heading, *rows = text.splitlines()
    columns = [int(word.removeprefix("CPU")) for word in heading.split() if word.removeprefix("CPU").isdecimal()]
    found = {}
    for row in rows:
        number, _, rest = row.partition(":")
        words = rest.split()
        if number.strip().isdecimal() and len(words) >= len(columns):
            counts = [int(word) for cpu, word in zip(columns, words, strict=False) if cpu in cpus and word.isdecimal()]
            found[int(number)] = (sum(counts), words[-1] if len(words) > len(columns) else "")
    return found


def _delivered_to(number: int, root: HostRoot) -> frozenset[int]:
    """The processors to which an interrupt goes; all that it may go to where the kernel does not say."""
    places = (f"/proc/irq/{number}/effective_affinity_list", f"/proc/irq/{number}/smp_affinity_list")
    return next((found for place in places if (found := read_list(read_word(place, root)))), frozenset())


def _find_balancer(isolated: frozenset[int]) -> InterruptBalancer | None:
    import psutil

    for process in psutil.process_iter(["name"]):
        if process.info["name"] != _BALANCER:
            continue
        try:
            environ = process.environ()
        except psutil.NoSuchProcess:
            continue
        except (psutil.AccessDenied, OSError):
            return InterruptBalancer(process.pid, None)
        if "IRQBALANCE_BANNED_CPULIST" in environ:
            return InterruptBalancer(process.pid, read_list(environ["IRQBALANCE_BANNED_CPULIST"]))
        if "IRQBALANCE_BANNED_CPUS" in environ:
            return InterruptBalancer(process.pid, read_mask(environ["IRQBALANCE_BANNED_CPUS"].replace(",", "")))
        return InterruptBalancer(process.pid, isolated)
    return None
