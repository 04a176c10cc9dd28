"""Builds the Debian package of the commit that is checked out, into build/packages: agent, plugin, command, manual pages.

    make package          or: .venv/bin/python -m deploy.debian_package [DIRECTORY]

It is for the Debian release on which it is built, whose Python it names. The libraries that the program needs are in the package,
in the versions of constraints.txt, because those of Debian are older than what it needs; pip fetches them. The same commit gives
the same bytes on the same Debian release: each file has the commit's time and is root's.

What a package manager runs on the node is in deploy/debian, with the unit of systemd.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final

from deploy import dist, slim_libraries

ROOT: Final = dist.ROOT
PARTS: Final = ROOT / "deploy" / "debian"
NAME: Final = "userspace-cni"
HOME: Final = f"usr/lib/{NAME}"
PLUGIN_DIRS: Final = ("opt/cni/bin", "usr/lib/cni")
"""Where runtimes look: containerd and the kubelet as their authors release them, and those of Debian."""
SCRIPTS: Final = ("preinst", "postinst", "prerm", "postrm")
COMPLETIONS: Final = {
    "bash": f"usr/share/bash-completion/completions/{NAME}",
    "zsh": f"usr/share/zsh/vendor-completions/_{NAME}",
    "fish": f"usr/share/fish/vendor_completions.d/{NAME}.fish",
}
UNUSED: Final = ("*.c", "*.h", "*.cdef", "*.proto", "*.pyx", "*.pxd", "*.a")
"""Of the libraries and of ours: what only a compiler reads."""
EXTRAS: Final = ("otel",)
"""What the image has as well."""
INSTALLED_BY: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""What pip notes of an installation: dpkg has another list of these files."""
OF_THIS_CLONE: Final = "--of-this-clone"


def fetch_libraries(target: Path) -> None:
    """Have pip install what the program needs, as constraints.txt has it, into the directory. Raises CalledProcessError."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    needed = [*project["dependencies"], *(each for extra in EXTRAS for each in project["optional-dependencies"][extra])]
    _pip("install", f"--constraint={ROOT / 'constraints.txt'}", f"--target={target}", "--no-compile", *needed)
    shutil.rmtree(target / "bin", ignore_errors=True)


def build(wheel: Path, libraries: Path, target: Path, epoch: int) -> Path:
    """Build the package of the wheel and of the directory with the libraries, into the directory `target`; its path.

    `epoch`: the time of each file in it. Raises CalledProcessError when a part fails, which has written why.
    """
    with TemporaryDirectory(prefix="userspace-cni-package-") as directory:
        tree = Path(directory) / "tree"
        tree.mkdir()
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": str(epoch)}
        environment |= {"USERSPACE_CNI_CONFIG": "/dev/null"}  # of this machine's settings none is in the plugin
        before = os.umask(0o022)
        try:
            _lay_out(tree, wheel, libraries, environment)
            version = _version(wheel)
            (tree / HOME / "bin" / "python3").unlink()
            (tree / HOME / "bin" / "python3").symlink_to("../../../bin/python3")
            _write_documents(tree, version, epoch)
            return _pack(tree, target, version, environment)
        finally:
            os.umask(before)


def _lay_out(tree: Path, wheel: Path, libraries: Path, environment: dict[str, str]) -> None:
    """The program with its libraries, and what it writes of itself: plugin, manual pages, completions, settings."""
    home = tree / HOME
    site = home / "lib" / f"python{_minor(0)}" / "site-packages"
    shutil.copytree(libraries, site)
    _pip("install", "--no-index", "--no-deps", "--no-compile", f"--target={site}", str(wheel))
    shutil.rmtree(site / "bin")
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {_minor(0)}\n")
    (tree / "usr/bin").mkdir(parents=True)
    for name, called in _programs(site).items():
        program = home / "bin" / name
        module, _, function = called.partition(":")
        # -I: neither variables for Python nor modules of the user who calls it change what root runs
        first = f"#!/{HOME}/bin/python3 -I"
        program.write_text(f"{first}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n")
        program.chmod(0o755)
        (tree / "usr/bin" / name).symlink_to(f"../lib/{NAME}/bin/{name}")
    python = [str(home / "bin" / "python3"), "-P"]  # not -I, which ignores PYTHONHASHSEED: sets in bytecode have its order
    slimmed = [str(Path(slim_libraries.__file__)), str(site), str(tree)]
    subprocess.run([*python, *slimmed], env=environment, check=True)
    _strip(site)

    command = [*python, str(home / "bin" / NAME)]
    profiles = tree / "var/lib/kubelet/seccomp"
    for directory in PLUGIN_DIRS:
        argv = [*command, "install", f"--bin-dir={tree / directory}", f"--seccomp-dir={profiles}"]
        subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    manual = tree / "usr/share/man"
    argv = [*python, "-m", "userspace_cni.cli.manual", str(manual)]
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    for page in manual.rglob("*.[15]"):
        _compress(page)
    for shell, place in COMPLETIONS.items():
        text = subprocess.run([*command, "completion", shell], env=environment, stdout=subprocess.PIPE, check=True).stdout
        (tree / place).parent.mkdir(parents=True)
        (tree / place).write_bytes(text)
    written = [*python, "-c", Path(PARTS / "settings_file.py").read_text()]
    text = subprocess.run(written, env=environment, stdout=subprocess.PIPE, check=True).stdout
    (tree / "etc" / NAME).mkdir(parents=True)
    (tree / "etc" / NAME / "config.toml").write_bytes(text)
    _install(PARTS / f"{NAME}.service", tree / "usr/lib/systemd/system")


def _strip(site: Path) -> None:
    """Take out what is of no use on a node, and give modules the mode of modules."""
    for path in site.rglob("*.py"):
        path.chmod(0o644)
    for pattern in UNUSED:
        for path in site.rglob(pattern):
            path.unlink()
    for found in site.glob("*.dist-info"):
        for name in INSTALLED_BY:
            (found / name).unlink(missing_ok=True)


def _programs(site: Path) -> dict[str, str]:
    """The programs of ours that pip would make, with the function that each calls."""
    [ours] = distributions(path=[str(site)], name=NAME)
    return {each.name: each.value for each in ours.entry_points if each.group == "console_scripts"}


def _write_documents(tree: Path, version: str, epoch: int) -> None:
    """Licences, changes, and what lintian is to pass over."""
    documents = tree / "usr/share/doc" / NAME
    documents.mkdir(parents=True)
    site = next((tree / HOME / "lib").glob("python*")) / "site-packages"
    licences = "\n".join(f" {each}" for each in sorted(_licences(site), key=str.lower))
    (documents / "copyright").write_text(Template((PARTS / "copyright").read_text()).substitute(licences=licences))
    day = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch))
    maintainer = _field("Maintainer")
    (documents / "changelog").write_text(
        f"{NAME} ({version}) unstable; urgency=medium\n\n  * What is new is in CHANGELOG.md.gz.\n\n -- {maintainer}  {day}\n"
    )
    shutil.copyfile(ROOT / "CHANGELOG.md", documents / "CHANGELOG.md")
    _compress(documents / "changelog")
    _compress(documents / "CHANGELOG.md")
    (tree / "usr/share/lintian/overrides").mkdir(parents=True)
    shutil.copyfile(PARTS / "lintian-overrides", tree / "usr/share/lintian/overrides" / NAME)


def _licences(site: Path) -> Iterable[str]:
    """Name, version and licence of each library, as its authors say."""
    for each in distributions(path=[str(site)]):
        told = each.metadata
        named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
        licence = told["License-Expression"] or ", ".join(named) or (told["License"] or "see its files").partition("\n")[0]
        if told["Name"] != NAME:
            yield f"{told['Name']} {each.version}: {licence}"


def _pack(tree: Path, target: Path, version: str, environment: dict[str, str]) -> Path:
    """The package of the tree."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    architecture = _told("dpkg", "--print-architecture")
    values = {
        "version": version,
        "architecture": architecture,
        "kilobytes": str(sum(path.stat().st_size for path in files) // 1024),
        "libc": os.confstr("CS_GNU_LIBC_VERSION").split()[1],  # type: ignore[union-attr]
        "python": _minor(0),
        "next_python": _minor(1),
    }
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(Template((PARTS / "control").read_text()).substitute(values))
    (control / "conffiles").write_text(f"/etc/{NAME}/config.toml\n")
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files)
    (control / "md5sums").write_text("".join(each for each in sums if not each.split()[1].startswith("etc/")))
    for script in SCRIPTS:
        _install(PARTS / script, control, 0o755)
    target.mkdir(parents=True, exist_ok=True)
    package = target / f"{NAME}_{version}_{architecture}.deb"
    options = ["--root-owner-group", "--threads-max=1", "-Zxz", "-z2", "--build"]
    subprocess.run(["dpkg-deb", *options, tree, package], env=environment, stdout=subprocess.DEVNULL, check=True)
    return package


def _install(source: Path, directory: Path, mode: int = 0o644) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, directory / source.name)
    (directory / source.name).chmod(mode)


def _compress(path: Path) -> None:
    """Replace the file by one with `.gz` at the end of its name, as gzip -9n does."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def _pip(*arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
    subprocess.run([sys.executable, "-m", "pip", *arguments[:1], *quiet, *arguments[1:]], umask=0o022, check=True)


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _minor(above: int) -> str:
    """The version of Python for which this is, or the next one's."""
    return f"{sys.version_info.major}.{sys.version_info.minor + above}"


def _field(name: str) -> str:
    lines = (PARTS / "control").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(f"{name}: "))


def _told(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> int:
    """Build the commit that is checked out, and print what was made with its SHA-256."""
    if sys.argv[1:2] == [OF_THIS_CLONE]:
        return _build_clone(Path(sys.argv[2]), int(sys.argv[3]))
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "packages").absolute()
    with TemporaryDirectory(prefix="userspace-cni-clone-") as directory:
        clone = Path(directory) / "sources"
        epoch = dist.clone_commit(clone)
        target.mkdir(parents=True, exist_ok=True)
        for former in target.glob("*.deb"):
            former.unlink()
        # by what is in the clone: this file, too
        argv = [sys.executable, "-m", "deploy.debian_package", OF_THIS_CLONE, str(target), str(epoch)]
        subprocess.run(argv, cwd=clone, check=True)
    for path in target.glob("*.deb"):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return 0


def _build_clone(target: Path, epoch: int) -> int:
    with TemporaryDirectory(prefix="userspace-cni-wheel-") as directory:
        made, libraries = Path(directory) / "dist", Path(directory) / "libraries"
        made.mkdir()
        _, wheel = dist.build(ROOT, made, epoch)
        fetch_libraries(libraries)
        build(wheel, libraries, target, epoch)
    return 0


if __name__ == "__main__":
    dist.run_build(main)
