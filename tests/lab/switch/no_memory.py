"""An OVS-DPDK that has no memory for new connections to vhost-user ports while a test says so.

On any node that happens for a moment, while OVS makes the buffers of an MTU; a test has to choose the moment.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.switch.switch import Switch

_SOURCE = Path(__file__).with_suffix(".c")
_VSWITCHD = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"


@contextmanager
def switch_without_memory() -> Iterator[tuple[Switch, Path]]:
    """The switch, and the file: while it is there, each new connection ends at once."""
    with TemporaryDirectory(prefix="uc-") as directory:
        library, program, file = (Path(directory) / name for name in ("no_memory.so", "vswitchd", "no-memory"))
        strict = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["gcc", *strict, "-shared", "-fPIC", f"-o{library}", str(_SOURCE), "-ldl"], check=True)
        real = os.environ.get("VSWITCHD", _VSWITCHD)
        exports = f"export LD_PRELOAD={library} NO_MEMORY_WHILE={file}"
        program.write_text(f'#!/bin/bash\n{exports}\nexec -a ovs-vswitchd {real} "$@"\n')
        program.chmod(0o755)
        with Switch(environment={"VSWITCHD": str(program)}) as started:
            yield started, file
