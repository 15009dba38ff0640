"""Two repairs of TVMScript, for every process that parses kernels: names of barriers, and the time that parsing takes."""

from __future__ import annotations

import sys
from typing import Any


def install() -> None:
    """Apply both, once per process; imports TVM."""
    keep_barrier_names()
    find_frames_quickly()


def keep_barrier_names() -> None:
    """Let ``TMABar`` and its kin keep the names of the buffers they own.

    TVM validates a subclass's construction scope after its base class already claimed the resources and then
    overwrites the claim with an empty list, which renames the barrier to ``buffer_3``.  Skip that second validation.
    """
    from tvm.tirx.script.builder import ir

    original = ir._validate_meta_construction_scope
    if getattr(original, "_keeps_names", False):
        return

    def validate(scope: Any) -> None:
        if not scope.created and getattr(scope.instance, "_tirx_meta_owned_resources", None):
            return
        original(scope)

    validate._keeps_names = True  # type: ignore[attr-defined]
    ir._validate_meta_construction_scope = validate

    from tvm.backend.cuda.lang.pipeline import MBarrier
    from tvm.script.ir_builder.base import IRBuilder

    name_all = ir._name_meta_value

    def name_value(prefix: str, value: Any, *state: Any) -> None:
        name_all(prefix, value, *state)
        if (
            isinstance(value, MBarrier)
            and getattr(value, "_tirx_meta_name", None) == prefix
            and value._remote_cta_id is None
        ):
            IRBuilder.name(prefix, value.buf)  # `full`, not `full_buf`

    ir._name_meta_value = name_value


def find_frames_quickly() -> None:
    """Make TVMScript look up its caller by walking frames instead of reading the source of every frame.

    TVM calls ``inspect.stack()`` for every ``T.inline`` call and every buffer of a meta class; that is three quarters of
    the time it takes to parse a warp-specialized kernel.  The results are the same.
    """
    import inspect

    from tvm.script.parser.core import parser
    from tvm.tirx.script.builder import ir

    if getattr(ir._record_meta_resource, "_quick", False):
        return

    def find_parser_def(self: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None:
            found = frame.f_globals.get(parser.ScriptMacro.parser_object_name)
            if found is not None:
                return found
            frame = frame.f_back  # type: ignore[assignment]
        raise RuntimeError(f"{parser.ScriptMacro.parser_object_name} not available")

    def record_meta_resource(value: Any, skip_frames: int = 2) -> None:
        scope = ir._current_meta_construction_scope()
        if scope is None:
            return
        frame = sys._getframe(2)
        while frame.f_code.co_filename == ir.__file__ and frame.f_back is not None:
            frame = frame.f_back
        scope.record(value, inspect.getframeinfo(frame, 1))

    record_meta_resource._quick = True  # type: ignore[attr-defined]
    parser.ScriptMacro._find_parser_def = find_parser_def
    ir._record_meta_resource = record_meta_resource
