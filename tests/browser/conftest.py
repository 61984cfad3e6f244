"""One JupyterLab server and one Chromium for all browser tests, cut off from the user's settings and the network."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.reader import FAILED, Reader
from tools import visit
from tools.open_lab import LOOK

SETTINGS = {"windowingMode": "none"}  # every cell in the page, seen or not


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(visit.chromium())
        except FileNotFoundError as error:
            reason = f"{error}: install one (Debian, Ubuntu: apt-get install chromium) to test in the browser"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
        yield browser


@pytest.fixture(scope="session")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """The address and the token of a JupyterLab server, and the folder that it serves."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    path = home / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(SETTINGS), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex()
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),  # for `tools`
        "JUPYTER_TOKEN": token,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--port-retries=0"]
    options += ["--expose-app-in-browser", f"--ServerApp.root_dir={folder}", *LOOK]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = home / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(f"{address}/api/status?token={token}", server, log)
        yield address, token, folder
    finally:
        server.terminate()
        server.wait(120)


def _wait_until_it_answers(url: str, server: subprocess.Popen, log: Path, seconds: float = 120) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def pages(chromium: Browser, jupyterlab: tuple[str, str, Path]) -> Iterator[list[Reader]]:
    """At most one page with JupyterLab, for all tests: loading it takes longer than running most notebooks."""
    loaded: list[Reader] = []
    yield loaded
    for page in loaded:
        page.page.context.close()


@pytest.fixture
def reader(
    request: pytest.FixtureRequest, chromium: Browser, jupyterlab: tuple[str, str, Path], pages: list[Reader]
) -> Iterator[Reader]:
    """A reader that opens notebooks, runs them, and moves their controls. After a test that failed, the next one gets
    a page of its own: the state of the old page is unknown."""
    if not pages:
        screenshots = os.environ.get("PARLAB_SCREENSHOTS")
        context = chromium.new_context(viewport={"width": 1400, "height": 1000})
        pages.append(Reader(context, *jupyterlab, Path(screenshots) if screenshots else None))
    yield pages[0]
    if request.node.stash.get(FAILED, False):
        pages.pop().page.context.close()
    else:
        pages[0].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the fixture `reader` that the test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report
