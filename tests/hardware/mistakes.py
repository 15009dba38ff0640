"""Seeded mistakes of synchronisation: how often an H200 shows them, and what the emulator says.

``python -m hardware.mistakes --gpu --out DIR`` compiles every mistake and its correct twin, runs each many times on the GPU
in a process of its own (a hang costs that process), and compares with the twin's result.  The emulator runs both, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CTAS = 132
RUNS = 200
TIMEOUT = 25.0


@dataclass(frozen=True)
class Mistake:
    """``build(wrong, ctas)`` makes the kernel; ``shape`` is that of its output per CTA, uint32; ``hangs``: it may hang."""

    name: str
    what: str
    build: Callable[[bool, int], Any]
    words: int
    cluster: int = 1


def tma_load(kind: str) -> Callable[[bool, int], Any]:
    """A bulk copy of 4 KiB per round through one stage, two rounds; ``kind`` says what the mistake is."""

    def build(wrong: bool, ctas: int) -> Any:
        from tvm.script import tirx as T

        wait = not (wrong and kind == "no_wait")
        parity0 = 1 if wrong and kind == "wrong_phase" else 0
        flip = 0 if wrong and kind == "no_flip" else 1
        free = not (wrong and kind == "early_reuse")
        expected = {"few_bytes": 2048, "many_bytes": 8192}.get(kind, 4096) if wrong else 4096
        arrivals = 2 if wrong and kind == "arrivals" else 1
        late = 1 if kind == "early_reuse" else 0

        @T.prim_func
        def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
            T.device_entry()
            bx = T.cta_id([ctas])
            tx = T.thread_id([128])
            pool = T.SMEMPool()
            s = pool.alloc((1024,), "uint32", align=128)
            full = pool.alloc((1,), "uint64", align=8)
            empty = pool.alloc((1,), "uint64", align=8)
            pool.commit()
            for j in T.serial(8):
                s[j * 128 + tx] = T.uint32(0)
            if tx == 0:
                T.ptx["mbarrier.init.shared.b64"](full.ptr_to([0]), T.uint32(arrivals))
                T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([0]), T.uint32(128))
                T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()
            for k in T.unroll(2):
                if tx == 0:
                    if free and k > 0:
                        T.cuda.mbarrier_wait(empty.ptr_to([0]), 0)
                    T.ptx["mbarrier.arrive.expect_tx.shared.b64"](full.ptr_to([0]), T.uint32(expected))
                    T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"](
                        s.ptr_to([0]), T.address_of(A[k, bx, 0]), T.uint32(4096), full.ptr_to([0])
                    )
                if wait:
                    T.cuda.mbarrier_wait(full.ptr_to([0]), (parity0 + k * flip) % 2)
                if late == 1 and tx >= 32:
                    T.cuda.nano_sleep(T.uint32(2000))
                for j in T.serial(8):
                    D[bx, k * 1024 + j * 128 + tx] = s[j * 128 + tx]
                T.ptx["mbarrier.arrive.shared.b64"](empty.ptr_to([0]))
            if not wait:
                T.cuda.mbarrier_wait(full.ptr_to([0]), 1)

        return kernel

    return build


def bulk_store(kind: str) -> Callable[[bool, int], Any]:
    """SMEM written by threads, stored by one bulk copy, written again and stored again."""

    def build(wrong: bool, ctas: int) -> Any:
        from tvm.script import tirx as T

        fence = not (wrong and kind == "no_fence")
        sync = not (wrong and kind == "no_sync")
        drain = not (wrong and kind == "no_drain")

        @T.prim_func
        def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
            T.device_entry()
            bx = T.cta_id([ctas])
            tx = T.thread_id([256])
            pool = T.SMEMPool()
            s = pool.alloc((1024,), "uint32", align=128)
            pool.commit()
            for k in T.unroll(2):
                for j in T.serial(4):
                    s[j * 256 + tx] = A[k, bx, j * 256 + tx]
                if fence:
                    T.ptx["fence.proxy.async.shared::cta"]()
                if sync:
                    T.cuda.cta_sync()
                if tx == 0:
                    T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                        T.address_of(D[bx, k * 1024]), s.ptr_to([0]), T.uint32(4096)
                    )
                    T.ptx["cp.async.bulk.commit_group"]()
                    if drain:
                        T.ptx["cp.async.bulk.wait_group.read"](0)
                T.cuda.cta_sync()
            if tx == 0:
                T.ptx["cp.async.bulk.wait_group"](0)

        return kernel

    return build


def transpose(wrong: bool, ctas: int) -> Any:
    """Warps exchange words through SMEM; the mistake has no cta_sync between the stores and the loads."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([256])
        pool = T.SMEMPool()
        s = pool.alloc((1024,), "uint32", align=128)
        pool.commit()
        for j in T.serial(4):
            s[j * 256 + tx] = A[0, bx, j * 256 + tx]
        if not wrong:
            T.cuda.cta_sync()
        for j in T.serial(4):
            D[bx, j * 256 + tx] = s[1023 - (j * 256 + tx)]

    return kernel


def cp_async(wrong: bool, ctas: int) -> Any:
    """cp.async into SMEM; the mistake reads it without waiting for the group."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([256])
        pool = T.SMEMPool()
        s = pool.alloc((1024,), "uint32", align=128)
        pool.commit()
        T.ptx["cp.async.cg.shared.global"](s.ptr_to([tx * 4]), T.address_of(A[0, bx, tx * 4]), 16)
        T.ptx["cp.async.commit_group"]()
        if not wrong:
            T.ptx["cp.async.wait_group"](0)
        for j in T.serial(4):
            D[bx, tx * 4 + j] = s[tx * 4 + j]
        T.ptx["cp.async.wait_group"](0)

    return kernel


def named_pairs(wrong: bool, ctas: int) -> Any:
    """Warps pair up, another pairing each round; the mistake uses one named barrier for two pairs."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((128,), "uint32", align=128)
        pool.commit()
        x: T.uint32 = A[0, bx, warp * 32 + lane]
        for k in T.serial(8):
            partner: T.let[T.int32] = warp ^ (T.int32(1) << (k % 2))
            low: T.let[T.int32] = T.min(warp, partner)
            ident: T.let[T.int32] = 1 + low if wrong else 1 + low + 4 * (k % 2)
            s[warp * 32 + lane] = x
            T.ptx["bar.sync"](T.Cast("uint32", ident), T.uint32(64))
            x = x * T.uint32(5) + s[partner * 32 + lane]
            T.ptx["bar.sync"](T.Cast("uint32", ident), T.uint32(64))
        D[bx, warp * 32 + lane] = x

    return kernel


def cluster_start(wrong: bool, ctas: int) -> Any:
    """A store to the neighbour's SMEM; the mistake does not wait until the neighbour's own store is done."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        rank = T.cta_id_in_cluster([2])
        tx = T.thread_id([256])
        pool = T.SMEMPool()
        s = pool.alloc((256,), "uint32", align=128)
        pool.commit()
        far = T.alloc_local((1,), "uint32")
        s[tx] = T.uint32(5)
        if wrong:
            T.cuda.cta_sync()
        else:
            T.cuda.cluster_sync()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(s.ptr_to([tx])), T.Cast("uint32", 1 - rank)
        )
        T.ptx["st.shared::cluster.b32"](far[0], A[0, bx, tx])
        T.cuda.cluster_sync()
        D[bx, tx] = s[tx]

    return kernel


def cluster_end(wrong: bool, ctas: int) -> Any:
    """Loads from the neighbour's SMEM; the mistake lets the neighbour exit (or go on writing) before they are done."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        rank = T.cta_id_in_cluster([2])
        tx = T.thread_id([256])
        pool = T.SMEMPool()
        s = pool.alloc((256,), "uint32", align=128)
        pool.commit()
        far = T.alloc_local((1,), "uint32")
        r = T.alloc_local((1,), "uint32")
        s[tx] = A[0, bx, tx]
        T.cuda.cluster_sync()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(s.ptr_to([tx])), T.Cast("uint32", 1 - rank)
        )
        T.ptx["ld.shared::cluster.b32"](r[0], far[0])
        if not wrong:
            T.cuda.cluster_sync()
        s[tx] = T.uint32(0)
        D[bx, tx] = r[0]
        T.cuda.cluster_sync()

    return kernel


def warp_exchange(wrong: bool, ctas: int) -> Any:
    """Lanes of one warp exchange words through SMEM; the mistake has no warp_sync."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "uint32", align=128)
        pool.commit()
        s[tx] = A[0, bx, tx]
        if not wrong:
            T.cuda.warp_sync()
        D[bx, tx] = s[31 - tx]

    return kernel


def init_sync(wrong: bool, ctas: int) -> Any:
    """mbarrier.init by one thread; the mistake lets the others arrive without a cta_sync."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((2, ctas, 1024), "uint32"), D: T.Buffer((ctas, 2048), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([128])
        pool = T.SMEMPool()
        s = pool.alloc((128,), "uint32", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        s[tx] = A[0, bx, tx]
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(128))
        if not wrong:
            T.cuda.cta_sync()
        T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        D[bx, tx] = s[127 - tx]

    return kernel


MISTAKES = (
    Mistake("missing_wait", "reads the tile without waiting for the mbarrier", tma_load("no_wait"), 2048),
    Mistake("wrong_phase", "waits for parity 1 of a fresh mbarrier", tma_load("wrong_phase"), 2048),
    Mistake("phase_not_flipped", "waits for parity 0 in both rounds", tma_load("no_flip"), 2048),
    Mistake(
        "early_stage_reuse", "refills the stage while others still read it", tma_load("early_reuse"), 2048
    ),
    Mistake("too_few_bytes", "expects half of the bytes of the copy", tma_load("few_bytes"), 2048),
    Mistake("too_many_bytes", "expects twice the bytes of the copy", tma_load("many_bytes"), 2048),
    Mistake(
        "too_many_arrivals", "the mbarrier expects an arrival that nobody makes", tma_load("arrivals"), 2048
    ),
    Mistake("missing_proxy_fence", "bulk store without fence.proxy.async", bulk_store("no_fence"), 2048),
    Mistake(
        "missing_sync_before_store",
        "bulk store before the other warps have written",
        bulk_store("no_sync"),
        2048,
    ),
    Mistake(
        "missing_wait_group_read",
        "overwrites SMEM that a bulk store still reads",
        bulk_store("no_drain"),
        2048,
    ),
    Mistake("missing_cta_sync", "reads what another warp wrote without cta_sync", transpose, 2048),
    Mistake("missing_cp_async_wait", "reads SMEM without cp.async.wait_group", cp_async, 2048),
    Mistake("shared_named_barrier", "two pairs of warps share one named barrier", named_pairs, 2048),
    Mistake(
        "missing_cluster_sync_first", "stores to a CTA that may not have started", cluster_start, 2048, 2
    ),
    Mistake("missing_cluster_sync_last", "reads SMEM that its owner overwrites", cluster_end, 2048, 2),
    Mistake("missing_warp_sync", "lanes exchange words without warp_sync", warp_exchange, 2048),
    Mistake("missing_sync_after_init", "arrives at an mbarrier that may not be initialised", init_sync, 2048),
)


def arguments(m: Mistake, ctas: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(1, 2**32, (2, ctas, 1024), dtype=np.uint32), np.zeros((ctas, m.words), np.uint32)]


def child(name: str, wrong: bool) -> None:
    """Runs one kernel RUNS times; prints a JSON line after the first run and at the end."""
    from hardware import harness

    m = next(x for x in MISTAKES if x.name == name)
    executable = {w: harness.compile_for_gpu(m.build(w, CTAS)) for w in {False, wrong}}
    tvm = harness.import_tvm_with_cuda()
    device = tvm.cuda(0)
    a, d = arguments(m, CTAS)
    source = tvm.runtime.tensor(a, device=device)
    reference = harness.run_on_gpu(executable[False], [a, d])[1]
    print(json.dumps({"compiled": True}), flush=True)
    shown, words = 0, 0
    for k in range(RUNS):
        target = tvm.runtime.tensor(d, device=device)
        if k % 2:  # the other twin in between: other bytes in SMEM than the ones this kernel leaves
            other = np.ascontiguousarray(a[:, ::-1])
            executable[False]["main"](
                tvm.runtime.tensor(other, device=device), tvm.runtime.tensor(d, device=device)
            )
        try:
            executable[wrong]["main"](source, target)
            device.sync()
        except Exception as error:
            print(json.dumps({"fault": str(error).splitlines()[-1][:200], "run": k}), flush=True)
            os._exit(3)
        different = int(np.count_nonzero(target.numpy() != reference))
        shown += different > 0
        words = max(words, different)
        print(json.dumps({"runs": k + 1, "shown": shown, "most_words": words}), flush=True)
    os._exit(0)


def on_gpu(m: Mistake, wrong: bool) -> dict[str, Any]:
    """Outcome of one process: runs, how many showed the mistake, whether it hung or faulted."""
    env = dict(os.environ)
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "hardware.mistakes", "--child", m.name, "--wrong", str(int(wrong))],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)  # fmt: skip
    try:
        out, _ = process.communicate(timeout=TIMEOUT)
        hung = False
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        hung = True
    lines = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
    result: dict[str, Any] = {
        "runs": 0,
        "shown": 0,
        "hung": hung,
        "seconds": round(time.monotonic() - start, 1),
    }
    for line in lines:
        result |= {k: v for k, v in line.items() if k != "compiled"}
    result["compiled"] = any("compiled" in x for x in lines)
    return result


def in_emulator(m: Mistake, wrong: bool) -> dict[str, Any]:
    """Findings and whether the result is wrong, under each schedule."""
    import emulator

    ctas = 2 * m.cluster
    expected = None
    out: dict[str, Any] = {"findings": {}, "shown": []}
    good = emulator.compile(m.build(False, ctas), arch="sm_90a")
    a, d = arguments(m, ctas)
    good.run(a, d)
    expected = d
    kernel = emulator.compile(m.build(wrong, ctas), arch="sm_90a")
    for schedule in ("late", "eager", "random"):
        a, d = arguments(m, ctas)
        run = kernel.run(a, d, schedule=schedule, seed=1)
        for f in run.findings:
            out["findings"][f.code] = f.strength
        if not np.array_equal(d, expected):
            out["shown"].append(schedule)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--wrong", type=int, default=1)
    args = parser.parse_args()
    if args.child:
        child(args.child, bool(args.wrong))
        return
    from concurrent.futures import ThreadPoolExecutor

    rows = []
    with ThreadPoolExecutor(8) as pool:
        jobs = (
            {(m.name, w): pool.submit(on_gpu, m, w) for m in MISTAKES for w in (True, False)}
            if args.gpu
            else {}
        )
        for m in MISTAKES:
            row: dict[str, Any] = {"name": m.name, "what": m.what}
            for w, label in ((True, "mistake"), (False, "correct")):
                row[label] = {"emulator": in_emulator(m, w)}
                if args.gpu:
                    row[label]["gpu"] = jobs[m.name, w].result()
            rows.append(row)
            print(m.name, json.dumps(row["mistake"]), "| correct:", json.dumps(row["correct"]))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "mistakes.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
