"""A Prometheus with the jobs of deploy/dashboards/scrape.yml and its rules, whose targets are processes of a test."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.dashboards import DIRECTORY, RULES
from tests.lab.switch.switch import wait_until

INTERVAL: Final = "1s"
_META: Final = "__meta_kubernetes_pod_"


class PrometheusServer:
    """A running one, by its HTTP API."""

    def __init__(self, port: int, directory: Path) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._directory = directory

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises HTTPError for a query that Prometheus refuses."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}?{query}", timeout=60) as answer:
            decoded = json.load(answer)
        assert decoded["status"] == "success", decoded
        return decoded["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query, each with `metric` and `value`."""
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def configuration(targets: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """scrape.yml, whose jobs have one target each: by job its address, and the node of its pod.

    Discovery is replaced by what it would have found, so that its relabelling is used as it is.
    """
    stored: dict[str, Any] = yaml.safe_load((DIRECTORY / "scrape.yml").read_text())
    stored["rule_files"] = [str(RULES)]
    stored["global"] = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
    for job in stored["scrape_configs"]:
        del job["kubernetes_sd_configs"]
        if job["job_name"] in targets:
            address, node = targets[job["job_name"]]
            labels = {f"{_META}container_port_name": "metrics", f"{_META}node_name": node}
            job["static_configs"] = [{"targets": [address], "labels": labels}]
    return stored


@contextmanager
def scraping(directory: Path, targets: Mapping[str, tuple[str, str]]) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes these targets, as `configuration` has them, until the end of the block."""
    directory.mkdir()
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration(targets)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    argv = [
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, cwd=directory, stdout=log, stderr=log) as process:
        try:
            server = PrometheusServer(port, directory)

            def ready() -> bool:
                assert process.poll() is None, (directory / "log").read_text()
                return server.is_ready()

            wait_until(ready, what="Prometheus to be ready")
            yield server
        finally:
            process.kill()
