"""Makes conversations with the statistics of ShareGPT (Pensieve, 3.6.1 and Table 3.2).

    sharegpt                  conversations of up to 16384 tokens
    sharegpt:scale=0.1        lengths and the longest conversation divided by ten, for a model with a short context
    sharegpt:reaction=30s     a mean time of 30 s (60 s by default) from an answer to the next turn, exponential
    sharegpt:min_turns=5      only conversations of at least 5 turns (3.6.4)
    sharegpt:correlation=0.5  who writes long prompts, or gets long answers, goes on to do so: see `draw_lengths`
    sharegpt:file=PATH        the original data, as JSON (see `minifuse.workload.sharegpt`)

Options are separated by commas. Without a file, turns and lengths are drawn from distributions with the statistics of
ShareGPT, and words are random. Each conversation has random streams of its own. So a longer workload begins with the
conversations of a shorter one, and changing one distribution changes no other values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.io.parsing import LONGEST_S, keyed, parse_duration, parse_float, parse_int
from minifuse.workload.laws import Arrival, Lognormal
from minifuse.workload.synthetic import MAX_TOKENS, arrival_times

NAME = "sharegpt"
LONGEST = 16384  # tokens of a conversation; longer conversations are dropped
MEANS = (5.56, 37.77, 204.58)  # mean turns of a conversation, tokens of a prompt and of an answer (Table 3.2)
LEAST_SCALE, MOST_TURNS = 0.01, 32
TRIES = 10_000  # draws of a conversation before giving up: none is short enough

# Chosen so that conversations that are not too long have the means above, and 36% of these have five turns or more
# (3.6.4). With these laws 0.4% are too long and dropped; the thesis drops 0.57% of the data. Turns are rounded up.
TURNS = (5.41, 1.21)  # mean and sigma of a lognormal law, like the next two
PROMPTS, ANSWERS = Lognormal(37.9, 1.5), Lognormal(205.4, 1.0)
DROPPED = 0.1  # by how much the means of a full correlation are raised: more conversations are then too long

Turn = tuple[tuple[int, ...], int]  # the tokens of a prompt, and the number of tokens of its answer
Lengths = list[tuple[int, int]]  # of a conversation: the tokens of each prompt and of its answer


@dataclass(frozen=True, slots=True)
class Asked:
    """Says which conversations are asked for."""

    scale: float = 1.0
    reaction: float = 60.0  # mean seconds from an answer to the next turn
    min_turns: int = 1
    file: str | None = None
    correlation: float = 0.0  # of the logarithms of two prompts, or two answers, of a conversation

    @property
    def longest(self) -> int:
        """Return the maximum number of tokens of a conversation."""
        return int(LONGEST * self.scale)


def parse_asked(text: str) -> Asked:
    """Parse `sharegpt`, with or without options.

    >>> parse_asked("sharegpt:scale=0.1,reaction=30s")
    Asked(scale=0.1, reaction=30.0, min_turns=1, file=None, correlation=0.0)

    Raises:
        UsageError: an option is unknown, is given twice or has a wrong value, or a scale or correlation is given for a
            file.
    """
    given = keyed(text, {"scale": "0.1", "reaction": "60s", "min_turns": "5", "correlation": "0.5", "file": "PATH"})
    for name in ("scale", "correlation"):
        if name in given and "file" in given:
            raise UsageError(
                f'The workload is "{text}", and the texts of a file have lengths of their own: leave {name} out.'
            )
    return Asked(
        scale=parse_float(given.get("scale", "1"), "The scale of sharegpt", LEAST_SCALE, 1),
        reaction=parse_duration(given.get("reaction", "60s"), "The mean reaction time of sharegpt", LONGEST_S),
        min_turns=parse_int(given.get("min_turns", "1"), "The min_turns of sharegpt", 1, MOST_TURNS),
        file=given.get("file"),
        correlation=parse_float(given.get("correlation", "0"), "The correlation of sharegpt", 0, 1),
    )


def conversations(
    asked: Asked,
    count: int,
    vocab_size: int,
    max_context: int,
    arrival: Arrival | None = None,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
) -> list[Request]:
    """List the requests of `conversation_stream`.

    Raises:
        UsageError: as `conversation_stream`, or the prompts have too many tokens.
    """
    stream = conversation_stream(asked, count, vocab_size, max_context, arrival, seed, stop_ids)
    num_tokens = sum(prompt for number in range(count) for prompt, _ in draw_lengths(asked, number, seed))
    if num_tokens > MAX_TOKENS:
        raise UsageError(
            f"The prompts of {count:,} conversations have {num_tokens:,} tokens, and over {MAX_TOKENS:,} take too much "
            "memory: give fewer requests."
        )
    return [*stream]


def conversation_stream(
    asked: Asked,
    count: int,
    vocab_size: int,
    max_context: int,
    arrival: Arrival | None = None,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
) -> Iterator[Request]:
    """Make requests for `count` random conversations one by one, without stop tokens in prompts.

    Args:
        max_context: the context length of the model.

    Raises:
        UsageError: the model has too short a context, all tokens are stop tokens, or no conversation with enough turns
            is short enough.
    """
    if count < 1:
        raise UsageError(f"The number of conversations is {count}: give at least 1.")
    if asked.longest > max_context:
        fitting = math.floor(1000 * max_context / LONGEST) / 1000
        advice = f"give scale={fitting:g} or less" if fitting >= LEAST_SCALE else "choose a model of a longer context"
        raise UsageError(
            f"The workload sharegpt has conversations of up to {asked.longest:,} tokens, and the context of the model "
            f"has {max_context:,}: {advice}."
        )
    tokens = [token for token in range(vocab_size) if token not in set(stop_ids)]
    if not tokens:
        raise UsageError(f"All {vocab_size} tokens of the vocabulary end an answer: give fewer stop tokens.")

    def turns(number: int) -> list[Turn]:
        rng = _stream(seed, number, "tokens")
        return [(tuple(rng.choices(tokens, k=prompt)), answer) for prompt, answer in draw_lengths(asked, number, seed)]

    starts = arrival_times(count, arrival or Arrival(), seed)
    return _requests(map(turns, range(count)), starts, asked.reaction, seed)


def draw_lengths(asked: Asked, number: int, seed: int = 0) -> Lengths:
    """Draw prompt and answer lengths of conversation `number`; repeat while it is too long.

    With a `correlation` r, the logarithm of a length deviates from its mean by sqrt(r) times a normal deviate that all
    prompts of the conversation share (all answers another one), plus sqrt(1 - r) times its own. So the logarithms of
    two lengths have the correlation r, and their law is the same but for its mean. That is raised by up to a tenth,
    because more conversations are then too long.

    Raises:
        UsageError: none of `TRIES` draws has enough turns and is short enough.
    """
    turns_rng, prompts_rng, answers_rng = (_stream(seed, number, name) for name in ("turns", "prompts", "answers"))
    shared_rng = _stream(seed, number, "shared")
    raised = 1 + DROPPED * asked.correlation
    prompts, answers = (replace(law, mean=raised * law.mean) for law in (PROMPTS, ANSWERS))
    common, own = math.sqrt(asked.correlation), math.sqrt(1 - asked.correlation)
    for _ in range(TRIES):
        if (num_turns := _draw_turns(turns_rng)) < asked.min_turns:
            continue
        of_prompts, of_answers = (common * shared_rng.normalvariate() for _ in range(2))
        lengths = [
            (
                prompts.at(of_prompts + own * prompts_rng.normalvariate()),
                answers.at(of_answers + own * answers_rng.normalvariate()),
            )
            for _ in range(num_turns)
        ]
        scaled = scale_lengths(lengths, asked.scale)
        if sum(map(sum, scaled)) <= asked.longest:
            return scaled
    raise UsageError(
        f"No conversation of sharegpt with scale={asked.scale:g} has {asked.min_turns} turns and up to "
        f"{asked.longest:,} tokens: raise scale, or lower min_turns."
    )


def scale_lengths(lengths: Lengths, scale: float) -> Lengths:
    """Multiply all lengths; each remains one token at least."""
    return [(max(1, round(scale * prompt)), max(1, round(scale * answer))) for prompt, answer in lengths]


def _draw_turns(rng: random.Random) -> int:
    mean, sigma = TURNS
    return max(1, math.ceil(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))


def as_requests(
    conversations: Iterable[Sequence[Turn]], reaction_s: float, arrival: Arrival | None = None, seed: int = 0
) -> list[Request]:
    """Make requests c0.0, c0.1, ..., c1.0, ...; conversations arrive by this law.

    A turn arrives a reaction time after the previous answer; reaction times are exponential with the mean `reaction_s`.
    Answers have exactly the given lengths. No policy looks at these lengths, but a memory that reserves room for the
    longest possible answer reserves exactly that length.
    """
    whole = [list(turns) for turns in conversations]
    starts = arrival_times(len(whole), arrival or Arrival(), seed)
    return [*_requests(whole, starts, reaction_s, seed)]


def _requests(
    conversations: Iterable[Sequence[Turn]], starts: Iterable[float], reaction_s: float, seed: int
) -> Iterator[Request]:
    for number, (turns, start_s) in enumerate(zip(conversations, starts, strict=True)):
        yield from _in_turn(number, turns, start_s, reaction_s, _stream(seed, number, "reactions"))


def _in_turn(
    number: int, turns: Sequence[Turn], start_s: float, reaction_s: float, rng: random.Random
) -> Iterator[Request]:
    for i, (prompt, answer) in enumerate(turns):
        yield Request(
            id=f"c{number}.{i}",
            prompt=prompt,
            max_new_tokens=answer,
            ignore_eos=True,
            arrival_s=0.0 if i else start_s,
            conversation=f"c{number}",
            after=f"c{number}.{i - 1}" if i else None,
            delay_s=rng.expovariate(1 / reaction_s) if i and reaction_s else 0.0,
        )


def _stream(seed: int, number: int, choice: str) -> random.Random:
    return random.Random(f"minifuse conversations {choice} {number} {seed}")
