"""A sample of `top` as a JSON object. Pure. Keys are added, never renamed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from userspace_cni.cli.top.top_rows import TopRow
from userspace_cni.cli.top.top_samples import TopSample
from userspace_cni.node.port_rates import TrafficRates


def to_json(sample: TopSample, node: str, rows: Iterable[TopRow]) -> dict[str, Any]:
    """The object.

    time         seconds since the epoch
    node         its name
    seconds      the time over which rates were measured; 0 in the first sample, which has none
    vswitchd     state (alive, dead, silent, unknown), reason (the version while it is alive), up_s
    agent        state (ready, not ready, slow, dead, none, unknown), problem
    problems     what could not be asked, by part: records, ovsdb, counters, threads
    counters     of_now; written_s: the time between two writes, where they come from OVSDB; null while there are none
    total        rates, of all attachments
    uplinks      name, bridge, link, rates: frames, bits and drops in and out
    threads      core, numa, isolated, load (0 to 1), queues (port, number, enabled, share: percent of the thread's time), and
                 what was counted since the thread's start: seconds, iterations, busy_iterations, sleep_iterations, slept_s,
                 busy_cycles, idle_cycles, packets_received, packets_sent
    threads_s    the time over which `share` was measured
    hugepages    page_bytes, node, total, free, of each pool
    attachments  name, network, bridge, port, type, state, problem, rates, limits (to_pod, from_pod: rate in bit/s, used 0 to 1,
                 drops), cores (core, share)

    Rates are per second: frames, bits and drops to and from the pod, errors; null for what is not known.
    """
    traffic = sample.traffic
    reading, counters = traffic.threads, traffic.counters
    return {
        "time": round(sample.taken, 3),
        "node": node,
        "seconds": round(sample.seconds, 3),
        "vswitchd": {"state": traffic.vswitchd, "reason": traffic.reason, "up_s": traffic.up_s},
        "agent": {"state": sample.agent, "problem": sample.agent_problem},
        "problems": dict(traffic.problems),
        "counters": None if counters is None else {"of_now": counters.of_now, "written_s": counters.written_s},
        "total": _rates(sample.total),
        "uplinks": [
            {"name": each.name, "bridge": each.bridge, "link": each.link, "rates": _of_uplink(each.rates)}
            for each in sample.uplinks
        ],
        "threads": [
            {**asdict(each), "load": sample.loads.get((each.numa, each.core))} for each in (reading.threads if reading else ())
        ],
        "threads_s": reading.period_s if reading else 0,
        "hugepages": [
            {"page_bytes": pool.page_bytes, "node": pool.node, "total": pool.total, "free": pool.available}
            for pool in traffic.pools
        ],
        "attachments": [_row(row) for row in rows],
    }


def _rates(rates: TrafficRates) -> dict[str, float | None]:
    return {name: None if number is None else round(number, 3) for name, number in asdict(rates).items()}


def _of_uplink(rates: TrafficRates) -> dict[str, float | None]:
    return {name.replace("from_pod", "in").replace("to_pod", "out"): value for name, value in _rates(rates).items()}


def _row(row: TopRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "network": row.network,
        "bridge": row.bridge,
        "port": row.port,
        "type": row.kind,
        "state": row.state,
        "problem": row.problem,
        "rates": _rates(row.rates),
        "limits": {way: {"rate": limit.rate, "used": row.used(way), "drops": limit.drops} for way, limit in row.limits.items()},
        "cores": [{"core": core, "share": share} for core, share in sorted(row.cores.items())],
    }
