#!/usr/bin/env python3
"""Time `qkv bench` beside PyTorch and ONNX Runtime: same shapes, threads and run.

Attention alone, and whole models with random weights: BERT-base, and GPT-2 decoding and reading a
prompt (model_peers.py). Where a peer can do a case in several ways, the fastest is taken.

All take turns: in each turn every contender is warmed up and timed for a moment, so that what else
the machine does falls on all of them. Reported are medians over the turns (or, with --fastest, the
fastest runs, for a machine that others use too). A ratio is our speed over the peer's: above 1,
ours is faster.

Peers that are not installed are left out. To have both:
    python3 -m venv peers && peers/bin/pip install torch onnxruntime onnx numpy
    peers/bin/python bench/peers.py --threads 2
"""

import argparse
import functools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from model_peers import MODEL_CASES, STEPS, ModelCase, torch_variants
from onnx_models import onnxruntime_variants

INSTALL = "pip install torch onnxruntime onnx numpy"


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple  # B, H, Hk, Sq, Sk, D
    causal: bool = False
    backward: bool = False

    rate, rate_unit = "gflops", "GFLOP/s"

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    def flops(self):
        b, h, _, sq, sk, d = self.shape
        forward = 4 * b * h * sq * sk * d * (0.5 if self.causal else 1)
        return forward * (2.5 if self.backward else 1)

    def per_second(self, ms):
        return self.flops() / ms * 1e-6

    def describe(self):
        return {"shape": self.shape, "mask": self.mask, "backward": self.backward}


CASES = [
    Case("1x12x512x64 full", (1, 12, 12, 512, 512, 64)),
    Case("1x12x2048x64 causal", (1, 12, 12, 2048, 2048, 64), causal=True),
    Case("8x12x128x64 full", (8, 12, 12, 128, 128, 64)),
    Case("1x32x1024x128 causal", (1, 32, 32, 1024, 1024, 128), causal=True),
    Case("decode 32/8, 4096 keys, 128", (1, 32, 8, 1, 4096, 128)),
    Case("1x12x512x64 full, backward", (1, 12, 12, 512, 512, 64), backward=True),
]


class Qkv:
    """The command of this project, started anew in every turn."""

    name = "qkv"

    def __init__(self, binary, threads):
        self.binary, self.threads, self.info = binary, threads, {}

    def prepare(self, case, dtype):
        """Gets ready for turns of a case; returns its dtype and which variant it is, if any."""
        self.prefix = ""
        if isinstance(case, ModelCase):
            what = ["model", case.model, "--batch", case.batch, "--tokens", case.tokens]
            if case.decode:
                self.prefix = "decode_"
                what += ["--repeat", 1]  # of what comes before decoding
            what += ["--decode", STEPS if case.decode else 0]
        else:
            what = ["attention", "--no-baseline", "--shape", ",".join(map(str, case.shape)),
                    "--mask", case.mask] + ["--backward"] * case.backward
        self.command = [self.binary, "bench", *map(str, what), "--dtype", dtype, "--threads",
                        str(self.threads), "--json"]
        return dtype, ""

    def turn(self, seconds):
        run = subprocess.run(self.command, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr.strip())
        self.info = json.loads(run.stdout)
        return self.info[f"{self.prefix}ms"], self.info[f"{self.prefix}ms_fastest"]


def time_calls(call, seconds, least=3):
    """Median and fastest of as many calls as take `seconds`, after one that is not timed."""
    call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        result = call()  # freed after the clock was read
        times.append(1e3 * (time.perf_counter() - start))
        del result
    return statistics.median(times), min(times)


def choose_fastest(peer, variants):
    """Of variants (name, dtype, what makes the call): the call, the dtype and the name of one."""
    ready = []
    for name, dtype, build in variants:
        try:
            call = build()
            call()
            ready.append((call, dtype, name))
        except Exception as error:  # what this version lacks for this dtype
            print(f"{peer}: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    if not ready:
        raise NotImplementedError("no way to do this case")
    if len(ready) == 1:
        return ready[0]
    # They take turns too, and the fastest runs count: a busy moment must not choose.
    rounds = [[min(time_calls(call, 0.1, least=1)) for call, _, _ in ready] for _ in range(3)]
    fastest = [min(times) for times in zip(*rounds)]
    for ms, (_, _, name) in zip(fastest, ready):
        print(f"{peer}: {name}: {ms:.3f} ms", file=sys.stderr)
    return ready[fastest.index(min(fastest))]


class Torch:
    name = "torch"

    def __init__(self, threads):
        import torch
        self.torch = torch
        self.version = torch.__version__
        torch.set_num_threads(threads)

    def prepare(self, case, dtype):
        if isinstance(case, ModelCase):
            self.call = None  # frees a model
            self.call, *used = choose_fastest(self.name, torch_variants(case, dtype))
            return used
        torch = self.torch
        b, h, hk, sq, sk, d = case.shape
        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        torch.manual_seed(1)
        q, k, v = (torch.randn(b, heads, rows, d).to(kind)
                   for heads, rows in ((h, sq), (hk, sk), (hk, sk)))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": case.causal, "enable_gqa": h != hk}
        if case.backward:
            for x in (q, k, v):
                x.requires_grad_()
            out, dout = sdpa(q, k, v, **options), torch.randn(b, h, sq, d).to(kind)
            self.call = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
        else:
            def forward():
                with torch.inference_mode():
                    return sdpa(q, k, v, **options)
            self.call = forward
        return dtype, ""

    def turn(self, seconds):
        return time_calls(self.call, seconds)


class OnnxRuntime:
    """The standard Attention operator or ONNX Runtime's own ones; models of the latter."""

    name = "onnxruntime"

    def __init__(self, threads):
        import numpy
        import onnx
        import onnxruntime
        self.np, self.onnx, self.ort = numpy, onnx, onnxruntime
        self.version = onnxruntime.__version__
        self.threads = threads

    def prepare(self, case, dtype):
        if case.backward:
            raise NotImplementedError("no training")
        self.call = None  # frees a model
        if isinstance(case, ModelCase):
            variants = onnxruntime_variants(case, dtype, self.threads)
        else:
            variants = self.attention_variants(case, dtype)
        self.call, *used = choose_fastest(self.name, variants)
        return used

    def attention_variants(self, case, dtype):
        # No bf16 on the CPU; f16 is its low precision.
        used = "f32" if dtype == "f32" else "f16"
        kind = self.np.float32 if dtype == "f32" else self.np.float16
        _, h, hk, sq, sk, _ = case.shape
        builders = [self.standard]
        if h == hk:
            builders.append(self.multi_head)
        if sq == 1 or (case.causal and sq == sk):
            builders.append(self.group_query)
        return [(build.__name__, used, functools.partial(build, case, kind)) for build in builders]

    def turn(self, seconds):
        return time_calls(self.call, seconds)

    def session(self, node, arrays, outputs):
        """One node as a model; its inputs are named and shaped as `arrays`."""
        helper = self.onnx.helper

        def info(name, dtype, shape):
            kind = helper.np_dtype_to_tensor_dtype(dtype)
            return helper.make_tensor_value_info(name, kind, shape)

        some = next(iter(arrays.values())).dtype
        graph = helper.make_graph(
            [node], "attention", [info(name, x.dtype, x.shape) for name, x in arrays.items()],
            [info(name, some, shape) for name, shape in outputs.items()])
        model = helper.make_model(graph, opset_imports=[
            helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 11  # of opset 23
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        return self.ort.InferenceSession(model.SerializeToString(), options,
                                         providers=["CPUExecutionProvider"])

    def draw(self, kind, *shape):
        return self.np.random.default_rng(1).standard_normal(shape).astype(kind)

    def standard(self, case, kind):
        b, h, hk, sq, sk, d = case.shape
        arrays = {"q": self.draw(kind, b, h, sq, d), "k": self.draw(kind, b, hk, sk, d),
                  "v": self.draw(kind, b, hk, sk, d)}
        node = self.onnx.helper.make_node("Attention", list(arrays), ["out"],
                                          is_causal=int(case.causal))
        session = self.session(node, arrays, {"out": [b, h, sq, d]})
        return lambda: session.run(None, arrays)

    def multi_head(self, case, kind):
        b, h, _, sq, sk, d = case.shape
        arrays = {"q": self.draw(kind, b, sq, h * d), "k": self.draw(kind, b, sk, h * d),
                  "v": self.draw(kind, b, sk, h * d)}
        node = self.onnx.helper.make_node("MultiHeadAttention", list(arrays), ["out"],
                                          domain="com.microsoft", num_heads=h,
                                          unidirectional=int(case.causal))
        session = self.session(node, arrays, {"out": [b, sq, h * d]})
        return lambda: session.run(None, arrays)

    def group_query(self, case, kind):
        """Causal, with a cache that is updated in place: past and present are one buffer."""
        b, h, hk, sq, sk, d = case.shape
        np = self.np
        cache = [b, hk, sk, d]
        arrays = {"q": self.draw(kind, b, sq, h * d), "k": self.draw(kind, b, sq, hk * d),
                  "v": self.draw(kind, b, sq, hk * d), "past_key": self.draw(kind, *cache),
                  "past_value": self.draw(kind, *cache),
                  "seqlens_k": np.full(b, sk - 1, np.int32), "total": np.array([sk], np.int32)}
        outputs = {"out": [b, sq, h * d], "present_key": cache, "present_value": cache}
        node = self.onnx.helper.make_node("GroupQueryAttention", list(arrays), list(outputs),
                                          domain="com.microsoft", num_heads=h, kv_num_heads=hk)
        session = self.session(node, arrays, outputs)
        values = {name: self.ort.OrtValue.ortvalue_from_numpy(x) for name, x in arrays.items()}
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("present_key", values["past_key"])
        binding.bind_ortvalue_output("present_value", values["past_value"])
        binding.bind_output("out")

        def call():
            session.run_with_iobinding(binding)
            return values  # keeps the buffers alive

        return call


def find_qkv():
    root = pathlib.Path(__file__).resolve().parent.parent
    found = sorted(root.glob("build*/bin/qkv")) + sorted(root.glob("build/*/bin/qkv"))
    found = [path for path in found if "release" in str(path)] or found
    return str(found[0]) if found else None


def make_contenders(binary, threads):
    contenders = [Qkv(binary, threads)]
    for peer in (Torch, OnnxRuntime):
        try:
            contenders.append(peer(threads))
        except ImportError as error:
            print(f"{peer.name} is left out ({error}); to have it: {INSTALL}", file=sys.stderr)
    return contenders


def run_case(case, dtype, contenders, args):
    """One row: the median of every contender that can run the case."""
    row = {"case": case.name, **case.describe(), "dtype": dtype, "threads": args.threads}
    ready = []
    for contender in contenders:
        try:
            used, variant = contender.prepare(case, dtype)
        except NotImplementedError as error:
            print(f"{contender.name}: {case.name} {dtype}: {error}", file=sys.stderr)
            continue
        row[contender.name] = {"dtype": used} | ({"variant": variant} if variant else {})
        ready.append((contender, []))
    for turn in range(args.turns):
        print(f"{case.name} {dtype}: turn {turn + 1} of {args.turns}", file=sys.stderr)
        for contender, times in ready:
            times.append(contender.turn(args.seconds))
    for contender, times in ready:
        ms = {"ms": statistics.median(median for median, _ in times),
              "ms_fastest": min(fastest for _, fastest in times)}
        chosen = ms["ms_fastest" if args.fastest else "ms"]
        row[contender.name] |= ms | {case.rate: case.per_second(chosen)}
    ours = row["qkv"]
    for key in ("target", "peak_gflops", "gbytes_per_s"):
        if key in contenders[0].info:
            ours[key] = contenders[0].info[key]
    for contender, _ in ready[1:]:
        row[contender.name]["ratio"] = ours[case.rate] / row[contender.name][case.rate]
    return row


def print_table(rows, kind, contenders, fastest):
    """Of rows that are of one kind of case."""
    peers, ms, rate = contenders[1:], "ms_fastest" if fastest else "ms", kind.rate
    head = f"{'case':<28} {'dtype':<5} {'qkv ms':>9} {kind.rate_unit:>8}"
    for peer in peers:
        head += f" | {peer.name + ' ms':>14} {kind.rate_unit:>8} {'ratio':>6}"
    print(head)
    print("-" * len(head))
    for row in rows:
        ours = row["qkv"]
        line = f"{row['case']:<28} {row['dtype']:<5} {ours[ms]:>9.3f} {ours[rate]:>8.1f}"
        for peer in peers:
            cell = row.get(peer.name)
            if cell is None:
                line += f" | {'-':>14} {'-':>8} {'-':>6}"
                continue
            note = "" if cell["dtype"] == row["dtype"] else f" ({cell['dtype']})"
            line += (f" | {format(cell[ms], '.3f') + note:>14} {cell[rate]:>8.1f}"
                     f" {cell['ratio']:>6.2f}")
        print(line)
    print()


def print_conditions(rows, contenders, fastest):
    peers = contenders[1:]
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in peers) or "no peers"
    first = rows[0]
    print(f"{first['threads']} threads, target {first['qkv'].get('target', '?')}; {versions}; "
          f"{'fastest runs' if fastest else 'medians'}; ratio: our speed over the peer's")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qkv", default=find_qkv(),
                        help="the qkv command (default: build/bin/qkv)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for a peer in a turn")
    parser.add_argument("--dtypes", default="f32,bf16", help="of the forward cases")
    parser.add_argument("--what", choices=["attention", "models", "all"], default="all")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--fastest", action="store_true", help="compare the fastest runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.qkv is None or not os.access(args.qkv, os.X_OK):
        parser.error("no qkv command found: build it first, or name it with --qkv")
    if args.threads < 1 or args.turns < 1 or not math.isfinite(args.seconds):
        parser.error("--threads, --turns and --seconds must be positive")
    if unknown := set(args.dtypes.split(",")) - {"f32", "bf16", "f16", "i8"}:
        parser.error(f"unknown dtype {unknown.pop()}: expected f32, bf16, f16 or i8")
    cases = CASES * (args.what != "models") + MODEL_CASES * (args.what != "attention")
    args.cases = [case for case in cases if args.only in case.name]
    if not args.cases:
        parser.error(f"no case contains '{args.only}'")
    return args


def main():
    args = parse_arguments()
    contenders = make_contenders(args.qkv, args.threads)
    rows = []
    for case in args.cases:
        for dtype in ["f32"] if case.backward else args.dtypes.split(","):
            if dtype == "i8" and not isinstance(case, ModelCase):
                continue  # of the weights: attention alone has none
            rows.append((case, run_case(case, dtype, contenders, args)))
    if args.json:
        print(json.dumps([row for _, row in rows], indent=2))
        return
    for kind in (Case, ModelCase):
        if some := [row for case, row in rows if isinstance(case, kind)]:
            print_table(some, kind, contenders, args.fastest)
    print_conditions([row for _, row in rows], contenders, args.fastest)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
    except RuntimeError as error:
        sys.exit(f"peers.py: {error}")
