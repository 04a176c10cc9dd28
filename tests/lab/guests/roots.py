"""What tests make of Debian's packages: made once per machine, kept in CACHE, with the sources of this machine's apt."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

CACHE = Path("/var/cache/userspace-cni")
_PART = ".part"
_DIGITS = 12
LEFT_OUT = ("usr/share/doc", "usr/share/doc-base", "usr/share/locale", "usr/share/man", "usr/share/zoneinfo", "usr/lib/systemd")
"""Parts that a release unpacked beside this machine's own does not need."""
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def kept(name: str, recipe: object, make: Callable[[Path], None], former: int | None = None) -> Path:
    """The directory that `make` fills, made now unless one of this name and recipe exists; other processes wait meanwhile.

    Of the directories of former recipes the last `former` that were used stay, or all.
    """
    made = CACHE / f"{name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:_DIGITS]}"
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for stale in CACHE.glob(f"{name}{_PART}-*"):
                shutil.rmtree(stale)
            part = Path(mkdtemp(prefix=f"{name}{_PART}-", dir=CACHE))
            make(part)
            part.chmod(0o755)
            part.rename(made)
        if former is not None:
            os.utime(made)
            unused = sorted(CACHE.glob(f"{name}-{'[0-9a-f]' * _DIGITS}"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in unused[1 + former :]:
                shutil.rmtree(path)
    return made


def print_made(name: str, make: Callable[[], Path]) -> None:
    """The main program of what keeps something: make it now, with modes as usual, and print where it is and what it took."""
    os.umask(0o022)
    began = time.monotonic()
    made = make()
    with suppress(BrokenPipeError):
        print(f"{name}: {made} after {time.monotonic() - began:.0f} s", flush=True)


def unpack_release(packages: Sequence[str], suites: Sequence[str], root: Path) -> None:
    """Unpack binary packages and all that they depend on, verified, into the directory `root`; no script of theirs is run.

    They are of the first of these Debian releases; what it has not is of the others. RuntimeError says what failed.
    """
    work = root / "work-of-apt"
    _fetch(work, suites, ["install", "--yes", "--download-only", "--no-install-recommends", *packages])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda package: _unpack(package, root), sorted((work / "archives").glob("*.deb"))))
    for unneeded in (work, *(root / name for name in LEFT_OUT)):
        shutil.rmtree(unneeded, ignore_errors=True)
    subprocess.run(["ldconfig", "-r", str(root)], check=True)


def load_from(root: Path, copies: Sequence[Path]) -> None:
    """Make these copies of a release's programs load the libraries of its unpacked `root`, which has patchelf and stays there."""
    loader, libraries = root / _LOADER, root / _LIBRARIES
    patchelf = (loader, "--library-path", libraries, root / "usr/bin/patchelf")
    # RPATH, unlike RUNPATH, also applies to the libraries' libraries, and to what a program loads later, like DPDK's drivers
    argv = [*patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, *copies]
    subprocess.run([str(each) for each in argv], check=True)


def debian_source(source: str, packages: Sequence[str], directory: Path, suites: Sequence[str] = ()) -> str:
    """Fetch what Debian's `source` has from its authors, and binary `packages`, verified, to `directory`; the source's version.

    They are of these releases, else of this machine's own. apt's own lists stay as they are: most machines have none of sources.
    RuntimeError has apt's words.
    """
    fetched = ["source", "--download-only", "--tar-only", source]
    _fetch(directory, suites or [own_suite()[0]], fetched, *([["download", *packages]] if packages else []))
    [archive] = directory.glob(f"{source}_*.orig.tar.*")
    return archive.name.partition("_")[2].partition(".orig.")[0]


def debian_packages(packages: Sequence[str], suite: str, directory: Path) -> None:
    """Fetch the binary packages of a Debian release, verified, to `directory`. RuntimeError has apt's words."""
    _fetch(directory, [suite], ["download", *packages])


def _fetch(directory: Path, suites: Sequence[str], *commands: list[str]) -> None:
    """Make apt-get run the commands there, with its own lists of these releases, as if nothing were installed."""
    lists, archives = directory / "lists", directory / "archives"
    for made in (lists, archives / "partial"):
        made.mkdir(parents=True)
    told = directory / "apt.sources"
    told.write_text(
        f"Types: deb deb-src\nURIs: {own_suite()[1]}\nSuites: {' '.join(suites)}\nComponents: main\nSigned-By: {_KEYRING}\n"
    )
    pins = directory / "apt.preferences"
    pins.write_text("".join(f"Package: *\nPin: release n={suite}\nPin-Priority: 100\n\n" for suite in suites[1:]))
    options = [f"Dir::Etc::sourcelist={told}", "Dir::Etc::sourceparts=-", f"Dir::State::Lists={lists}"]
    options += [f"Dir::Etc::preferences={pins}", "Dir::Etc::preferencesparts=-", f"Dir::Cache::archives={archives}"]
    options += ["Dir::State::status=/dev/null", "APT::Sandbox::User=root"]
    apt = ["apt-get", "-qq", *(part for option in options for part in ("-o", option))]
    for arguments in (["update"], *commands):
        done = subprocess.run([*apt, *arguments], cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"apt-get {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")


def _unpack(package: Path, root: Path) -> None:
    left_out = [f"--exclude=./{name}/*" for name in LEFT_OUT]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as files:
        argv = ["tar", "--extract", "--keep-directory-symlink", *left_out, f"--directory={root}"]
        subprocess.run(argv, stdin=files.stdout, check=True)
    if files.returncode:
        raise RuntimeError(f"dpkg-deb cannot read {package}: exit {files.returncode}")


def own_suite() -> tuple[str, str]:
    """The Debian release that apt has this machine's own packages from, and where."""
    codename = next(line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_CODENAME="))
    own = (codename.partition("=")[2], "stable", "oldstable")
    argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages", "Component: main"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [(release, uri) for release, _, uri in (line.partition(" ") for line in told) if release in own]
    if not found:
        raise RuntimeError(f"apt has no source of {' or '.join(own)}, component main: see apt-get indextargets")
    return found[0]
