"""Load time of the console's first page in a browser: 1,000 devices and 10,000 slices, a real gateway, an empty cache.

Behind the gateway a pool has these devices and slices in memory and sums them up as the product's pool does. Time is the
browser's own, from the beginning of the navigation until the page's content is in the document; bytes are those on the
wire. Before each visit, the same browser loads a page with only a heading; its first contentful paint is the reference.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench._operate_metrics import DEVICES, made_allocation, made_device
from bench._report import Report
from calabash.api.gateway import ConsoleSettings, GatewayOrder
from calabash.api.tenancy import IssuedTokenReply, Me, MemberView
from calabash.model.access import Action
from calabash.platform.http.gateway_supervisor import GatewaySupervisor, listening_tcp, url_of
from calabash.platform.overview import overview

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SLICES = 10_000
PAINT, KILOBYTES = 10.0, 300.0  # of the reference page's; kB
VISITS = 7
_REFERENCE_PAGE = "data:text/html,<h1>Overview</h1>"
_MEASURED = """async () => {
    const name = location.protocol === "data:" ? "first-contentful-paint" : "calabash:shown";
    const painted = () => performance.getEntriesByName(name)[0];
    while (!painted()) await new Promise(again => setTimeout(again, 20));
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    return [painted().startTime, all.reduce((sum, entry) => sum + entry.transferSize, 0), performance.timing.responseStart
        - performance.timing.navigationStart];
}"""


def measure_console(report: Report) -> None:
    """Measure the first paint of the overview, its bytes, and the part of the time before the first byte."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("the console's first paint is left out: there is no chromium")
        return
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as directory:
        pool = _Pool(Path(directory) / "pool.sock")
        listener = listening_tcp("127.0.0.1:0")
        order = GatewayOrder(
            pool=str(pool.path), credential="none", listener=listener.fileno(), user=0, console=ConsoleSettings()
        )
        gateway = GatewaySupervisor(listener, order)
        gateway.start()
        try:
            found = _visited(url_of(listener, tls=False), chromium, visits=3 if report.quick else VISITS)
        finally:
            gateway.stop()
            listener.close()
            pool.close()
    what = f"{DEVICES} devices, {SLICES} slices, empty cache"
    paints, sizes, answers, plain = ([one[n] for one in found] for n in range(4))
    report.add_ratio("overview, first paint", paints, plain, "ms", of="page with a heading", at_most=PAINT, detail=what)
    report.add("overview, first paint, slowest", max(paints), "ms")
    report.add("overview, first byte", statistics.median(answers), "ms")
    report.add("overview over the wire", max(sizes) / 1e3, "kB", at_most=KILOBYTES, detail="page, style, scripts")


def _visited(address: str, chromium: str, *, visits: int) -> list[list[float]]:
    """Return for each visit the first paint (ms), bytes, the first byte (ms), and the first paint of the reference page (ms).

    The first visit, which starts the gateway, does not count.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            return [_visit(browser, address) for _ in range(visits + 1)][1:]
        finally:
            browser.close()


def _visit(browser: Browser, address: str) -> list[float]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(f"{address}/login#code")
        page.get_by_role("heading", name="Overview").wait_for()
        page.goto(_REFERENCE_PAGE)
        context.new_cdp_session(page).send("Network.clearBrowserCache")
        page.goto(_REFERENCE_PAGE)
        plain: list[float] = page.evaluate(_MEASURED)
        page.goto(address)
        page.get_by_role("heading", name="Overview").wait_for()
        measured: list[float] = page.evaluate(_MEASURED)
        return [*measured, plain[0]]
    finally:
        context.close()


class _Pool:
    """Pool that answers the requests of the first page over a Unix socket, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._devices = [made_device(index) for index in range(DEVICES)]
        self._held = [made_allocation(index) for index in range(SLICES)]
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._up.wait()

    def close(self) -> None:
        """Stop the server and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._serve, self.path))
        self._up.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                content = msgspec.json.encode(self._answer(head.split()[1]))
                writer.write(
                    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
                )
                writer.write(content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str) -> Any:
        if path == "/v1/me":
            every = [str(action) for action in Action]
            admin = MemberView(user="ann", role="admin", tenant="", project="")
            return Me(
                user="ann", uid=1, token="t", kind="session", scopes=[], own="ann", roles=[admin], may=every, tenants=[]
            )  # fmt: skip
        if path == "/v1/sessions":
            return IssuedTokenReply(id="benchmark", user="ann", kind="session", scopes=[], expires_at=0.0, secret="")
        return overview(self._devices, self._held, pending=0, reasons=(), at_s=time.time())
