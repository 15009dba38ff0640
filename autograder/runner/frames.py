"""Frames: how the processes of a grade talk. A frame is one JSON object and raw bytes, both length-checked.

    magic "AGF1" | JSON length, u32 | raw length, u64 | JSON, UTF-8 | raw bytes         (little endian)

The JSON is strict: no repeated keys, no NaN or Infinity. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

_MAGIC = b"AGF1"
_HEADER = struct.Struct("<4sIQ")


class FrameError(ValueError):
    """The bytes are no frame, or one larger than allowed."""


@dataclass(frozen=True)
class Frame:
    header: dict[str, Any]
    raw: bytes = b""

    @property
    def stage(self) -> str:
        """What the frame reports; empty when the sender left it out."""
        stage = self.header.get("stage")
        return stage if isinstance(stage, str) else ""


def encode(header: dict[str, Any], raw: bytes = b"") -> bytes:
    """The bytes of one frame. Raises ValueError for a header with NaN or Infinity."""
    text = json.dumps(header, allow_nan=False).encode()
    return _HEADER.pack(_MAGIC, len(text), len(raw)) + text + raw


def parse_json(text: bytes) -> dict[str, Any]:
    """One strict JSON object.

    Raises:
        FrameError: anything else.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not strict JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameError("not a JSON object")
    return value


class Decoder:
    """Cuts a byte stream into frames and refuses early what would be too large."""

    def __init__(self, max_json: int, max_raw: int) -> None:
        self._max_json, self._max_raw = max_json, max_raw
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes.

        Raises:
            FrameError: a bad magic number, an oversized length, or a header that is not strict JSON.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            magic, json_size, raw_size = _HEADER.unpack_from(self._buffer)
            if magic != _MAGIC:
                raise FrameError("bytes that are no frame")
            if json_size > self._max_json or raw_size > self._max_raw:
                raise FrameError(f"a frame of {json_size} + {raw_size} bytes is too large")
            end = _HEADER.size + json_size + raw_size
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEADER.size : _HEADER.size + json_size])
            raw = bytes(self._buffer[_HEADER.size + json_size : end])
            del self._buffer[:end]
            yield Frame(parse_json(text), raw)


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame of a blocking stream that a trusted parent writes, or None at its end."""
    head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, json_size, raw_size = _HEADER.unpack(head)
    if magic != _MAGIC:
        raise FrameError("bytes that are no frame")
    return Frame(parse_json(stream.read(json_size)), stream.read(raw_size))


def first_request(stream: BinaryIO, warm_up: Callable[[], object]) -> Frame | None:
    """`read_frame`, for a child that may have been started ahead: a frame of the stage `warm` makes it call `warm_up` and wait on."""
    frame = read_frame(stream)
    if frame is not None and frame.header.get("stage") == "warm":
        warm_up()
        frame = read_frame(stream)
    return frame


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
