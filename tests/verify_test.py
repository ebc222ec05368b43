#!/usr/bin/env python3
"""`qkv verify` on every golden and, where they lie beside the checkout, on the real models: once per
CPU target of this machine (or the best one: under sanitizers it takes minutes), in f32 and with bf16
weights. Usage: verify_test.py QKV DATA SHARED [--best-target-only]"""

import json
import pathlib
import subprocess
import os
import sys


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
    return 1 if failed else 0


sys.exit(main())
