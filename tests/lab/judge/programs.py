"""Kubernetes' end-to-end cases of networks, and agnhost, which their pods run: built of Debian's source once, and kept.

`python -m tests.lab.judge.programs` makes them. The program of the cases is Kubernetes' own main with fewer imports: cases of
storage, of the kubelet or of clouds are not in it, nor is a generated file that Debian's source lacks, and that none of the cases
of networks reads.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.lab.cluster.kubernetes_source import REFLECT2, SOURCE, KubernetesSource
from tests.lab.guests.roots import kept, print_made

CASES: Final = "e2e.test"
AGNHOST: Final = "agnhost"
CERTIFICATE: Final = ("localhost.crt", "localhost.key")
"""Those with which agnhost serves HTTPS."""
FORMAT: Final = 1
"""Raise it when `_make` makes something different of the same sources."""
_MAIN: Final = "test/e2e/e2e_test.go"
_OTHER_CASES: Final = r'\t(?:_ )?"k8s\.io/kubernetes/test/e2e/(?!network|common|framework)[^"]*"\n'
_GENERATED: Final = r"\ttestfiles\.AddFileSource\(testfiles\.BindataFileSource\{.*?\}\)\n"
_LEFT_OUT: Final = (_OTHER_CASES, _GENERATED)
"""What is taken out of Kubernetes' main, as regular expressions."""
_BUILD: Final = ("-p=2", "-trimpath")


def directory() -> Path:
    """The directory with CASES, AGNHOST and CERTIFICATE, made now if there is none; RuntimeError says what failed. Needs root."""
    return kept("kubernetes-cases", (REFLECT2, SOURCE, _LEFT_OUT, _BUILD, FORMAT), _make)


def _make(part: Path) -> None:
    _say("fetching the source package")
    source = KubernetesSource(part / "work")
    narrow(source.tree / _MAIN)
    _say(f"compiling {AGNHOST}")
    options = (*_BUILD, f"-ldflags={source.linker_flags()}")
    source.go("build", *options, f"-o={part / AGNHOST}", "./test/images/agnhost")
    for name in CERTIFICATE:
        shutil.copy(source.tree / "test/images/agnhost/porter" / name, part)
    _say("compiling the cases")
    source.go("test", "-c", "-vet=off", *options, f"-o={part / CASES}", "./test/e2e")
    shutil.rmtree(source.work)


def narrow(main: Path) -> None:
    """Take _LEFT_OUT out of Kubernetes' main. RuntimeError: it is another main than this was written for."""
    text = main.read_text()
    for pattern in _LEFT_OUT:
        text, times = re.subn(pattern, "", text, flags=re.DOTALL)
        if not times:
            raise RuntimeError(f"{main} has nothing that matches {pattern}: it is another than this was written for")
    main.write_text(text)


def _say(what: str) -> None:
    print(f"kubernetes' cases: {what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print_made("kubernetes' cases", directory)
