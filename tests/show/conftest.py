"""Traces to make pages of, and a browser that opens them and listens for what must not happen."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_runs import long_run

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import mix, technique
from minifuse.workload.cells import cell_workload

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
PROMPTS = (
    *("count from 3 to 8", "add 17 and 25", "repeat duck 4 times", "sort 5 2 9", "reverse a b c", "count from 1 to 4"),
)
KV = 128 * 2**10  # bytes: 85 tokens of tiny, too few for all requests at once
SLOTS_KV = 384 * 2**10  # where it is divided into 8 buffers
PATIENCE_S = 20.0

Traces = Callable[..., list[Path]]
Pages = Callable[..., Path]


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Makes the trace of each technique on one workload, once: of texts for tiny, or of cells for `lstm`.

    `orca-slots` is orca on the memory and the attention of adjacent buffers.
    """
    folder = tmp_path_factory.mktemp("traces")
    sources = {name: resolve(name) for name in ("tiny", "lstm")}
    models: dict[str, Any] = {}

    def requests(model: str) -> list[Request]:
        source = sources[model]
        if model == "lstm":
            return cell_workload("wmt15:max=8", source.config.kind, 4, source.config.vocab_size)
        encode = source.tokenizer().encode
        return [
            Request(f"r{i}", encode(text), 12, arrival_s=0.001 * i, stop_ids=source.config.eos_ids)
            for i, text in enumerate(PROMPTS)
        ]

    def make(*names: str, model: str = "tiny", **options: Any) -> list[Path]:
        paths = []
        for name in names:
            path = folder / f"{name}-{model}-{len(options)}.jsonl"
            if not path.exists():
                row = technique(name.removesuffix("-slots"))
                if name.endswith("-slots"):
                    row = mix(row, memory="slots", attention="slots")
                kv = None if model != "tiny" else SLOTS_KV if row.memory == "slots" else KV
                settings = Settings(clock="virtual", kv_memory=kv, why=True, stage_options=options)
                if model not in models:
                    source = sources[model]
                    computes = source.has_weights  # where they are random, virtual time shows no more with them
                    models[model] = source.load(settings.dtype, "cpu", 0) if computes else source.outline("float32", 0)
                engine = build_engine(resolve_run(row, sources[model], settings), models[model], path)
                serve(engine, requests(model))
            paths.append(path)
        return paths

    return make


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, traces: Traces) -> Pages:
    """Makes the page of techniques on one workload."""
    folder = tmp_path_factory.mktemp("pages")

    def make(*names: str, model: str = "tiny", **options: Any) -> Path:
        path = folder / f"{'-'.join(names)}-{model}-{len(options)}.html"
        if not path.exists():
            runs = [read_run(trace) for trace in traces(*names, model=model, **options)]
            path.write_text(assemble(record(runs)), encoding="utf-8")
        return path

    return make


@pytest.fixture(scope="session")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 3000 iterations, and of hundreds of requests: more than there are pixels to draw them in."""
    page = tmp_path_factory.mktemp("long") / "long.html"
    page.write_text(assemble(long_run(3000)))
    return page


class Screen:
    """A page in the browser, and what a reader does with it."""

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads  # a folder
        self.size = (0, 0)  # pixels that the page has
        self.album: Path | None = None  # the page that is open, if all that tests did with it is `show`

    def open(self, page: Path, address: str = "") -> Screen:
        """Open a page from its file, as a reader does, and wait until it is shown."""
        self.album = None
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + address)
        self.driver.execute_async_script(
            "if (document.documentElement.dataset.ready === 'yes') arguments[0]();"
            "else document.addEventListener('replay', () => arguments[0]());"
        )
        return self

    def show(self, page: Path, run: int, i: int = 0, request: str | None = None) -> Screen:
        """Show a run of a page of several, which stays open from test to test: for tests that only read it."""
        if self.album != page:
            self.open(page, "#i=0")
            self.album = page
        self.js(
            "const [run, i, request] = arguments; app.setRuns(app.runs[run], null, i); app.select(i);"
            "app.selectRequest(request && app.main.requests.findIndex(({id}) => id === request))",
            *(run, i, request),
        )
        return self

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something true, and return that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.js(script, *arguments)):
            assert time.monotonic() < deadline, f"in vain: {script}; the page says {self.text('notices')!r}"
            time.sleep(0.02)
        return found

    def find(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def text(self, name: str) -> str:
        """What stands in the element of this id."""
        return str(self.js("return document.getElementById(arguments[0])?.textContent ?? ''", name))

    def press(self, *keys: str, shift: bool = False) -> None:
        """Type keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self.driver, duration=0)
        if shift:
            chain.key_down(Keys.SHIFT)
        for key in keys:
            chain.send_keys(getattr(Keys, key.upper()) if len(key) > 1 else key)
        if shift:
            chain.key_up(Keys.SHIFT)
        chain.perform()
        self.settle()

    def click(self, css: str) -> None:
        self.find(css).click()
        self.settle()

    def settle(self) -> None:
        """Wait until the page has drawn what it was told: events that it sends itself come with its next frames."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
        )

    def click_at(self, css: str, x: float, y: float) -> None:
        """Click on an element, at pixels from its upper left corner."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.find(css)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        chain = ActionChains(self.driver, duration=0)
        chain.move_to_element_with_offset(element, round(x - size["width"] / 2), round(y - size["height"] / 2))
        chain.click().perform()
        self.settle()

    def choose(self, name: str, label: str) -> None:
        """Choose from a list by what is read there."""
        from selenium.webdriver.support.select import Select

        Select(self.find(f"#{name}")).select_by_visible_text(label)
        self.click("h1")  # away from the list, so that keys are the page's again

    def state(self) -> dict[str, Any]:
        """What is selected."""
        found = self.js(
            "const {position, index, indexOther, request, theme, mode, by, player, main, other} = window.app;"
            "return {position, index, indexOther, request, theme: theme.name, mode, by, playing: player.playing,"
            " a: main.run.title, b: other && other.run.title}"
        )
        assert isinstance(found, dict)
        return found

    def resize(self, width: int, height: int) -> None:
        """Give the page so many pixels."""
        if self.size == (width, height):
            return
        self.size = (width, height)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.until("return innerWidth === arguments[0]", width)
        self.settle()

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and requests to anything but files, since the last call."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:", "chrome:")):  # chrome: its own first tab
                    found.append(f"a request to {url}")
        return found


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    """One browser for all tests; they are skipped where there is none."""
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver_path = shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip("no chromium and chromedriver: the page is not tested in a browser")
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: the page is not tested in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        downloads = tmp_path_factory.mktemp("downloads")
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
        try:
            driver.set_script_timeout(PATIENCE_S)
            hook = "document.addEventListener('replay', ({detail}) => { window.app = detail; })"  # see page/app.js
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hook})
            yield Screen(driver, downloads)
        finally:
            driver.quit()


@pytest.fixture
def screen(browser: Screen) -> Iterator[Screen]:
    """The browser, 1280 x 720; after the test nothing may stand in its console, and nothing have been loaded."""
    browser.resize(1280, 720)
    browser.complaints()
    yield browser
    assert browser.complaints() == []
