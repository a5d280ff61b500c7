import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from harness.router import BASE, Router
from harness.serving.gateway import Gateway
from harness.serving.policy import Arm, Policy
from storage.errors import TraceError
from tests.harness.upstream import ScriptedUpstream

REFUND = Arm("refund", "adapter", adapter="refund@1")
# One client for all: each new one reads the machine's certificates, which takes longer than the request.
HTTP = httpx.Client(trust_env=False, timeout=30)
ONLY_REFUND = Policy.only("v2", REFUND)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream("refund@1", "lookup@1") as running:
        yield running


@pytest.fixture
def gateway(upstream: ScriptedUpstream) -> Iterator[Gateway]:
    with Gateway(upstream.url, Policy("v1")) as running:
        yield running


def chat(gateway: Gateway, text: str = "hello", trajectory: str | None = None, **more: Any) -> httpx.Response:
    headers = {"x-trace-trajectory": trajectory} if trajectory else {}
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": text}], **more}
    return HTTP.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)


def label(response: httpx.Response) -> str:
    return response.headers["x-trace-policy"]


def test_any_model_name_is_served_by_the_policy_and_the_answer_says_so(gateway: Gateway, upstream: ScriptedUpstream):
    answer = chat(gateway)
    assert answer.json()["choices"][0]["message"]["content"] == "I am base"
    assert label(answer) == "v1/base"
    gateway.set_policy(ONLY_REFUND)
    answer = chat(gateway)
    assert upstream.last["model"] == "refund@1"
    assert label(answer) == "v2/refund"


def test_a_running_trajectory_keeps_its_arm_and_a_new_one_gets_the_new_policy(gateway: Gateway):
    assert label(chat(gateway, trajectory="T1")) == "v1/base"
    gateway.set_policy(ONLY_REFUND)
    assert label(chat(gateway, "something new", trajectory="T1")) == "v1/base"
    assert label(chat(gateway, trajectory="T2")) == "v2/refund"


def test_without_the_header_a_conversation_sticks_until_it_begins_anew(gateway: Gateway):
    opening = [{"role": "user", "content": "hi"}]
    later = [*opening, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    assert label(chat(gateway, messages=opening)) == "v1/base"
    gateway.set_policy(ONLY_REFUND)
    assert label(chat(gateway, messages=later)) == "v1/base"
    assert label(chat(gateway, messages=opening)) == "v2/refund"


def test_the_trajectory_header_is_sent_nowhere_else(gateway: Gateway, upstream: ScriptedUpstream):
    chat(gateway, trajectory="T1")
    assert "x-trace-trajectory" not in upstream.asked[-1][1]


def test_a_request_for_a_served_model_passes_untouched(gateway: Gateway, upstream: ScriptedUpstream):
    gateway.set_policy(Policy.only("v3", Arm("hint", "hint", hint="Look first.")))
    sent = {"model": "lookup@1", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.3, "odd": [1]}
    answer = httpx.post(f"{gateway.base_url}/chat/completions", json=sent)
    assert upstream.last == sent
    assert label(answer) == "direct/lookup@1"
    assert label(chat(gateway, model="base")) == "direct/base"


def test_an_adapter_loaded_a_moment_ago_can_be_asked_for(gateway: Gateway, upstream: ScriptedUpstream):
    chat(gateway)
    upstream.adapters.append("new@1")
    assert label(chat(gateway, model="new@1")) == "direct/new@1"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            [{"role": "system", "content": "Be brief.\n\nLook first."}, {"role": "user", "content": "hi"}],
        ),
        (
            [{"role": "user", "content": "hi"}],
            [{"role": "system", "content": "Look first."}, {"role": "user", "content": "hi"}],
        ),
        (
            [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}],
            [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "\n\nLook first."}],
                }
            ],
        ),
    ],
)
def test_a_hint_is_appended_to_the_system_message(gateway: Gateway, upstream: ScriptedUpstream, messages, expected):
    gateway.set_policy(Policy.only("v3", Arm("prompt_hint", "hint", hint="Look first.")))
    answer = chat(gateway, messages=messages)
    assert upstream.last["messages"] == expected
    assert upstream.last["model"] == BASE
    assert label(answer) == "v3/prompt_hint"


def test_the_router_sends_each_task_to_the_arm_that_helped(gateway: Gateway):
    texts = [f"refund order {i}" for i in range(20)] + [f"where is parcel {i}" for i in range(20)]
    rewards = np.array([[0.1, 0.9]] * 20 + [[0.9, 0.1]] * 20)
    router = Router.fit(texts, rewards, [BASE, "refund"])
    gateway.set_policy(Policy("v4", (Arm(BASE), REFUND), router))
    assert label(chat(gateway, "please refund order 77")) == "v4/refund"
    assert label(chat(gateway, "where is parcel 77")) == "v4/base"


def test_an_adapter_that_is_not_served_falls_back_to_base(gateway: Gateway, upstream: ScriptedUpstream):
    gateway.set_policy(Policy.only("v5", Arm("gone", "adapter", adapter="gone@1")))
    answer = chat(gateway)
    assert answer.status_code == 200
    assert upstream.last["model"] == BASE
    assert label(answer) == "v5/base!fallback"


def test_an_adapter_lost_since_the_last_look_falls_back_to_base(gateway: Gateway, upstream: ScriptedUpstream):
    gateway.set_policy(ONLY_REFUND)
    assert label(chat(gateway)) == "v2/refund"
    upstream.adapters.remove("refund@1")
    for stream in (False, True):
        answer = chat(gateway, stream=stream)
        assert answer.status_code == 200
        assert label(answer) == "v2/base!fallback"


def test_a_mixture_is_served_under_the_name_the_mixer_gives(upstream: ScriptedUpstream):
    asked: list[object] = []

    def mixer(parts: tuple[tuple[str, float], ...]) -> str:
        asked.append(parts)
        upstream.adapters.append("mix-1")
        return "mix-1"

    parts = (("refund@1", 0.7), ("lookup@1", 0.3))
    mixed = Policy.only("v6", Arm("both", "mixture", parts=parts))
    with Gateway(upstream.url, mixed, mixer=mixer) as gateway:
        assert label(chat(gateway)) == "v6/both"
        assert upstream.last["model"] == "mix-1"
        assert asked == [parts]
    with Gateway(upstream.url, mixed) as gateway:
        assert label(chat(gateway)) == "v6/both!refund@1"
        assert upstream.last["model"] == "refund@1"


def test_a_mixture_that_cannot_be_built_falls_back_to_base(upstream: ScriptedUpstream):
    def mixer(_: object) -> str:
        raise TraceError("ranks add up to more than the server takes")

    mixed = Policy.only("v6", Arm("both", "mixture", parts=(("refund@1", 0.7), ("lookup@1", 0.3))))
    with Gateway(upstream.url, mixed, mixer=mixer) as gateway:
        assert label(chat(gateway)) == "v6/base!fallback"


def test_a_stream_passes_piece_by_piece(gateway: Gateway, upstream: ScriptedUpstream):
    upstream.hold = threading.Event()
    client = openai.OpenAI(base_url=gateway.base_url, api_key="-", max_retries=0, timeout=60)
    stream = client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}], stream=True)
    arrived: list[str] = []
    for chunk in stream:
        arrived.append(chunk.choices[0].delta.content or "")
        upstream.hold.set()  # only after the first piece got through does the second leave
    assert arrived == ["I", "am", "base"]


def test_a_stream_that_breaks_off_ends_with_an_error(gateway: Gateway, upstream: ScriptedUpstream):
    upstream.break_stream = True
    client = openai.OpenAI(base_url=gateway.base_url, api_key="-", max_retries=0)
    stream = client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}], stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)


def test_a_dead_upstream_is_a_502_in_the_openai_form(gateway: Gateway, upstream: ScriptedUpstream):
    gateway.set_policy(ONLY_REFUND)
    chat(gateway)
    upstream.kill()
    began = time.monotonic()
    requests: list[dict[str, Any]] = [{}, {"stream": True}, {"model": "base"}]
    for more in requests:
        answer = chat(gateway, **more)
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]
    assert time.monotonic() - began < 20
    assert httpx.get(f"{gateway.base_url}/models").status_code == 502
    assert httpx.get(f"{gateway.url}/health").status_code == 503


def test_a_silent_upstream_is_a_504(upstream: ScriptedUpstream):
    upstream.delay = 3.0
    with Gateway(upstream.url, timeout=0.3) as gateway:
        assert chat(gateway).status_code == 504


def test_an_upstream_that_hangs_up_is_a_502():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(10)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        with Gateway(f"http://127.0.0.1:{listener.getsockname()[1]}") as gateway:
            assert chat(gateway).status_code == 502


def test_many_requests_at_once_all_arrive(gateway: Gateway, upstream: ScriptedUpstream):
    upstream.delay = 0.3

    async def all_at_once() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=120) as client:
            body = {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}
            url = f"{gateway.base_url}/chat/completions"
            answers = await asyncio.gather(*(client.post(url, json=body) for _ in range(150)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(all_at_once()) == [200] * 150


@pytest.mark.parametrize("body", [b"{not json", b"[1]", b'{"messages": 3}', b""])
def test_a_broken_body_is_a_400(gateway: Gateway, body: bytes):
    answer = httpx.post(f"{gateway.base_url}/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_raw_prompts_are_routed_too_but_take_no_hint(gateway: Gateway, upstream: ScriptedUpstream):
    gateway.set_policy(ONLY_REFUND)
    sent = {"model": "x", "prompt": [1, 2, 3], "max_tokens": 3}
    answer = httpx.post(f"{gateway.base_url}/completions", json=sent)
    assert upstream.last == {**sent, "model": "refund@1"}
    assert label(answer) == "v2/refund"
    gateway.set_policy(Policy.only("v3", Arm("h", "hint", hint="Look first.")))
    assert label(httpx.post(f"{gateway.base_url}/completions", json=sent)) == "v3/base!fallback"


def test_a_policy_is_set_over_http_with_the_token_only(gateway: Gateway):
    url, raw = f"{gateway.url}/trace/policy", ONLY_REFUND.to_json()
    assert httpx.post(url, json=raw).status_code == 401
    assert gateway.policy.version == "v1"
    authorized = {"Authorization": f"Bearer {gateway.token}"}
    assert httpx.post(url, json={"version": "v9", "forced": "nobody"}, headers=authorized).status_code == 400
    assert httpx.post(url, json=raw, headers=authorized).json() == raw
    assert gateway.policy == ONLY_REFUND
    assert httpx.get(url).json() == raw


def test_what_is_not_served_is_a_404_in_the_openai_form(gateway: Gateway):
    answer = httpx.post(f"{gateway.base_url}/load_lora_adapter", json={})
    assert answer.status_code == 404
    assert "not served" in answer.json()["error"]["message"]


def test_a_taken_port_is_a_clear_error(upstream: ScriptedUpstream):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TraceError, match=f"port {port} is in use"):
            Gateway(upstream.url, port=port).start()


def test_policies_survive_json():
    router = Router.fit(["a b", "c d"] * 10, [[0, 1], [1, 0]] * 10, [BASE, "refund"])
    mixed = Arm("both", "mixture", parts=(("refund@1", 0.7), ("lookup@1", 0.3)))
    policy = Policy("v7", (Arm(BASE), REFUND, mixed, Arm("h", "hint", hint="Look.")), router)
    again = Policy.from_json(json.loads(json.dumps(policy.to_json())))
    assert again.to_json() == policy.to_json()
    assert [again.decide(text) for text in ("a b", "c d")] == [policy.decide(text) for text in ("a b", "c d")]


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"version": "v", "arms": [{"name": "a", "kind": "adapter"}]},
        {"version": "v", "arms": [{"name": "a"}, {"name": "a"}]},
        {"version": "v", "arms": [{"name": "a", "kind": "magic"}]},
        {"version": "v", "arms": 7},
        {"version": "v", "router": {"kind": "oracle"}},
    ],
)
def test_what_is_not_a_policy_is_refused(raw: dict[str, Any]):
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ, that all are ValueError is the contract
        Policy.from_json(raw)
