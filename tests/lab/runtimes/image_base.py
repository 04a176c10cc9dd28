"""What the Dockerfiles' BASE is without any registry: a minimal Debian 12 in an archive that podman imports.

`python -m tests.lab.runtimes.image_base` makes it once and keeps it. As in Debian's own images of that kind there is no
documentation in it, and dpkg does not wait for the disk. `way_out` is how a build in it gets at packages: as this machine does.
"""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

from tests.lab.guests.roots import kept, own_suite, print_made

SUITE = "bookworm"
LEFT_OUT = ("usr/share/doc", "usr/share/locale", "usr/share/man")
UNNEEDED = ("var/cache/apt", "var/lib/apt/lists")
FORMAT = 1
"""Raise it when `_make` makes something different of the same packages."""
_ARCHIVE = "base.tar"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_SEEN_CERTIFICATES = "/etc/certificates-of-the-builder.crt"
_PIP_KEYS = ("index-url", "extra-index-url", "proxy", "timeout", "default-timeout", "retries", "trusted-host")
_ACQUIRE_KEYS = ("http", "https", "check-date", "check-valid-until", "max-futuretime", "retries")


def archive() -> Path:
    """The archive, made now if there is none; RuntimeError says what failed. Needs root."""
    return kept("image-base", (SUITE, LEFT_OUT, UNNEEDED, FORMAT), _make) / _ARCHIVE


def way_out(directory: Path) -> list[str]:
    """Volumes for a build: the certificates of this machine, and what its pip and apt are told of proxies and indexes.

    What has to be written for that is written to `directory`.
    """
    volumes: dict[Path, str] = {}
    told, apt = _pip_config(), _apt_config()
    pip = configparser.RawConfigParser()
    pip["global"] = {key: value for key, value in told.items() if key in _PIP_KEYS}
    certificates = Path(told.get("cert", _CERTIFICATES))
    if certificates.exists():
        pip["global"]["cert"] = _SEEN_CERTIFICATES
        apt.append(f'Acquire::https::CaInfo "{_SEEN_CERTIFICATES}";')
        volumes[certificates] = _SEEN_CERTIFICATES
    with (directory / "pip.conf").open("w") as file:
        pip.write(file)
    (directory / "apt.conf").write_text("".join(f"{line}\n" for line in apt))
    volumes[directory / "pip.conf"] = "/etc/pip.conf"
    volumes[directory / "apt.conf"] = "/etc/apt/apt.conf.d/99-as-the-builder"
    return [f"--volume={outside}:{inside}:ro" for outside, inside in volumes.items()]


def _debootstrap(suite: str, root: Path, log: Path) -> None:
    """Find, verify and fetch the packages of a minimal root, and install them.

    RuntimeError with the end of the log when that fails. Needs root.
    """
    # in a mount namespace of its own, so that its mounts in the root end with it, even when it is killed
    argv = ["unshare", "--mount", "debootstrap", "--variant=minbase", suite, str(root), own_suite()[1]]
    with log.open("wb") as told:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=told, stderr=told, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}:\n{log.read_text()[-2000:]}")
    log.unlink()


def _make(part: Path) -> None:
    root = part / "root"
    settings = {
        "etc/dpkg/dpkg.cfg.d/fast": "force-unsafe-io\n",
        "etc/dpkg/dpkg.cfg.d/slim": "".join(f"path-exclude /{name}/*\n" for name in LEFT_OUT),
        "etc/apt/apt.conf.d/slim": 'Acquire::Languages "none";\n',
    }
    for name, text in settings.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    _debootstrap(SUITE, root, part / "debootstrap.log")
    for name in (*LEFT_OUT, *UNNEEDED):
        shutil.rmtree(root / name)
        (root / name).mkdir()
    subprocess.run(["tar", f"--directory={root}", f"--file={part / _ARCHIVE}", "--create", "."], check=True)
    shutil.rmtree(root)


def _pip_config() -> dict[str, str]:
    """The settings of this machine's pip, by key; those nearer to the command take precedence."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = {}
    for line in sorted(told.splitlines()):  # lines from the environment begin with a colon
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in (":env:", "global"):
            found.setdefault(key, value.strip("'\""))
    return found


def _apt_config() -> list[str]:
    """The settings of this machine's apt for reaching its sources."""
    dump = subprocess.run(["apt-config", "dump", "--no-empty"], capture_output=True, text=True, check=True).stdout
    prefixes = tuple(f"acquire::{key}" for key in _ACQUIRE_KEYS)
    return [line for line in dump.splitlines() if line.lower().startswith(prefixes)]


if __name__ == "__main__":
    print_made("image base", archive)
