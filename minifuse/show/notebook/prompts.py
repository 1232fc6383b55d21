"""Makes requests from texts, or from lengths of prompts and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.core.submitted import plain
from minifuse.io.parsing import MANY
from minifuse.model.source import Source, resolve
from minifuse.workload.cells import RESERVED
from minifuse.workload.laws import Uniform
from minifuse.workload.synthetic import RequestDefaults, synthetic

Prompt = str | int | tuple[int, int]
MAX_NEW_TOKENS = 24  # or what the context has room for


def asks(
    *prompts: Prompt,
    every: float = 0.0,
    arrivals: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    max_new_tokens: int | None = None,
    model: str = "tiny",
) -> list[Request]:
    """Make a request for each prompt, which is one of these:

    | prompt | is |
    |---|---|
    | "sort 7 2 5" | this text |
    | 5 | 5 tokens drawn at random, or a sentence of 5 words for a model of cells |
    | (5, 12) | 5 tokens drawn at random, and an answer of exactly 12 |

    Args:
        every: seconds from one arrival to the next; the first request arrives at 0.
        arrivals: the time of each arrival, in seconds, instead of `every`.
        names: the ids of the requests; None: r0, r1, ...
        max_new_tokens: the most tokens of an answer without a given length; None: 24, or what the context has room for.
        model: the model that serves them, as for `play`.

    >>> [(one.id, len(one.prompt), one.arrival_s) for one in asks("sort 7 2 5", (3, 8), every=0.5)]
    [('r0', 4, 0.0), ('r1', 3, 0.5)]

    Raises:
        UsageError: a prompt is something else, or there are not as many arrivals or names as prompts.
        ModelError: a text is given, and the model has no tokenizer.
    """
    if arrivals is not None and every:
        raise UsageError(f"every is {every!r} and arrivals are given: give one of them.")
    for what, given in (("arrivals", arrivals), ("names", names)):
        if given is not None and (isinstance(given, str) or len(given) != len(prompts)):
            raise UsageError(f"{what} is {given!r:.60}, for {len(prompts)} prompts: give one for each.")
    times = [every * i for i in range(len(prompts))] if arrivals is None else [plain(time) for time in arrivals]
    _check_seconds("every", every)
    for time in times:
        _check_seconds("an arrival", time)
    source = resolve(model)
    requests = [_request(plain(prompt), i, source, max_new_tokens) for i, prompt in enumerate(prompts)]
    return [
        replace(request, id=names[i] if names else f"r{i}", arrival_s=times[i]) for i, request in enumerate(requests)
    ]


def turns(
    conversation: str,
    *prompts: Prompt,
    start: float = 0.0,
    pause: float = 0.0,
    max_new_tokens: int | None = None,
    model: str = "tiny",
) -> list[Request]:
    """Make the turns of one conversation: each continues the text of the earlier turns.

    Args:
        conversation: the name of the conversation; with ann, the requests get the ids ann.0, ann.1, ...
        prompts: what each turn adds, as for `asks`.
        start: when the first turn arrives, in seconds.
        pause: seconds from an answer to the next turn.

    >>> [(one.id, one.after, one.delay_s) for one in turns("ann", "remember ann 17", "recall ann", pause=0.1)]
    [('ann.0', None, 0.0), ('ann.1', 'ann.0', 0.1)]

    Raises:
        UsageError: as for `asks`.
    """
    _check_seconds("start", start)
    _check_seconds("pause", pause)
    source = resolve(model)
    return [
        replace(
            _request(plain(prompt), i, source, max_new_tokens, continues=i > 0),
            id=f"{conversation}.{i}",
            arrival_s=start,
            conversation=conversation,
            after=f"{conversation}.{i - 1}" if i else None,
            delay_s=pause if i else 0.0,
        )
        for i, prompt in enumerate(prompts)
    ]


def _check_seconds(what: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise UsageError(f"{what} is {value!r}: give seconds, from 0.")


def _request(
    prompt: Prompt, number: int, source: Source, max_new_tokens: int | None, continues: bool = False
) -> Request:
    """Make a request of a prompt, or of random tokens drawn with the seed `number`."""
    eos_ids, by_default = source.config.eos_ids, max_new_tokens is None
    most = MAX_NEW_TOKENS if max_new_tokens is None else plain(max_new_tokens)
    if isinstance(prompt, str):
        return Request("", source.tokenizer().encode(prompt, continues=continues), most, eos_ids, clip=by_default)
    lengths = (prompt, most) if isinstance(prompt, int) else prompt
    if not (isinstance(lengths, tuple) and len(lengths) == 2 and all(map(_is_count, lengths))):
        raise UsageError(
            f"A prompt is {prompt!r:.60}: give a text, a number of tokens, or a pair of numbers, of the tokens of "
            "prompt and answer."
        )
    exactly = not isinstance(prompt, int)
    defaults = RequestDefaults(stop_ids=eos_ids or RESERVED, ignore_eos=exactly)  # these tokens are not to be drawn
    of_prompt, of_answer = (Uniform(length, length) for length in lengths)
    drawn = synthetic(1, of_prompt, of_answer, source.config.vocab_size, seed=number, defaults=defaults)[0]
    return replace(drawn, stop_ids=eos_ids, clip=by_default and not exactly)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MANY
