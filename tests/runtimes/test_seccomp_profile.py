"""The seccomp profile for DPDK in a real container: what DPDK asks the kernel for is allowed, a namespace of its own is not."""

from __future__ import annotations

import json

from tests.lab.runtimes.podman import Podman
from userspace_cni.cli.node.seccomp import PROFILE

FOREVER = ("/bin/sleep", "1000")
MACHINE = ("--volume=/usr:/usr:ro", "--volume=/usr/lib:/lib:ro", "--volume=/usr/lib64:/lib64:ro")
HARDENED = ("--user=1000:1000", "--cap-drop=all", "--security-opt=no-new-privileges")
CALLS = """\
import ctypes, errno, json, mmap, os, platform, sys, threading
numbers = {"x86_64": (237, 238, 239, 272), "aarch64": (235, 237, 236, 97)}[platform.machine()]
mbind, set_mempolicy, get_mempolicy, unshare = numbers
page = mmap.mmap(-1, 4096)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
calls = {
    "get_mempolicy": (get_mempolicy, ctypes.byref(ctypes.c_int()), None, 0, None, 0),
    "set_mempolicy": (set_mempolicy, 0, None, 0),
    "mbind": (mbind, at, 4096, 0, None, 0, 0),
    "unshare": (unshare, 0x10000000),
}
call = ctypes.CDLL(None, use_errno=True).syscall
if not os.fork():  # a process of its own: the kernel gives one with threads no user namespace
    threading.Thread(target=print).start()
    sys.exit()
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(json.dumps({name: errno.errorcode[ctypes.get_errno()] if call(*each) else "" for name, each in calls.items()}))
"""
"""Each call's error, "" for none; before that a thread of another process prints an empty line."""


def answers(podman: Podman, profile: str) -> dict[str, str]:
    """The kernel's answers to the calls of a program without root and capabilities."""
    container = podman.run(*FOREVER, networks="none", options=(*HARDENED, *MACHINE, f"--security-opt=seccomp={profile}"))
    printed = podman.run_in(container, "/usr/bin/python3", "-c", CALLS)
    podman.remove(container)
    found: dict[str, str] = json.loads(printed)
    return found


def test_in_a_container(podman: Podman) -> None:
    """The three calls for memory of a NUMA node succeed, and a user namespace is refused, which it is not without the profile."""
    asked = {"get_mempolicy": "", "set_mempolicy": "", "mbind": ""}
    assert answers(podman, str(PROFILE)) == {**asked, "unshare": "EPERM"}
    assert answers(podman, "unconfined") == {**asked, "unshare": ""}
