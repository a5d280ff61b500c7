"""Stored JSON is read fast, and exactly as `json` reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import codec

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=5), v, max_size=4))


def oracle(text: str | bytes) -> str:
    """What `json` reads, NaN and infinities refused, as text that tells 1 from 1.0 and -0.0 from 0.0."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        return repr(json.loads(text, parse_constant=refuse))
    except (ValueError, RecursionError):
        return "refused"


def ours(text: str | bytes) -> str:
    try:
        return repr(codec.strict_loads(text))
    except ValueError:
        return "refused"


@given(VALUES, st.booleans())
def test_what_is_written_is_read_back(value: Any, ascii_only: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    assert ours(written) == oracle(written) == repr(value)
    assert repr(codec.loads(codec.dumps(value))) == repr(value)


@given(VALUES, st.data())
def test_damaged_text_is_read_or_refused_as_json_does(value: Any, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\\ud8", b"e", b".", b"-", b"9" * 20, b",", b'"', b"\\"])
        )
    assert ours(bytes(raw)) == oracle(bytes(raw))


@pytest.mark.parametrize(
    "text",
    [
        b"1e400", b"-0", b"18446744073709551616", b'"\\ud800"', b'"\xed\xa0\x80"', '"\ud800"', b"\xff", b'{"\xff":1}',
        b"\xef\xbb\xbf1", '{"a":1}'.encode("utf-16"), b'{"a":1,"a":2}', b'"\x01"', b"[NaN]", b"-Infinity", b"1 2", b"",
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_the_odd_cases_are_read_or_refused_as_json_does(text: str | bytes) -> None:
    assert ours(text) == oracle(text)
