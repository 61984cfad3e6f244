"""A reader of notebooks in JupyterLab: runs every cell, moves every control, looks at the pictures beside it."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from playwright.sync_api import BrowserContext, Locator, Page

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
FAILED = pytest.StashKey[bool]()  # of a test: the page that it used is not used again
PATIENCE = 240  # seconds for what always comes: a page, a kernel, the end of a run
LOOKS = 20  # at a picture, 0.1 s apart, before a control to which the kernel has answered counts as one without effect

FOLDED = "jp-MarkdownHeadingCollapsed"  # a heading whose cells are hidden when the notebook opens
OUTPUT = ".jp-Cell-outputArea > .jp-OutputArea-child > .jp-OutputArea-output"
BROKEN_WIDGET = ".jupyter-widgets-error-widget"
GUESS = ".parlab-predict"
ERROR = (
    '[data-mime-type="application/vnd.jupyter.error"], [data-mime-type="application/vnd.jupyter.stderr"], '
    + BROKEN_WIDGET
)

# One number a picture, from its pixels; icons are too small to count. An SVG and a compared guess are their text.
LOOK = """async output => {
    const hash = values => { let h = 0; for (const v of values) h = Math.imul(h ^ v, 16777619) + 1; return h; };
    const looks = [];
    for (const picture of output.querySelectorAll("img, canvas, svg, .parlab-answer")) {
        const box = picture.getBoundingClientRect();
        if (box.width < 100 || box.height < 50) continue;
        if (!["IMG", "CANVAS"].includes(picture.tagName)) {
            looks.push(hash(new TextEncoder().encode(picture.outerHTML)));
            continue;
        }
        if (picture.tagName === "IMG") await picture.decode().catch(() => null);
        const copy = document.createElement("canvas");
        copy.width = picture.naturalWidth || picture.width;
        copy.height = picture.naturalHeight || picture.height;
        const pen = copy.getContext("2d");
        pen.drawImage(picture, 0, 0);
        looks.push(hash(new Uint32Array(pen.getImageData(0, 0, copy.width, copy.height).data.buffer)));
    }
    return looks;
}"""

# What the page does through the application that `--expose-app-in-browser` hands out; each ends in true. To wait for
# what it announces costs nothing; to read it again and again took a third of the time in which it had to compute.
READY = "() => window.jupyterapp && jupyterapp.restored.then(() => true)"
OPEN = """async path => {
    const panel = await jupyterapp.commands.execute("docmanager:open", { path });
    await Promise.all([panel.revealed, panel.sessionContext.ready]);
    window.asked = new Set();  // messages to which the kernel has not answered
    panel.sessionContext.session.kernel.anyMessage.connect((_, { msg, direction }) => {
        const { header, content, channel, parent_header } = msg;
        if (direction === "send" && channel === "shell") asked.add(header.msg_id);
        if (header.msg_type === "status" && content.execution_state === "idle") asked.delete(parent_header.msg_id);
    });
    return true;
}"""
RUN = "() => jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)"
# An output keeps its number also when its question was answered and its buttons are gone.
NUMBER = "outputs => outputs.forEach((output, number) => output.dataset.reader = number) || outputs.length"
CLOSE = """async () => {
    for (const panel of [...jupyterapp.shell.widgets("main")]) panel.dispose();
    await jupyterapp.serviceManager.sessions.shutdownAll();
    return true;
}"""
IDLE = """() => {
    const shown = [...document.querySelectorAll(".jp-OutputArea-output")];
    return asked.size === 0 && !shown.some(output => output.textContent === "Loading widget...")
        && jupyterapp.shell.currentWidget.sessionContext.kernelDisplayStatus === "idle";
}"""


def write(place: Path, *cells: str | nbformat.NotebookNode) -> None:
    """A notebook of these cells; a text is a cell of code."""
    made = [nbformat.v4.new_code_cell(cell.strip()) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": KERNEL}), place)


def _drag(handle: Locator) -> None:
    """To the other half of its slider."""
    track = handle.locator("xpath=ancestor::*[contains(@class, 'noUi-base')]").bounding_box()
    grip = handle.bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    upright = track["height"] > track["width"]
    start, length = (track["y"], track["height"]) if upright else (track["x"], track["width"])
    goal = start + length * (0.25 if (y if upright else x) > start + length / 2 else 0.75)
    mouse = handle.page.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(*((x, goal) if upright else (goal, y)), steps=5)
    mouse.up()


def _select_another(menu: Locator) -> None:
    chosen = menu.evaluate("menu => menu.selectedIndex")
    menu.select_option(index=0 if chosen else 1)


def _play(film: Locator) -> None:
    """For a while, then pause, unless the film has ended by itself: then the button would begin anew.

    The page asks and clicks in one go, so that the film cannot end in between.
    """
    button = film.locator("button").first
    button.click()
    film.page.wait_for_timeout(1500)
    button.evaluate("button => button.querySelector('.fa-pause') && button.click()")


def _guess(button: Locator) -> None:
    """Answer with a number, and compare."""
    button.locator("xpath=ancestor::*[contains(@class, 'parlab-predict')]").locator("input").fill("3")
    button.click()


CONTROLS: dict[str, Callable[[Locator], None]] = {
    ".noUi-handle": _drag,
    "select": _select_another,
    "input[type=checkbox]": lambda box: box.click(),
    ".widget-toggle-buttons": lambda group: group.locator("button:not(.mod-active)").first.click(),
    ".widget-radio-box": lambda group: group.locator("input:not(:checked)").first.click(),
    ".widget-play": _play,
    ".widget-button": lambda button: button.click(),
}


class Reader:
    """Reads notebooks in the JupyterLab at `address`, which serves `folder`; keeps screenshots if given a folder."""

    def __init__(self, context: BrowserContext, address: str, token: str, folder: Path, screenshots: Path | None):
        self.address, self.token, self.folder, self.screenshots = address, token, folder, screenshots
        self.complaints: list[str] = []
        context.set_default_timeout(1000 * PATIENCE)
        context.route(lambda url: not url.startswith(address), self._refuse)
        self.page: Page = context.new_page()
        self.page.goto(f"{address}/lab?token={token}&reset")
        self._await(READY)

    def read(self, notebook: Path) -> list[str]:
        """Complaints about `notebook`; none if all is as it should be."""
        cells_to_run = self._serve(notebook)
        self.open(notebook.name)
        self.run_all_cells()
        self._photograph(f"{notebook.stem}.png")
        if not self._errors():
            if (ran := self._numbered()) != cells_to_run:
                self.complaints.append(f"{ran} of {cells_to_run} cells ran")
            moved = self.page.locator(OUTPUT).filter(has=self.page.locator(", ".join(CONTROLS)))
            count = moved.evaluate_all(NUMBER)
            for output in (self.page.locator(f'[data-reader="{number}"]') for number in range(count)):
                guess = output.locator(GUESS)
                controls = {"button >> nth=0": _guess} if guess.count() else CONTROLS
                for selector, move in controls.items():
                    for control in output.locator(selector).all():
                        self._try(control, move, output)
            self._photograph(f"{notebook.stem}_moved.png")
        return list(dict.fromkeys([*self.complaints, *self._errors()]))

    def _errors(self) -> list[str]:
        for broken in self.page.locator(BROKEN_WIDGET).all():
            broken.click()  # shows its message
        return [f"error output: {text.strip()}" for text in self.page.locator(ERROR).all_inner_texts()]

    def _serve(self, notebook: Path) -> int:
        """Copy `notebook` without its outputs, so that whatever is seen was made here, and with all sections open; the
        number of cells to run.
        """
        copy = nbformat.read(notebook, as_version=4)
        for cell in copy.cells:
            cell.metadata.pop(FOLDED, None)
        code = [cell for cell in copy.cells if cell.cell_type == "code"]
        for cell in code:
            cell.outputs, cell.execution_count = [], None
        nbformat.write(copy, self.folder / notebook.name)
        return sum(bool(cell.source.strip()) for cell in code)

    def _refuse(self, route) -> None:
        self.complaints.append(f"asked the network for {urlsplit(route.request.url).netloc}")
        route.abort()

    def open(self, path: str) -> None:
        """A notebook that the server serves, in front, with a kernel of its own."""
        self._await(OPEN, path)
        self.page.locator(".jp-CodeCell .jp-InputPrompt").first.wait_for()
        self._wait(self.idle, "the kernel starts")

    def run_all_cells(self) -> None:
        self._await(RUN)
        self._wait(self.idle, "all cells have run")

    def close(self) -> list[str]:
        """All notebooks, unsaved, and their kernels; the complaints until now, which are forgotten."""
        self._await(CLOSE)
        complaints, self.complaints = self.complaints, []
        return complaints

    def _numbered(self) -> int:
        return sum(text[1:-2].isdigit() for text in self.page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts())

    def idle(self) -> bool:
        """The kernel has answered to all messages, and every widget is shown."""
        return self.page.evaluate(IDLE)

    def _try(self, control: Locator, move: Callable[[Locator], None], output: Locator) -> None:
        """Move one control; complain unless a picture in its output changes or appears."""
        control.scroll_into_view_if_needed()
        label = control.locator("xpath=ancestor::*[contains(@class, 'widget-inline-hbox')]//label").first
        name = (label if label.count() else control).inner_text()
        before = output.evaluate(LOOK)
        move(control)
        for _ in range(LOOKS):
            self._wait(self.idle, "the kernel answers")
            if output.evaluate(LOOK) not in ([], before):
                break
            self.page.wait_for_timeout(100)
        else:
            self.complaints.append(f"the control {name!r} changes no picture")
        self._wait(lambda: self.idle() and self._at_rest(output), "the picture comes to rest")

    def _at_rest(self, output: Locator) -> bool:
        before = output.evaluate(LOOK)
        self.page.wait_for_timeout(100)
        return output.evaluate(LOOK) == before

    def _await(self, script: str, argument: str | None = None) -> None:
        """Wait until the promise that a script returns is kept."""
        self.page.wait_for_function(script, arg=argument)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > give_up:
                raise TimeoutError(f"waited {PATIENCE} s until {what}")
            self.page.wait_for_timeout(50)

    def _photograph(self, file: str) -> None:
        """The whole notebook on one picture: the window is made as tall as the notebook."""
        if not self.screenshots:
            return
        window, cells = self.page.viewport_size, self.page.locator(".jp-Notebook .jp-Cell")
        first, last = cells.first.bounding_box(), cells.last.bounding_box()
        height = last["y"] + last["height"] - first["y"] + 200
        self.page.set_viewport_size({"width": window["width"], "height": int(height)})
        cells.first.scroll_into_view_if_needed()
        self.page.screenshot(path=self.screenshots / file)
        self.page.set_viewport_size(window)
