"""The object Plugin of KubeVirt's structured plugins, whose fields for hooks have other names in each version. Pure.

Its definition is one and the same API version, v1alpha1. So an API server does not convert an object of the other form: it drops
the field that it does not know. Such a Plugin is there, with its policies, and has no hook.

Sources: KubeVirt's staging/src/kubevirt.io/api/plugin/v1alpha1/types.go, of 1.9 and for 1.10.
"""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int]

FIRST: Final[Version] = (1, 9)
"""The first KubeVirt that has the object."""
LAUNCHER: Final[Version] = (1, 10)
"""The first with `launcherHooks` in place of `domainHooks`."""
DOMAIN_HOOKS: Final = "domainHooks"
LAUNCHER_HOOKS: Final = "launcherHooks"
GUEST_DEFINITION: Final = "GuestDefinition"
"""Of a launcher hook's `permittedHooks`: the sidecar is asked for the definition. Ours has no other hook."""
HOOK_POINTS: Final = (GUEST_DEFINITION, "PreBoot", "PreMigrationSource")
SOCKETS: Final = "/var/run/kubevirt-plugin/"
"""Each plugin's sockets are in a directory with its name below."""

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", re.ASCII)


def read_version(text: str) -> Version | None:
    """Major and minor of a version as people and KubeVirt write it: 1.9, v1.9.0, v1.10.0-alpha.1; None for anything else."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def hooks_field(version: Version) -> str:
    """The field of a Plugin's spec that has the hooks of launchers, in that KubeVirt."""
    return LAUNCHER_HOOKS if version >= LAUNCHER else DOMAIN_HOOKS


def format_version(version: Version) -> str:
    return ".".join(map(str, version))
