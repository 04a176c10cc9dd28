"""The controller's numbers of what it knows are all in docs/metrics.md, as the types that it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from userspace_cni.agent.agent_metrics import AgentMetrics
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.watches import Watches
from userspace_cni.kube.credentials import ApiSession

PAGE: Final = (Path(__file__).parents[3] / "docs/metrics.md").read_text(encoding="utf-8")
OF_CONTROLLER: Final = "userspace_cni_controller_"


def declared(exposed: bytes) -> dict[str, str]:
    """The type of each series of ours, by its name."""
    return dict(re.findall(r"^# TYPE (userspace_cni_\w+(?<!_created)) (\w+)$", exposed.decode(), re.MULTILINE))


def test_each_kind_of_object_is_documented() -> None:
    """The page names the number of each kind of object that is watched, and no other but those of OVN's ports."""
    watches = Watches(ApiSession(None), lambda: None)
    known = declared(ControllerMetrics(lambda: True, watches.counts()).render())
    rows = re.findall(rf"^\| (`{OF_CONTROLLER}[^|]*) \|", PAGE, re.MULTILINE)
    names = {name.replace("…_", OF_CONTROLLER) for row in rows for name in re.findall(r"`([\w…]+)`", row)}
    assert {name for name in names if not name.startswith(f"{OF_CONTROLLER}ovn_")} == set(known)


def test_types_are_as_documented() -> None:
    """Counters end in _total, the page says of each histogram that it is one, and all others are gauges."""
    histograms = set(re.findall(r"^\| `(userspace_cni_\w+)` \|[^|]*\| histogram", PAGE, re.MULTILINE))
    known = declared(AgentMetrics(list, {}).render()) | declared(ControllerMetrics(lambda: True, {}).render())
    assert {name for name, kind in known.items() if kind == "histogram"} == histograms
    assert {name for name, kind in known.items() if kind == "counter"} == {name for name in known if name.endswith("_total")}
