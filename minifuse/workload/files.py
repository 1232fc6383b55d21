"""Requests from a file of JSON objects, one a line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from minifuse.core.errors import ModelError, UsageError
from minifuse.core.request import Request, Sampling
from minifuse.parsing import Fields, read_lines
from minifuse.workload.cells import leaves
from minifuse.workload.synthetic import DEFAULTS, RequestDefaults


class Encode(Protocol):
    """Makes token ids of a text: as `minifuse.model.text.tokenizer.Tokenizer.encode` does."""

    def __call__(self, text: str, *, continues: bool = ...) -> Sequence[int]: ...


ReadTree = Callable[[str], Any]  # a tree written as text -> nested tuples of token ids

_FIELDS = (
    *("id", "prompt", "prompt_token_ids", "max_new_tokens", "arrival_s", "priority", "user", "conversation", "think_s"),
    *("eos_token_id", "ignore_eos", "temperature", "top_k", "top_p", "seed"),
)


def read_jsonl(
    source: Path | str | Iterable[str],
    encode: Encode,
    defaults: RequestDefaults | Callable[[int], RequestDefaults] = DEFAULTS,
    name: str = "standard input",
    *,
    tree: ReadTree | None = None,
    limit: Callable[[Sequence[int]], int] | None = None,
    begun: Collection[str] = (),
) -> list[Request]:
    """Requests from a file of JSON objects, one per line, in the file's order.

        {"id": "greeting", "prompt": "Hello", "max_new_tokens": 20}
        {"prompt_token_ids": [5, 17], "arrival_s": 0.5, "temperature": 0.8, "seed": 7}
        {"id": "both", "prompt": ["How", "can"]}

    `source` is a path, or lines, which messages then call `name`. `defaults` may depend on the request's index. Without
    an id the first request is r0, the second r1, and so on. A list of prompts is one request of several prompts: the
    last line gives both/0 and both/1 of the group both; a list of ids names its prompts one by one. All other fields
    hold for all of them, but each draws from a seed of its own: the line's plus the prompt's index, or without one
    that of the defaults plus the number of prompts before it in the file.

    For a model that reads trees, `tree` reads those that are written as text, and a line may have one instead of a
    prompt:

        {"tree": [12, [5, 7]]}
        {"tree": "(3 (2 12) (2 (1 5) (2 7)))"}

    Lines of one conversation are its turns, in the file's order. Each but the first arrives `think_s` seconds after the
    answer to the one before, though not before an `arrival_s` of its own, and continues the text so far. Without a
    `user` it has that of the turn before it:

        {"id": "ask", "prompt": "Hello", "conversation": "c"}
        {"id": "ask-again", "prompt": " And then?", "conversation": "c", "think_s": 2.5}

    `limit` gives `max_new_tokens` by the prompt, for a line without it. `begun` are conversations that have a text
    already: their first turn here continues it.

    A request that can never be served (an empty prompt, a token out of the vocabulary, no token to generate, a text
    that `encode` cannot encode, a number that is too large) is built as it is: the engine will refuse it and serve the
    rest.

    Raises:
        UsageError: the file cannot be read, holds no request, or has a line that is not a request.
    """
    if isinstance(source, str | Path):
        name, source = str(source), read_lines(Path(source))
    requests: list[Request] = []
    taken: dict[str, str] = {}
    last: dict[str, Request] = {}  # conversation -> its last turn so far
    index = 0
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        fields = _Line(f"{name}:{number}", line, _FIELDS if tree is None else (*_FIELDS, "tree"))
        own = defaults(index) if callable(defaults) else defaults
        if tree is not None and "tree" in fields:
            prompts = [_tree_request(fields, f"r{index}", tree, own, len(requests))]
        else:
            conversation = fields.text("conversation")
            later = conversation in last or conversation in begun
            how = partial(encode, continues=True) if later else encode
            prompts = _request(fields, f"r{index}", how, own, len(requests))
        if limit is not None and "max_new_tokens" not in fields:
            prompts = [replace(prompt, max_new_tokens=limit(prompt.prompt)) for prompt in prompts]
        _take(taken, prompts, fields)
        requests += _in_turn(last, prompts, fields)
        index += 1
    if not requests:
        raise UsageError(f'{name} holds no request: give one per line, such as {{"prompt": "Hello"}}.')
    return requests


def _take(taken: dict[str, str], prompts: list[Request], fields: Fields) -> None:
    """Note which line took which names: those of its prompts and that of their group, which may be the same."""
    for name in dict.fromkeys(name for prompt in prompts for name in (prompt.group, prompt.id) if name is not None):
        if name in taken:
            raise fields.error(f'the id "{name}" is taken by {taken[name]}: give every request an id of its own')
        taken[name] = fields.where


def _in_turn(last: dict[str, Request], prompts: list[Request], fields: Fields) -> list[Request]:
    """The request of a line behind the last turn of its conversation, if there was one; and note it as the last."""
    conversation = prompts[0].conversation
    for name in ("conversation", "user"):
        if getattr(prompts[0], name) == "":
            raise fields.error(f'{name} is "": give it a name, or leave it out')
    if conversation is not None and len(prompts) > 1:
        raise fields.error("conversation is given beside several prompts: give the prompts of a turn one line each")
    before = None if conversation is None else last.get(conversation)
    if before is None and "think_s" in fields:
        why = "this is its first turn" if conversation is not None else "it names no conversation"
        raise fields.error(f"think_s is given, and {why}: leave it out, or give arrival_s instead")
    if before is not None:
        arrival_s = fields.number("arrival_s", 0.0)
        delay_s = fields.number("think_s", 0.0)
        user = prompts[0].user or before.user
        prompts = [replace(prompts[0], after=before.id, arrival_s=arrival_s, delay_s=delay_s, user=user)]
    if conversation is not None:
        last[conversation] = prompts[0]
    return prompts


class _Line(Fields):
    """A line that may hold a tree."""

    def tree(self, read: ReadTree) -> Any:
        """Nested lists or tuples, whose contents are not checked: the engine refuses what a model cannot read."""
        tree = self._values["tree"]
        if isinstance(tree, str):
            try:
                return read(tree)
            except UsageError as error:
                raise UsageError(f"{self.where}: {error}") from None
        if isinstance(tree, list) or (isinstance(tree, int) and not isinstance(tree, bool)):
            return tree
        raise self._wrong("tree", tree, 'nested lists of token ids, or a string such as "(3 (2 12) (2 (1 5) (2 7)))"')


def _tree_request(
    fields: _Line, default_id: str, read: ReadTree, defaults: RequestDefaults, num_before: int
) -> Request:
    """The request of a line with a tree. Its prompt is the tree's token ids, in order."""
    for name in ("prompt", "prompt_token_ids"):
        if name in fields:
            raise fields.error(f"both {name} and tree are given: give exactly one of them")
    tree = fields.tree(read)
    (_, (id,)), first = _names(fields, default_id, 1), _first(fields, defaults, num_before)
    return replace(first, id=id, prompt=leaves(tree), structure=tree)


def _request(
    fields: Fields, default_id: str, encode: Encode, defaults: RequestDefaults, num_before: int
) -> list[Request]:
    """The request of a line, as its prompts."""
    if ("prompt" in fields) == ("prompt_token_ids" in fields):
        given = "both prompt and prompt_token_ids are" if "prompt" in fields else "no prompt or prompt_token_ids is"
        raise fields.error(f"{given} given: give exactly one of them")
    texts = fields.texts("prompt")
    prompts: Sequence[tuple[Sequence[int], str | None]]
    if texts is None:
        prompts = [(token_ids, None) for token_ids in fields.integer_lists("prompt_token_ids")]
    else:
        prompts = [_encoded(text, encode, fields.where) for text in ([texts] if isinstance(texts, str) else texts)]
    group, ids = _names(fields, default_id, len(prompts))
    first = _first(fields, defaults, num_before)
    sampling = first.sampling
    return [
        replace(
            first,
            id=id,
            prompt=tuple(prompt),
            sampling=replace(sampling, seed=sampling.seed + i),
            group=group,
            problem=problem,
        )
        for i, (id, (prompt, problem)) in enumerate(zip(ids, prompts, strict=True))
    ]


def _first(fields: Fields, defaults: RequestDefaults, num_before: int) -> Request:
    """What holds for all prompts of a line; the seed is that of the first."""
    sampling = Sampling(
        temperature=fields.number("temperature", defaults.sampling.temperature),
        top_k=fields.integer("top_k", defaults.sampling.top_k, low=0),
        top_p=fields.number("top_p", defaults.sampling.top_p, high=1, above=True),
        seed=fields.integer("seed", 0, low=0) if "seed" in fields else defaults.sampling.seed + num_before,
    )
    return Request(
        id="",
        prompt=(),
        max_new_tokens=fields.integer("max_new_tokens", 1) if "max_new_tokens" in fields else defaults.max_new_tokens,
        stop_ids=fields.integers("eos_token_id", defaults.stop_ids),
        ignore_eos=fields.flag("ignore_eos", defaults.ignore_eos),
        sampling=sampling,
        arrival_s=fields.number("arrival_s", defaults.arrival_s),
        priority=fields.integer("priority", 0),
        conversation=fields.text("conversation"),
        user=fields.text("user"),
    )


def _encoded(text: str, encode: Encode, where: str) -> tuple[Sequence[int], str | None]:
    """The token ids of a text, or the problem of a request whose text has none."""
    try:
        return encode(text), None
    except ModelError as error:  # no tokenizer: other requests may come as token ids
        return (), f"in {where} is text: {error}"


def _names(fields: Fields, default_id: str, count: int) -> tuple[str | None, Sequence[str]]:
    """The group of a request of so many prompts, and an id for each of them."""
    ids = fields.texts("id")
    if ids is not None and "" in ([ids] if isinstance(ids, str) else ids):
        raise fields.error('id is "": give at least one letter')
    if ids is None or isinstance(ids, str):
        name = default_id if ids is None else ids
        return (None, (name,)) if count == 1 else (name, tuple(f"{name}/{i}" for i in range(count)))
    if len(ids) != count:
        there = "there is 1 prompt" if count == 1 else f"there are {count} prompts"
        allowed = "give one id for each prompt, or one string for the whole request"
        raise fields.error(f"id is a list of {len(ids)} and {there}: {allowed}")
    if len(set(ids)) < count:
        twice = next(id for i, id in enumerate(ids) if id in ids[:i])
        raise fields.error(f'id holds "{twice}" twice: give every prompt an id of its own')
    return None if count == 1 else default_id, ids
