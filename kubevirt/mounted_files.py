"""Reads files that are mounted in the sidecar's container: the downward API's and the DRA drivers'.

A FIFO or a device may be there by mistake: only regular files are read, up to the size that such a file can have, and reading
must never wait. Symbolic links are followed: the kubelet swaps a link to change a file in one step. A file that vanishes during a
look was swapped; the next look finds the new one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from kubevirt.dra import Device, read_metadata
from kubevirt.json_input import BYTES_MAX
from kubevirt.sidecar_errors import BadInput, DefinitionRefused
from kubevirt.vmi import NetworkClaim

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
"""RFC 1123: what names of claims and requests are, and what can go into a path."""
_FILES_MAX: Final = 64
_MOUNT_REMEDY: Final = (
    "KubeVirt 1.10 or newer gives a binding's sidecar the claim (and so the metadata of a driver that writes it: "
    "dra-driver-ovsdpdk with --enable-device-metadata); with an older one an admission policy has to add the claim to the "
    "resources.claims of container hook-sidecar-0, or take a Multus network instead"
)


def read_file(path: str, *, follow: bool = True) -> bytes | None:
    """Read a regular file, up to BYTES_MAX and one more byte, which no parser takes; None when there is none.

    `follow`: its last component may be a symbolic link.

    Raises BadInput for anything else at the path, and for a file that cannot be read.
    """
    remedy = "look at what is mounted there in the sidecar's container (kubectl get pod -o yaml)"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.lexists(path):
            raise BadInput(f"{path} is a link to nothing", remedy) from error
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be opened: {error.strerror}", remedy) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadInput(f"{path} is not a regular file", remedy)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", remedy) from error
    finally:
        os.close(descriptor)


def read_claim(root: str, claim: NetworkClaim) -> Device:
    """The vhost-user port of a claim's request, out of the metadata below `root`.

    Raises Refused (dra-not-mounted: no file of that claim; no-source: files, and no socket or more than one), BadInput.
    """
    where = f"claim {claim.name!r}, request {claim.request!r}"
    for name in (claim.name, claim.request, claim.named):
        if name and not _NAME.fullmatch(name):
            raise BadInput(
                f"{where}: {name[:64]!r} is not a name that Kubernetes gives", "correct the VM's networks and resourceClaims"
            )
    for layout in _layouts(Path(root), claim):
        files = [path for directory in layout for path in _metadata_files(directory)]
        if files:
            return _only_port(files, claim, where)
    requests = {request.name for directory in _claims(Path(root), claim) for request in _directories(directory)}
    if claim.request and requests and claim.request not in requests:
        raise DefinitionRefused(
            "no-source",
            f"{where}: the claim has no such request in the sidecar's container, but: {', '.join(sorted(requests))[:200]}",
            "name one of the claim's requests in the VM's network (resourceClaim.requestName)",
        )
    raise DefinitionRefused(
        "dra-not-mounted", f"{where}: no device metadata below {root} in the sidecar's container", _MOUNT_REMEDY
    )


def _layouts(root: Path, claim: NetworkClaim) -> list[list[Path]]:
    """The directories where the claim's files can be, the likeliest layout first (see `dra`).

    Where the VM does not say whether the claim is made of a template, all that it may name are looked at.
    """
    found = [_requests(each, claim.request) for each in _claims(root, claim)]
    if claim.named is None:
        found.append([each for direct in _directories(root / "resourceclaims") for each in _requests(direct, claim.request)])
    return found


def _claims(root: Path, claim: NetworkClaim) -> list[Path]:
    """The directories that a claim of that name can have."""
    known = root / "resourceclaims" / claim.named if claim.named else root / "resourceclaimtemplates" / claim.name
    return [known, root / claim.name]


def _requests(claim: Path, request: str) -> list[Path]:
    return [claim / request] if request else _directories(claim)


def _directories(parent: Path) -> list[Path]:
    return [path for path in _entries(parent) if path.is_dir()]


def _metadata_files(directory: Path) -> list[Path]:
    return [path for path in _entries(directory) if path.name == "metadata.json" or path.name.endswith("-metadata.json")]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())[:_FILES_MAX]
    except OSError:
        return []


def _only_port(files: list[Path], claim: NetworkClaim, where: str) -> Device:
    found = {}
    for path in files:
        content = read_file(str(path))
        device = read_metadata(content, claim.request, str(path)) if content is not None else None
        if device:
            found[device.path] = device
    if len(found) == 1:
        return next(iter(found.values()))
    names = ", ".join(map(str, files))[:300]
    if found:
        raise DefinitionRefused(
            "no-source",
            f"{where}: several sockets ({', '.join(found)[:300]}) in {names}",
            "name the request in the VM's network (resourceClaim.requestName), one device each; of claims named by "
            "resourceClaimName, no two may have a request of the same name",
        )
    raise DefinitionRefused(
        "no-source",
        f"{where}: no device with an attribute vhost-user-path in {names}",
        "the claim's device class must be of a driver for vhost-user ports, as dra-driver-ovsdpdk",
    )
