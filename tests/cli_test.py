#!/usr/bin/env python3
"""The qkv command as a user meets it: exit status, help, JSON, files. Usage: cli_test.py QKV"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

QKV = ""
SMALL_STUDY = ["study", "scale", "--head-sizes", "16,32", "--keys", "16", "--queries", "16",
               "--trials", "4"]
SMALL_BENCH = ["bench", "attention", "--repeat", "3", "--shape"]
SMALL_SHAPE = "1,4,2,48,48,32"


def qkv(*arguments, **environment):
    return subprocess.run([QKV, *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "goldens")


class Verify(unittest.TestCase):
    def test_a_golden_passes(self):
        run = qkv("verify", os.path.join(GOLDENS, "gpt2"))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"\n39 passed, 0 failed\n$")
        report = json.loads(qkv("verify", "--json", os.path.join(GOLDENS, "gpt2")).stdout)
        self.assertEqual((report["passed"], report["failed"]), (39, 0))

    def test_what_differs_fails_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                shutil.copy(os.path.join(GOLDENS, "gpt2", name), folder)
            with open(os.path.join(GOLDENS, "gpt2", "expected.safetensors"), "rb") as file:
                data = bytearray(file.read())
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            at = 8 + size + header["out.logits"]["data_offsets"][0]
            value = struct.unpack("<f", data[at:at + 4])[0]
            data[at:at + 4] = struct.pack("<f", value + 1e-3)
            with open(os.path.join(folder, "expected.safetensors"), "wb") as file:
                file.write(data)
            run = qkv("verify", folder)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stdout, r"out\.logits .* FAILED")
        self.assertRegex(run.stdout, r"\n38 passed, 1 failed\n$")

    def test_no_model_is_a_failure(self):
        run = qkv("verify", "no-such-folder")
        self.assertEqual(run.returncode, 1)
        self.assertIn("no-such-folder", run.stdout)
        self.assertRegex(run.stdout, r"\n0 passed, 1 failed\n$")


class BenchModel(unittest.TestCase):
    def test_reports_what_it_timed(self):
        run = qkv("bench", "model", os.path.join(GOLDENS, "gpt2"), "--tokens", "8", "--decode", "4",
                  "--repeat", "3", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual(report["parameters"], 30592)
        self.assertEqual(report["kind"], "decoder")
        for key in ("ms", "tokens_per_s", "gflops", "decode_ms", "decode_tokens_per_s",
                    "peak_memory_bytes", "open_ms"):
            self.assertGreater(report[key], 0, key)

    def test_unknown_models_name_the_presets(self):
        run = qkv("bench", "model", "gpt5")
        self.assertEqual(run.returncode, 1)
        self.assertIn("bert-base", run.stderr)


class BenchTrain(unittest.TestCase):
    def run_it(self, *options):
        run = qkv("bench", "train", os.path.join(GOLDENS, "gpt2", "config.json"), "--batch", "2",
                  "--length", "16", "--steps", "1", *options)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_reports_what_it_timed(self):
        report = json.loads(self.run_it("--json"))
        self.assertEqual(report["parameters"], 30592)
        for key in ("forward_ms", "backward_ms", "optimizer_ms", "step_ms", "health_ms",
                    "tokens_per_s", "peak_memory_bytes", "tflops", "peak_tflops"):
            self.assertGreater(report[key], 0, key)
        self.assertGreater(report["peak_memory_bytes"], 4 * 4 * report["parameters"])
        self.assertLess(report["peak_memory_bytes"], 1 << 33)

    def test_says_how_much_memory_it_took(self):
        self.assertRegex(self.run_it(), r"memory +\d+\.\d\d GiB at most")


class BenchLong(unittest.TestCase):
    def test_reports_every_method_and_where_it_pays(self):
        run = qkv("bench", "long", "--lengths", "32,64,128", "--heads", "2", "--head-size", "8",
                  "--window", "16", "--length", "8", "--features", "16", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual([row["method"] for row in report["rows"]],
                         2 * ["exact", "longformer", "linformer", "performer"])
        for row in report["rows"]:
            self.assertEqual(len(row["ms"]), 3)
            self.assertTrue(all(ms > 0 for ms in row["ms"]), row)

    def test_draws_time_and_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            drawing = os.path.join(folder, "long.svg")
            run = qkv("bench", "long", "--lengths", "1024,2048", "--heads", "1", "--head-size", "8",
                      "--out", drawing)
            self.assertEqual(run.returncode, 0, run.stderr)
            root = xml.etree.ElementTree.parse(drawing).getroot()
        texts = [text for element in root.iter() for text in element.itertext()]
        self.assertTrue(any("memory" in text for text in texts))
        self.assertIn("2048", texts)

    def test_causal_leaves_linformer_out(self):
        run = qkv("bench", "long", "--lengths", "32", "--heads", "1", "--causal")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("linformer ", run.stdout)
        self.assertIn("performer", run.stdout)


class StudyApprox(unittest.TestCase):
    def test_looks_at_the_model_that_comes_along(self):
        with tempfile.TemporaryDirectory() as folder:
            drawing = os.path.join(folder, "approx.svg")
            run = qkv("study", "approx", "--features", "16,64", "Le chat dort.", "--windows", "4",
                      "--lengths", "2", "--out", drawing, "--json")
            self.assertEqual(run.returncode, 0, run.stderr)
            xml.etree.ElementTree.parse(drawing)
        rows = json.loads(run.stdout)["rows"]
        self.assertEqual({(row["method"], row["size"]) for row in rows},
                         {("performer", 16), ("performer", 64), ("longformer", 4), ("linformer", 2)})


class Quantize(unittest.TestCase):
    def test_writes_a_folder_that_loads_and_verifies(self):
        golden = os.path.join(GOLDENS, "gpt2")
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "int8")
            run = qkv("quantize", golden, out, "--group", "32", "--json")
            self.assertEqual(run.returncode, 0, run.stderr)
            report = json.loads(run.stdout)
            self.assertLess(report["bytes_after"], report["bytes_before"] / 2)
            for tensor in report["tensors"]:
                self.assertLess(tensor["relative_error"], 0.01, tensor["name"])
            shutil.copy(os.path.join(golden, "expected.safetensors"), out)
            run = qkv("verify", out)
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertEqual(qkv("inspect", out).returncode, 0)
            again = qkv("quantize", out, os.path.join(folder, "again"))
            self.assertEqual(again.returncode, 1)
            self.assertIn("int8 already", again.stderr)
            self.assertIn("the same folder", qkv("quantize", out, out).stderr)

    def test_what_lies_beside_the_weights_is_copied(self):
        with tempfile.TemporaryDirectory() as folder:
            source, out = os.path.join(folder, "from"), os.path.join(folder, "to")
            shutil.copytree(os.path.join(GOLDENS, "llama"), source)
            with open(os.path.join(source, "tokenizer.json"), "w", encoding="utf-8") as file:
                file.write("{}")
            report = json.loads(qkv("quantize", source, out, "--json").stdout)
            self.assertEqual(report["copied"], ["tokenizer.json"])
            self.assertEqual(sorted(os.listdir(out)),
                             ["config.json", "model.safetensors", "tokenizer.json"])

    def test_timed_as_int8(self):
        config = os.path.join(GOLDENS, "llama", "config.json")
        report = json.loads(qkv("bench", "model", config, "--dtype", "i8", "--kv-dtype", "i8",
                                "--tokens", "8", "--decode", "4", "--repeat", "2",
                                "--json").stdout)
        self.assertEqual(report["dtype"], "i8")
        self.assertGreater(report["decode_ms"], 0)


class Usage(unittest.TestCase):
    def test_help_has_two_examples(self):
        for command in ([], ["bench"], ["bench", "attention"], ["bench", "model"], ["bench", "long"],
                        ["study"], ["study", "scale"], ["study", "approx"], ["study", "train"],
                        ["study", "runs"], ["inspect"], ["verify"], ["info"], ["help"],
                        ["completion"], ["generate"], ["encode"], ["fill"], ["classify"],
                        ["quantize"], ["perplexity"]):
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
                          ["inspect"], ["inspect", "x", "y"], ["inspect", "x", "--sort", "age"],
                          ["verify"], ["verify", "x", "--device", "abacus"],
                          ["bench", "model", "gpt2", "--batch", "0"],
                          ["bench", "model", "gpt2", "--dtype", "i4"],
                          ["bench", "attention", "--shape", "1,2,3"],
                          ["bench", "attention", "--shape", "1,3,2,8,8,8"],
                          ["bench", "attention", "--shape", "1,2,2,8,8,x"],
                          ["bench", "attention", "--mask", "window:1"],
                          ["bench", "attention", "--mask", "round"],
                          ["bench", "attention", "--dtype", "f64"],
                          ["bench", "attention", "--target", "abacus"],
                          ["bench", "attention", "--threads", "0"],
                          ["study", "scale", "--head-sizes", "4096"],
                          ["generate"], ["generate", "x", "--top-p", "2"], ["fill"], ["encode"],
                          ["generate", "x", "--beams", "0"], ["encode", "x", "--pool", "max"],
                          ["study", "scale", "--input-variance", "-1"],
                          ["study", "train", "--steps", "1"], ["study", "runs"]):
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


class Numbers(unittest.TestCase):
    """What an option takes, what it refuses, and that the answer names option, value and range."""

    SEEDS = (["study", "scale", *SMALL_STUDY[2:]], ["study", "train", "--steps", "2"],
             ["study", "approx", "text", "--model", "none"],
             ["generate", os.path.join(GOLDENS, "gpt2"), "--ids", "1", "--max-tokens", "1"])

    def test_seeds(self):
        for command in self.SEEDS:
            for seed in ("-1", "1e3", "0x10", "99999999999999999999", "18446744073709551616", "",
                         "nan", "1.0", "seven", " 7", "--json"):
                for arguments in (["--seed", seed], [f"--seed={seed}"]):
                    run = qkv(*command, *arguments)
                    self.assertEqual((run.returncode, run.stdout), (2, ""), (command, arguments))
                    got = f"'{seed}'" if seed else "nothing"
                    self.assertIn("--seed: expected a whole number from 0 to 18446744073709551615, "
                                  f"got {got} ", run.stderr)
        for seed in ("0", "007", "+7", "18446744073709551615"):
            self.assertEqual(qkv(*SMALL_STUDY, "--seed", seed).returncode, 0, seed)
        seven, octal = (qkv(*SMALL_STUDY, "--seed", seed).stdout for seed in ("10", "010"))
        self.assertEqual(seven, octal)

    def test_ranges(self):
        for arguments, answer in (
                (["info", "--threads", "0"], "--threads: expected a whole number from 1 to 1024, "
                                             "got '0'"),
                (["info", "--threads", "1e3"], "got '1e3'"), (["info", "--threads="], "got nothing"),
                (["info", "--threads"], "--threads: a value is missing"),
                (["info", "--threads", "1", "--threads", "2"], "--threads: one value is expected, "
                                                               "got 2"),
                (["encode", "m", "--batch", "-5"], "--batch: expected a whole number from 1 to 4096"),
                (["study", "scale", "--input-variance", "nan"], "a number from 1e-06 to 1000, got "),
                (["study", "scale", "--input-variance", "inf"], "got 'inf'"),
                (["generate", "m", "--top-p", "nan"], "--top-p: expected a number from 0 to 1, got"),
                (["tokenize", "t", "--max-tokens", "-1"], "from 0 to 1073741824, got '-1'"),
                (["bench", "attention", "--mask", "window:9223372036854775807,0"], "at most"),
                (["bench", "attention", "--dtype", "f23"], "expected f32, bf16 or f16, got 'f23'; "
                                                           "did you mean f32?"),
                (["study", "scale", "--out="], "--out: expected a path, got nothing"),
                (["info", "--json=abc"], "--json: a flag takes no value"),
                (["inspect", "a", "b"], "one argument too many: b"),
                ([], "a command is missing")):
            run = qkv(*arguments)
            self.assertEqual((run.returncode, run.stdout), (2, ""), arguments)
            self.assertRegex(run.stderr, r"^qkv: .*\n$")
            self.assertIn(answer, run.stderr)

    def test_threads_of_the_environment(self):
        run = qkv("info", QKV_THREADS="garbage")
        self.assertIn(run.returncode, (0, 1, 2))  # never a signal
        if run.returncode != 0:
            self.assertRegex(run.stderr, r"^qkv: .*QKV_THREADS.*\n$")


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

    def test_statistics_are_timed_beside_none(self):
        result = self.bench("--statistics=entropy", "--no-baseline")
        self.assertTrue(result["statistics"])
        self.assertGreater(result["unwatched_ms"], 0)
        self.assertGreater(result["statistics_cost"], -1)
        for others in ([], ["--statistics", "--backward"]):
            self.assertNotIn("statistics_cost", self.bench("--no-baseline", *others))
        alone = self.bench("--statistics=entropy", "--alone")
        self.assertNotIn("statistics_cost", alone)
        self.assertIsNone(alone["baseline_ms"])
        run = qkv(*SMALL_BENCH, SMALL_SHAPE, "--statistics", "--no-baseline")
        self.assertRegex(run.stdout, r"statistics take [+-]\d+\.\d %")

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

    def test_rests_before_every_timed_run(self):
        began = time.monotonic()
        result = self.bench("--pause", "200", "--no-baseline")
        self.assertGreaterEqual(time.monotonic() - began, result["runs"] * 0.2)
        self.assertEqual(result["pause_ms"], 200)
        self.assertEqual(self.bench()["pause_ms"], 0)
        self.assertIn("after pauses of 1 ms", qkv(*SMALL_BENCH, SMALL_SHAPE, "--pause", "1").stdout)

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

    def test_train_has_three_scales(self):
        small = ["study", "train", "--steps", "4", "--batch", "2", "--head-size", "16"]
        first, second = (qkv(*small, "--json", "--threads", n) for n in "12")
        self.assertEqual(first.returncode, 0, first.stderr)
        study, again = json.loads(first.stdout), json.loads(second.stdout)
        self.assertEqual([s["name"] for s in study["scales"]], ["none", "1/sqrt(d_k)", "1/d_k"])
        self.assertEqual(study["scales"], again["scales"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.html")
            said = qkv(*small, "--out", path)
            self.assertIn("findings", said.stdout)
            self.assertTrue(open(path, encoding="utf-8").read().endswith("</html>\n"))

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


def safetensors(tensors, metadata=None):
    """The bytes of a file: {name: (dtype, shape, bytes of data)}."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + size]}
        data += bytes(size)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Inspect(unittest.TestCase):
    TENSORS = {"h.0.attn.weight": ("F32", [4, 8], 128), "h.0.mlp.weight": ("BF16", [16, 8], 256),
               "h.1.attn.weight": ("F32", [2, 2], 16), "old": ("F64", [3], 24),
               "packed": ("F4", [2, 8], 8)}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = self.write("model.safetensors", safetensors(self.TENSORS, {"format": "pt"}))

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def inspect(self, *arguments):
        run = qkv("inspect", *arguments, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_json(self):
        result = self.inspect(self.file)
        self.assertEqual({t["name"]: (t["dtype"], t["shape"], t["bytes"])
                          for t in result["tensors"]}, self.TENSORS)
        self.assertEqual(result["total"]["tensors"], 5)
        self.assertEqual(result["total"]["parameters"], 32 + 128 + 4 + 3 + 16)
        self.assertEqual(result["total"]["bytes"], 432)
        self.assertEqual(result["total"]["dtypes"]["F32"],
                         {"tensors": 2, "parameters": 36, "bytes": 144})
        self.assertEqual(result["metadata"], {"format": "pt"})
        self.assertEqual(result["files"], [self.file])
        self.assertIsNone(result["model_type"])

    def test_text(self):
        self.write("config.json", {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
        run = qkv("inspect", self.folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [line.split() for line in run.stdout.splitlines()]
        self.assertEqual(rows[0], ["name", "dtype", "shape", "bytes"])
        self.assertEqual(rows[1], ["h.0.attn.weight", "F32", "[4,", "8]", "128"])
        for part in ("5 tensors, 183 parameters, 432 bytes, in 1 file", "model_type: gpt2",
                     "architectures: GPT2LMHeadModel", "metadata format: pt",
                     "2 tensors, 36 parameters, 144 bytes"):
            self.assertIn(part, run.stdout)

    def test_sort_and_filter(self):
        def names(*arguments):
            return [t["name"] for t in self.inspect(self.file, *arguments)["tensors"]]
        self.assertEqual(names(), sorted(self.TENSORS))
        self.assertEqual(names("--sort", "size")[:2], ["h.0.mlp.weight", "h.0.attn.weight"])
        self.assertEqual(names("--filter", "attn"), ["h.0.attn.weight", "h.1.attn.weight"])
        self.assertEqual(names("--filter", "no such"), [])
        self.assertIn("2 of 5 tensors, 36 parameters",
                      qkv("inspect", self.file, "--filter", "attn").stdout)

    def test_index(self):
        os.rename(self.file, os.path.join(self.folder, "one.safetensors"))
        self.write("two.safetensors", safetensors({"b": ("I16", [2], 4)}))
        index = self.write("model.safetensors.index.json", {
            "weight_map": {"old": "one.safetensors", "b": "two.safetensors"}})
        for path in (index, self.folder):
            result = self.inspect(path)
            self.assertEqual([t["name"] for t in result["tensors"]], ["b", "old"])
            self.assertEqual(len(result["files"]), 2)

    def test_a_bad_config_is_a_warning(self):
        self.write("config.json", b"{")
        run = qkv("inspect", self.folder, "--json")
        self.assertEqual(run.returncode, 0)
        self.assertEqual(json.loads(run.stdout)["total"]["tensors"], 5)
        self.assertRegex(run.stderr, r"^qkv: warning: .*config.json: not valid JSON.*\n$")

    def test_names_do_not_reach_the_terminal_raw(self):
        path = self.write("evil.safetensors",
                          safetensors({"\x1b[2J\n\x9b": ("U8", [1], 1)}, {"\x1b": "\x07"}))
        run = qkv("inspect", path)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("?[2J???", run.stdout)
        self.assertFalse(set("\x1b\x07\x9b") & set(run.stdout))
        self.assertEqual(self.inspect(path)["tensors"][0]["name"], "\x1b[2J\n\x9b")

    def test_other_files_are_called_what_they_are(self):
        pointer = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 +
                   b"\nsize 4242\n")
        for content, part in ((pointer, "a Git LFS pointer in place of the file; fetch it with `git "
                                        "lfs pull`"),
                              (b"GGUF\3\0\0\0" + bytes(60), "but a GGUF file"),
                              (b"\x80\4\x95" + bytes(60), "but a Python pickle"),
                              (b"PK\3\4" + bytes(60), "safetensors.torch.save_file"),
                              (b"\x1f\x8b\x08" + bytes(60), "but a gzip archive"),
                              (b"\x89PNG\r\n\x1a\n" + bytes(60), "but a PNG image"),
                              (b"<!doctype HTML>\n<html></html>", "but an HTML page"),
                              (b'{"model_type": "gpt2"}', "but a JSON file"),
                              (b"root:x:0:0:root:/root:/bin/bash\n" * 40, "but a text file"),
                              ("größer\r\n".encode() * 60, "but a text file"),
                              (b"", "too few for a safetensors file: it is empty"),
                              (b"\xee" * 600, "does not fit")):
            run = qkv("inspect", self.write("other.safetensors", content))
            self.assertEqual((run.returncode, run.stdout), (1, ""), part)
            self.assertRegex(run.stderr, r"^qkv: '.*other.safetensors': .*\n$")
            self.assertIn(part, run.stderr)

    def test_a_pointer_of_git_lfs_is_never_read_as_the_file(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4242\n"
        for name in ("config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "lines.txt"):
            self.write(name, pointer)
        path = os.path.join(self.folder, "lines.txt")
        for arguments in (["verify", self.folder], ["tokenize", self.folder, "x"],
                          ["tokenize", os.path.join(self.folder, "tokenizer.model"), "x"],
                          ["tokenize", os.path.join(self.folder, "vocab.txt"), "x"],
                          ["bleu", path, path], ["train", os.path.join(self.folder, "config.json")],
                          ["inspect", os.path.join(self.folder, "config.json")]):
            run = qkv(*arguments)
            self.assertEqual(run.returncode, 1, arguments)
            self.assertIn("git lfs pull", run.stderr + run.stdout, arguments)

    def test_weights_in_another_format_are_named(self):
        os.remove(self.file)
        self.write("pytorch_model.bin", b"PK")
        run = qkv("inspect", self.folder)
        self.assertEqual(run.returncode, 1)
        self.assertIn("no model.safetensors.index.json (it has pytorch_model.bin)", run.stderr)
        self.write("config.json", b"\x89PNG\r\n")
        self.assertIn("config.json: not valid JSON at byte 1: this is a PNG image",
                      qkv("generate", self.folder, "x").stderr)

    def test_failures_are_one_line(self):
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        whole = safetensors(self.TENSORS)
        for path, part in ((os.path.join(self.folder, "absent"), "No such file"),
                           (empty, "no model.safetensors"),
                           (self.write("short.safetensors", whole[:-1]), "do not lie within"),
                           (self.write("weights.bin", b"PK\3\4" + b"x" * 60), "a PyTorch file"),
                           (self.write("lies.json", {"weight_map": {"a": "../x"}}), "beside it")):
            run = qkv("inspect", path)
            self.assertEqual(run.returncode, 1, path)
            self.assertEqual(run.stdout, "")
            self.assertRegex(run.stderr, r"^qkv: .*\n$")
            self.assertIn(part, run.stderr)


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
