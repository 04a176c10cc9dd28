"""The seccomp profile for pods with DPDK that run under the Pod Security level `restricted`, and where kubelets look for it.

The runtime's own profile (`RuntimeDefault`) forbids the system calls by which DPDK asks for memory of a NUMA node, unless the
container has SYS_NICE, which `restricted` forbids. seccomp.json allows what such a profile allows to a container without
capabilities, and these three calls beside it. It names no machine: each runtime takes its own, and skips calls that this has not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from userspace_cni.cli.node.install import place_file

NAME: Final = "userspace-cni/dpdk.json"
"""What a pod writes as `localhostProfile`: the path below the kubelet's directory of profiles."""
PROFILE: Final = Path(__file__).with_name("seccomp.json")


def install_profile(seccomp_dir: str) -> Path:
    """Put the profile as `seccomp_dir`/NAME, mode 0644, by rename; its absolute path. Raises InstallError."""
    target = Path(seccomp_dir).absolute() / NAME
    place_file(target, PROFILE.read_bytes(), 0o644)
    return target
