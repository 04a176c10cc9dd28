"""Kubernetes' cases of networks against this project, as `tests/run.sh judge` calls it; the result is docs/kubernetes-cases.md.

tests/run.sh judge           all cases that `cases.toml` does not leave out
tests/run.sh judge PATTERN   those in whose names this regular expression is found; the page stays as it is
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.control import API
from tests.lab.judge import programs
from tests.lab.judge.cases import FAILED, LEFT_OUT, Result, focus, list_cases, read_list, read_report
from tests.lab.judge.judged_cluster import judged_cluster, versions
from tests.lab.judge.outside import HOST, PORT
from tests.lab.judge.page import PAGE, Run, with_results
from tests.lab.kube.kubectl import debian_kubectl

LOGS: Final = Path("/var/tmp/kubernetes-cases")
"""What each case of the last run said, and its report: a directory for each, by its number in the run."""
AT_ONCE: Final = 4
"""How many cases run at the same time. Most of their time they wait."""
_LONGEST_S: Final = 1200.0
_NODES: Final = 2
"""How many nodes the cases are told that there are: those called "Granular Checks" skip themselves on fewer."""
_NOT_OUTSIDE: Final = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,fd00::/8"


class Judge:
    """The cases' program against a cluster, in the network of its API server."""

    def __init__(self, cluster: Cluster, program: Path) -> None:
        control = cluster.control
        self._inside = ["nsenter", f"--net=/proc/{control.machine.pid}/ns/net"]
        self._argv = [
            str(program),
            "--provider=skeleton",
            f"--kubeconfig={control.kubeconfig()}",
            f"--kubectl-path={debian_kubectl()}",
            f"--host=https://{API}",
            f"--num-nodes={_NODES}",
            "--node-os-distro=debian",
            "--ginkgo.noColor",
        ]
        self._environment = os.environ | {"HTTP_PROXY": f"http://{HOST}:{PORT}", "NO_PROXY": _NOT_OUTSIDE}
        answering = (sys.executable, "-m", "tests.lab.judge.outside", str(PORT))
        control.machine.start(control.directory / "outside.log", *answering)

    def run(self, number: int, name: str) -> Result:
        """Run one case to its end; a line on stdout says what became of it."""
        directory = LOGS / f"{number:03}"
        directory.mkdir()
        argv = [*self._inside, *self._argv, f"--ginkgo.focus={focus(name)}", f"--report-dir={directory}"]
        with (directory / "log").open("wb") as log:
            try:
                subprocess.run(
                    argv, cwd=directory, env=self._environment, stdout=log, stderr=log, timeout=_LONGEST_S, check=False
                )
                result = read_report(name, directory)
            except subprocess.TimeoutExpired:
                result = Result(name, FAILED, f"it had not ended after {_LONGEST_S:.0f} s", _LONGEST_S)
        print(f"{number:03} {result.result} {result.seconds:.0f} s: {name}", flush=True)
        if result.reason:
            print(f"    {result.reason[:500]}", flush=True)
        return result


def main(arguments: Sequence[str]) -> int:
    """Run the cases; 0 if each of them passed, or failed where the list says so."""
    pattern = re.compile(arguments[0] if arguments else "")
    program = programs.directory() / programs.CASES
    known = read_list()
    chosen = [name for name in known.choose(list_cases(program)) if pattern.search(name)]
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    began = time.monotonic()
    with judged_cluster() as cluster:
        print(f"{len(chosen)} cases, {AT_ONCE} at once; logs: {LOGS} and {cluster.top}", flush=True)
        judge = Judge(cluster, program)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(judge.run, range(len(chosen)), chosen))
        ran = versions(cluster)
    surprises = [each for each in results if not known.is_expected(each)]
    for each in surprises:
        print(f"not as cases.toml has it: {each.result}: {each.name}", flush=True)
    if not arguments:
        results = [known.explain(each) for each in results]
        results += [Result(name, LEFT_OUT, reason) for name, reason in known.left_out.items()]
        results.sort(key=lambda each: each.name)
        run = Run(results, ran, f"{datetime.now(UTC):%B %Y}", time.monotonic() - began)
        PAGE.write_text(with_results(PAGE.read_text(), run))
    return bool(surprises)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
