"""The archive: one directory in a tar, compressed, of mode 0600. It is made whole or not at all, and replaces no file."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import sys
import tarfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.site import CommandRefused

STDOUT: Final = "-"
_MODE: Final = 0o600


def require_writable(output: str) -> None:
    """Refuse, before anything is collected, what cannot be written: a file that is there, a directory that is not, a terminal."""
    if output == STDOUT:
        if sys.stdout.isatty():
            raise CommandRefused("--output -: stdout is a terminal; name a file, or send it into one", USAGE)
        return
    path = Path(output)
    if os.path.lexists(path):
        raise CommandRefused(f"--output {output}: it exists already, and is not replaced", USAGE)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CommandRefused(
            f"--output {output}: nothing can be written into {path.parent.absolute()}; name another file, or - for stdout",
            USAGE,
        )


def write_archive(output: str, name: str, files: Iterable[tuple[str, bytes]]) -> int:
    """Write the files below the directory `name`; the bytes of the archive. Raises Refused."""
    packed = _pack(name, files)
    try:
        if output == STDOUT:
            sys.stdout.flush()
            _write_all(sys.stdout.fileno(), packed)
        else:
            _place(Path(output), packed)
    except OSError as error:
        raise CommandRefused(f"writing the archive {output}: {error.strerror}; nothing of it is left", FOUND) from error
    return len(packed)


def _pack(name: str, files: Iterable[tuple[str, bytes]]) -> bytes:
    packed, now = io.BytesIO(), int(time.time())
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=now) as zipped, tarfile.open(fileobj=zipped, mode="w|") as tar:
        _add(tar, name, None, now)
        for path, content in files:
            _add(tar, f"{name}/{path}", content, now)
    return packed.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes | None, now: int) -> None:
    item = tarfile.TarInfo(path)
    item.mtime, item.uname, item.gname = now, "root", "root"
    item.mode, item.type = (_MODE, tarfile.REGTYPE) if content is not None else (0o700, tarfile.DIRTYPE)
    item.size = len(content or b"")
    stream: IO[bytes] = io.BytesIO(content or b"")
    tar.addfile(item, stream)


def _place(path: Path, content: bytes) -> None:
    """Write it under another name, flush it, and give it its own; a file that has come meanwhile stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    try:
        try:
            _write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
