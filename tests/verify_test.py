#!/usr/bin/env python3
"""`qkv verify` on every golden and, where they lie beside the checkout, on the real models: once per
CPU target of this machine (or the best one: under sanitizers it takes minutes), in f32 and with bf16
weights, converted and stored so. Usage: verify_test.py QKV DATA SHARED [--best-target-only]"""

import array
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile


def verify(qkv, target, folders, *options):
    run = subprocess.run([qkv, "verify", "--json", *options, *map(str, folders)],
                         capture_output=True, text=True, env={**os.environ, "QKV_CPU_TARGET": target})
    if not run.stdout:
        sys.exit(f"qkv verify printed nothing: {run.stderr}")
    report = json.loads(run.stdout)
    assert report["target"] == target, report["target"]
    assert (run.returncode == 0) == (report["failed"] == 0)
    for model in report["models"]:
        for line in model["compared"]:
            if not line["passed"]:
                print(f"  FAILED {model['folder']}: {line['name']}: {line['max_rel']:.2e} "
                      f"(allowed {line['allowed']:.0e}) {line['note']}")
    print(f"{target:<12} {' '.join(options):<14} {len(folders):>3} models: "
          f"{report['passed']} passed, {report['failed']} failed", flush=True)
    return report["failed"]


def store_in_bf16(golden, folder):
    """A copy of a golden whose weights, all f32, are rounded to bf16."""
    folder.mkdir()
    for name in ("config.json", "expected.safetensors"):
        shutil.copy(golden / name, folder)
    stored = (golden / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", stored[:8])
    header = json.loads(stored[8:8 + size])
    bits = array.array("I", stored[8 + size:])
    rounded = array.array("H", ((x + 0x7fff + (x >> 16 & 1)) >> 16 for x in bits))
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        assert tensor["dtype"] == "F32", name
        tensor["dtype"] = "BF16"
        tensor["data_offsets"] = [offset // 2 for offset in tensor["data_offsets"]]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text
                                               + rounded.tobytes())
    return folder


def main():
    qkv, data, shared = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    goldens = sorted(p.parent for p in data.glob("goldens/*/config.json"))
    models = sorted(p.parent for p in shared.glob("models/*/config.json"))
    if not goldens:
        sys.exit(f"no goldens in {data}")
    if not models:
        print(f"SKIPPED: no real models in {shared}/models")
    targets = json.loads(subprocess.run([qkv, "info", "--json"], capture_output=True,
                                        text=True, check=True).stdout)["targets"]
    if "--best-target-only" in sys.argv[4:]:
        targets = targets[:1]
    failed = 0
    for target in targets:
        failed += verify(qkv, target, goldens + models)
    for target in dict.fromkeys((targets[0], targets[-1])):
        failed += verify(qkv, target, goldens + models, "--dtype", "bf16")
    with tempfile.TemporaryDirectory() as folder:
        stored = [store_in_bf16(golden, pathlib.Path(folder) / golden.name) for golden in goldens]
        failed += verify(qkv, targets[0], stored)
    return 1 if failed else 0


sys.exit(main())
