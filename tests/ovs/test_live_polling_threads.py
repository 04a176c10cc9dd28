"""The polling threads of a real switch, of whatever release."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import BRIDGE, CLIENT, add_bridge, add_port
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.polling import PollingReading, PollingThread
from userspace_cni.switch.ports import PortDriver

SECONDS = 60.0
LATELY_S = 5


def read(driver: PortDriver, *, lately: bool = False) -> PollingReading:
    return driver.read_polling_threads(Deadline.after(SECONDS), lately=lately)


def polling(driver: PortDriver, *ports: str) -> dict[str, PollingThread]:
    """The thread that polls each of the ports, once all of them are polled."""
    threads = read(driver).threads
    found = {queue.port: thread for thread in threads for queue in thread.queues}
    return found if found.keys() == set(ports) else {}


def test_a_switch_without_bridges_has_no_threads(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """Without a bridge of the userspace datapath there are no polling threads, which is no error."""
    assert read(connect(own_switch)) == PollingReading((), 0)


def test_threads_work_and_say_what_they_poll(switch: Switch, driver: PortDriver) -> None:
    """The thread on the switch's core polls the ports; it goes on between two readings, and the period is the one asked for."""
    add_bridge(switch)
    for name in ("first", "second"):
        add_port(switch, name, CLIENT)
    found = wait_until(lambda: polling(driver, "first", "second"), SECONDS, "both ports polled")
    [former] = set(found.values())
    assert (former.numa, former.isolated) == (0, False)
    assert [(queue.number, queue.share) for queue in former.queues if queue.share] == []

    def went_on() -> PollingThread | None:
        [now] = read(driver).threads
        return now if now.iterations > former.iterations and now.slept_s > former.slept_s else None

    now = wait_until(went_on, SECONDS, "another iteration")
    assert now.seconds > former.seconds
    assert now.idle_cycles > former.idle_cycles > 0
    load = now.load
    assert load is not None
    assert 0 <= load < 0.5
    assert (read(driver).period_s, read(driver, lately=True).period_s) == (60, LATELY_S)
    assert wait_until(lambda: all(each.recent_load is not None for each in read(driver, lately=True).threads), SECONDS, "shares")


def test_a_thread_of_its_own(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """A thread to which an administrator gave a queue by name is isolated."""
    driver = connect(own_switch)
    add_bridge(own_switch)
    add_port(own_switch, "alone", CLIENT)
    core = wait_until(lambda: polling(driver, "alone"), SECONDS, "the port polled")["alone"].core
    own_switch.vsctl("set", "Interface", "alone", f"other_config:pmd-rxq-affinity=0:{core}")
    wait_until(lambda: polling(driver, "alone")["alone"].isolated, SECONDS, "the thread isolated")


def test_a_switch_that_is_gone(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """A silent daemon and a dead one are errors that name the command, not a switch without threads."""
    driver = connect(own_switch)
    own_switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    own_switch.pause_vswitchd()
    with pytest.raises(Unavailable, match=r"dpif-netdev/pmd-perf-show -nh: .*no answer in time"):
        driver.read_polling_threads(Deadline.after(0.2))
    own_switch.kill_vswitchd()
    with pytest.raises(Unavailable, match="dpif-netdev/pmd-perf-show"):
        read(driver)
