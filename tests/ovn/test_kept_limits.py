"""Rows of limits as a controller keeps them in a real database, without OVN: what it tells, and what a restart finds."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.kube.apiserver import ApiServer
from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.switch.switch import wait_until
from tests.ovn.test_kept_logical_ports import Make, a_pod, api, keep, northbound, told  # noqa: F401 - fixtures, too

EGRESS = "kubernetes.io/egress-bandwidth"


def limited(name: str, rate: str, node: str = "n1") -> dict[str, Any]:
    pod = a_pod(name, node)
    pod["metadata"]["annotations"] = {EGRESS: rate}
    return pod


def rows(northbound: NorthboundDatabase) -> dict[str, str]:  # noqa: F811
    """What each port was asked to be limited to, and rate and burst in kbit/s and kbit."""
    said = northbound.nbctl("--format=json", "--columns=external_ids,bandwidth", "find", "QoS", "external_ids:scope=pods")
    pairs = [(dict(ids), dict(bandwidth)) for (_, ids), (_, bandwidth) in json.loads(said)["data"]]
    return {ids["port"]: f"{ids['asked']} {bandwidth['rate']} {bandwidth['burst']}" for ids, bandwidth in pairs}


def test_what_cannot_be_is_told(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """By an Event of the pod and by a metric, while the port keeps its limit; a later word that can be meant ends it."""
    kept = keep(ovn_default_limits="ovn")
    api.add_pod(limited("a", "20M"))
    wait_until(lambda: rows(northbound) == {"default_a": "20000000/2000000 20000 2000"})
    api.change("default", "a", {"metadata": {"annotations": {EGRESS: "no limit"}}})
    wait_until(lambda: "stay as they are" in told(api, "a", "LimitRefused"), what="the Event")
    assert "controller_ovn_limits_refused 1" in kept.metrics.render().decode()
    assert rows(northbound) == {"default_a": "20000000/2000000 20000 2000"}
    api.change("default", "a", {"metadata": {"annotations": {EGRESS: "30M"}}})
    wait_until(lambda: rows(northbound) == {"default_a": "30000000/3000000 30000 3000"})
    wait_until(lambda: "controller_ovn_limits_refused 0" in kept.metrics.render().decode())


def test_another_controller_goes_on(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """It leaves the rows that it finds, gives no form twice, and removes what a pod left that ended meanwhile."""
    first = keep(ovn_default_limits="ovn")
    for name in ("a", "b", "c"):
        api.add_pod(limited(name, "20M"))
    api.add_pod(limited("d", "20M", "n2"))
    wait_until(lambda: len(rows(northbound)) == 4)
    before = rows(northbound)
    assert len({before[f"default_{name}"] for name in "abc"}) == 3
    first.ports.stop()
    api.remove_pod("default", "b")
    api.add_pod(limited("e", "20M"))
    keep(ovn_default_limits="ovn")
    wait_until(lambda: "default_e" in rows(northbound) and "default_b" not in rows(northbound))
    after = rows(northbound)
    assert {name: after[name] for name in before if name != "default_b"} == {n: s for n, s in before.items() if n != "default_b"}
    assert len({after[f"default_{name}"] for name in "ace"}) == 3


def test_limits_that_are_the_nodes_again(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """A controller that is told so removes the rows of living ports, and leaves those of others."""
    first = keep(ovn_default_limits="ovn")
    api.add_pod(limited("a", "20M"))
    northbound.nbctl("qos-add", "n1", "to-lport", "7", "1", "rate=9")
    wait_until(lambda: rows(northbound))
    first.ports.stop()
    keep()
    wait_until(lambda: rows(northbound) == {})
    assert "rate=9" in northbound.nbctl("qos-list", "n1")
