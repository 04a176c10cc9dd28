"""Taking the installation away removes what claims have left in directories of others, and nothing else there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.node.belongings import remove

UID = "6f3c1a2b-3d4e-4f5a-8b6c-7d8e9f0a1b2c"


def test_files_and_sockets_of_claims(tmp_path: Path) -> None:
    """CDI files, the driver's sockets and the directory of claims go; those of other drivers stay."""
    settings = replace(
        Settings(),
        state_dir=f"{tmp_path}/state",
        run_dir=f"{tmp_path}/run",
        short_dir=f"{tmp_path}/short",
        kubelet_dir=f"{tmp_path}/kubelet",
        cdi_dir=f"{tmp_path}/cdi",
    )
    ours = [
        f"cdi/userspace-cni.io-claim_{UID}-0.json",
        f"cdi/.userspace-cni.io-claim_{UID}-1.json.tmp",
        "kubelet/plugins_registry/userspace-cni.io-0a1b2c3d-reg.sock",
        "kubelet/plugins/userspace-cni.io/dra-0a1b2c3d.sock",
        f"run/claims/{UID}-0.json",
    ]
    others = ["cdi/gpu.example.com-claim_x.json", "kubelet/plugins_registry/gpu.example.com-reg.sock"]
    for name in (*ours, *others):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (tmp_path / "run" / "claims" / f"{UID}-0").mkdir()
    failed, _ = remove(settings, HostRoot(), ())
    assert failed == []
    assert [name for name in ours if (tmp_path / name).exists()] == []
    assert [name for name in others if not (tmp_path / name).exists()] == []
    assert not (tmp_path / "run" / "claims").exists()
    assert not (tmp_path / "kubelet" / "plugins" / "userspace-cni.io").exists()
