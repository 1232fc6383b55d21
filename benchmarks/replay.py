"""The replay page of long runs: its size, and how long it takes to show another iteration, in Debian's Chromium.

    python benchmarks/replay.py                       # writes results/replay.{json,md}
    python benchmarks/replay.py --quick --out /tmp    # seconds, to see that it works

A frame is measured from the call that selects an iteration until the browser has drawn what came of it. Without a GPU
the browser draws on the CPU, on which it also runs the page.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Any

import typer

from minifuse.model.source import resolve
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.page import write_page
from minifuse.show.traced_runs import TracedRun
from minifuse.techniques import technique
from minifuse.workload.laws import Uniform, parse_arrival
from minifuse.workload.synthetic import synthetic

AIM_MS, AIM_MB = 16.0, 1.0  # of a frame; of 1,000 iterations
RUNS = {"rectangle": "static", "region": "fusion", "blocks": "vllm", "waves": "fluid"}
MOVES = {"next": "app.index + 1", "scrub": "app.index + 37", "jump": "Math.floor(random() * app.main.length)"}
FRAMES = """
const [count, done] = [arguments[0], arguments[1]], script = [], frames = [];
let seed = 1;
const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
app.select(100);
(function go() {
  if (frames.length === count) return done([script, frames]);
  const begin = performance.now();
  app.select(POSITION);
  script.push(performance.now() - begin);
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { frames.push(performance.now() - begin); setTimeout(go, 5); };
    channel.port2.postMessage(0);
  });
})();
"""


def traced(name: str, iterations: int) -> TracedRun:
    """A run of at least so many iterations, in memory for 1,024 tokens."""
    source = resolve("random:medium")
    requests: list[Any] = []
    count = iterations // 25
    while True:
        lengths = Uniform(8, 64), Uniform(16, 128)
        requests = synthetic(count, *lengths, source.config.vocab_size, parse_arrival("poisson:5ms"), seed=0)
        settings = Settings(clock="virtual", kv_memory=1024 * source.slot_bytes("float32"))
        engine = build_engine(resolve_run(technique(name), source, settings), source.outline())
        events = list(serve(engine, requests).trace.events())
        if sum(event["event"] == "step" for event in events) >= iterations:
            return TracedRun(name, events)
        count += count // 4


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(300)
            metrics = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            hook = "document.addEventListener('replay', ({detail}) => { window.app = detail; })"
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hook})
            yield driver
        finally:
            driver.quit()


def measure(driver: Any, form: str, run: TracedRun, frames: int) -> dict[str, Any]:
    """The page of a run: its size, and medians and 95th percentiles in milliseconds by move."""
    from selenium.webdriver.support.ui import WebDriverWait

    iterations = sum(event["event"] == "step" for event in run.events)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_page([run], page)
        size = page.stat().st_size
        driver.get(page.as_uri())
        WebDriverWait(driver, 60).until(lambda one: one.execute_script("return Boolean(window.app)"))
        told: dict[str, Any] = {}
        for move, position in MOVES.items():
            script, whole = driver.execute_async_script(FRAMES.replace("POSITION", position), frames)
            told[move] = {"script_ms": spread(script), "frame_ms": spread(whole)}
    return {
        "form": form, "technique": run.name, "iterations": iterations, "bytes": size,
        "mb_per_1000": size / 1e3 / iterations, "moves": told,
    }  # fmt: skip


def spread(values: list[float]) -> tuple[float, float]:
    """The median and the 95th percentile."""
    every = quantiles(values, n=20)
    return every[9], every[18]


def page_of(results: dict[str, Any]) -> str:
    """The table."""
    origin = results["provenance"]
    lines = [
        "# The replay page of long runs",
        "",
        f"Chromium without a GPU, 1280 x 720; {origin['frames']} frames of each move: the next iteration, 37",
        "iterations on, a random one. Milliseconds, median and 95th percentile, of the page's own script, and until",
        "the browser has drawn, which it does at most 60 times a second: a frame of little work takes up to 16.7 ms.",
        f"Aims: a frame of {AIM_MS:g} ms, and {AIM_MB:g} MB for 1,000 iterations.",
        "",
        f"{origin['machine']['processor']}, {origin['machine']['cores']} cores; Chromium {origin['chromium']}; commit "
        f"{origin['commit']}{'' if origin['clean'] else ' with changes'}.",
        "",
        "| memory | technique | iterations | MB | MB per 1,000 | move | script, ms | p95 | frame, ms | p95 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        what = f"| {row['form']} | {row['technique']} | {row['iterations']:,} | {row['bytes'] / 1e6:.2f}"
        for move, times in row["moves"].items():
            figures = " | ".join(f"{value:.1f}" for value in (*times["script_ms"], *times["frame_ms"]))
            lines.append(f"{what} | {row['mb_per_1000']:.3f} | {move} | {figures} |")
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="the folder for replay.json and replay.md")] = Path(__file__).parent
    / "results",
    quick: Annotated[bool, typer.Option(help="short runs, few frames")] = False,
) -> None:
    """Measure pages of 10,000 iterations."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        raise typer.BadParameter("there is no browser: install Debian's chromium and chromium-driver.")
    iterations, frames = (200, 10) if quick else (10_000, 200)
    runs = {form: traced(name, iterations) for form, name in RUNS.items()}
    with browser() as driver:
        rows = [measure(driver, form, run, frames) for form, run in runs.items()]
        version = driver.capabilities["browserVersion"]
    results = {"benchmark": "replay", "provenance": provenance(chromium=version, frames=frames), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / "replay.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "replay.md").write_text(page_of(results))


if __name__ == "__main__":
    typer.run(main)
