# mutant: every warp rescales O in every block
# check: two_tiles_mechanism
# finding: -
# case: pair
import math

from tvm.backend.cuda.lang import MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

STAGE = 1  # how far this kernel has come; sizes that belong to later stages are refused
STAGE = 5

ROWS, KEYS, D = 128, 128, 128  # rows of a Q tile, keys of a block, head dimension
Q_TILES = 1 if STAGE == 1 else 2  # Q tiles of a CTA; each has a softmax warpgroup
SLOTS = 3  # blocks of K or of V that SMEM holds
PART = 64  # keys of a part of P
FMA_KEYS = 16 if STAGE == 5 else 0  # the last keys of a part, whose exp2 the FMA pipe computes
CHUNK = 16  # columns of TMEM that a thread loads or stores at a time
PAIR = 2 * CHUNK  # probabilities in so many columns: two fp16 in each
THRESHOLD = 8.0  # a maximum may grow by this many powers of two before O is rescaled
FACTOR, SUM = 1, 3  # named barriers of the mailbox, one for each Q tile: FACTOR + s and SUM + s
ROUNDER = 1.5 * 2.0**23  # x + ROUNDER is x rounded to a whole number, which is in the low bits
C0, C1, C2, C3 = 0.9999281, 0.693261, 0.2426111, 0.05517167  # 2^f for |f| <= 1/2, to 7.5e-5


@T.meta_class
class Tiles:
    """The tiles of one CTA: Q_TILES Q tiles of one group of heads. `blocks`: of keys, that a query of the tile sees."""

    def __init__(self, batches, groups, tile_queries, SQ, SKV, causal, SMS):
        self.linear, self.m_block, self.batch = (T.local_scalar("int32") for _ in range(3))
        self.group, self.blocks = (T.local_scalar("int32") for _ in range(2))
        self.batches, self.groups, self.tile_queries = batches, groups, tile_queries
        self.m_blocks = -(-SQ // tile_queries)
        self.SQ, self.SKV, self.causal, self.SMS = SQ, SKV, causal, SMS

    def valid(self):
        return self.linear < self.m_blocks * self.batches * self.groups

    @T.inline
    def init(self, cta):
        self.linear = cta
        self._place()

    @T.inline
    def next_tile(self):
        self.linear = self.linear + self._step()
        self._place()

    @T.inline
    def _place(self):
        self.m_block = self._m_block()
        self.batch = self.linear // self.groups % self.batches
        self.group = self.linear % self.groups
        self.blocks = self._blocks()

    def _m_block(self):
        m_block = self.linear // (self.batches * self.groups)
        m_block = self.m_blocks - 1 - m_block
        return m_block

    def _step(self):
        step = self.SMS
        step = 2 * (self.SMS - self.linear % self.SMS) - 1
        return step

    def _blocks(self):
        blocks = T.int32(-(-self.SKV // KEYS))
        if self.causal:
            seen = (self.m_block + 1) * self.tile_queries + self.SKV - self.SQ
            blocks = T.max(T.min((seen + KEYS - 1) // KEYS, blocks), 1)
        return blocks


@T.inline
def exp2_by_fma(x, first, whole, power):
    """x[j] = 2^x[j] for the FMA_KEYS registers from x[first] on, without ex2; whole, power: registers to work with."""
    last = T.meta_var(first + FMA_KEYS)
    Tx.maximum(x[first:last], x[first:last], T.float32(-126.0))
    Tx.add(whole[:], x[first:last], T.float32(ROUNDER), rounding_mode="rn")
    Tx.sub(power[:], whole[:], T.float32(ROUNDER), rounding_mode="rn")
    Tx.sub(x[first:last], x[first:last], power[:], rounding_mode="rn")
    Tx.fma(power[:], x[first:last], T.float32(C3), T.float32(C2), rounding_mode="rn")
    Tx.fma(power[:], power[:], x[first:last], T.float32(C1), rounding_mode="rn")
    Tx.fma(power[:], power[:], x[first:last], T.float32(C0), rounding_mode="rn")
    for j in T.unroll(FMA_KEYS):
        exponent = T.meta_var(T.reinterpret("int32", whole[j]) << 23)
        x[first + j] = T.reinterpret("float32", T.reinterpret("int32", power[j]) + exponent)


def build_attention(B, SQ, SKV, HQ, HKV, causal, SMS):
    """O = softmax(Q K^T / sqrt(128)) V by SMS CTAs; Q, O (B, SQ, HQ, 128), K, V (B, SKV, HKV, 128), float16.

    causal: query i sees keys 0 to i + SKV - SQ; a row of O whose query sees none is 0. HQ / HKV divides 128.
    """
    if causal and STAGE < 3:
        raise NotImplementedError("causal attention comes with stage 3")
    if HQ != HKV and STAGE < 4:
        raise NotImplementedError("GQA comes with stage 4")
    GROUP = HQ // HKV  # heads of Q that share one head of K and V
    QUERIES = ROWS  # queries of a Q tile
    QUERIES = ROWS // GROUP
    CAUSAL = bool(causal)
    OFFSET = SKV - SQ
    TILE_BYTES = 128 * D * 2
    SCALE_LOG2 = math.log2(math.e) / math.sqrt(D)

    @T.prim_func
    def flash_attention(
        Q: T.Buffer((B, SQ, HQ, D), "float16"),
        K: T.Buffer((B, SKV, HKV, D), "float16"),
        V: T.Buffer((B, SKV, HKV, D), "float16"),
        O: T.Buffer((B, SQ, HQ, D), "float16"),  # noqa: E741
    ):
        T.device_entry()
        # One CTA per SM: ptxas knows the registers at entry.
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        cta = T.cta_id([SMS])
        warpgroup = T.warpgroup_id([4])  # 0 and 1 softmax, 2 correction, 3 MMA, load and store
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        row = T.meta_var(warp * 32 + lane)  # of a Q tile: the one of this thread

        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, 512)
        q_full = TMABar(pool, 2)  # Q tile s is in SMEM
        q_empty = TCGen05Bar(pool, 2)  # its last Q K^T has read it
        kv_full = TMABar(pool, SLOTS)  # a block of K or V is in SMEM
        kv_empty = TCGen05Bar(pool, SLOTS)  # all MMAs that need it have read it
        s_ready = TCGen05Bar(pool, 2)  # scores of Q tile s are in TMEM
        p_ready = MBarrier(pool, 2)  # the first part of P is in TMEM, and O may be added to
        p_rest = MBarrier(pool, 2)  # the second part of P is in TMEM
        o_ready = TCGen05Bar(pool, 2)  # O is complete
        sum_read = MBarrier(pool, 2)  # correction has read the row sums
        out_full = MBarrier(pool, 2)  # the result is in SMEM
        out_empty = MBarrier(pool, 2)  # it is stored
        mailbox = pool.alloc((2, 2, ROWS), "float32")  # [s, 0, row] factor of O, [s, 1, row] row sum
        Q_smem = pool.alloc_tcgen05_mma_AB((2, ROWS, D), "float16")
        KV_smem = pool.alloc_tcgen05_mma_AB((SLOTS, KEYS, D), "float16")
        O_smem = pool.alloc_tcgen05_mma_AB((2, ROWS, D), "float16")
        Q_packed = Q_smem.view(2, QUERIES, GROUP, D)  # the same bytes: rows are (query, head)
        O_packed = O_smem.view(2, QUERIES, GROUP, D)
        S_tmem = tmem.alloc((ROWS, 2 * KEYS), "float32")
        O_tmem = tmem.alloc((ROWS, 2 * D), "float32")
        tmem.move_base_to(0)
        P_tmem = tmem.alloc_tcgen05_mma_A((ROWS, 4 * KEYS), "float16", M=ROWS, cta_group=1)
        pool.commit()

        q_full.init(1)
        q_empty.init(1)
        kv_full.init(1)
        kv_empty.init(1)
        s_ready.init(1)
        o_ready.init(1)
        p_ready.init(2 * 128)
        p_rest.init(128)
        sum_read.init(128)
        out_full.init(128)
        out_empty.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        tiles = Tiles(B, HKV, Q_TILES * QUERIES, SQ, SKV, CAUSAL, SMS)
        tiles.init(cta)
        if warpgroup == 3:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](56)
            if warp == 1:
                if T.cuda.elect_sync():
                    # Load: K, the Q tiles, V; then K and V of the other blocks, from the last one down.
                    load = PipelineState(SLOTS, 1)
                    q_load = PipelineState(1, 1)
                    while tiles.valid():
                        for i in T.serial(tiles.blocks, unroll=False):
                            k0 = T.meta_var((tiles.blocks - 1 - i) * KEYS)
                            kv_empty.wait(load.stage, load.phase)
                            kv_full.arrive(load.stage, TILE_BYTES)
                            Tx.copy_async(
                                KV_smem[load.stage, :, :],
                                K[tiles.batch, k0 : k0 + KEYS, tiles.group, :],
                                dispatch="tma_auto",
                                mbar=kv_full.ptr_to([load.stage]),
                            )
                            load.advance()
                            if i == 0:
                                for s in T.unroll(Q_TILES):
                                    q0 = T.meta_var((tiles.m_block * Q_TILES + s) * QUERIES)
                                    h0 = T.meta_var(tiles.group * GROUP)
                                    q_empty.wait(s, q_load.phase)
                                    q_full.arrive(s, TILE_BYTES)
                                    Tx.copy_async(
                                        Q_packed[s, :, :, :],
                                        Q[tiles.batch, q0 : q0 + QUERIES, h0 : h0 + GROUP, :],
                                        dispatch="tma_auto",
                                        mbar=q_full.ptr_to([s]),
                                    )
                            kv_empty.wait(load.stage, load.phase)
                            kv_full.arrive(load.stage, TILE_BYTES)
                            Tx.copy_async(
                                KV_smem[load.stage, :, :],
                                V[tiles.batch, k0 : k0 + KEYS, tiles.group, :],
                                dispatch="tma_auto",
                                mbar=kv_full.ptr_to([load.stage]),
                            )
                            load.advance()
                        q_load.advance()
                        tiles.next_tile()
            elif warp == 0:
                if T.cuda.elect_sync():
                    # MMA: the first scores; then, block by block, O += P V and the scores of the next block.
                    kv = PipelineState(SLOTS, 0)
                    q = PipelineState(1, 0)
                    p = PipelineState(1, 0)
                    while tiles.valid():
                        kv_full.wait(kv.stage, kv.phase)
                        for s in T.unroll(Q_TILES):
                            q_full.wait(s, q.phase)
                            Tx.gemm_async(
                                S_tmem[:, s * KEYS : (s + 1) * KEYS],
                                Q_smem[s, :, :],
                                KV_smem[kv.stage, :, :],
                                accum=False,
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            s_ready.arrive(s)
                            if tiles.blocks == 1:
                                q_empty.arrive(s)
                        kv_empty.arrive(kv.stage)
                        kv.advance()
                        for i in T.serial(tiles.blocks, unroll=False):
                            v_slot: T.int32 = kv.stage
                            kv_full.wait(v_slot, kv.phase)
                            kv.advance()
                            for s in T.unroll(Q_TILES):
                                for part in T.unroll(2):
                                    p0 = T.meta_var(s * 2 * KEYS + part * PART)
                                    if part == 0:
                                        p_ready.wait(s, p.phase)
                                    else:
                                        p_rest.wait(s, p.phase)
                                    T.ptx["tcgen05.fence::after_thread_sync"]()
                                    Tx.gemm_async(
                                        O_tmem[:, s * D : (s + 1) * D],
                                        P_tmem[:, p0 : p0 + PART],
                                        KV_smem[v_slot, part * PART : (part + 1) * PART, :],
                                        transB=True,
                                        accum=i + part > 0,
                                        dispatch="tcgen05",
                                        cta_group=1,
                                    )
                                if s == Q_TILES - 1:
                                    kv_empty.arrive(v_slot)
                                if i + 1 < tiles.blocks:
                                    if s == 0:
                                        kv_full.wait(kv.stage, kv.phase)
                                    Tx.gemm_async(
                                        S_tmem[:, s * KEYS : (s + 1) * KEYS],
                                        Q_smem[s, :, :],
                                        KV_smem[kv.stage, :, :],
                                        accum=False,
                                        dispatch="tcgen05",
                                        cta_group=1,
                                    )
                                    s_ready.arrive(s)
                                    if i + 2 == tiles.blocks:
                                        q_empty.arrive(s)
                                else:
                                    o_ready.arrive(s)
                            if i + 1 < tiles.blocks:
                                kv_empty.arrive(kv.stage)
                                kv.advance()
                            p.advance()
                        q.advance()
                        tiles.next_tile()
            elif warp == 2:
                if T.cuda.elect_sync():
                    out = PipelineState(1, 0)
                    while tiles.valid():
                        for s in T.unroll(Q_TILES):
                            q0 = T.meta_var((tiles.m_block * Q_TILES + s) * QUERIES)
                            h0 = T.meta_var(tiles.group * GROUP)
                            out_full.wait(s, out.phase)
                            Tx.copy_async(
                                O[tiles.batch, q0 : q0 + QUERIES, h0 : h0 + GROUP, :],
                                O_packed[s, :, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                        for s in T.unroll(Q_TILES):
                            T.ptx["cp.async.bulk.wait_group.read"](Q_TILES - 1 - s)
                            out_empty.arrive(s)
                        out.advance()
                        tiles.next_tile()
                    T.ptx["cp.async.bulk.wait_group"](0)  # SMEM outlives the last stores
        elif warpgroup == 2:
            # Correction: one row of each Q tile per thread.
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](56)
            o_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, CHUNK), "float32")
            o = o_frag.local(CHUNK)
            out_regs = T.alloc_local((CHUNK,), "float16")
            done = PipelineState(1, 0)
            for s in T.unroll(Q_TILES):
                p_ready.arrive(s)
            while tiles.valid():
                for _ in T.serial(tiles.blocks - 1, unroll=False):
                    for s in T.unroll(Q_TILES):
                        T.ptx["bar.sync"](T.cast(FACTOR + s, "uint32"), T.uint32(256))
                        factor: T.float32 = mailbox[s, 0, row]
                        smaller = T.meta_var(T.cast(factor < T.float32(2.0), "int32"))
                        if T.cuda.any_sync(T.uint32(0xFFFFFFFF), smaller) != 0:
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            for c in T.unroll(D // CHUNK):
                                c0 = T.meta_var(s * D + c * CHUNK)
                                Tx.wg.copy_async(o_frag[:, :], O_tmem[:, c0 : c0 + CHUNK])
                                T.ptx["tcgen05.wait::ld.sync.aligned"]()
                                Tx.mul(o[:], o[:], factor, rounding_mode="rn")
                                Tx.wg.copy_async(O_tmem[:, c0 : c0 + CHUNK], o_frag[:, :])  # <- here
                            T.ptx["tcgen05.wait::st.sync.aligned"]()
                            T.ptx["tcgen05.fence::before_thread_sync"]()
                        p_ready.arrive(s)
                for s in T.unroll(Q_TILES):
                    T.ptx["bar.sync"](T.cast(SUM + s, "uint32"), T.uint32(256))
                    total: T.float32 = mailbox[s, 1, row]
                    sum_read.arrive(s)
                    scale: T.float32 = T.if_then_else(
                        total > T.float32(0.0), T.float32(1.0) / total, T.float32(0.0)
                    )
                    o_ready.wait(s, done.phase)
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    out_empty.wait(s, done.phase ^ 1)
                    for c in T.unroll(D // CHUNK):
                        c0 = T.meta_var(c * CHUNK)
                        Tx.wg.copy_async(o_frag[:, :], O_tmem[:, s * D + c0 : s * D + c0 + CHUNK])
                        T.ptx["tcgen05.wait::ld.sync.aligned"]()
                        Tx.mul(o[:], o[:], scale, rounding_mode="rn")
                        Tx.cast(out_regs[:], o[:])
                        Tx.copy(O_smem[s, row, c0 : c0 + CHUNK], out_regs[:])
                    T.ptx["tcgen05.fence::before_thread_sync"]()
                    p_ready.arrive(s)
                    T.ptx["fence.proxy.async.shared::cta"]()
                    out_full.arrive(s)
                done.advance()
                tiles.next_tile()
        elif warpgroup < Q_TILES:
            # Softmax of Q tile `warpgroup`: one row per thread.
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](200)
            s_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, KEYS), "float32")
            p_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, KEYS), "float16")
            x = s_frag.local(KEYS)  # this thread's 128 scores ...
            weights = p_frag.local(KEYS)  # ... and its 128 weights
            block_max = T.alloc_local((1,), "float32")
            block_sum = T.alloc_local((1,), "float32")
            whole = T.alloc_local((16,), "float32")  # for exp2_by_fma
            power = T.alloc_local((16,), "float32")
            scores = PipelineState(1, 0)
            mail = PipelineState(1, 1)
            while tiles.valid():
                query0 = T.meta_var((tiles.m_block * Q_TILES + warpgroup) * QUERIES)  # of row 0
                query = T.meta_var(query0 + row // GROUP)
                row_max: T.float32 = T.float32(float("-inf"))  # what the weights refer to
                row_sum: T.float32 = T.float32(0.0)
                for i in T.serial(tiles.blocks, unroll=False):
                    k0 = T.meta_var((tiles.blocks - 1 - i) * KEYS)  # the first key of this block
                    s_ready.wait(warpgroup, scores.phase)
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    for c in T.unroll(KEYS // CHUNK):
                        c0 = T.meta_var(c * CHUNK)
                        s0 = T.meta_var(warpgroup * KEYS + c0)
                        Tx.wg.copy_async(s_frag[:, c0 : c0 + CHUNK], S_tmem[:, s0 : s0 + CHUNK])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    seen = T.meta_var(T.min(query + 1 + OFFSET, SKV) if CAUSAL else SKV)
                    least = T.meta_var(T.min(query0 + 1 + OFFSET, SKV) if CAUSAL else SKV)
                    if k0 + KEYS > least:
                        edge: T.int32 = seen - k0
                        for j in T.unroll(KEYS):
                            x[j] = T.Select(j < edge, x[j], T.float32(float("-inf")))
                    Tx.max(block_max[:], x[:])
                    factor: T.float32 = T.float32(1.0)
                    if (block_max[0] - row_max) * T.float32(SCALE_LOG2) > T.float32(THRESHOLD):
                        factor = T.exp2((row_max - block_max[0]) * T.float32(SCALE_LOG2))
                        row_max = block_max[0]
                    if i > 0:
                        mailbox[warpgroup, 0, row] = factor
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        T.ptx["bar.arrive"](T.cast(FACTOR + warpgroup, "uint32"), T.uint32(256))
                    shift: T.float32 = T.if_then_else(
                        row_max == T.float32(float("-inf")), T.float32(0.0), row_max * T.float32(-SCALE_LOG2)
                    )
                    for part in T.unroll(2):
                        j0 = T.meta_var(part * PART)
                        j1 = T.meta_var(j0 + PART - FMA_KEYS)
                        j2 = T.meta_var(j0 + PART)
                        Tx.fma(x[j0:j2], x[j0:j2], T.float32(SCALE_LOG2), shift, rounding_mode="rn")
                        Tx.exp2(x[j0:j1], x[j0:j1])
                        if FMA_KEYS > 0:
                            exp2_by_fma(x, j1, whole, power)
                        Tx.cast(weights[j0:j2], x[j0:j2])
                        for c in T.unroll(PART // PAIR):
                            c0 = T.meta_var(j0 + c * PAIR)
                            p0 = T.meta_var(warpgroup * 2 * KEYS + c0)
                            Tx.wg.copy_async(P_tmem[:, p0 : p0 + PAIR], p_frag[:, c0 : c0 + PAIR])
                        T.ptx["tcgen05.wait::st.sync.aligned"]()
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        if part == 0:
                            p_ready.arrive(warpgroup)
                        else:
                            p_rest.arrive(warpgroup)
                    Tx.sum(block_sum[:], x[:])
                    row_sum = row_sum * factor + block_sum[0]
                    scores.advance()
                sum_read.wait(warpgroup, mail.phase)
                mailbox[warpgroup, 1, row] = row_sum
                T.ptx["bar.arrive"](T.cast(SUM + warpgroup, "uint32"), T.uint32(256))
                mail.advance()
                tiles.next_tile()

        T.cuda.cta_sync()
        tmem.dealloc()

    return flash_attention
