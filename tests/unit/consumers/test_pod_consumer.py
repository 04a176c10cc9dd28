"""What follows from a pod's application being the user of an interface, beside its terms and its plans."""

from __future__ import annotations

import pytest

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import Settings
from userspace_cni.consumers import CONSUMERS

POD = CONSUMERS["pod"]


def test_the_shared_directory_is_the_last_containers_mount() -> None:
    """The last container that mounts the volume wins; without one it is upstream's default; both end in a slash."""
    pod = Pod("default", "app", "u1", mounts={"shared-dir": ("/a", "/b"), "info": ("/etc/podinfo",)})
    assert POD.mapped_dir(pod, Settings(shared_volume="shared-dir")) == "/b/"
    assert POD.mapped_dir(pod, Settings(shared_volume="other")) == "/var/lib/cni/usrspcni/"
    assert POD.mapped_dir(Pod(), Settings()) == "/var/lib/cni/usrspcni/"
    with pytest.raises(InvalidConfig, match="default/x"):
        POD.mapped_dir(Pod("default", "x", "u", mounts={"v": ("/a b",)}), Settings(shared_volume="v"))
