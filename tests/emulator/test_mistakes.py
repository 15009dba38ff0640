"""Mistakes of every day end as findings at their line; a fault of the emulator itself names the line, too."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from tvm.script import tirx as T

import emulator
from emulator import runtime

N = 128


def line_of(finding):
    """The source text of a finding's first line."""
    return line_of_location(finding.locations[0])


# ---------------------------------------------------------------------------------------------- the last net


def doubled():
    @T.prim_func
    def kernel(A: T.Buffer((N,), "float32"), D: T.Buffer((N,), "float32")):
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([N])
        D[thread] = A[thread] * T.float32(2)

    return kernel


FAULTS = [IndexError, KeyError, ZeroDivisionError, ValueError, TypeError, AttributeError]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_emulator_names_the_line(kind, monkeypatch):
    def broken(*_):
        raise kind("some reason")

    monkeypatch.setitem(runtime.NAMESPACE, "ld_tensor", broken)
    kernel = emulator.compile(doubled())
    with pytest.raises(
        emulator.EmulatorError, match=f"{kind.__name__} in the emulator: '?some reason"
    ) as caught:
        kernel.run(np.zeros(N, np.float32), np.zeros(N, np.float32))
    assert "D[thread] = A[thread]" in line_of_location(caught.value.location)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_translation_names_the_line(kind, monkeypatch):
    from emulator.translate import Translator

    def broken(*_):
        raise kind("some reason")

    monkeypatch.setattr(Translator, "x_Mul", broken)
    with pytest.raises(
        emulator.EmulatorError, match=f"{kind.__name__} in the emulator's translation"
    ) as caught:
        emulator.compile(doubled())
    assert "D[thread] = A[thread]" in line_of_location(caught.value.location)


def line_of_location(place):
    return linecache.getline(place.file, place.line).strip()
