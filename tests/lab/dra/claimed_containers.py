"""Pods with claims on a real runtime: what the kubelet does between a claim's prepare and its unprepare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.dra.dra_kubelet import DraKubelet
from tests.lab.kube.pods import Pod
from tests.lab.runtimes.cri import Cri
from tests.lab.suite.exercised import ROOT

FOREVER = ("/bin/sleep", "100000")
FRAMES = (str(ROOT / ".venv" / "bin" / "python"), "-m", "tests.lab.dra.container_frames")
"""In a container that has this tree; its working directory is the tree's, for it is `python -m`."""


@dataclass
class ClaimedContainers:
    """The runtime's part of this kubelet. `sandboxes`: that of each pod that runs, by the pod's UID."""

    kubelet: DraKubelet
    cri: Cri
    sandboxes: dict[str, str] = field(default_factory=dict)

    def sync(self, pod: Pod, *claims: str, requests: Sequence[str] = ("",)) -> str:
        """Start the pod's container, which uses these requests; its ID. Claims are prepared only before a sandbox is made."""
        if pod.uid not in self.sandboxes:
            self.kubelet.admit(pod, *claims)
            self.sandboxes[pod.uid] = self.cri.run(pod)
        devices = [name for request in requests for name in self.kubelet.cdi_devices(pod, request)]
        mounts = {str(path): str(path) for path in (Path("/usr"), ROOT)}
        return self.cri.start(self.sandboxes[pod.uid], pod, FOREVER, mounts, devices)

    def end(self, pod: Pod) -> None:
        """End the pod: its sandbox first, then its claims."""
        sandbox = self.sandboxes.pop(pod.uid)
        self.cri.stop(sandbox)
        self.kubelet.end(pod)
        self.cri.remove(sandbox)

    def frames(self, container: str, role: str) -> str:
        """Run the program of `container_frames`; what it printed."""
        script = f"cd {ROOT} && exec {' '.join(FRAMES)} {role}"
        return self.cri.run_in(container, "/bin/sh", "-c", script)
