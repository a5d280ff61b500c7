"""No secret reaches the disk, personal data goes by the team's rule, and what cannot be redacted is not written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trace_sdk as trace
from tests.trace_sdk.scripted import Reply, ScriptedServer, chat
from tests.trace_sdk.spool import only_run, runs
from trace_sdk._redact import Redaction

EMAIL = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "openai": "sk-" + "proj-abcDEF123456789012345",
    "anthropic": "sk-" + "ant-api03-" + "x1Y2" * 8,
    "github": "ghp" + "_" + "a1B2c3D4e5" * 4,
    "slack": "xox" + "b-1234567890-abcdef",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "a" * 35,
    "huggingface": "hf" + "_" + "aB3" * 12,
    "jwt": "eyJ" + "hbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM",
    "pem": "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
}


def spooled(home: Path) -> str:
    trace.flush()
    return "".join(path.read_text() for path in (home / "spool").glob("*.jsonl"))


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_of_known_form_never_reach_the_disk(home: Path, kind: str) -> None:
    secret = SECRETS[kind]

    @trace.tool
    def look_up(token: str) -> str:
        return f"used {token} twice: {token}"

    @trace.agent
    def agent(question: str, nested: Any) -> str:
        handle = trace.current()
        assert handle is not None
        handle.note(key=secret)
        handle.outcome(False, reason=f"leaked {secret}")
        look_up(f"x {secret}")
        raise ValueError(f"failed with {secret}")

    with pytest.raises(ValueError, match="failed"):
        agent(f"my key is {secret}, thanks", {"deep": [{"a": secret}]})
    text = spooled(home)
    core = secret.split("\n")[1] if kind == "pem" else secret
    assert core not in text
    run = only_run(home)
    assert run.input["question"] == "my key is <SECRET_1>, thanks"
    assert run.input["nested"] == {"deep": [{"a": "<SECRET_1>"}]}
    assert run.end["error"]["message"] == "failed with <SECRET_1>"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Authorization: Bearer abcdefghij123456", "Authorization: Bearer <SECRET_1>"),
        ('{"password": "hunter2!"}', '{"password": "<SECRET_1>"}'),
        ('{"body": "{\\"api_key\\": \\"abc123def\\"}"}', '{"body": "{\\"api_key\\": \\"<SECRET_1>\\"}"}'),
        ("https://x.org/?api_key=abc123def&q=1", "https://x.org/?api_key=<SECRET_1>&q=1"),
        ("postgres://me:s3cret@db/orders", "postgres://me:<SECRET_1>@db/orders"),
        ("please reset my password: it is too old", "please reset my password: it is too old"),
        ("the secret of good tea", "the secret of good tea"),
        ("max_tokens=4096", "max_tokens=4096"),
    ],
)
def test_what_stands_behind_a_secrets_name_goes_and_prose_stays(home: Path, text: str, stored: str) -> None:
    trace.agent(name="a")(lambda text: None)(text)
    trace.flush()
    assert only_run(home).input == {"text": stored}


def test_values_under_a_secrets_key_go_whatever_they_look_like(home: Path) -> None:
    trace.agent(name="a")(lambda **k: None)(
        headers={"Authorization": "Basic abc", "Accept": "json"}, password="four", schema={"password": {"type": "s"}}
    )
    trace.flush()
    assert only_run(home).input == {
        "headers": {"Authorization": "<SECRET_1>", "Accept": "json"},
        "password": "<SECRET_2>",
        "schema": {"password": {"type": "s"}},
    }


def test_the_processs_own_secrets_are_known_by_value(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAREHOUSE_API_KEY", "plain words no pattern knows")
    trace.init(home=home)
    trace.agent(name="a")(lambda text: None)("it says: plain words no pattern knows.")
    trace.flush()
    assert only_run(home).input == {"text": "it says: <SECRET_1>."}


def by_function(text: str) -> str:
    return re.sub(EMAIL, "<EMAIL>", text)


@pytest.mark.parametrize("redact", [{"EMAIL": EMAIL}, by_function])
def test_personal_data_gets_the_same_placeholder_in_the_whole_run(home: Path, redact: Any) -> None:
    trace.init(home=home, redact=redact)
    arguments = json.dumps({"email": "ann@x.org"})
    replies = [Reply(chat(None, [("c1", "find", arguments)])), Reply(chat("Sent to ann@x.org, not bob@x.org."))]
    with ScriptedServer(replies) as server:

        @trace.agent(name="outer", user="ann@x.org")
        def outer(question: str) -> str:
            messages: list[Any] = [{"role": "user", "content": question}]
            for _ in range(2):
                body = {"model": "m", "messages": messages}
                reply = httpx.post(server.url + "/v1/chat/completions", json=body).json()["choices"][0]["message"]
                messages += [reply, {"role": "tool", "tool_call_id": "c1", "content": "bob@x.org and ann@x.org"}]
            return inner(reply["content"])

        @trace.agent(name="inner")
        def inner(text: str) -> str:
            return text

        answer = outer("Mail bob@x.org about ann@x.org")
    assert answer == "Sent to ann@x.org, not bob@x.org.", "the agent itself sees the real thing"
    trace.flush()
    first, second = sorted(runs(home), key=lambda run: run.start["agent"] != "outer")
    assert first.input == {"question": "Mail <EMAIL_1> about <EMAIL_2>"}
    assert first.calls[0]["response"]["message"]["tool_calls"][0]["function"]["arguments"] == '{"email": "<EMAIL_2>"}'
    assert first.calls[1]["request"]["messages"][2]["content"] == "<EMAIL_1> and <EMAIL_2>"
    assert first.output == "Sent to <EMAIL_2>, not <EMAIL_1>."
    assert second.input == {"text": first.output}, "sub-agents share the placeholders"
    assert first.start["user"] == "ann@x.org", "identifiers are what data is found and deleted by"


def test_token_ids_go_with_the_text_that_they_spell(home: Path) -> None:
    trace.init(home=home, redact={"EMAIL": EMAIL})
    body = chat("to ann@x.org", prompt_token_ids=[1, 2])
    body["choices"][0]["token_ids"] = [3]
    with ScriptedServer([Reply(body), Reply({**body, "choices": chat("clean")["choices"]})]) as server:

        @trace.agent
        def asks() -> None:
            for _ in range(2):
                httpx.post(server.url + "/v1/chat/completions", json={"model": "m", "messages": []})

        asks()
    trace.flush()
    first, second = only_run(home).calls
    assert "token_ids" not in first["response"]
    assert "prompt_token_ids" not in first["response"]
    assert second["response"]["prompt_token_ids"] == [1, 2]


@pytest.mark.parametrize("broken", [lambda text: 1 / 0, lambda text: None])
def test_a_redactor_that_fails_withholds_the_texts_and_the_run_stays_visible(home: Path, broken: Any) -> None:
    trace.init(home=home, redact=broken)
    with ScriptedServer([Reply(chat("private answer"))]) as server:

        @trace.agent(name="a", tags=["private tag"])
        def asks(question: str) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": question}]}
            return httpx.post(server.url + "/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

        assert asks("private question") == "private answer"
    assert "private" not in spooled(home)
    run = only_run(home)
    assert run.status == "completed"
    assert run.start["agent"] == "a"
    assert len(run.calls) == 1
    assert run.calls[0]["withheld"].startswith("redaction failed")


def test_a_pattern_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(re.error):
        trace.init(home=tmp_path, redact={"EMAIL": "("})


TEXT = st.text(max_size=80)


@given(st.recursive(TEXT | st.integers() | st.none() | st.booleans(), lambda c: st.lists(c) | st.dictionaries(TEXT, c)))
def test_any_event_stays_one_line_of_json_and_holds_no_secret(value: Any) -> None:
    redaction = Redaction({"EMAIL": EMAIL}, ("zebra-secret-value",))
    event = {"v": 1, "type": "note", "id": "X", "ts": 1.0, "data": {"value": value, "more": "a zebra-secret-value b"}}
    line = redaction.line(event)
    assert line.count(b"\n") == 1
    assert re.fullmatch(r"a <SECRET_\d+> b", json.loads(line)["data"]["more"])
