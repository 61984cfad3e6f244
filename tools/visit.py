"""Visit the edition that `make lite` built, as a browser that has never seen it: what comes, and how long it takes."""

from __future__ import annotations

import functools
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 240  # seconds
TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}  # a browser refuses them under another name
RUN_FIRST_CELL = """path => {
    const run = async () => {
        await jupyterapp.restored;
        const panel = await jupyterapp.commands.execute("docmanager:open", { path });
        await Promise.all([panel.revealed, panel.sessionContext.ready]);
        const notebook = panel.content;
        notebook.activeCellIndex = notebook.widgets.findIndex(cell => cell.model.type === "code");
        await jupyterapp.commands.execute("notebook:run-cell");
        window.outputs = notebook.activeCell.model.toJSON().outputs.map(output => output.output_type);
    };
    run();
}"""


class Visit(NamedTuple):
    """A first visit.

    Attributes:
        seconds: from the address to the result of the first cell.
        megabytes: what came meanwhile, in MB, as a host sends it that compresses nothing.
        outputs: the kinds of the first cell's outputs.
    """

    seconds: float
    megabytes: float
    outputs: list[str]


class _Handler(SimpleHTTPRequestHandler):
    def guess_type(self, path: Any) -> str:
        return TYPES.get(Path(path).suffix) or super().guess_type(path)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Nothing: a page that is closed waits no longer for what it asked."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of a folder, as long as the context lasts."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium without a window.

    Raises:
        FileNotFoundError: there is none, or no playwright.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise FileNotFoundError("no Chromium on PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise FileNotFoundError("playwright is not installed") from None
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


def first_visit(browser: Any, site: Path, lesson: str) -> Visit:
    """Open a lesson in a browser, and run its first cell.

    Raises:
        ConnectionError: an address cannot be reached, of Pyodide's host for example.
        TimeoutError: the result did not come.
    """
    sizes: list[int] = []
    failed: list[str] = []
    visitor = browser.new_context()
    with served(site) as address, closing(visitor):
        page = visitor.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        visitor.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
        visitor.on("requestfailed", lambda request: failed.append(request.url))
        begin = time.monotonic()
        page.goto(f"{address}/lab/index.html?path={lesson}")
        page.wait_for_function("() => window.jupyterapp")
        page.evaluate(RUN_FIRST_CELL, lesson)
        while not (outputs := page.evaluate("() => window.outputs")):
            if elsewhere := [url for url in failed if not url.startswith(address)]:
                raise ConnectionError(f"{elsewhere[0]} cannot be reached from here")
            if time.monotonic() > begin + PATIENCE:
                raise TimeoutError(f"the first cell of {lesson} had no result after {PATIENCE} seconds")
            page.wait_for_timeout(100)
        return Visit(time.monotonic() - begin, sum(sizes) / 1e6, outputs)
