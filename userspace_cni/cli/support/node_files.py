"""Files of the node for the archive: records, spool, quarantine, logs, proc(5), sysfs.

Each is read up to a limit, and never waited for: only regular files are opened, and none of a directory that a pod can write.
"""
# Links of proc(5), and files of another root, as strings.
# ruff: noqa: PTH115, PTH120

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from userspace_cni.cli.support.collecting import ITEM_MAX
from userspace_cni.cli.support.known_keys import known_only, known_request, known_text
from userspace_cni.cli.support.redaction import Redactor

_FILES_MAX: Final = 2000
_ENTRY_MAX: Final = 1 << 20
_THREADS_MAX: Final = 256
_COMMAND_LINE: Final = re.compile(
    r"(?:isolcpus|nohz_full|rcu_nocbs|irqaffinity|(?:default_)?hugepagesz?|hugepages|intel_iommu|amd_iommu|iommu|nosmt|mitigations"
    r"|systemd\.unified_cgroup_hierarchy|cgroup\w*|transparent_hugepage|selinux|enforcing|apparmor|intel_pstate|processor\.\w+"
    r"|intel_idle\.\w+|tsc|default_hugepagesz)(?:=[\w.,:-]*)?"
)
"""Parameters of the kernel that are shown; the others are only counted."""
_MODULES: Final = re.compile(
    r"(?:openvswitch|vfio|vhost|uio|igb_uio|tun|veth|bonding|8021q|nf_|nft_|geneve|vxlan|sch_|act_|cls_)\w*"
)
_KUBECONFIG: Final = re.compile(r'"kubeconfig\\*"\s*:\s*\\*"([^"\\]{1,4096})')
_LOG: Final = re.compile(r".*ovs[\w-]*\.log")
_OVS_LOGS: Final = ("ovs-vswitchd.log", "ovsdb-server.log")
_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_UNIT: Final = re.compile(r"/system\.slice/([\w@.:-]+\.service)$", re.MULTILINE)


def read_regular(path: Path | str, limit: int, *, end: bool = False) -> bytes:
    """At most `limit` bytes of a regular file, its last ones with `end`. Raises OSError, ValueError for another kind of file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path} is no regular file")
        if end and facts.st_size > limit:
            file.seek(facts.st_size - limit)
            return b"(the beginning is left out)\n" + file.read(limit).partition(b"\n")[2]
        return file.read(limit)


def list_store(directory: str, redactor: Redactor) -> str:
    """Every record and every other file of JSON below the directory, one line of JSON each, as far as it is known."""
    return "".join(_lines(_below(Path(directory), ".json"), lambda text: known_only(_json(text), redactor), redactor))


def list_entries(directory: str, redactor: Redactor) -> str:
    """Spooled calls, or files that were put aside: name, size, digest and what is known of the content, one line of JSON each."""
    return "".join(_lines(_below(Path(directory), ""), lambda text: _entry(text, redactor), redactor))


def named_kubeconfigs(directory: str) -> list[str]:
    """The kubeconfigs that networks in records and spooled calls name."""
    found: dict[str, None] = {}
    with suppress(OSError):
        for path in list(_below(Path(directory), ""))[:_FILES_MAX]:
            with suppress(OSError, ValueError):
                text = read_regular(path, _ENTRY_MAX).decode("utf-8", "replace")
                found |= dict.fromkeys(_KUBECONFIG.findall(text))
    return list(found)


def _entry(text: str, redactor: Redactor) -> Any:
    if text.startswith("POST "):
        return known_request(text, redactor)
    return known_only(_json(text), redactor)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _lines(paths: Iterable[Path], read: Callable[[str], Any], redactor: Redactor) -> Iterator[str]:
    read_bytes = 0
    for number, path in enumerate(paths):
        if number >= _FILES_MAX or read_bytes > ITEM_MAX:
            yield json.dumps({"left out": "more files"}) + "\n"
            return
        facts: dict[str, Any] = {"file": str(path)}
        try:
            raw = read_regular(path, _ENTRY_MAX)
            read_bytes += len(raw)
            facts |= {"bytes": path.lstat().st_size, "sha256": hashlib.sha256(raw).hexdigest()}
            text = raw.decode("utf-8", "replace")
            try:
                facts["content"] = read(text)
            except ValueError as error:
                facts |= {"problem": str(error), "content": known_text(text, redactor)}
        except (OSError, ValueError) as error:
            facts["problem"] = str(error)
        yield json.dumps(facts) + "\n"


def _below(directory: Path, suffix: str, depth: int = 4) -> Iterator[Path]:
    """The files below the directory with that end of their names, by name; links are not followed."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth:
            yield from _below(Path(entry.path), suffix, depth - 1)
        elif entry.is_file(follow_symlinks=False) and entry.name.endswith(suffix):
            yield Path(entry.path)


# -- logs -----------------------------------------------------------------------------------------------------------------


def read_agent_log(pid: int, there: Callable[[str], str], limit: int) -> str:
    """The end of the agent's log: the file that is its stderr, its container's, or the journal. Raises ValueError for none."""
    found = []
    if pid:
        with suppress(OSError, ValueError):
            found.append(_tail(Path(os.readlink(there(f"/proc/{pid}/fd/2"))), limit, there))
    cgroup = _text(there(f"/proc/{pid}/cgroup")) if pid else ""
    pods = [match.replace("_", "-") for match in _POD.findall(cgroup)]
    patterns = [f"*_{uid}/*/*.log" for uid in pods] or ["userspace-cni_*/*/*.log"]
    logs = sorted(path for pattern in patterns for path in Path(there("/var/log/pods")).glob(pattern))
    found += [_tail(path, limit // max(1, len(logs)), lambda path: path) for path in logs]
    if not found:
        unit = next(iter(_UNIT.findall(cgroup)), "userspace-cni.service")
        found.append(_journal(unit, there, limit))
    return "".join(found)


def _tail(path: Path, limit: int, there: Callable[[str], str]) -> str:
    seen = os.path.realpath(there(str(path)))
    return f"== {path}\n{read_regular(seen, limit, end=True).decode('utf-8', 'replace')}\n"


def _journal(unit: str, there: Callable[[str], str], limit: int) -> str:
    program = shutil.which("journalctl")
    if program is None:
        raise ValueError(
            "the agent's log was not found: its stderr is no file, there is no log of its container below /var/log/pods, and no "
            "program journalctl is here; add the log by hand"
        )
    directory = there("/var/log/journal")
    where = ["--directory", directory] if directory != "/var/log/journal" else []
    argv = [program, *where, "--no-pager", "--output", "short-iso", "--lines", "20000", "--unit", unit]
    done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
    return f"== journal of {unit}\n{done.stdout[-limit:].decode('utf-8', 'replace')}\n{done.stderr.decode('utf-8', 'replace')}"


def read_switch_logs(pid: int | None, rundir: str, there: Callable[[str], str], limit: int) -> str:
    """The ends of the logs of ovs-vswitchd and ovsdb-server. Raises ValueError where none was found."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for each in os.scandir(there(f"/proc/{pid or 0}/fd")):
            with suppress(OSError):
                target = os.readlink(each.path)
                if _LOG.fullmatch(target):
                    found[target] = os.path.realpath(there(target))
    directories = [*(os.path.dirname(each) for each in found), "/var/log/openvswitch", rundir]
    for directory in directories:
        for name in _OVS_LOGS:
            found.setdefault(f"{directory}/{name}", os.path.realpath(there(f"{directory}/{name}")))
    read, seen = [], set()
    for path, here in found.items():
        with suppress(OSError, ValueError):
            if here not in seen:
                read.append(f"== {path}\n{read_regular(here, limit // 2, end=True).decode('utf-8', 'replace')}\n")
                seen.add(here)
    if not read:
        raise ValueError(f"no log of Open vSwitch was found in {', '.join(dict.fromkeys(directories))}; add it by hand")
    return "".join(read)


# -- the machine ----------------------------------------------------------------------------------------------------------


def read_machine(there: Callable[[str], str]) -> dict[str, Any]:
    """Kernel, memory, CPUs and huge pages, as the kernel tells them."""
    given = _text(there("/proc/cmdline")).split()
    shown = [word for word in given if _COMMAND_LINE.fullmatch(word)]
    cpus = "/sys/devices/system/cpu"
    paths = [*(f"{cpus}/{name}" for name in ("online", "possible", "isolated", "nohz_full")), "/sys/fs/selinux/enforce"]
    globs = ("node/node*/cpulist", "node/node*/distance", "node/node*/hugepages/hugepages-*/*hugepages")
    tree = Path(there("/sys/devices/system"))
    paths += [str(path) for pattern in globs for path in sorted(tree.glob(pattern))]
    modules = [line.split()[0] for line in _text(there("/proc/modules")).splitlines() if line]
    return {
        "kernel": list(os.uname())[:1] + list(os.uname())[2:],
        "system": _text(os.path.realpath(there("/etc/os-release"))).splitlines(),
        "command line": {"shown": shown, "left out": len(given) - len(shown)},
        "memory": _text(there("/proc/meminfo")).splitlines(),
        "load": _text(there("/proc/loadavg")).strip(),
        "pressure": {name: _text(there(f"/proc/pressure/{name}")).splitlines() for name in ("cpu", "memory", "io")},
        "processors": sorted({line for line in _text(there("/proc/cpuinfo")).splitlines() if line.startswith("model name")}),
        "files": {path: _text(there(path) if not path.startswith(str(tree)) else path).strip() for path in paths},
        "modules": [name for name in modules if _MODULES.fullmatch(name)],
    }


def read_process(pid: int, there: Callable[[str], str]) -> dict[str, Any]:
    """What the kernel says of a process: never its environment, its arguments, or its memory."""
    proc, cgroup = there(f"/proc/{pid}"), _text(there(f"/proc/{pid}/cgroup"))
    below = [line.rpartition(":")[2].lstrip("/") for line in cgroup.splitlines() if line.startswith("0::")]
    names = ("cpuset.cpus.effective", "cpuset.mems.effective", "cpu.max", "cpu.stat", "memory.max", "memory.current", "pids.max")
    threads = [Path(entry.path) for entry in list(os.scandir(f"{proc}/task"))[:_THREADS_MAX]]
    return {
        "pid": pid,
        "name": _text(f"{proc}/comm").strip(),
        "status": _text(f"{proc}/status").splitlines(),
        "limits": _text(f"{proc}/limits").splitlines(),
        "cgroup": cgroup.splitlines(),
        "of the cgroup": {name: _text(there(f"/sys/fs/cgroup/{each}/{name}")).strip() for each in below for name in names},
        "threads": [
            {"name": _text(path / "comm").strip(), "cpus": _value(path / "status", "Cpus_allowed_list")} for path in threads
        ],
    }


def read_mounts(there: Callable[[str], str], directories: Iterable[str]) -> str:
    """The mounts of huge pages and of sockets: without the options of their file systems."""
    wanted = tuple(f"{directory.rstrip('/')}/" for directory in directories)
    lines = _text(there("/proc/1/mountinfo") if there("/") != "/" else "/proc/self/mountinfo").splitlines()
    kept = [line.rpartition(" ")[0] for line in lines if " - hugetlbfs " in line or f"{line.split()[4]}/".startswith(wanted)]
    return "\n".join(kept) + "\n"


def _value(path: Path, key: str) -> str:
    return next((line.partition(":")[2].strip() for line in _text(path).splitlines() if line.startswith(f"{key}:")), "")


def _text(path: Path | str) -> str:
    """The text of a file of the kernel's, "" for none."""
    try:
        return read_regular(path, ITEM_MAX).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
