"""Kubernetes' server programs and etcd from Debian alone: a directory with them, made once per machine and kept.

No package has kube-apiserver or kubelet, but Debian's source package has their source with everything they depend on. `python -m
tests.lab.cluster.binaries` makes the directory; a process that needs it meanwhile waits. The build differs from Debian's own: it
makes one program instead of four, without cloud providers and Docker; it runs only the generator whose output the source lacks;
and it takes Debian's reflect2, because the vendored one, with a Go newer than the source, crashes the API server at the first
custom resource.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.lab.guests.roots import debian_source, kept, print_made

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PACKAGES = ("etcd-server", "golang-github-modern-go-reflect2-dev")
SOURCE = "kubernetes"
FORMAT = 1
"""Raise it when `_make` makes something different of the same sources."""
_MAIN = Path(__file__).with_name("binaries.go")
_TAGS = "providerless,dockerless"
_TREE = "k8s.io/kubernetes"
_OPENAPI = "pkg/generated/openapi"
_VERSIONED = ("vendor/k8s.io/client-go/pkg/version", "vendor/k8s.io/component-base/version")
_NICE = "10"
"""The build's niceness, because the suite runs meanwhile."""


def directory() -> Path:
    """The directory with `COMMANDS` and etcd, made now if there is none; RuntimeError says what failed. Needs root."""
    return kept("kubernetes", (PACKAGES, SOURCE, _MAIN.read_text(), _TAGS, FORMAT), _make)


def _make(part: Path) -> None:
    """Fetch, build, and leave only the programs."""
    work = part / "work"
    unpacked = work / "packages"
    tree = work / "go" / "src" / _TREE
    tree.mkdir(parents=True)
    _say("fetching Debian's packages and the source package")
    version = debian_source(SOURCE, PACKAGES, work)
    for package in sorted(work.glob("*.deb")):
        _run("dpkg", "-x", str(package), str(unpacked))
    [source] = work.glob("*.orig.tar.*")
    _run("tar", "--extract", f"--file={source}", f"--directory={tree}", "--strip-components=1")
    reflect2 = tree / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(reflect2)
    shutil.copytree(unpacked / "usr/share/gocode/src/github.com/modern-go/reflect2", reflect2)
    _generate_openapi(tree, work)
    _say("compiling kube-apiserver, kube-controller-manager, kube-scheduler and kubelet")
    main = tree / "cmd/all"
    main.mkdir()
    shutil.copy(_MAIN, main / "main.go")
    program = part / COMMANDS[0]
    ldflags = " ".join(("-s", "-w", *_version_flags(version)))
    _go(tree, work, "build", f"-tags={_TAGS}", f"-ldflags={ldflags}", f"-o={program}", "./cmd/all")
    for command in COMMANDS[1:]:
        (part / command).hardlink_to(program)
    shutil.move(unpacked / "usr/bin/etcd", part / "etcd")
    shutil.rmtree(work)


def _generate_openapi(tree: Path, work: Path) -> None:
    """Make the one generated file that the source lacks."""
    _say("generating the API's description")
    generator = work / "openapi-gen"
    _go(tree, work, "build", f"-o={generator}", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    found = _run("grep", "-rlE", "--include=*.go", r"^// *\+k8s:openapi-gen=", "cmd", "pkg", "staging/src/k8s.io", cwd=tree)
    staged = {str(Path(name).parent) for name in found.split() if not re.search("/code-generator/|/sample-", name)}
    packages = sorted(f"{_TREE}/{name.replace('staging/src/', 'vendor/', 1)}" for name in staged)
    head = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
    options = ["-p", f"{_TREE}/{_OPENAPI}", "-O", "zz_generated.openapi", "-h", head, "-r", str(work / "violations")]
    _run(str(generator), "-i", ",".join(packages), *options, cwd=tree, environ=_environment(work))


def _go(tree: Path, work: Path, *arguments: str) -> None:
    _run("nice", "-n", _NICE, "go", *arguments, cwd=tree, environ=_environment(work))


def _environment(work: Path) -> dict[str, str]:
    """The environment of the compiler and of the generator, which both look for packages in GOPATH."""
    own = {"GOPATH": f"{work}/go", "GOCACHE": f"{work}/cache", "GO111MODULE": "off", "CGO_ENABLED": "0", "GOFLAGS": ""}
    return {**os.environ, **own, "PWD": f"{work}/go/src/{_TREE}"}


def _version_flags(version: str) -> list[str]:
    """The linker's options that give the programs their version; the end of Debian's version says which one it really is."""
    major, minor, patch = version.rpartition("really")[2].partition("-")[0].split(".")
    facts = {"gitVersion": f"v{major}.{minor}.{patch}", "gitMajor": major, "gitMinor": minor}
    return [f"-X {_TREE}/{place}.{key}={value}" for place in _VERSIONED for key, value in facts.items()]


def _run(*argv: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)[:500]}: exit {done.returncode}: {done.stderr[-2000:].strip()}")
    return done.stdout


def _say(what: str) -> None:
    print(f"kubernetes: {what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print_made("kubernetes", directory)
