#!/usr/bin/env python3
"""Time attention on a GPU: `qkv bench attention --device cuda` beside cuDNN and the flash kernel of
PyTorch, same shapes, same run.

16k tokens a batch and a hidden size of 2048, as attention papers report it, and decoding against a
long cache. All take turns; reported are medians over the turns. A ratio is our speed over the better
peer's: above 1, ours is faster.

    python3 bench/peers_gpu.py --qkv build/cuda/bin/qkv
    python3 bench/peers_gpu.py --pause 30 --only fwd    # rested: what kernels do before power limits
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

TOKENS, HIDDEN = 16384, 2048


@dataclass(frozen=True)
class Case:
    shape: tuple  # B, H, Hk, Sq, Sk, D
    causal: bool = False
    backward: bool = False

    @property
    def is_decode(self):
        return self.shape[3] == 1

    @property
    def name(self):
        b, h, hk, sq, sk, d = self.shape
        if self.is_decode:
            return f"decode B{b} L{sk} {h}/{hk} D{d}"
        mask = "causal" if self.causal else "full"
        return f"{'bwd' if self.backward else 'fwd'} D{d} S{sk} {mask}"

    def speed(self, ms):
        """TFLOP/s, or TB/s of keys and values where memory is what counts."""
        b, h, hk, sq, sk, d = self.shape
        if self.is_decode:
            return 2 * b * hk * sk * d * 2 / ms * 1e-9
        flops = 4 * b * h * sq * sk * d * (0.5 if self.causal else 1)
        return flops * (2.5 if self.backward else 1) / ms * 1e-9


def square(d, s, **options):
    heads = HIDDEN // d
    return Case((TOKENS // s, heads, heads, s, s, d), **options)


CASES = [square(d, s, causal=causal, backward=backward)
         for backward in (False, True)
         for d, s in ((64, 512), (64, 2048), (64, 16384), (128, 512), (128, 2048), (128, 16384),
                      (256, 16384))
         for causal in (False, True)]
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
        run = subprocess.run(command + ["--backward"] * case.backward, capture_output=True,
                             text=True)
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
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]

        def draw(heads, rows):
            return torch.randn(b, heads, rows, d, dtype=kind, device="cuda",
                               requires_grad=case.backward)
        q, k, v = draw(h, sq), draw(hk, sk), draw(hk, sk)

        def forward():
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=h != hk)
        with self.only():
            if not case.backward:
                return self.median(forward)
            out = forward()
            dout = torch.randn_like(out)
            return self.median(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))

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


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qkv", default="build/cuda/bin/qkv", help="the qkv command")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0, metavar="MS",
                        help="rest before each timed run, so that power does not limit it")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", help="write all results to this file")
    options = parser.parse_args()

    contenders = [Qkv(options.qkv, options.pause)]
    try:
        import torch
        contenders += [Torch("cudnn", "CUDNN_ATTENTION", options.pause),
                       Torch("flash", "FLASH_ATTENTION", options.pause)]
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
              f"cuDNN {torch.backends.cudnn.version()}")
    except ImportError:
        print("peers_gpu: no torch here, ours alone", file=sys.stderr)
    print(f"{'':<28}" + "".join(f"{c.name:>10}" for c in contenders) + "     ratio  kernel")
    results = []
    for case in (c for c in CASES if options.only in c.name):
        times = {c.name: [] for c in contenders}
        for _ in range(options.turns):
            for contender in contenders:
                try:
                    times[contender.name].append(contender.time(case, options.dtype))
                except RuntimeError as error:
                    print(f"{contender.name}: {case.name}: {str(error).splitlines()[0]}",
                          file=sys.stderr)
        speeds = {name: case.speed(statistics.median(ms)) if ms else None
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
