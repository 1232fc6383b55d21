"""Five papers' LLM serving systems, run for real, side by side, in one readable engine.

    import minifuse

    source = minifuse.resolve("tiny")
    tokenizer = source.tokenizer()
    run = minifuse.resolve_run(minifuse.technique("orca"), source, minifuse.Settings())
    engine = minifuse.build_engine(run, run.load())
    request = minifuse.Request("r0", tokenizer.encode("count from 3 to 9"), stop_ids=source.config.eos_ids)
    for answer in minifuse.serve(engine, [request]).answers:
        print(tokenizer.decode(list(answer.token_ids)))

Importing minifuse does not import torch; loading weights does.
"""

from minifuse import ctrl_c

ctrl_c.install()  # only in the command line; before the imports below, which take a tenth of a second

__version__ = "0.1.0"

from typing import TYPE_CHECKING

from minifuse.core.errors import MinifuseError
from minifuse.core.request import Request, Sampling
from minifuse.model.source import Source, resolve
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Answer, Served
from minifuse.serve.settings import Settings
from minifuse.serve.stream import serve_stream
from minifuse.serve.sweep import sweep
from minifuse.stages import register
from minifuse.techniques import TECHNIQUES, Technique, mix, technique
from minifuse.trace.log import Trace
from minifuse.trace.metrics import compute_metrics, flat_metrics
from minifuse.trace.running import RunningMetrics

if TYPE_CHECKING:
    from minifuse.serve.run import serve  # at run time, `minifuse.serve` is the package of that name

__all__ = [
    "TECHNIQUES",
    "Answer",
    "MinifuseError",
    "Request",
    "ResolvedRun",
    "RunningMetrics",
    "Sampling",
    "Served",
    "ServingEngine",
    "Settings",
    "Source",
    "Technique",
    "Trace",
    "build_engine",
    "compute_metrics",
    "flat_metrics",
    "mix",
    "register",
    "resolve",
    "resolve_run",
    "serve",
    "serve_stream",
    "sweep",
    "technique",
]
