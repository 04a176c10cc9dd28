"""Kubernetes' server programs and etcd from Debian alone: a directory with them, made once per machine and kept.

No package has kube-apiserver or kubelet, but Debian's source package has their source with everything they depend on. `python -m
tests.lab.cluster.binaries` makes the directory; a process that needs it meanwhile waits. The build differs from Debian's own: it
makes one program instead of four, without cloud providers and Docker; it runs only the generator whose output the source lacks;
and it takes Debian's reflect2 (`kubernetes_source`).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.lab.cluster.kubernetes_source import REFLECT2, SOURCE, TREE, KubernetesSource, run
from tests.lab.guests.roots import kept, print_made

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
ETCD = "etcd-server"
FORMAT = 1
"""Raise it when `_make` makes something different of the same sources."""
_MAIN = Path(__file__).with_name("binaries.go")
_TAGS = "providerless,dockerless"
_OPENAPI = "pkg/generated/openapi"


def directory() -> Path:
    """The directory with `COMMANDS` and etcd, made now if there is none; RuntimeError says what failed. Needs root."""
    return kept("kubernetes", ((ETCD, REFLECT2), SOURCE, _MAIN.read_text(), _TAGS, FORMAT), _make)


def _make(part: Path) -> None:
    """Fetch, build, and leave only the programs."""
    _say("fetching Debian's packages and the source package")
    source = KubernetesSource(part / "work", (ETCD,))
    _generate_openapi(source)
    _say("compiling kube-apiserver, kube-controller-manager, kube-scheduler and kubelet")
    main = source.tree / "cmd/all"
    main.mkdir()
    shutil.copy(_MAIN, main / "main.go")
    program = part / COMMANDS[0]
    source.go("build", f"-tags={_TAGS}", f"-ldflags={source.linker_flags()}", f"-o={program}", "./cmd/all")
    for command in COMMANDS[1:]:
        (part / command).hardlink_to(program)
    shutil.move(source.packages / "usr/bin/etcd", part / "etcd")
    shutil.rmtree(source.work)


def _generate_openapi(source: KubernetesSource) -> None:
    """Make the one generated file that the source lacks."""
    _say("generating the API's description")
    tree = source.tree
    generator = source.work / "openapi-gen"
    source.go("build", f"-o={generator}", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    found = run("grep", "-rlE", "--include=*.go", r"^// *\+k8s:openapi-gen=", "cmd", "pkg", "staging/src/k8s.io", cwd=tree)
    staged = {str(Path(name).parent) for name in found.split() if not re.search("/code-generator/|/sample-", name)}
    packages = sorted(f"{TREE}/{name.replace('staging/src/', 'vendor/', 1)}" for name in staged)
    head = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
    options = ["-p", f"{TREE}/{_OPENAPI}", "-O", "zz_generated.openapi", "-h", head, "-r", str(source.work / "violations")]
    run(str(generator), "-i", ",".join(packages), *options, cwd=tree, environ=source.environment())


def _say(what: str) -> None:
    print(f"kubernetes: {what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print_made("kubernetes", directory)
