"""The calm after a storm: everything is healthy again, and the node must have what the answers have promised."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from tests.crash.storm_callers import WAYS, Calling, Verb
from tests.crash.storm_calls import Plugin
from tests.crash.storm_look import STANDING, look
from tests.crash.storm_model import ABSENT, ATTACHED, EITHER, Name, Violation
from tests.crash.storm_pods import NETWORKS, Network, Pods
from tests.lab.switch.switch import wait_until

SETTLED_S = 40.0
"""Seconds within which everything must be as promised; the agent's passes are requested one after the other."""


class Calm:
    """Waits for a node to settle after a burst, and judges it."""

    def __init__(self, pods: Pods, calling: Calling, plugin: Plugin, rng: random.Random) -> None:
        self._pods = pods
        self._model = calling.model
        self._calling = calling
        self._rng = rng
        self._plugin = plugin

    def settle(self, *, empty: bool) -> list[Violation]:
        """List violations. With `empty`, everything is attached, checked and deleted at the end, and nothing may be left."""
        found = self._judge() or self._calls("CHECK", ATTACHED) or self._end_doubts() or (self._to_the_end() if empty else [])
        found += self._calling.found
        self._calling.found.clear()
        return found

    def _to_the_end(self) -> list[Violation]:
        """Check that nothing prevents an ADD, and that nothing is left when all is deleted."""
        return (
            self._calls("ADD", ABSENT)
            or self._judge()
            or self._calls("CHECK", ATTACHED)
            or self._calls("DEL", ATTACHED)
            or self._judge()
        )

    def _end_doubts(self) -> list[Violation]:
        """Make a DEL or GC for each attachment that may be attached or not. GC leaves alone what is on its list."""
        doubtful = self._model.names(EITHER)
        collected = {name for name in doubtful if not self._network(name).leased and self._rng.random() < 0.5}
        found = self._each("DEL", [name for name in doubtful if name not in collected])
        for network in NETWORKS:
            if network.leased:
                continue  # Debian's host-local knows no GC
            members = [name for name in self._model.names(ATTACHED) if self._network(name) == network]
            call = self._calling.collect(self._plugin, self._rng.choice(WAYS), network, members)
            if call.code:
                found.append(Violation(f"GC of {network.name} fails in the calm: {call}"))
            for name in collected:
                if self._network(name) == network:
                    self._model.collected(name, call)
        return found or self._judge()

    def _network(self, name: Name) -> Network:
        return self._pods.attachments[name].network

    def _calls(self, verb: Verb, presences: frozenset[str]) -> list[Violation]:
        """Make a call for each living attachment with these presences: it must succeed."""
        living = {each.name for pod in self._pods.living for each in self._pods.of(pod)}
        return self._each(verb, [name for name in sorted(living) if self._model.presences(name) == presences])

    def _each(self, verb: Verb, names: Iterable[Name]) -> list[Violation]:
        found = []
        for name in names:
            call = self._calling.call(self._plugin, self._rng.choice(WAYS), verb, self._pods.attachments[name])
            self._calling.known(name, call)
            if call.code:
                found.append(Violation(f"{name}: {verb} fails in the calm: {call}", (name,), self._model.history(name)))
        return found

    def _judge(self) -> list[Violation]:
        """Wait until everything is as promised, with passes of the agent meanwhile; return the violations that remain."""
        belongings = {name: self._pods.belongings(each) for name, each in self._pods.attachments.items()}
        found = [Violation("the node could not be looked at")]

        def settled() -> bool:
            with suppress(OSError, RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired):  # what is just coming or going
                self._pods.node.reconcile()
                busy = self._pods.tidy()
                sight = look(self._pods)
                found[:] = self._model.judge(belongings, STANDING, sight.found, sight.why)
                found.extend(Violation(f"the kubelet cannot remove the volumes of pod {uid}") for uid in busy)
                return not found
            return False

        with suppress(AssertionError):
            wait_until(settled, SETTLED_S)
        return found
