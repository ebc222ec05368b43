#!/usr/bin/env python3
"""Time attention on a GPU: `qkv bench attention --device cuda` beside cuDNN and the flash kernel of
PyTorch, same shapes, same run.

16k tokens a batch and a hidden size of 2048, as attention papers report it, and decoding against a
long cache; with biases, masks of pairs, dropout and softcap (cases named `with`) also PyTorch's
memory-efficient kernel and FlexAttention. All take turns; reported are medians over the turns. A
ratio is our speed over the better peer's: above 1, ours is faster.

    python3 bench/peers_gpu.py --qkv build/cuda/bin/qkv
    python3 bench/peers_gpu.py --pause 30 --only fwd    # rested: what kernels do before power limits
    python3 bench/peers_gpu.py --dtype f32 --only D64
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass

TOKENS, HIDDEN = 16384, 2048


@dataclass(frozen=True)
class Case:
    shape: tuple  # B, H, Hk, Sq, Sk, D
    causal: bool = False
    backward: bool = False
    extra: str = ""  # what is done to single pairs: one of EXTRAS

    @property
    def is_decode(self):
        return self.shape[3] == 1

    @property
    def name(self):
        b, h, hk, sq, sk, d = self.shape
        if self.is_decode:
            return f"decode B{b} L{sk} {h}/{hk} D{d}"
        mask = "causal" if self.causal else "full"
        return f"{'bwd' if self.backward else 'fwd'} D{d} S{sk} {mask}" + (
            f" with {self.extra}" if self.extra else "")

    def speed(self, ms, dtype):
        """TFLOP/s, or TB/s of keys and values where memory is what counts."""
        b, h, hk, sq, sk, d = self.shape
        if self.is_decode:
            return 2 * b * hk * sk * d * (4 if dtype == "f32" else 2) / ms * 1e-9
        flops = 4 * b * h * sq * sk * d * (0.5 if self.causal else 1)
        return flops * (2.5 if self.backward else 1) / ms * 1e-9


# What `qkv bench attention` is told for each.
EXTRAS = {"": [], "bias": ["--bias", "fixed"], "dbias": ["--bias", "tensor"],
          "pair mask": ["--pair-mask"], "dropout": ["--dropout", "0.1"],
          "softcap": ["--softcap", "30"], "alibi": ["--bias", "alibi"],
          "relative": ["--bias", "relative"], "sinks": ["--sinks"]}


def square(d, s, **options):
    heads = HIDDEN // d
    return Case((TOKENS // s, heads, heads, s, s, d), **options)


CASES = [square(d, s, causal=causal, backward=backward)
         for backward in (False, True)
         for d, s in ((64, 512), (64, 2048), (64, 16384), (128, 512), (128, 2048), (128, 16384),
                      (256, 16384))
         for causal in (False, True)]
CASES += [square(d, 2048, causal=causal, backward=backward)
          for backward in (False, True) for d in (32, 96, 192) for causal in (False, True)]
CASES += [square(d, 2048, causal=causal, backward=backward, extra=extra)
          for backward in (False, True)
          for d in (64, 128)
          for extra, causal in (("bias", False), ("pair mask", False), ("dropout", True),
                                ("softcap", True), ("alibi", True), ("relative", False),
                                ("sinks", True))]
CASES += [square(64, 2048, backward=True, extra="dbias")]
CASES += [Case((b, 32, 8, 1, length, 128))
          for b, length in ((64, 8192), (16, 8192), (1, 65536), (1, 8192))]


class Qkv:
    name = "qkv"

    def __init__(self, binary, pause_ms):
        self.binary, self.pause_ms = binary, pause_ms

    def time(self, case, dtype):
        command = [self.binary, "bench", "attention", "--device", "cuda", "--json", "--dtype", dtype,
                   "--shape", ",".join(map(str, case.shape)),
                   "--mask", "causal" if case.causal else "full", "--pause", str(self.pause_ms)]
        command += EXTRAS[case.extra] + ["--backward"] * case.backward
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr.strip())
        self.info = json.loads(run.stdout)
        return self.info["ms"]


class Torch:
    """One kernel of scaled_dot_product_attention."""

    def __init__(self, name, kernel, pause_ms):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.name, self.pause_ms = torch, name, pause_ms
        self.only = lambda: sdpa_kernel(getattr(SDPBackend, kernel))

    def time(self, case, dtype):
        torch = self.torch
        b, h, hk, sq, sk, d = case.shape
        kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]

        def draw(heads, rows):
            return torch.randn(b, heads, rows, d, dtype=kind, device="cuda",
                               requires_grad=case.backward)
        q, k, v = draw(h, sq), draw(hk, sk), draw(hk, sk)
        forward = self.forward(case, q, k, v)
        with self.only():
            if not case.backward:
                return self.median(forward)
            out = forward()
            dout = torch.randn_like(out)
            return self.median(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))

    def forward(self, case, q, k, v):
        torch = self.torch
        (_, h, hk, sq, sk, _), extra = case.shape, case.extra
        mask = None
        if extra in ("bias", "dbias"):
            mask = torch.randn(1, h, sq, sk, dtype=q.dtype, device="cuda",
                               requires_grad=extra == "dbias")
        elif extra == "pair mask":
            mask = torch.rand(1, 1, sq, sk, device="cuda") >= 0.125
        elif extra not in ("", "dropout"):
            raise RuntimeError(f"no {extra} here")
        dropout = 0.1 if extra == "dropout" else 0.0
        return lambda: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=case.causal, dropout_p=dropout, enable_gqa=h != hk)

    def median(self, call, seconds=0.1):
        torch = self.torch
        for _ in range(3):
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        while sum(times) < 1e3 * seconds / 10 or len(times) < 5:
            if self.pause_ms:  # as `qkv bench --pause`: rest, and what is not timed
                time.sleep(1e-3 * self.pause_ms)
                for _ in range(10):
                    call()
            begin.record()
            for _ in range(10):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 10)
        return statistics.median(times)


class Flex(Torch):
    """FlexAttention, compiled for what is done to pairs."""

    def __init__(self, pause_ms):
        import contextlib
        import torch
        from torch.nn.attention import flex_attention
        self.torch, self.name, self.pause_ms = torch, "flex", pause_ms
        self.only, self.flex = contextlib.nullcontext, flex_attention
        torch._dynamo.config.recompile_limit = 1000  # beyond 8 it would not compile any more
        torch._functorch.config.donated_buffer = False  # or a graph could not be kept
        self.compiled = torch.compile(flex_attention.flex_attention, dynamic=False)

    def forward(self, case, q, k, v):
        torch, extra = self.torch, case.extra
        (_, h, hk, sq, sk, _) = case.shape
        causal, allowed, change = None, None, None
        if extra == "bias":
            bias = torch.randn(h, sq, sk, dtype=q.dtype, device="cuda")
            change = lambda score, b, head, i, j: score + bias[head, i, j]
        elif extra == "relative":
            table = torch.randn(h, sq + sk, device="cuda")
            change = lambda score, b, head, i, j: score + table[head, j - i + sq]
        elif extra == "softcap":
            change = lambda score, b, head, i, j: 30 * torch.tanh(score / 30)
        elif extra == "alibi":
            slopes = torch.rand(h, device="cuda")
            change = lambda score, b, head, i, j: score - slopes[head] * (i - j)
        elif extra == "pair mask":
            allowed = torch.rand(sq, sk, device="cuda") >= 0.125
        else:
            raise RuntimeError("not asked")
        if case.causal:
            causal = lambda b, head, i, j: i >= j
        elif allowed is not None:
            causal = lambda b, head, i, j: allowed[i, j]
        blocks = causal and self.flex.create_block_mask(causal, None, None, sq, sk, device="cuda")
        return lambda: self.compiled(q, k, v, score_mod=change, block_mask=blocks,
                                     enable_gqa=h != hk)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qkv", default="build/cuda/bin/qkv", help="the qkv command")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0, metavar="MS",
                        help="rest before each timed run, so that power does not limit it")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="say what a peer cannot do")
    parser.add_argument("--json", help="write all results to this file")
    options = parser.parse_args()

    contenders = [Qkv(options.qkv, options.pause)]
    warnings.simplefilter("ignore")  # PyTorch's, about kernels that are not served
    try:
        import torch
        contenders += [Torch("cudnn", "CUDNN_ATTENTION", options.pause),
                       Torch("flash", "FLASH_ATTENTION", options.pause),
                       Torch("efficient", "EFFICIENT_ATTENTION", options.pause),
                       Flex(options.pause)]
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
              f"cuDNN {torch.backends.cudnn.version()}")
    except ImportError:
        print("peers_gpu: no torch here, ours alone", file=sys.stderr)
    print(f"{'':<28}" + "".join(f"{c.name:>10}" for c in contenders) + "     ratio  kernel")
    results = []
    # The only one for f32, and of 16 bits the slowest of three.
    extra_only = ("flex",) if options.dtype == "f32" else ("efficient", "flex")
    for case in (c for c in CASES if options.only in c.name):
        times = {c.name: [] for c in contenders}
        for _ in range(options.turns):
            for contender in contenders:
                if contender.name in extra_only and not case.extra:
                    continue
                try:
                    times[contender.name].append(contender.time(case, options.dtype))
                except Exception as error:  # each library has its own
                    if options.verbose or contender.name == "qkv":
                        print(f"{contender.name}: {case.name}: {str(error).splitlines()[0]}",
                              file=sys.stderr)
        speeds = {name: case.speed(statistics.median(ms), options.dtype) if ms else None
                  for name, ms in times.items()}
        best = max((s for name, s in speeds.items() if name != "qkv" and s), default=None)
        ratio = speeds["qkv"] / best if best and speeds["qkv"] else None
        kernel = getattr(contenders[0], "info", {}).get("kernel", "")
        results.append({"case": case.name, "speed": speeds, "ratio": ratio, "kernel": kernel})
        unit = "TB/s" if case.is_decode else "TFLOP/s"
        print(f"{case.name:<28}" +
              "".join(f"{s:>10.2f}" if s else f"{'-':>10}" for s in speeds.values()) +
              (f"{ratio:>10.2f}" if ratio else f"{'-':>10}") + f"  {unit}, {kernel}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
