"""The callers of a storm: threads that choose an attachment and a verb, and give the answers to the model."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Self

from tests.crash.storm_calls import Death, How, Plugin, Reply
from tests.crash.storm_faults import OF_CALLERS, Clock
from tests.crash.storm_model import ABSENT, ATTACHED, KILLED, Call, Model, Name, Violation
from tests.crash.storm_pods import NETWORKS, Attachment, Network, Pod, Pods

Verb = Literal["ADD", "DEL", "CHECK", "GC"]
WAYS: Final[tuple[How, ...]] = ("shim",) * 10 + ("handed",) * 4 + ("forked",) * 5 + ("executed",)
VOLUMES: Final = ("", "", "disk", "disk", "memory")
KILLED_ONCE_IN: Final = 14
TRY_AGAIN: Final = 11
TWICE_ONCE_IN: Final = 30
TWINS: Final[tuple[tuple[Verb, Verb], ...]] = (("ADD", "ADD"), ("DEL", "DEL"), ("ADD", "DEL"), ("DEL", "ADD"))
COLLECTS_ONCE_IN: Final = 40
TOLD: Final = 160


class _Gate:
    """A network's gate: GC's list is only right when no call attaches or detaches meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._inside >= 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0)
            self._inside = -1
        try:
            yield
        finally:
            with self._changed:
                self._inside = 0
                self._changed.notify_all()


class Calling:
    """Make calls for attachments, and give them to the model. `found`: violations in single answers."""

    def __init__(self, pods: Pods, model: Model, clock: Clock, counted: Counter[str]) -> None:
        self.pods = pods
        self.model = model
        self.clock = clock
        self.counted = counted
        self.found: list[Violation] = []
        self._results: dict[Name, dict[str, Any]] = {}

    def call(self, plugin: Plugin, how: How, verb: Verb, attachment: Attachment, death: Death | None = None) -> Call:
        """Make one call, without giving it to the model."""
        name, network = attachment.name, attachment.network
        keys: dict[str, Any] = {}
        if verb == "CHECK":
            keys["prevResult"] = {**self._results.get(name, {}), "cniVersion": network.version}
        stdin = self.pods.configuration(network, attachment, **keys)
        variables = self.pods.node.variables(
            verb, str(self.pods.namespace(name.container)), name.container, name.ifname, CNI_ARGS=self.pods.arguments(attachment)
        )
        call, reply = self._make(plugin, how, variables, stdin, death)
        if call.verb == "ADD" and call.code == 0:
            self._results[name] = json.loads(reply.stdout)
        return call

    def collect(self, plugin: Plugin, how: How, network: Network, valid: Sequence[Name]) -> Call:
        """Make a GC of a network, without giving it to the model."""
        listed = [{"containerID": name.container, "ifname": name.ifname} for name in valid]
        keys = {"cni.dev/valid-attachments": listed, "cni.dev/attachments": listed}
        variables = self.pods.node.variables("GC", "", "", "")
        return self._make(plugin, how, variables, self.pods.configuration(network, None, **keys), None)[0]

    def known(self, name: Name, *calls: Call) -> None:
        self.found += self.model.called(name, *calls)

    def _make(self, plugin: Plugin, how: How, variables: dict[str, str], stdin: bytes, death: Death | None) -> tuple[Call, Reply]:
        verb: Any = variables["CNI_COMMAND"]
        began = self.clock.now
        reply = plugin.call(how, variables, stdin, death)
        code, text = _read(reply)
        if code == KILLED and not death:
            self.found.append(Violation(f"{verb} by {how} ended with {reply.status}, {reply}"))
        if reply.hung:
            self.found.append(Violation(f"{verb} by {how} was not answered: {reply}"))
        if "Traceback" in reply.stderr:
            self.found.append(Violation(f"{verb} by {how} left a traceback: {reply.stderr}"))
        if death and how == "handed" and (verb, code) == ("ADD", TRY_AGAIN):
            code = KILLED  # the agent has the call, and undoes it when it sees that the connection has ended
        if death:
            text = f"{death.sign.name} after {death.after_s:.3f} s; {text}"
        self.counted[f"{verb} {'killed' if code == KILLED else code}"] += 1
        self.counted[f"by {how}"] += 1
        return Call(verb, code, began, self.clock.now, f"{how}: {text}"), reply


def _read(reply: Reply) -> tuple[int, str]:
    """The code of the answer, and its text."""
    warned = reply.stderr.strip().rpartition("\n")[2][:TOLD]
    if reply.status == 0:
        return 0, warned
    with suppress(ValueError, KeyError, TypeError):
        if reply.status == 1:
            error = json.loads(reply.stdout)
            return int(error["code"]), f"{error['msg']}; {error.get('details', '')}"[: 2 * TOLD]
    return KILLED, f"status {reply.status}; {warned}"


class Callers:
    """State that the threads share: which attachments have a call under way, and which pods there are."""

    def __init__(self, pods: Pods, model: Model, clock: Clock, counted: Counter[str], threads: int) -> None:
        self.pods = pods
        self.model = model
        self.clock = clock
        self.calling = Calling(pods, model, clock, counted)
        self.plugins = [Plugin(pods.node) for _ in range(threads)]
        self.gates = {network.name: _Gate() for network in NETWORKS}
        self.errors: list[BaseException] = []
        self.paused = threading.Event()
        self.networks: Sequence[Network] = NETWORKS
        self._locks: dict[Name, threading.Lock] = {}
        self._choosing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clock.stop()
        for plugin in self.plugins:
            plugin.close()

    @property
    def found(self) -> list[Violation]:
        return self.calling.found

    def populate(self, rng: random.Random, pods: int, networks: Sequence[str]) -> None:
        """Make so many pods, in these networks."""
        self.networks = [network for network in NETWORKS if network.name in networks]
        while len(self.pods.living) < pods:
            self.make_pod(rng)

    def make_pod(self, rng: random.Random) -> Pod:
        """Make one more pod, of any kind."""
        with self._choosing:
            volume = rng.choice(VOLUMES)
            networks = tuple(rng.sample(self.networks, len(self.networks)))
            pod = self.pods.make(volume, 2 if volume and rng.random() < 0.3 else 1, networks)
            self._locks |= {attachment.name: threading.Lock() for attachment in self.pods.of(pod)}
            return pod

    @contextmanager
    def chosen(self, rng: random.Random) -> Iterator[Attachment | None]:
        """Choose an attachment without a call under way."""
        with self._choosing:
            attachments = [each for pod in self.pods.living for each in self.pods.of(pod)]
            free = [each for each in rng.sample(attachments, 5) if self._locks[each.name].acquire(blocking=False)]
            for each in free[1:]:
                self._locks[each.name].release()
        try:
            yield free[0] if free else None
        finally:
            if free:
                self._locks[free[0].name].release()

    def vanish(self, rng: random.Random) -> bool:
        """Remove the sandboxes of a pod without calls, and make another pod; return whether there was such a pod."""
        with self._choosing:
            pod = rng.choice(self.pods.living)
            attachments = self.pods.of(pod)
            taken = [each for each in attachments if self._locks[each.name].acquire(blocking=False)]
            whole = len(taken) == len(attachments)
            if whole:
                self.pods.end(pod)
                for each in attachments:
                    self.model.vanished(each.name, self.clock.now)
            for each in taken:
                self._locks[each.name].release()
        if whole:
            self.make_pod(rng)
        return whole

    def pause(self, workers: Sequence[Worker]) -> None:
        """Wait until the threads have finished their calls."""
        self.paused.set()
        for worker in workers:
            worker.join()
        self.paused.clear()


class Worker(threading.Thread):
    """A thread that calls until it is paused."""

    def __init__(self, callers: Callers, number: int, rng: random.Random) -> None:
        super().__init__(name=f"caller-{number}")
        self._callers = callers
        self._calling = callers.calling
        self._plugin = callers.plugins[number]
        self._rng = rng

    def run(self) -> None:
        """Take one step after the other."""
        callers = self._callers
        while not callers.paused.is_set() and not callers.clock.is_over:
            try:
                self._step()
            except BaseException as error:
                callers.errors.append(error)
                callers.clock.stop()

    def _step(self) -> None:
        rng = self._rng
        if rng.randrange(COLLECTS_ONCE_IN) == 0:
            self._collect()
            return
        with self._callers.chosen(rng) as attachment:
            if attachment is None:
                self._callers.paused.wait(0.001)
                return
            with self._callers.gates[attachment.network.name].calling():
                if rng.randrange(TWICE_ONCE_IN) == 0:
                    self._call_twice(attachment)
                else:
                    self._call(attachment)

    def _call_twice(self, attachment: Attachment) -> None:
        """Make two calls for it at the same time, as a restarted runtime does."""
        calling, (first, second) = self._calling, self._rng.choice(TWINS)
        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(calling.call, self._plugin, "shim", second, attachment)
            call = calling.call(self._plugin, self._rng.choice(WAYS), first, attachment)
            calling.known(attachment.name, call, other.result())
        calling.clock.count()

    def _call(self, attachment: Attachment) -> None:
        rng, name, calling = self._rng, attachment.name, self._calling
        presences = calling.model.presences(name)
        verb: Verb = rng.choices(
            ("ADD", "DEL", "CHECK"), (1, 6, 3) if presences == ATTACHED else (8, 1, 0) if presences == ABSENT else (3, 4, 0)
        )[0]
        how = rng.choice(WAYS)
        death = None
        if rng.randrange(KILLED_ONCE_IN) == 0:
            calling.counted[f"fault: {OF_CALLERS}"] += 1
            death = self._death(how)
        call = calling.call(self._plugin, how, verb, attachment, death)
        calling.known(name, call)
        if verb == "ADD" and call.code == 0 and attachment.network.mode == "client" and rng.random() < 0.5:
            calling.pods.listen(attachment)
        calling.clock.count()

    def _death(self, how: How) -> Death:
        after = (
            self._rng.uniform(0.15, 0.6) if how == "executed" else self._rng.choice((0.005, 0.02, 0.05, 0.1)) * self._rng.random()
        )
        return Death(after, signal.SIGTERM if how in ("forked", "handed") and self._rng.random() < 0.3 else signal.SIGKILL)

    def _collect(self) -> None:
        """Make a GC, now and then with a list from which an attachment is missing."""
        rng, calling, model = self._rng, self._calling, self._calling.model
        network = rng.choice([network for network in NETWORKS if not network.leased])  # Debian's host-local knows no GC
        with self._callers.gates[network.name].collecting():
            members = [name for name, each in calling.pods.attachments.copy().items() if each.network == network]
            valid = [name for name in members if model.presences(name) != ABSENT]
            omitted = rng.sample(valid, 1) if valid and rng.random() < 0.3 else []
            call = calling.collect(self._plugin, rng.choice(WAYS), network, [name for name in valid if name not in omitted])
            for name in omitted:
                calling.known(name, call)
        calling.clock.count()
