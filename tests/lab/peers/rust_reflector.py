"""`reflector.rs`, a vhost-user peer of rust-vmm's crates, compiled once from Debian's sources of them, with that release's Rust.

This machine's own Rust is too old for them, and Debian 12 has no such crates. The program is static, so that it runs here. It is
always Debian 13's: with the next release's `vhost-user-backend` (0.23), where a program ends in another way, it does not compile.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.lab.guests import trixie
from tests.lab.guests.roots import LEFT_OUT, kept, print_made, unpack_release
from tests.lab.lanes.table import lane

SOURCE: Final = Path(__file__).with_name("reflector.rs")
CRATES: Final = ("vhost", "vhost-user-backend", "virtio-queue")
PACKAGES: Final = ("cargo", "gcc", "libc-bin", "libc6-dev", *(f"librust-{crate}-dev" for crate in CRATES))
SUITES: Final = lane("trixie").suites
_TARGET: Final = "x86_64-unknown-linux-gnu"
_MANIFEST: Final = """
[package]
name = "reflector"
version = "0.0.0"
edition = "2021"

[[bin]]
name = "reflector"
path = "reflector.rs"

[dependencies]
libc = "*"
vhost = { version = "*", features = ["vhost-user-frontend", "vhost-user-backend"] }
vhost-user-backend = "*"
virtio-queue = "*"
vm-memory = { version = "*", features = ["backend-mmap", "backend-atomic"] }
vmm-sys-util = "*"
"""
_SETTINGS: Final = f"""
[source.crates-io]
replace-with = "debian"

[source.debian]
directory = "/usr/share/cargo/registry"

[target.{_TARGET}]
linker = "gcc"
rustflags = ["-C", "target-feature=+crt-static"]
"""


@cache
def reflector() -> Path:
    """The program, made now if there is none. RuntimeError says why that fails. Needs root."""
    recipe = (SUITES, PACKAGES, LEFT_OUT, _MANIFEST, _SETTINGS, SOURCE.read_text())
    return kept("reflector-trixie", recipe, _make, 1) / "reflector"


def _make(part: Path) -> None:
    root, work = part / "root", part / "work"
    unpack_release(PACKAGES, SUITES, root)
    (work / "home").mkdir(parents=True)
    (work / "Cargo.toml").write_text(_MANIFEST)
    (work / "home" / "config.toml").write_text(_SETTINGS)
    shutil.copy2(SOURCE, work)
    argv = ["/usr/bin/cargo", "build", "--release", "--offline", "--target", _TARGET, f"--manifest-path={work}/Cargo.toml"]
    inside = ["unshare", "--mount", "--propagation", "private", "nice", *trixie.entered(root, argv, [str(work)])]
    environ = {"CARGO_HOME": f"{work}/home", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(inside, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr[-2000:].strip()}")
    (work / "target" / _TARGET / "release" / "reflector").rename(part / "reflector")
    shutil.rmtree(root)
    shutil.rmtree(work)


if __name__ == "__main__":
    print_made("a peer of rust-vmm's crates", reflector)
