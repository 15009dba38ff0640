"""Warp instructions under divergence: only active lanes take part (the full-warp forms are compared with hardware)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import DeviceFault

from .conftest import REGISTRY, Bench, Mods, op

FULL = 0xFFFFFFFF
masks = st.lists(st.booleans(), min_size=64, max_size=64).filter(lambda m: any(m[:32]) and any(m[32:]))
values = st.lists(st.integers(0, 5), min_size=64, max_size=64)


def spread(x):
    """A warp-uniform result may come as one number."""
    return np.broadcast_to(np.asarray(x), 64).tolist()


def member_mask(mask):
    """Per lane: the active lanes of its warp."""
    out = []
    for w in range(2):
        bits = sum(1 << k for k in range(32) if mask[32 * w + k])
        out += [bits] * 32
    return np.array(out)


@settings(max_examples=40, deadline=None)
@given(masks, values)
def test_votes_and_matches(mask, value):
    t = Bench(2).threads(0, 1, mask=mask)
    v, members = np.array(value), member_mask(mask)
    odd = v % 2
    ballot = spread(op("vote_sync_ballot", "ballot", "b32")(t, odd, members))
    any_, all_, uni = (spread(op("vote_sync", m, "pred")(t, odd, members)) for m in ("any", "all", "uni"))
    same = spread(op("match_any_sync", "any", "sync", "b32")(t, v, members))
    everyone, agree = (spread(x) for x in op("match_all_sync_p", "all", "sync", "b32")(t, v, members))
    active = spread(REGISTRY["tirx.ptx.activemask"].bind(Mods())(t))
    for lane in range(64):
        if not mask[lane]:
            continue
        warp = range(lane // 32 * 32, lane // 32 * 32 + 32)
        live = [k for k in warp if mask[k]]
        assert active[lane] == members[lane]
        assert ballot[lane] == sum(1 << k % 32 for k in live if odd[k])
        assert any_[lane] == any(odd[k] for k in live)
        assert all_[lane] == all(odd[k] for k in live)
        assert uni[lane] == (len({int(odd[k]) for k in live}) == 1)
        assert same[lane] == sum(1 << k % 32 for k in live if value[k] == value[lane])
        one = len({value[k] for k in live}) == 1
        assert (everyone[lane], agree[lane]) == (members[lane] if one else 0, one)


@settings(max_examples=40, deadline=None)
@given(
    masks,
    st.lists(st.integers(0, FULL), min_size=64, max_size=64),
    st.sampled_from(["add", "min", "max", "and", "or", "xor"]),
)
def test_reductions(mask, value, operation):
    from functools import reduce

    name, tokens = (
        ("redux_sync", (operation, "u32"))
        if operation in ("add", "min", "max")
        else ("redux_sync_bitwise", (operation, "b32"))
    )
    t = Bench(2).threads(0, 1, mask=mask)
    got = spread(op(name, *tokens)(t, np.array(value), member_mask(mask)))
    model = {
        "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    }[operation]  # fmt: skip
    for lane in range(64):
        if mask[lane]:
            live = [value[k] for k in range(lane // 32 * 32, lane // 32 * 32 + 32) if mask[k]]
            assert got[lane] == reduce(model, live) & FULL


@settings(max_examples=30, deadline=None)
@given(masks)
def test_election(mask):
    """The lowest active lane of each warp leads; every lane learns who it is."""
    t = Bench(2).threads(0, 1, mask=mask)
    leader, elected = (spread(x) for x in op("elect_sync")(t, member_mask(mask)))
    for w in range(2):
        first = next(k for k in range(32) if mask[32 * w + k])
        assert all(leader[32 * w + k] == first for k in range(32) if mask[32 * w + k])
        assert [k for k in range(32) if elected[32 * w + k]] == [first]


def test_a_lane_outside_its_own_member_mask_is_an_error():
    t = Bench(1).t
    with pytest.raises(DeviceFault) as fault:
        op("shfl_sync", "idx", "b32")(t, np.arange(32), 0, 31, 0x0000FFFF)
    assert fault.value.code == "warp.not-a-member"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("__shfl_sync", "idx"),
        ("__shfl_up_sync", "up"),
        ("__shfl_down_sync", "down"),
        ("__shfl_xor_sync", "bfly"),
    ],
)
@pytest.mark.parametrize("width", [32, 8])
def test_cuda_shuffles_respect_their_width(name, mode, width):
    t = Bench(2).t
    value = np.arange(64) * 3
    fn = REGISTRY[f"tirx.cuda.{name}"].bind(Mods())
    for operand in (0, 1, 5, 7):
        got = np.asarray(fn(t, FULL, value, operand, width)).tolist()
        for lane in range(64):
            base, inside = lane // width * width, lane % width
            source = {
                "idx": operand % width,
                "up": inside - operand,
                "down": inside + operand,
                "bfly": inside ^ operand,
            }[mode]
            if not 0 <= source < width:
                source = inside
            assert got[lane] == value[base + source]


def test_floats_and_packed_registers_are_shuffled_whole():
    t = Bench(1).t
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    fn = REGISTRY["tirx.cuda.__shfl_xor_sync"].bind(Mods())
    assert fn(t, FULL, x, 16).tolist() == np.roll(x, 16).tolist()
    wide = np.arange(32, dtype=np.uint64) << np.uint64(40)
    assert fn(t, FULL, wide, 1).tolist() == wide.reshape(-1, 2)[:, ::-1].reshape(-1).tolist()


def test_matrix_instructions_of_some_warps_leave_the_others_alone():
    """A masked strand: warps 1 and 3 execute ldmatrix, the result of the others is not theirs to use."""
    bench = Bench(4)
    bench.smem(np.uint32)[:] = np.arange(len(bench.smem(np.uint32)))
    mask = np.repeat([False, True, False, True], 32)
    address = bench.shared(np.tile(np.arange(32) * 16, 4) + np.repeat(np.arange(4), 32) * 512)
    load = op("ldmatrix", "sync", "aligned", "m8n8", "x4", "", "shared", "b16")
    alone = [load(bench.threads(w), address[32 * w : 32 * w + 32]) for w in range(4)]
    together = load(bench.threads(0, 1, 2, 3, mask=mask), address)
    for w in (1, 3):
        assert (together[:, 32 * w : 32 * w + 32] == alone[w]).all()


def test_setmaxnreg_checks_its_count():
    bench = Bench(4)
    list(op("setmaxnreg", "dec", "sync", "aligned", "u32")(bench.t, 40))
    assert not bench.machine.reports
    list(op("setmaxnreg", "dec", "sync", "aligned", "u32")(bench.t, 44))
    assert bench.machine.reports == [("setmaxnreg.bad-count", "error")]
