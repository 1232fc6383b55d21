"""OpenAI's own client against the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import openai
import pytest
from server.conftest import Running
from server.test_gone import soon

from minifuse.core.errors import UsageError
from minifuse.model.tiny.tasks import crowd
from minifuse.serve.settings import Settings
from minifuse.server.background import BackgroundServer

ASKED = "add 17 and 25"


def client(server: Running, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_a_chat_a_completion_and_the_list_of_models(served: Running) -> None:
    ours = client(served)
    assert [model.id for model in ours.models.list()] == ["tiny"]
    assert ours.models.retrieve("tiny").id == "tiny"
    chat = ours.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ASKED}])
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("42", "stop")
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens) == (4, 2, 6)
    text = ours.completions.create(model="tiny", prompt=ASKED)
    assert (text.choices[0].text, text.choices[0].finish_reason) == (" 42", "stop")


def test_a_stream_is_the_same_text_in_pieces(served: Running) -> None:
    ours = client(served)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "count from 3 to 12"}]}
    whole = ours.chat.completions.create(**asked).choices[0].message.content
    chunks = list(ours.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole == "3 4 5 6 7 8 9 10 11 12"
    assert len([piece for piece in pieces if piece]) == 10
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 11


def test_each_chunk_has_the_usage_so_far_if_asked(served: Running) -> None:
    told = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "tiny", "prompt": "count from 3 to 6", "stream": True, "stream_options": told}
    chunks = list(client(served).completions.create(**asked))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5, 5]


def test_a_stream_of_a_completion(served: Running) -> None:
    chunks = list(client(served).completions.create(model="tiny", prompt="sort 7 2 5", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == " 2 5 7"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_many_clients_at_once_get_their_own_answers(served: Running) -> None:
    tasks = crowd(40, seed=3)

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as ours:
            asked = [
                ours.chat.completions.create(model="tiny", messages=[{"role": "user", "content": task.prompt}])
                for task in tasks
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    answers = asyncio.run(ask_all())
    right = sum(answer == task.answer for answer, task in zip(answers, tasks, strict=True))
    assert right >= 39


def test_each_turn_of_a_chat_finds_the_kv_of_the_turns_before(served: Running) -> None:
    ours = client(served)
    messages: list[dict[str, str]] = []
    reused, lengths = [], []
    names = ("ada", "ann", "ben", "bob", "carl", "cora", "dan", "dora")
    asked = [*(f"remember {name} {10 + i}" for i, name in enumerate(names)), "recall ada", "recall dora"]
    for prompt in asked:
        messages.append({"role": "user", "content": prompt})
        answer = ours.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        reused.append(answer.usage.prompt_tokens_details.cached_tokens)
        lengths.append(answer.usage.total_tokens)
    assert [messages[-3]["content"], messages[-1]["content"]] == ["ada 10", "dora 17"]
    assert reused == [0, *(length - 1 for length in lengths[:-1])]  # the last token of an answer has no KV yet


def test_a_chat_that_was_changed_or_is_another_tenants_is_computed_whole() -> None:
    with Running(api_keys=("key-a", "key-b")) as server:
        first = [{"role": "user", "content": "remember ann 17"}]
        said = client(server, "key-a").chat.completions.create(model="tiny", messages=first)  # type: ignore[arg-type]
        answer = said.choices[0].message.content or ""

        def reused(key: str, answer: str) -> int | None:
            chat = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "recall ann"}]
            told = client(server, key).chat.completions.create(model="tiny", messages=chat)  # type: ignore[arg-type]
            assert told.choices[0].message.content == "ann 17"
            assert told.usage is not None
            assert told.usage.prompt_tokens_details is not None
            return told.usage.prompt_tokens_details.cached_tokens

        assert answer == "ok"
        assert reused("key-b", answer) == 0
        assert reused("key-a", "ok!") == 0
        assert reused("key-a", answer) == 4  # of [remember][ann][17][ok][EOS] all but the last
        assert reused("key-a", answer) == 0  # it has gone on since
        with pytest.raises(openai.AuthenticationError):
            client(server, "key-c").models.list()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"max_tokens": 5000}, openai.BadRequestError),
        ({"frequency_penalty": 1}, openai.BadRequestError),
        ({"extra_body": {"min_p": 0.1}}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "assistant", "content": "a"}]}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "a " * 2000}]}, openai.BadRequestError),
        ({"top_logprobs": 2}, openai.BadRequestError),
    ],
)
def test_what_cannot_be_served_is_refused_in_openais_form(
    served: Running, asked: dict[str, object], error: type[openai.APIStatusError]
) -> None:
    given = {"model": "tiny", "messages": [{"role": "user", "content": ASKED}], **asked}
    with pytest.raises(error) as refused:
        client(served).chat.completions.create(**given)  # type: ignore[call-overload]
    assert refused.value.body is not None
    assert {"message", "type", "param", "code"} == set(refused.value.body)  # type: ignore[call-overload]


def test_several_answers_to_one_prompt_differ_by_seed_alone(served: Running) -> None:
    def texts(seed: int) -> list[str]:
        told = client(served).completions.create(
            model="tiny", prompt="sort", n=4, temperature=2, seed=seed, max_tokens=8, extra_body={"ignore_eos": True}
        )
        assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
        return [choice.text for choice in told.choices]

    assert texts(5) == texts(5)
    assert len({*texts(5)}) > 1
    assert texts(5)[1:] == texts(6)[:-1]


def test_several_prompts_are_one_request(served: Running) -> None:
    told = client(served).completions.create(model="tiny", prompt=[ASKED, "sort 7 2 5"], n=2)
    assert [choice.text for choice in told.choices] == [" 42", " 42", " 2 5 7", " 2 5 7"]
    ids = client(served).completions.create(model="tiny", prompt=[[1, 2, 3], [4]], max_tokens=1)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 4


def test_an_answer_ends_before_a_stop_string(served: Running) -> None:
    told = client(served).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "count from 3 to 12"}], stop=["8 9", "zebra"]
    )
    assert (told.choices[0].message.content, told.choices[0].finish_reason) == ("3 4 5 6 7 ", "stop")


def test_a_chat_whose_turn_was_refused_is_continued_by_the_next_try() -> None:
    with (
        Running("pensieve", most_unfinished=1) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as ours,
    ):
        chat = [{"role": "user", "content": "remember ann 17"}]
        told = ours.chat.completions.create(model="tiny", messages=chat)
        chat += [
            {"role": "assistant", "content": told.choices[0].message.content},
            {"role": "user", "content": "recall ann"},
        ]
        held_up = ours.completions.create(model="tiny", prompt="count from 3 to 250", max_tokens=900, stream=True)
        next(iter(held_up))
        with pytest.raises(openai.RateLimitError):
            ours.chat.completions.create(model="tiny", messages=chat)
        held_up.close()
        assert soon(lambda: server.gateway.num_unfinished == 0)
        usage = ours.chat.completions.create(model="tiny", messages=chat).usage
        assert usage is not None
        assert usage.prompt_tokens_details.cached_tokens > 0


def test_a_state_file_that_fails_is_told_by_health_and_the_log(tmp_path: Path) -> None:
    with Running("pensieve", state=tmp_path / "s.sqlite") as server:
        (tmp_path / "s.sqlite").unlink()
        told = client(server).chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "sort 7 2 5"}]
        )
        assert told.choices[0].message.content == "2 5 7"
        assert soon(lambda: any('"error": ' in line and "has been removed" in line for line in server.log))
        answer = httpx.get(f"{server.url}/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")


def test_kv_of_common_beginnings_is_not_shared_between_tenants() -> None:
    shared = Settings(stage_options={"memory.share": True})
    with pytest.raises(UsageError, match="one tenant could find out"):
        BackgroundServer("vllm", engine=shared, api_keys=("a", "b"))
    BackgroundServer("vllm", engine=shared, api_keys=("a",)).stop()
