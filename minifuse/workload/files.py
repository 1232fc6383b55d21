"""Reads requests from a file of JSON objects, one per line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from minifuse.core.errors import ModelError, UsageError
from minifuse.core.request import Request, Sampling
from minifuse.io.lines import read_lines, read_object
from minifuse.workload.cells import leaves
from minifuse.workload.synthetic import DEFAULTS, RequestDefaults

if TYPE_CHECKING:
    from minifuse.workload.forms import Line, TreeLine


class Encode(Protocol):
    """Encodes a text to token ids, as `minifuse.model.text.tokenizer.Tokenizer.encode` does."""

    def __call__(self, text: str, *, continues: bool = ...) -> Sequence[int]: ...


ReadTree = Callable[[str], Any]  # text of a tree -> nested tuples of token ids


class Problem(Exception):
    """An error in a line, other than a wrong type of a field."""


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
    """Read requests from a file of JSON objects, one per line, in order.

        {"id": "greeting", "prompt": "Hello", "max_new_tokens": 20}
        {"prompt_token_ids": [5, 17], "arrival_s": 0.5, "temperature": 0.8, "seed": 7}
        {"id": "both", "prompt": ["How", "can"]}

    Without an id, the first request is r0, the second r1, and so on. A list of prompts is one request of several
    prompts: the last line above makes the prompts both/0 and both/1 of the group both. A list of ids names the prompts
    one by one. All other fields hold for each prompt of the line, but every prompt has its own seed: the line's seed
    plus the prompt's index; without a seed, the default seed plus the number of prompts before it in the file.

    With `tree`, a line may have a tree instead of a prompt:

        {"tree": [12, [5, 7]]}
        {"tree": "(3 (2 12) (2 (1 5) (2 7)))"}

    Lines of one conversation are its turns, in the file's order. Every turn but the first continues the text of the
    turns before it. It arrives `think_s` seconds after the answer to the turn before, but not before its own
    `arrival_s`. Without a `user`, it has the user of the turn before:

        {"id": "ask", "prompt": "Hello", "conversation": "c"}
        {"id": "ask-again", "prompt": " And then?", "conversation": "c", "think_s": 2.5}

    A request that can never be served (an empty prompt, a token outside the vocabulary, no token to generate, a text
    that `encode` cannot encode, a number of tokens that is too large) is returned all the same: the engine will refuse
    it and serve the others.

    Args:
        source: the file's path, or its lines.
        defaults: values for the fields that a line leaves out, or a function that makes them from the request's index.
        name: names the source in messages, if `source` is not a path.
        tree: parses a tree that is written as text; only for a model that reads trees.
        limit: computes `max_new_tokens` from the prompt, for a line without it.
        begun: conversations that already have a text; their first turn in this file continues it.

    Raises:
        UsageError: the file cannot be read, holds no request, or has a line that is not a request.
    """
    from minifuse.workload.forms import Line, TreeLine  # imports pydantic, which takes long to import

    if isinstance(source, str | Path):
        name, source = str(source), read_lines(Path(source))
    requests: list[Request] = []
    taken: dict[str, str] = {}
    last: dict[str, Request] = {}  # conversation -> its last turn read so far
    index = 0
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        fields: Line | TreeLine = read_object(where, line, Line if tree is None else TreeLine)
        own = defaults(index) if callable(defaults) else defaults
        try:
            if tree is not None and isinstance(fields, TreeLine) and fields.tree is not None:
                prompts = [_tree_request(fields, f"r{index}", tree, own, len(requests))]
            else:
                later = fields.conversation in last or fields.conversation in begun
                how = partial(encode, continues=True) if later else encode
                prompts = _request(fields, f"r{index}", how, own, len(requests), where)
            if limit is not None and fields.max_new_tokens is None:
                prompts = [replace(prompt, max_new_tokens=limit(prompt.prompt)) for prompt in prompts]
            _take(taken, prompts, where)
            requests += _in_turn(last, prompts, fields)
        except Problem as problem:
            raise UsageError(f"{where}: {problem}.") from None
        index += 1
    if not requests:
        raise UsageError(f'{name} holds no request: give one per line, such as {{"prompt": "Hello"}}.')
    return requests


def _take(taken: dict[str, str], prompts: list[Request], where: str) -> None:
    """Record that a line has taken the names of its prompts and of their group."""
    for name in dict.fromkeys(name for prompt in prompts for name in (prompt.group, prompt.id) if name is not None):
        if name in taken:
            raise Problem(f'the id "{name}" is taken by {taken[name]}: give every request an id of its own')
        taken[name] = where


def _in_turn(last: dict[str, Request], prompts: list[Request], fields: Line) -> list[Request]:
    """Make a line's request follow the last turn of its conversation, if any."""
    conversation = fields.conversation
    if conversation is not None and len(prompts) > 1:
        raise Problem("conversation is given beside several prompts: give the prompts of a turn one line each")
    before = None if conversation is None else last.get(conversation)
    if before is None and fields.think_s is not None:
        why = "this is its first turn" if conversation is not None else "it names no conversation"
        raise Problem(f"think_s is given, and {why}: leave it out, or give arrival_s instead")
    if before is not None:
        arrival_s, delay_s = fields.arrival_s or 0.0, fields.think_s or 0.0
        user = fields.user or before.user
        prompts = [replace(prompts[0], after=before.id, arrival_s=arrival_s, delay_s=delay_s, user=user)]
    if conversation is not None:
        last[conversation] = prompts[0]
    return prompts


def _tree_request(
    fields: TreeLine, default_id: str, read: ReadTree, defaults: RequestDefaults, num_before: int
) -> Request:
    """Make the request of a line with a tree, whose token ids become the prompt.

    The contents of nested lists are not checked: the engine refuses what a model cannot read.
    """
    for name in ("prompt", "prompt_token_ids"):
        if getattr(fields, name) is not None:
            raise Problem(f"both {name} and tree are given: give exactly one of them")
    tree: Any = fields.tree
    if isinstance(tree, str):
        try:
            tree = read(tree)
        except UsageError as error:
            raise Problem(str(error).removesuffix(".")) from None
    (_, (id,)), first = _names(fields, default_id, 1), _first(fields, defaults, num_before)
    return replace(first, id=id, prompt=leaves(tree), structure=tree)


def _request(
    fields: Line, default_id: str, encode: Encode, defaults: RequestDefaults, num_before: int, where: str
) -> list[Request]:
    """Make the `Request` of each prompt of a line."""
    texts, ids = fields.prompt, fields.prompt_token_ids
    if (texts is None) == (ids is None):
        given = "no prompt or prompt_token_ids is" if texts is None else "both prompt and prompt_token_ids are"
        raise Problem(f"{given} given: give exactly one of them")
    prompts: Sequence[tuple[Sequence[int], str | None]]
    if texts is None:
        if len({type(one) for one in ids or ()}) > 1:
            raise Problem("prompt_token_ids mixes token ids and lists of them: give one or the other")
        lists: Any = ids if ids and isinstance(ids[0], list) else [ids]
        prompts = [(token_ids, None) for token_ids in lists]
    else:
        prompts = [_encoded(text, encode, where) for text in ([texts] if isinstance(texts, str) else texts)]
    group, names = _names(fields, default_id, len(prompts))
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
        for i, (id, (prompt, problem)) in enumerate(zip(names, prompts, strict=True))
    ]


def _first(fields: Line, defaults: RequestDefaults, num_before: int) -> Request:
    """Make a line's request with an empty prompt and its first prompt's seed."""
    given = {name: value for name, value in vars(fields).items() if value is not None}
    sampling = defaults.sampling
    ids = given.get("eos_token_id", defaults.stop_ids)
    return Request(
        id="",
        prompt=(),
        max_new_tokens=given.get("max_new_tokens", defaults.max_new_tokens),
        stop_ids=(ids,) if isinstance(ids, int) else tuple(ids),
        ignore_eos=given.get("ignore_eos", defaults.ignore_eos),
        sampling=Sampling(
            temperature=given.get("temperature", sampling.temperature),
            top_k=given.get("top_k", sampling.top_k),
            top_p=given.get("top_p", sampling.top_p),
            seed=given.get("seed", sampling.seed + num_before),
        ),
        arrival_s=given.get("arrival_s", defaults.arrival_s),
        priority=given.get("priority", 0),
        conversation=fields.conversation,
        user=fields.user,
    )


def _encoded(text: str, encode: Encode, where: str) -> tuple[Sequence[int], str | None]:
    """Encode a text. Returns the token ids, and why there are none."""
    try:
        return encode(text), None
    except ModelError as error:  # there is no tokenizer, but other requests may have token ids
        return (), f"in {where} is text: {error}"


def _names(fields: Line, default_id: str, count: int) -> tuple[str | None, Sequence[str]]:
    """Name a request of `count` prompts: return its group, and an id per prompt."""
    ids = fields.id
    if ids is None or isinstance(ids, str):
        name = default_id if ids is None else ids
        return (None, (name,)) if count == 1 else (name, tuple(f"{name}/{i}" for i in range(count)))
    if len(ids) != count:
        there = "there is 1 prompt" if count == 1 else f"there are {count} prompts"
        allowed = "give one id for each prompt, or one string for the whole request"
        raise Problem(f"id is a list of {len(ids)} and {there}: {allowed}")
    if len(set(ids)) < count:
        twice = next(id for i, id in enumerate(ids) if id in ids[:i])
        raise Problem(f'id holds "{twice}" twice: give every prompt an id of its own')
    return None if count == 1 else default_id, ids
