"""Entries of libcni's cache for sandboxes of pods that no runtime of the test has made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

BOX: Final = "a" * 64


def cached(directory: Path, path: str, name: str = "web-0", uid: str = "", sandbox: str = BOX) -> Path:
    """Write the file of a pod default/`name` whose namespace is at `path` into the cache `directory`; where it is."""
    return written(directory, path, sandbox, K8S_POD_NAMESPACE="default", K8S_POD_NAME=name, K8S_POD_UID=uid or f"u-{name}")


def written(directory: Path, path: str, sandbox: str, **arguments: str) -> Path:
    """Write the file of a sandbox for which the runtime gave only this; podman gives K8S_POD_NAME alone."""
    args = [list(each) for each in arguments.items()]
    result = {"interfaces": [{"name": "eth0", "sandbox": path}]}
    made = directory / "results" / f"net-{sandbox}-eth0"
    made.parent.mkdir(exist_ok=True)
    made.write_text(json.dumps({"kind": "cniCacheV1", "containerId": sandbox, "cniArgs": args, "result": result}))
    return made


def routing(directory: Path) -> tuple[Path, Path, dict[str, str]]:
    """A cache and a file with routes below `directory`, and the settings of an agent that reads only these."""
    cache, file = directory / "cni", directory / "routes" / "cr-config.json"
    (cache / "results").mkdir(parents=True)
    file.parent.mkdir()
    settings = {"ROUTES": "true", "ROUTES_FILE": file, "CNI_CACHE_DIR": cache, "CRI_SOCKET": directory / "none.sock"}
    return cache, file, {f"USERSPACE_CNI_{name}": str(value) for name, value in settings.items()}
