#!/usr/bin/env python3
"""The qkv command as a user meets it: exit status, help, JSON, files. Usage: cli_test.py QKV"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

QKV = ""
SMALL_STUDY = ["study", "scale", "--head-sizes", "16,32", "--keys", "16", "--queries", "16",
               "--trials", "4"]
SMALL_BENCH = ["bench", "attention", "--repeat", "3", "--shape"]
SMALL_SHAPE = "1,4,2,48,48,32"


def qkv(*arguments, **environment):
    return subprocess.run([QKV, *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


class Usage(unittest.TestCase):
    def test_help_has_two_examples(self):
        for command in ([], ["bench"], ["bench", "attention"], ["study"], ["study", "scale"],
                        ["info"]):
            run = qkv(*command, "--help")
            self.assertEqual(run.returncode, 0, command)
            examples = run.stdout.split("Examples:\n")[1].strip().splitlines()
            self.assertEqual(len(examples), 2, command)
            for example in examples:
                self.assertTrue(example.strip().startswith("qkv " + " ".join(command[:2])), example)

    def test_version(self):
        run = qkv("--version")
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stdout, r"^qkv \d+\.\d+\.\d+\n$")

    def test_wrong_calls_are_usage_errors_of_one_line(self):
        for arguments in ([], ["fly"], ["bench"], ["study"], ["info", "--fast"],
                          ["bench", "attention", "--shape", "1,2,3"],
                          ["bench", "attention", "--shape", "1,3,2,8,8,8"],
                          ["bench", "attention", "--shape", "1,2,2,8,8,x"],
                          ["bench", "attention", "--mask", "window:1"],
                          ["bench", "attention", "--mask", "round"],
                          ["bench", "attention", "--dtype", "f64"],
                          ["bench", "attention", "--target", "abacus"],
                          ["bench", "attention", "--threads", "0"],
                          ["study", "scale", "--head-sizes", "4096"],
                          ["study", "scale", "--input-variance", "-1"]):
            run = qkv(*arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertEqual(run.stdout, "", arguments)
            self.assertRegex(run.stderr, r"^qkv: .*\n$", arguments)

    def test_failures_are_one_line(self):
        too_large = qkv("bench", "attention", "--shape", "1,1,1,8,8,4096")
        no_folder = qkv(*SMALL_STUDY, "--out", os.path.join("no", "such", "folder", "x.html"))
        bad_target = qkv("info", QKV_CPU_TARGET="abacus")
        for run in (too_large, no_folder, bad_target):
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertEqual(run.stdout, "")
            self.assertRegex(run.stderr.splitlines()[-1], r"^qkv: .+")


class Info(unittest.TestCase):
    def test_json(self):
        run = qkv("info", "--json", "--threads", "2")
        info = json.loads(run.stdout)
        self.assertEqual(info["threads"], 2)
        self.assertIn(info["target"], info["targets"])
        for target in info["targets"]:
            self.assertIn(target, qkv("info", QKV_CPU_TARGET=target).stdout.split())


class Bench(unittest.TestCase):
    def bench(self, *arguments, shape=SMALL_SHAPE):
        run = qkv(*SMALL_BENCH, shape, "--json", *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_json_keys(self):
        result = self.bench()
        for key in ("ms", "gflops", "baseline_ms", "baseline_gflops", "peak_gflops", "share"):
            self.assertGreater(result[key], 0, key)
        self.assertEqual(result["shape"], [1, 4, 2, 48, 48, 32])
        self.assertEqual(result["mask"], "full")
        self.assertEqual(result["dtype"], "f32")
        self.assertFalse(result["backward"])
        self.assertNotIn("gbytes_per_s", result)

    def test_every_option(self):
        for dtype in ("f32", "bf16", "f16"):
            for extra in (["--mask", "causal"], ["--mask", "window:5,0", "--backward"],
                          ["--dv", "16", "--backward"], ["--statistics", "--no-baseline"]):
                result = self.bench("--dtype", dtype, "--threads", "1", *extra)
                self.assertEqual(result["dtype"], dtype)
                self.assertEqual(result["threads"], 1)
                self.assertEqual(result["baseline_ms"] is None, "--no-baseline" in extra)

    def test_counts_operations(self):
        def flops(*arguments):
            result = self.bench("--no-baseline", *arguments)
            return result["gflops"] * result["ms"] * 1e6
        full = 4 * 4 * 48 * 48 * 32
        self.assertAlmostEqual(flops() / full, 1, places=6)
        self.assertAlmostEqual(flops("--mask", "causal") / full, 0.5, places=6)
        self.assertAlmostEqual(flops("--backward") / full, 2.5, places=6)
        self.assertAlmostEqual(flops("--dv", "64") / full, 1.5, places=6)
        self.assertAlmostEqual(flops("--mask", "window:0,0") / full, 1 / 48, places=6)

    def test_decode_reports_bandwidth(self):
        result = self.bench(shape="1,8,2,1,512,32")
        self.assertAlmostEqual(result["gbytes_per_s"] * result["ms"] * 1e6, 2 * 2 * 512 * 32 * 4,
                               delta=1)

    def test_text_goes_to_standard_output(self):
        run = qkv(*SMALL_BENCH, SMALL_SHAPE)
        self.assertEqual(run.returncode, 0)
        for word in ("ours", "three-step", "peak", "GFLOP/s"):
            self.assertIn(word, run.stdout)


class Study(unittest.TestCase):
    def test_json(self):
        run = qkv(*SMALL_STUDY, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        study = json.loads(run.stdout)
        self.assertEqual(len(study["rows"]), 6)
        self.assertEqual(study["options"]["trials"], 4)

    def test_same_seed_same_numbers(self):
        first, second, other = (qkv(*SMALL_STUDY, "--seed", seed).stdout for seed in "778")
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_report_is_written_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.html")
            run = qkv(*SMALL_STUDY, "--out", path)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(os.listdir(folder), ["report.html"])
            with open(path, encoding="utf-8") as file:
                html = file.read()
        self.assertTrue(html.startswith("<!DOCTYPE html>"))
        self.assertTrue(html.rstrip().endswith("</html>"))
        self.assertIn("findings", run.stdout)


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
