#!/usr/bin/env python3
"""qkv train as people run it: cli_train_test.py PATH_TO_QKV

Runs that are killed at any moment, interrupted, or that find the disk full: taken up again, they
give the bits of a run that was left alone.
"""
import hashlib
import json
import os
import pathlib
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

QKV = os.path.abspath(sys.argv.pop(1))

WORDS = "zero one two three four five six seven eight nine".split()


def qkv(*arguments, **keywords):
    return subprocess.run([QKV, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          **keywords)


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        pairs = []
        for i in range(400):
            digits = list(map(int, str(i * 7919 % 1000)))
            pairs.append(" ".join(WORDS[d] for d in digits) + "\t" + " ".join(map(str, digits)))
        (cls.folder / "pairs.tsv").write_text("\n".join(pairs) + "\n")
        made = qkv("tokenizer", "train", "--kind", "unigram", "--size", 60, "--out",
                   cls.folder / "tok", cls.folder / "pairs.tsv")
        assert made.returncode == 0, made.stderr
        cls.config = cls.folder / "train.json"
        cls.config.write_text(json.dumps({
            "task": "sequence-to-sequence",
            "tokenizer": "tok",
            "model": {"model_type": "marian", "d_model": 48, "encoder_layers": 2,
                      "decoder_layers": 2, "encoder_attention_heads": 2,
                      "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
                      "max_position_embeddings": 64, "scale_embedding": True, "dropout": 0.1},
            "data": {"train": "pairs.tsv", "valid": "pairs.tsv", "batch_tokens": 1000},
            "optimizer": {"lr": 0.003, "ema": 0.9},
            "schedule": {"kind": "inverse_sqrt", "warmup": 10},
            "steps": 60, "log_every": 5, "save_every": 3, "evaluate_every": 20,
            "evaluate_examples": 20, "label_smoothing": 0.1, "samples": ["one two three"],
        }))
        cls.whole = cls.folder / "whole"
        done = qkv("train", cls.config, "--out", cls.whole, "--json")
        assert done.returncode == 0, done.stderr
        cls.result = json.loads(done.stdout)
        cls.told = done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def sums(self, run):
        return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in run.rglob("*.safetensors")}

    def metrics(self, run):
        """What was logged, without times."""
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("seconds", None)
            line.pop("tokens_per_second", None)
        return lines

    def expect_same(self, run):
        self.assertEqual(list(run.glob(".*")), [])
        self.assertEqual(self.sums(run), self.sums(self.whole))
        self.assertEqual(self.metrics(run), self.metrics(self.whole))

    def test_says_how_it_went(self):
        self.assertTrue(self.result["finished"])
        self.assertEqual(self.result["steps"], 60)
        self.assertTrue((self.whole / "model" / "tokenizer.json").exists())
        self.assertIn("60/60", self.told)
        self.assertIn("BLEU", self.told)
        steps = [line["step"] for line in self.metrics(self.whole)]
        self.assertEqual(steps, sorted(steps))
        health = self.metrics(self.whole)[0]["health"]
        self.assertEqual(len(health), 12)  # (2 + 2 * 2) attentions of two heads
        self.assertEqual(health[0]["name"], "encoder.0.self")

    def test_its_model_translates(self):
        said = qkv("translate", "--model", self.whole / "model", "one two", "three")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(len(said.stdout.splitlines()), 2)

    def test_its_curves_are_drawn(self):
        drawn = self.folder / "curves.svg"
        said = qkv("study", "runs", self.whole, "--out", drawn, "--json")
        self.assertEqual(said.returncode, 0, said.stderr)
        curve = json.loads(said.stdout)["runs"][0]["curves"][0]
        reports = [line for line in self.metrics(self.whole) if "loss" in line]
        self.assertEqual(curve["loss"], [line["loss"] for line in reports])
        self.assertEqual(curve["max_logit"],
                         [max(h["max_logit"] for h in line["health"]) for line in reports])
        self.assertTrue(drawn.read_text().startswith("<svg "))

    def test_killed_at_any_moment(self):
        draw = random.Random(1)
        start = time.monotonic()
        qkv("train", self.config, "--out", self.folder / "timed")
        longest = time.monotonic() - start
        run, kills = self.folder / "killed", 0
        while True:
            process = subprocess.Popen([QKV, "train", self.config, "--out", run, "--resume"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                process.wait(timeout=0.05 + draw.random() * longest * 0.4)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            said = process.stderr.read().decode()
            process.stderr.close()
            if process.returncode == 0:
                break
            self.assertEqual(process.returncode, -signal.SIGKILL, said)
            kills += 1
            self.assertLess(kills, 200)
        self.assertGreater(kills, 0)
        self.expect_same(run)

    def test_ctrl_c_saves_and_says_how_to_go_on(self):
        run = self.folder / "interrupted"
        process = subprocess.Popen([QKV, "train", self.config, "--out", run, "--set", "save_every=999"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("5/60"):
                process.send_signal(signal.SIGINT)
                break
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("--resume", out)
        self.assertTrue(list(run.glob("checkpoint-*")))
        more = qkv("train", self.config, "--out", run, "--resume")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertEqual(self.sums(run)["model/model.safetensors"],
                         self.sums(self.whole)["model/model.safetensors"])

    def interrupt(self, *arguments):
        """The standard output of a run that met Ctrl-C at its fifth step."""
        process = subprocess.Popen([QKV, "train", *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("5/60"):
                process.send_signal(signal.SIGINT)
                break
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        return out

    def shell(self, command):
        """As a person who copies it; `qkv` is the one that is tested."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "qkv").unlink(missing_ok=True)
        (programs / "qkv").symlink_to(QKV)
        path = f"{programs}:{os.environ['PATH']}"
        return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PATH": path})

    def test_the_hint_after_ctrl_c_is_the_whole_command(self):
        changes = ["optimizer.lr=0.002", "samples=[\"it's one\"]", "save_every=999",
                   "keep=1"]
        whole, run = self.folder / "changed whole", self.folder / "it's changed"
        done = qkv("train", self.config, "--set", *changes, "--out", whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        out = self.interrupt(self.config, "--set", *changes, "--out", run, "--device", "cpu",
                             "--threads", 1)
        hint = out.partition("go on with: ")[2].strip()
        self.assertTrue(hint.startswith("qkv train "), out)
        for part in ["--device cpu", "--threads 1", "--resume", "optimizer.lr=0.002"]:
            self.assertIn(part, hint)
        more = self.shell(hint)
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertNotIn(" was ", more.stderr)  # no key has another value
        self.assertEqual(self.sums(run), self.sums(whole))
        self.assertEqual(self.metrics(run), self.metrics(whole))

    def test_the_config_in_the_folder_goes_on(self):
        run = self.folder / "own config"
        said = json.loads(self.interrupt(self.config, "--out", run, "--json"))
        self.assertEqual(shlex.split(said["resume"]),
                         ["qkv", "train", str(self.config), "--out", str(run), "--json", "--resume"])
        moved = self.folder / "moved"
        run.rename(moved)
        more = qkv("train", "train.json", "--resume", cwd=moved)
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertNotIn(" was ", more.stderr)
        self.assertEqual(self.sums(moved)["model/model.safetensors"],
                         self.sums(self.whole)["model/model.safetensors"])

    def test_another_run_is_refused_without_force(self):
        run = self.folder / "forced"
        self.interrupt(self.config, "--out", run)
        before = self.sums(run)
        arguments = ["train", self.config, "--out", run, "--set", "label_smoothing=0", "steps=30"]
        refused = qkv(*arguments, "--resume")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("label_smoothing was 0.1, now 0.0", refused.stderr)
        self.assertNotIn("steps was", refused.stderr)
        self.assertEqual(self.sums(run), before)
        self.assertEqual(qkv(*arguments, "--force").returncode, 2)  # of a run that begins
        forced = qkv(*arguments, "--resume", "--force")
        self.assertEqual(forced.returncode, 0, forced.stderr)
        self.assertIn("label_smoothing was 0.1, now 0.0", forced.stderr)
        self.assertIn("steps was 60, now 30", forced.stderr)

    def test_a_folder_has_one_process(self):
        run = self.folder / "locked"
        endless = [QKV, "train", self.config, "--out", run, "--set", "steps=100000", "patience=0"]
        first = subprocess.Popen(endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not list(run.glob("checkpoint-*")):
                time.sleep(0.01)
            for _ in range(5):
                second = qkv("train", self.config, "--out", run, "--resume")
                self.assertEqual(second.returncode, 1)
                self.assertIn(f"in use by process {first.pid} on ", second.stderr)
                self.assertIn(str(run), second.stderr)
            self.assertIsNone(first.poll())
        finally:
            first.kill()
            first.wait()
        # The kernel has let go of the lock, whatever is left in its file.
        newest = max(int(p.name[11:]) for p in run.glob("checkpoint-*"))
        more = qkv("train", self.config, "--out", run, "--resume", "--set", f"steps={newest + 3}")
        self.assertEqual(more.returncode, 0, more.stderr)

    def test_a_damaged_checkpoint_is_passed_over(self):
        run = self.folder / "damaged"
        self.interrupt(self.config, "--out", run)
        newest = max(run.glob("checkpoint-*"))
        data = bytearray((newest / "optimizer.safetensors").read_bytes())
        data[len(data) // 2] ^= 1
        (newest / "optimizer.safetensors").write_bytes(data)
        (run / "checkpoint-000000004.bak").mkdir()
        (run / "checkpoint-zzz").mkdir()
        more = qkv("train", self.config, "--out", run, "--resume")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertIn(f"{newest.name} is passed over: optimizer.safetensors is damaged", more.stderr)
        self.assertTrue((run / "checkpoint-000000004.bak").is_dir())
        self.expect_same(run)

    def test_a_full_disk_loses_nothing(self):
        run = self.folder / "full"

        def limit():  # a file that grows beyond this is refused, as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        process = subprocess.Popen([QKV, "train", self.config, "--out", run],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(run.glob("checkpoint-*")):
            time.sleep(0.002)
        process.kill()
        process.wait()
        before = self.sums(run)
        full = qkv("train", self.config, "--out", run, "--resume", preexec_fn=limit)
        self.assertEqual(full.returncode, 1)
        self.assertIn("cannot write", full.stderr)
        self.assertEqual(self.sums(run), before)
        more = qkv("train", self.config, "--out", run, "--resume")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.expect_same(run)

    def test_a_run_is_not_begun_twice(self):
        again = qkv("train", self.config, "--out", self.whole)
        self.assertEqual(again.returncode, 1)
        self.assertIn("--resume", again.stderr)

    def test_errors_name_what_is_wrong(self):
        for change, word in [("optimizer.rate=1", "optimizer.rate"), ("data.train=none.tsv", "none.tsv"),
                             ("tokenizer=nowhere", "nowhere"), ("steps=-1", "steps"),
                             ("task=dance", "dance")]:
            said = qkv("train", self.config, "--out", self.folder / "bad", "--set", change)
            self.assertEqual(said.returncode, 1, change)
            self.assertIn(word, said.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
