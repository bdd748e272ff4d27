"""``calabash serve planner``: run the planner service until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import threading

import structlog

from calabash.adapters.kube import KubeClient
from calabash.kubernetes.planner.service import PlannerService, PlannerSettings
from calabash.model.extras import WITHOUT_PLACEMENT, is_installed

log = structlog.get_logger(__name__)


def run_planner(client: KubeClient, settings: PlannerSettings) -> None:
    """Run the planner until SIGTERM or SIGINT. Raises OSError if the extender's address cannot be bound."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if not is_installed("placement"):
        log.info(WITHOUT_PLACEMENT)
    service = PlannerService(client, settings)
    service.start()
    log.info("answers kube-scheduler", host=service.server.address[0], port=service.server.address[1])
    ended.wait()
    service.stop()
