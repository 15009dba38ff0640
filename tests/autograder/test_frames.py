"""Frames: what goes in comes out, and bytes that are no frame are refused."""

from __future__ import annotations

import contextlib
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.runner.frames import Decoder, Frame, FrameError, encode, parse_json, read_frame

HEADERS = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=4
)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=50)), max_size=4), st.integers(1, 17))
def test_any_cut_of_the_stream_gives_the_same_frames(
    frames: list[tuple[dict[str, object], bytes]], step: int
) -> None:
    stream = b"".join(encode(header, raw) for header, raw in frames)
    decoder = Decoder(1 << 20, 1 << 20)
    got = [f for i in range(0, len(stream), step) for f in decoder.feed(stream[i : i + step])]
    assert got == [Frame(header, raw) for header, raw in frames]
    blocking = io.BytesIO(stream)
    assert [read_frame(blocking) for _ in frames] == got
    assert read_frame(blocking) is None


@given(st.binary(max_size=64))
def test_other_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert list(Decoder(100, 100).feed(data)) == []


def test_sizes_are_checked_before_anything_is_kept() -> None:
    for sizes in ((101, 0), (0, 101), (2**32 - 1, 2**63)):
        with pytest.raises(FrameError, match="too large"):
            list(Decoder(100, 100).feed(struct.pack("<4sIQ", b"AGF1", *sizes)))


@pytest.mark.parametrize(
    "text", [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": Infinity}', b"[]", b"{", b"\xff", b"[" * 99999]
)
def test_json_is_strict(text: bytes) -> None:
    with pytest.raises(FrameError):
        parse_json(text)


def test_stage_is_text() -> None:
    assert Frame({"stage": 5}).stage == ""
    assert Frame({"stage": "built"}).stage == "built"
