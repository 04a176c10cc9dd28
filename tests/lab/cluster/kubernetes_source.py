"""Debian's source of Kubernetes, unpacked where Go 1.19 builds programs of it.

It takes Debian's reflect2, because the vendored one, with a Go newer than the source, crashes the API server at the first custom
resource.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.lab.guests.roots import debian_source

SOURCE: Final = "kubernetes"
REFLECT2: Final = "golang-github-modern-go-reflect2-dev"
TREE: Final = "k8s.io/kubernetes"
"""The import path of what is unpacked."""
_VERSIONED: Final = ("vendor/k8s.io/client-go/pkg/version", "vendor/k8s.io/component-base/version")
_NICE: Final = "10"
"""The builds' niceness, because the suite runs meanwhile."""


class KubernetesSource:
    """The source and what Debian's binary `packages` have, fetched now to the directory `work`; RuntimeError says what failed."""

    def __init__(self, work: Path, packages: Sequence[str] = ()) -> None:
        self.work = work
        self.tree = work / "go" / "src" / TREE
        self.packages = work / "packages"
        """The root into which the packages are unpacked."""
        self.tree.mkdir(parents=True)
        self.version = debian_source(SOURCE, (REFLECT2, *packages), work)
        for package in sorted(work.glob("*.deb")):
            run("dpkg", "-x", str(package), str(self.packages))
        [source] = work.glob("*.orig.tar.*")
        run("tar", "--extract", f"--file={source}", f"--directory={self.tree}", "--strip-components=1")
        reflect2 = self.tree / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(reflect2)
        shutil.copytree(self.packages / "usr/share/gocode/src/github.com/modern-go/reflect2", reflect2)

    def go(self, *arguments: str) -> None:
        """Run `go` in the tree."""
        run("nice", "-n", _NICE, "go", *arguments, cwd=self.tree, environ=self.environment())

    def environment(self) -> dict[str, str]:
        """The environment of the compiler and of generators, which look for packages in GOPATH."""
        work = self.work
        own = {"GOPATH": f"{work}/go", "GOCACHE": f"{work}/cache", "GO111MODULE": "off", "CGO_ENABLED": "0", "GOFLAGS": ""}
        return {**os.environ, **own, "PWD": f"{work}/go/src/{TREE}"}

    def linker_flags(self) -> str:
        """The linker's options that leave debugging out, and give the programs the version that the end of Debian's says."""
        major, minor, patch = self.version.rpartition("really")[2].partition("-")[0].split(".")
        facts = {"gitVersion": f"v{major}.{minor}.{patch}", "gitMajor": major, "gitMinor": minor}
        flags = [f"-X {TREE}/{place}.{key}={value}" for place in _VERSIONED for key, value in facts.items()]
        return " ".join(("-s", "-w", *flags))


def run(*argv: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The output of a program; RuntimeError has the end of what it said of its failure."""
    done = subprocess.run(argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)[:500]}: exit {done.returncode}: {done.stderr[-2000:].strip()}")
    return done.stdout
