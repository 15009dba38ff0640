"""Record instruction results on an sm_90 GPU; see README.md (the repository must be on ``PYTHONPATH``)."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LANES = 2048  # run; the first KEPT are recorded
KEPT = 64
WARP_OPS = {
    "shfl_sync", "shfl_sync_p", "vote_sync", "vote_sync_ballot", "match_any_sync", "match_all_sync", "match_all_sync_p", "redux_sync",
    "redux_sync_bitwise", "mma", "mma_f16acc", "mma_int", "mma_f64", "movmatrix", "elect_sync",
}  # fmt: skip
NOT_ARITHMETIC = (
    "createpolicy",
    "cvta",
    "mapa",
    "mbarrier",
    "mov_pack_b64x2",
    "mov_unpack_b64x2",
    "mov_pack_b32x4",
    "mov_unpack_b32x4",
)
MANY = {
    "set_half_bool",
    "set_bool",
    "set_half",
    "setp_bool_pq",
    "setp_bool",
    "setp_half_bool_pq",
    "setp_half_bool",
}
IMMEDIATES = (0x96, 0xE2, 0x1B, 0x6A, 0xFE)

# PTX register class, inline assembly constraint, C type
CLASSES = {
    "h": ("h", "unsigned short"), "r": ("r", "unsigned"), "l": ("l", "unsigned long long"), "f": ("f", "float"), "d": ("d", "double"),
    "p": ("r", "unsigned"),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- list the variants


def register_class(ptx: str) -> str:
    """The class of the register that holds a PTX type."""
    if ptx in ("pred", "f32", "f64"):
        return {"pred": "p", "f32": "f", "f64": "d"}[ptx]
    if ptx in ("f32x2", "b64", "u64", "s64", "b64i"):
        return "l"
    if ptx in ("f16", "bf16", "b16", "u16", "s16", "e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2"):
        return "h"
    return "" if ptx in ("b128", "b8", "e2m1x2", "cvt_scale_ue8m0") else "r"


def list_variants() -> list[dict[str, Any]]:
    """Every variant of the implemented register instructions, with its operands."""
    from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, operand_type, variants

    import emulator.kernel  # noqa: F401 - registers the instructions
    from emulator.instructions import REGISTRY

    out = []
    for name, entry in TABLE.items():
        known = REGISTRY.get(f"tirx.ptx.{name}")
        if (
            known is None
            or not (known.pure or name in WARP_OPS)
            or name == "mov"
            or name.startswith(NOT_ARITHMETIC)
        ):
            continue
        chosen = list(variants(entry))
        if name in MANY:
            chosen = chosen[:: max(1, len(chosen) // 24)]
        for tokens in chosen:
            modifiers = mods(entry, tokens)
            operands, legal = [], True
            for slot, _, count in operand_layout(entry, modifiers):
                if slot.kind == "imm":
                    operands.append({"class": "imm", "count": count, "pipe": slot.pipe})
                    continue
                ptx = operand_type(slot, modifiers)
                kind = register_class(ptx) if slot.kind == "reg" else ""
                legal = legal and bool(kind)
                data = (
                    {"a": "atype", "b": "btype", "c": "ctype"}.get(slot.name)
                    if name.startswith("mma")
                    else None
                )
                pool = f"mma:{modifiers[data]}" if data else "full" if slot.name == "membermask" else ptx
                operands.append(
                    {
                        "class": kind,
                        "ptx": ptx,
                        "count": count,
                        "rw": slot.rw,
                        "pipe": slot.pipe,
                        "pool": pool,
                    }
                )
            if legal:
                opcode = ".".join([entry.ptx_name, *(t for t in tokens if t)])
                out.append({"name": name, "tokens": list(tokens), "opcode": opcode, "operands": operands})
    return out


# ---------------------------------------------------------------------------------------------- operands

RNG = np.random.default_rng(1)
EDGES16 = {
    "f16": [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x3555, 0x4900, 0x5000, 0x1400],
    "bf16": [0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x3EAB, 0x4120, 0x4200, 0x3280],
}  # fmt: skip
EDGES32 = [
    0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F7FFFFF,
    0xFF7FFFFF, 0x3EAAAAAB, 0x41200000, 0x4B800001, 0x4B000001, 0x3F000000, 0x40200000, 0xC0200000, 0x47800000, 0x4EFFFFFF, 0x4F000000,
    0x4F800000, 0x5F000000, 0x43E00000, 0x43E80000, 0x47600000, 0x47700000,
]  # fmt: skip
EDGES64 = [
    0,
    1 << 63,
    0x3FF0 << 48,
    0x7FF0 << 48,
    0xFFF0 << 48,
    0x7FF8 << 48,
    1,
    0x41DFFFFFFFC00000,
    0x47EFFFFFE0000000,
    0x380FFFFFE0000000,
]


def mixed(edges: list[int], values: np.ndarray) -> np.ndarray:
    some = np.array(edges, np.uint64)[RNG.integers(0, len(edges), LANES)]
    return np.where(RNG.random(LANES) < 0.45, some, values.astype(np.uint64))


def floats32() -> np.ndarray:
    spread = (
        (RNG.standard_normal(LANES) * np.exp2(RNG.integers(-20, 20, LANES)))
        .astype(np.float32)
        .view(np.uint32)
    )
    bits = RNG.integers(0, 1 << 32, LANES, dtype=np.uint64).astype(np.uint32)
    dyadic = (
        (RNG.integers(-1000, 1000, LANES) / np.exp2(RNG.integers(0, 5, LANES)))
        .astype(np.float32)
        .view(np.uint32)
    )
    return mixed(EDGES32, np.choose(RNG.integers(0, 3, LANES), [spread, bits, dyadic]))


def floats16(fmt: str) -> np.ndarray:
    bits = RNG.integers(0, 1 << 16, LANES).astype(np.uint16)
    return mixed(EDGES16[fmt], np.where(RNG.random(LANES) < 0.4, bits, normal16(fmt)))


def normal16(fmt: str) -> np.ndarray:
    v = RNG.standard_normal(LANES)
    return (
        v.astype(np.float16).view(np.uint16)
        if fmt == "f16"
        else (v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    )


def integers(bits: int) -> np.ndarray:
    top = (1 << bits) - 1
    edges = [
        0,
        1,
        2,
        3,
        5,
        top,
        top - 1,
        1 << (bits - 1),
        (1 << (bits - 1)) - 1,
        (1 << (bits - 1)) + 1,
        0x55555555 & top,
        15,
        16,
        31,
        32,
    ]
    wide = RNG.integers(0, 1 << 63, LANES, dtype=np.uint64) * 2 + RNG.integers(0, 2, LANES).astype(np.uint64)
    small = RNG.integers(0, 70, LANES).astype(np.uint64)
    return mixed(edges, np.where(RNG.random(LANES) < 0.4, small, wide & np.uint64(top))) & np.uint64(top)


def pair(low: np.ndarray, high: np.ndarray, bits: int) -> np.ndarray:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(bits)


def operand(pool: str, kind: str) -> np.ndarray:
    """One 64-bit container per lane."""
    if pool == "pred":
        return RNG.integers(0, 2, LANES).astype(np.uint64)
    if pool == "full":
        return np.full(LANES, 0xFFFFFFFF, np.uint64)
    if pool.startswith("mma:"):
        return mma_operand(pool[4:])
    if pool in ("f32", "tf32"):
        return floats32()
    if pool == "f64":
        return mixed(
            EDGES64, (RNG.standard_normal(LANES) * np.exp2(RNG.integers(-40, 40, LANES))).view(np.uint64)
        )
    if pool in ("f16", "bf16"):
        return floats16(pool)
    if pool in ("f16x2", "bf16x2"):
        return pair(floats16(pool[:-2]), floats16(pool[:-2]), 16)
    if pool == "f32x2":
        return pair(floats32(), floats32(), 32)
    return integers({"h": 16, "r": 32, "l": 64}[kind])


def mma_operand(fmt: str) -> np.ndarray:
    """Moderate numbers, so that sums neither overflow nor vanish."""
    if fmt in ("f32", "tf32"):
        return RNG.standard_normal(LANES).astype(np.float32).view(np.uint32).astype(np.uint64)
    if fmt == "f64":
        return RNG.standard_normal(LANES).view(np.uint64)
    if fmt in ("f16", "bf16"):
        return pair(normal16(fmt), normal16(fmt), 16)
    if fmt == "s32":
        return RNG.integers(-100000, 100000, LANES).astype(np.int32).view(np.uint32).astype(np.uint64)
    bits = RNG.integers(0, 1 << 32, LANES, dtype=np.uint64)
    return bits & np.uint64(0xBFBFBFBF) if fmt in ("e4m3", "e5m2") else bits


# ---------------------------------------------------------------------------------------------- one kernel per variant


class Kernel:
    """CUDA source of one variant and the pools that its inputs come from."""

    def __init__(self, index: int, variant: dict[str, Any], immediate: int | None) -> None:
        self.variant, self.immediate, self.name = variant, immediate, f"k{index}"
        self.inputs: list[tuple[str, str]] = []
        self.outputs: list[str] = []
        declare, prologue, epilogue, outs, ins, texts = [], [], [], [], [], []
        for o in variant["operands"]:
            if o["class"] == "imm":
                texts.append((str(immediate), o["pipe"]))
                continue
            names = []
            for _ in range(o["count"]):
                constraint, c_type = CLASSES[o["class"]]
                if o["rw"] == "w":
                    v = f"o{len(self.outputs)}"
                    self.outputs.append(o["class"])
                    declare.append(f"{c_type} {v} = 0;")
                    outs.append((v, constraint))
                    if o["class"] == "p":
                        prologue.append(f".reg .pred q{v};")
                        epilogue.append(f"selp.u32 @{v}, 1, 0, q{v};")
                        names.append(f"q{v}")
                        continue
                else:
                    v = f"a{len(self.inputs)}"
                    declare.append(f"{c_type} {v} = {self._load(o['class'], len(self.inputs))};")
                    self.inputs.append((o["pool"], o["class"]))
                    ins.append((v, constraint))
                    if o["class"] == "p":
                        prologue.append(f".reg .pred q{v}; setp.ne.u32 q{v}, @{v}, 0;")
                        names.append(f"q{v}")
                        continue
                names.append(f"@{v}")
            if names:
                group = len(names) > 1 or variant["name"].startswith("mma")
                texts.append(("{" + ", ".join(names) + "}" if group else names[0], o["pipe"]))
        joined: list[tuple[str, str | None]] = []
        for text, pipe in texts:
            if pipe and joined and joined[-1][1] == pipe:
                joined[-1] = (f"{joined[-1][0]}|{text}", pipe)
            else:
                joined.append((text, pipe))
        body = " ".join(
            ["{", *prologue, f"{variant['opcode']} {', '.join(t for t, _ in joined)};", *epilogue, "}"]
        )
        number = {v: f"%{k}" for k, (v, _) in enumerate(outs + ins)}
        body = re.sub(r"@(\w+)", lambda m: number[m.group(1)], body)
        stores = "".join(
            f"out[{k}ull * n + i] = {self._bits(c, f'o{k}')};" for k, c in enumerate(self.outputs)
        )
        self.source = (
            f'extern "C" __global__ void {self.name}(const unsigned long long* in, unsigned long long* out, int n) {{'
            f"int i = blockIdx.x * blockDim.x + threadIdx.x; {' '.join(declare)}"
            f'asm volatile("{body}" : {", ".join(f"{chr(34)}={c}{chr(34)}({v})" for v, c in outs)}'
            f" : {', '.join(f'{chr(34)}{c}{chr(34)}({v})' for v, c in ins)}); {stores} }}"
        )

    @staticmethod
    def _load(kind: str, index: int) -> str:
        raw = f"in[{index}ull * n + i]"
        return {"f": f"__uint_as_float((unsigned){raw})", "d": f"__longlong_as_double((long long){raw})"}.get(
            kind, f"({CLASSES[kind][1]}){raw}"
        )

    @staticmethod
    def _bits(kind: str, value: str) -> str:
        inner = {"f": f"__float_as_uint({value})", "d": f"__double_as_longlong({value})"}.get(kind, value)
        return f"(unsigned long long){inner}"


def compile_all(sources: list[str], folder: str) -> list[str | None]:
    """A cubin path per source; None where ptxas rejects it. Rejected batches are split."""

    def build(ids: list[int]) -> list[tuple[int, str | None]]:
        path = f"{folder}/{ids[0]}_{len(ids)}"
        Path(f"{path}.cu").write_text("\n".join(sources[i] for i in ids))
        command = ["nvcc", "-arch=sm_90a", "-cubin", "-o", f"{path}.cubin", f"{path}.cu"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return [(i, f"{path}.cubin") for i in ids]
        if len(ids) == 1:
            return [(ids[0], None)]
        step = max(1, len(ids) // 4)
        return [r for a in range(0, len(ids), step) for r in build(ids[a : a + step])]

    batches = [list(range(a, min(a + 24, len(sources)))) for a in range(0, len(sources), 24)]
    with ThreadPoolExecutor(16) as pool:
        return [path for _, path in sorted(r for batch in pool.map(build, batches) for r in batch)]


def run_registers(variants: list[dict[str, Any]], folder: str) -> None:
    import cupy

    kernels = []
    for v in variants:
        for immediate in IMMEDIATES if any(o["class"] == "imm" for o in v["operands"]) else (None,):
            kernels.append(Kernel(len(kernels), v, immediate))
    paths = compile_all([k.source for k in kernels], folder)
    modules = {p: cupy.RawModule(path=p) for p in set(paths) if p}
    pools: dict[tuple[str, str, int], np.ndarray] = {}
    rows, results = [], []
    for kernel, path in zip(kernels, paths, strict=True):
        if path is None:
            continue
        keys = [(pool, kind, position) for position, (pool, kind) in enumerate(kernel.inputs)]
        for key in keys:
            if key not in pools:
                pools[key] = operand(key[0], key[1])
        device_in = cupy.asarray(np.stack([pools[key] for key in keys]))
        device_out = cupy.zeros((len(kernel.outputs), LANES), cupy.uint64)
        modules[path].get_function(kernel.name)(
            (LANES // 128,), (128,), (device_in, device_out, np.int32(LANES))
        )
        bits = [{"p": 8, "h": 16, "l": 64, "d": 64}.get(c, 32) for c in kernel.outputs]
        for row, b in zip(device_out.get()[:, :KEPT], bits, strict=True):
            results.append(row.astype(f"uint{b}").view(np.uint8))
        rows.append([kernel.variant["name"], kernel.variant["tokens"], kernel.immediate, keys, bits])
    names = sorted(pools)
    for row in rows:
        row[3] = [names.index(key) for key in row[3]]
    text = json.dumps(rows, separators=(",", ":")).encode()
    np.savez_compressed(
        HERE / "registers.npz", results=np.concatenate(results), inputs=np.stack([pools[n][:KEPT] for n in names]),
        rows=np.frombuffer(text, np.uint8),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- matrices


def matrix_source(num: int, trans: bool, store: bool) -> str:
    registers = ", ".join(f"%{k + 1 if store else k}" for k in range(num))
    mnemonic = f"{'stmatrix' if store else 'ldmatrix'}.sync.aligned.m8n8.x{num}{'.trans' if trans else ''}.shared.b16"
    quoted = ", ".join(f'"{"" if store else "="}r"(r[{k}])' for k in range(num))
    move = (
        f'asm volatile("{mnemonic} [%0], {{{registers}}};" :: "r"(a), {quoted} : "memory");'
        if store
        else f'asm volatile("{mnemonic} {{{registers}}}, [%{num}];" : {quoted} : "r"(a) : "memory");'
    )
    after = (
        "for (int i = t; i < 2048; i += 32) out[i] = s[i];"
        if store
        else f"for (int j = 0; j < {num}; j++) out[j * 32 + t] = r[j];"
    )
    return (
        f'extern "C" __global__ void {"st" if store else "ld"}{num}{"t" if trans else ""}'
        "(const unsigned* image, const unsigned* address, const unsigned* in, unsigned* out) {"
        " __shared__ __align__(1024) unsigned s[2048]; int t = threadIdx.x;"
        " for (int i = t; i < 2048; i += 32) s[i] = image[i]; __syncwarp();"
        f" unsigned a = (unsigned)__cvta_generic_to_shared(s) + address[t]; unsigned r[{num}];"
        f" for (int j = 0; j < {num}; j++) r[j] = in[j * 32 + t]; {move} __syncwarp(); {after} }}"
    )


def wgmma_source(case: dict[str, Any], name: str) -> str:
    n, dtype = case["n"], case["accumulator"]
    count = n // (4 if dtype == "f16" else 2)
    kind, c_type = ("f", "float") if dtype == "f32" else ("r", "unsigned")
    if case["a_in_registers"]:
        a, after = "{" + ", ".join(f"%{count + k}" for k in range(4)) + "}", count + 4
        operands = ", ".join(f'"r"(a[{k}])' for k in range(4))
    else:
        a, after, operands = f"%{count}", count + 1, '"l"(da)'
    accumulators = ", ".join(f"%{k}" for k in range(count))
    immediates = "".join(f", {v}" for v in case["immediates"])
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{case['k']}.{dtype}.{case['types']}"
    return f"""extern "C" __global__ void {name}(const unsigned* image, unsigned long long da, unsigned long long db,
        const unsigned* a_in, const unsigned* d_in, unsigned* d_out, int scale_d) {{
    extern __shared__ __align__(1024) unsigned s[];
    int t = threadIdx.x;
    for (int i = t; i < 16384; i += 128) s[i] = image[i];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    unsigned long long base = ((unsigned)__cvta_generic_to_shared(s) & 0x3ffff) >> 4;
    da += base; db += base;
    {c_type} d[{count}]; unsigned a[4];
    for (int j = 0; j < 4; j++) a[j] = a_in[j * 128 + t];
    for (int j = 0; j < {count}; j++) {{ unsigned v = d_in[j * 128 + t]; d[j] = *({c_type}*)&v; }}
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; {opcode} {{{accumulators}}}, {a}, %{after}, p{immediates}; }}"
        : {", ".join(f'"+{kind}"(d[{k}])' for k in range(count))} : {operands}, "l"(db), "r"(scale_d) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int j = 0; j < {count}; j++) d_out[j * 128 + t] = *(unsigned*)&d[j];
}}"""


def digest(x: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]


def run_matrices(folder: str) -> None:
    """Repeat the cases of matrix.json (instruction, descriptors, types) and write their results."""
    import cupy
    from inputs import IMAGE_WORDS, ROW_ADDRESSES, SEEDS, registers, words

    record = json.loads((HERE / "matrix.json").read_text())
    forms = [(num, trans, store) for num in (1, 2, 4) for trans in (False, True) for store in (False, True)]
    sources = [matrix_source(*form) for form in forms]
    sources += [wgmma_source(case, f"w{k}") for k, case in enumerate(record["wgmma"])]
    paths = compile_all(sources, folder)
    for form, path in zip(forms, paths, strict=False):
        num, trans, store = form
        name = f"{'st' if store else 'ld'}{num}{'t' if trans else ''}"
        out = cupy.zeros(2048 if store else (num, 32), cupy.uint32)
        arguments = [
            cupy.asarray(x) for x in (words(2048, 11), ROW_ADDRESSES.astype(np.uint32), words(32 * num, 12))
        ]
        cupy.RawModule(path=path).get_function(name)((1,), (32,), (*arguments, out))
        record["ldmatrix"][name] = digest(out.get())
    for k, (case, path) in enumerate(zip(record["wgmma"], paths[len(forms) :], strict=True)):
        types, count = case["types"], case["n"] // (4 if case["accumulator"] == "f16" else 2)
        first, seed = types.split(".")[0], SEEDS[types]
        image, a, d = (
            registers(first, IMAGE_WORDS, seed),
            registers(first, 512, 100 + seed),
            registers(case["accumulator"], 128 * count, 200 + seed),
        )
        function = cupy.RawModule(path=path).get_function(f"w{k}")
        function.max_dynamic_shared_size_bytes = 4 * IMAGE_WORDS
        out = cupy.zeros((count, 128), cupy.uint32)
        arguments = (
            cupy.asarray(image), np.uint64(case["a"]), np.uint64(case["b"]), cupy.asarray(a), cupy.asarray(d), out, np.int32(case["scale_d"]),
        )  # fmt: skip
        function((1,), (128,), arguments, shared_mem=4 * IMAGE_WORDS)
        case["sha256"] = digest(out.get())
    (HERE / "matrix.json").write_text(json.dumps(record, indent=0))


if __name__ == "__main__":
    step, file = sys.argv[1:3]
    if step == "list":
        Path(file).write_text(json.dumps(list_variants()))
    else:
        sys.path.insert(0, str(HERE))
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            run_registers(json.loads(Path(file).read_text()), one)
            run_matrices(two)
