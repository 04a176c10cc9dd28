"""A container image made without any registry: Debian's static busybox in a docker-archive, which every runtime can import.

It has the names that the tests run, and the links by which a container that is given the host's /usr finds its libraries.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
IMAGE = "localhost/userspace-cni-test:1"
UNSTARTABLE = "/bin/unstartable"
"""A program in the image that the kernel refuses to execute: its interpreter is missing."""
_APPLETS = ("sh", "sleep", "ip", "cat", "ls", "true")
_LINKS = {"lib": "usr/lib", "lib64": "usr/lib64"}
_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp", "usr", "shared")


def write_image(path: Path) -> None:
    """Write the archive with `IMAGE`, whose entry point sleeps for ever; FileNotFoundError without busybox-static."""
    write_archive(path, IMAGE, _layer(), {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin:/usr/bin"]})


def write_archive(path: Path, name: str, layer: bytes, config: Mapping[str, object]) -> None:
    """Write a docker-archive with an image of this full name, which is this layer, a tar archive, and runs as `config` says."""
    written = _marshal(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    )
    file = f"{hashlib.sha256(written).hexdigest()}.json"
    manifest = _marshal([{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}])
    path.write_bytes(_archive({file: written, "layer.tar": layer, "manifest.json": manifest}))


def unpack_image(directory: Path) -> None:
    """The same files as a directory, for a runtime that takes one for an image."""
    directory.mkdir()
    subprocess.run(["tar", "-x", "-C", str(directory)], input=_layer(), check=True)


def _layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for directory in _DIRECTORIES:
            tar.addfile(_entry(directory, tarfile.DIRTYPE))
        for link, target in (_LINKS | {f"bin/{applet}": "busybox" for applet in _APPLETS}).items():
            tar.addfile(_entry(link, tarfile.SYMTYPE, target))
        _add(tar, "bin/busybox", BUSYBOX.read_bytes())
        _add(tar, UNSTARTABLE[1:], b"#!/no/such/interpreter\n")
    return buffer.getvalue()


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = _entry(name, tarfile.REGTYPE)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, 0o755
    return entry


def _marshal(value: object) -> bytes:
    return json.dumps(value).encode()
