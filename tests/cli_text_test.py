#!/usr/bin/env python3
"""qkv encode, fill and classify, with small models everywhere and trained ones where they are.
Usage: cli_text_test.py QKV"""

import ast
import json
import math
import os
import pty
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from text_models import TextModel, WORDS, tensors, trained

QKV = ""


def qkv(*arguments, stdin=""):
    return subprocess.run([QKV, *arguments], input=stdin, capture_output=True, text=True,
                          encoding="utf-8")


class TextTest(unittest.TestCase):
    def output(self, *arguments, stdin=""):
        run = qkv(*arguments, stdin=stdin)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def json(self, *arguments, stdin=""):
        return json.loads(self.output(*arguments, "--json", stdin=stdin))

    def refused(self, *arguments, stdin=""):
        run = qkv(*arguments, stdin=stdin)
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        self.assertRegex(run.stderr, r"^qkv: .*\n$")
        return run.stderr


def read_npy(path):
    """Rows of an f32 table, read as the format says and not as we wrote it."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\x01\x00"
    size = struct.unpack("<H", data[8:10])[0]
    assert (10 + size) % 64 == 0
    header = ast.literal_eval(data[10:10 + size].decode("ascii"))
    assert header["descr"] == "<f4" and header["fortran_order"] is False
    rows, columns = header["shape"]
    values = struct.unpack(f"<{rows * columns}f", data[10 + size:])
    return [list(values[i * columns:(i + 1) * columns]) for i in range(rows)]


class Encode(TextTest):
    TEXTS = ["a b c", "d", "xa xb xc xd xe xf xg", "c b a"]

    def vectors(self, *arguments, stdin=""):
        return [row["vector"] for row in self.json("encode", *arguments, stdin=stdin)["vectors"]]

    def test_vectors_have_unit_length_and_do_not_depend_on_the_batch(self):
        with TextModel("bert-model") as folder:
            together = self.vectors(folder, *self.TEXTS)
            one_by_one = [self.vectors(folder, text)[0] for text in self.TEXTS]
            lines = self.vectors(folder, "--batch", "3", stdin="\n".join(self.TEXTS) + "\n")
        self.assertEqual(len(together), 4)
        self.assertNotEqual(together[0], together[3])
        for a, b, c in zip(together, one_by_one, lines):
            self.assertEqual(len(a), 32)
            self.assertAlmostEqual(math.hypot(*a), 1, places=6)
            for x, y, z in zip(a, b, c):
                self.assertAlmostEqual(x, y, places=6)
                self.assertAlmostEqual(x, z, places=6)

    def test_pools_differ(self):
        with TextModel("bert-model") as folder:
            rows = [self.vectors(folder, "a b", "--pool", pool)[0]
                    for pool in ("mean", "cls", "pooler")]
            plain = self.vectors(folder, "a b", "--no-normalize")[0]
        for i in range(3):
            self.assertNotEqual(rows[i], rows[i - 1])
        length = math.hypot(*plain)
        self.assertNotAlmostEqual(length, 1, places=2)
        for x, y in zip(plain, rows[0]):
            self.assertAlmostEqual(x / length, y, places=6)

    def test_a_table_for_numpy_is_written_whole(self):
        with TextModel("bert-model") as folder, tempfile.TemporaryDirectory() as out:
            path = os.path.join(out, "vectors.npy")
            self.assertEqual(self.output("encode", folder, *self.TEXTS, "--out", path), "")
            self.assertEqual(os.listdir(out), ["vectors.npy"])
            self.assertEqual(read_npy(path), [[struct.unpack("f", struct.pack("f", x))[0]
                                               for x in row]
                                              for row in self.vectors(folder, *self.TEXTS)])
            self.assertEqual(qkv("encode", folder, "a", "--out", "x.csv").returncode, 2)

    def test_a_query_ranks(self):
        with TextModel("bert-model") as folder:
            found = self.json("encode", folder, *self.TEXTS, "--query", "c b a", "--top", "2")
            text = self.output("encode", folder, *self.TEXTS, "--query", "c b a")
        self.assertEqual(len(found["matches"]), 2)
        best = found["matches"][0]
        self.assertEqual((best["line"], best["text"]), (4, "c b a"))
        self.assertAlmostEqual(best["score"], 1, places=5)
        self.assertEqual(len(text.splitlines()), 4)
        self.assertRegex(text, r"^ 1\.0000  c b a\n")

    def test_a_text_in_brackets_is_one_text(self):
        with TextModel("bert-model") as folder:
            run = self.json("encode", folder, "[a, b]", "c")
        self.assertEqual([row["text"] for row in run["vectors"]], ["[a, b]", "c"])

    def test_long_texts_are_cut_and_told_of(self):
        with TextModel("bert-model") as folder:
            run = qkv("encode", folder, "a", "b " * 100)
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stderr, r"^qkv: warning: 1 of 2 texts cut to the 64 positions .*"
                                     r"text 2 has 102 tokens")

    def test_encoder_decoders_have_vectors_too(self):
        with TextModel("t5") as folder:
            self.assertEqual(len(self.vectors(folder, "a b")[0]), 32)
            self.assertIn("no pooler", self.refused("encode", folder, "a", "--pool", "pooler"))

    def test_what_is_wrong_is_named_with_its_remedy(self):
        with TextModel("bert-model", vocabulary=False) as folder:
            self.assertIn("tokenizer", self.refused("encode", folder, "a"))
        with TextModel("gpt2") as folder:
            self.assertIn("use qkv generate", self.refused("encode", folder, "a"))
        with TextModel("bert-model") as folder:
            self.assertIn("nothing to encode", self.refused("encode", folder))
            self.assertIn("the folder it lies in",
                          self.refused("encode", os.path.join(folder, "config.json"), "a"))
        self.assertIn("no such folder", self.refused("encode", "no-such-folder", "a"))

    @unittest.skipUnless(trained("minilm-l6"), "minilm-l6 is not here")
    def test_minilm_agrees_with_its_reference(self):
        folder = trained("minilm-l6")
        with open(os.path.join(folder, "expected_texts.json"), encoding="utf-8") as file:
            texts = json.load(file)
        reference = tensors(os.path.join(folder, "expected.safetensors"))
        for i, vector in enumerate(self.vectors(folder, *texts)):
            for x, y in zip(vector, reference[f"out.embedding.{i}"]):
                self.assertAlmostEqual(x, y, delta=1e-5)


class Fill(TextTest):
    def test_every_way_to_write_a_gap(self):
        with TextModel("bert-masked-lm") as folder:
            runs = [self.json("fill", folder, f"a {gap} c", "--top", "96")["results"][0]
                    for gap in ("[MASK]", "<mask>", "___", "________")]
        self.assertEqual(runs[0]["text"], "a [MASK] c")
        self.assertEqual(len(runs[0]["gaps"]), 1)
        gap = runs[0]["gaps"][0]
        self.assertAlmostEqual(sum(c["probability"] for c in gap), 1, places=6)
        self.assertEqual(gap, sorted(gap, key=lambda c: -c["probability"]))
        for candidate in gap:
            self.assertEqual(candidate["text"], WORDS[candidate["id"]])
        for run in runs:
            self.assertEqual(run, runs[0])

    def test_several_gaps_and_lines(self):
        with TextModel("bert-masked-lm") as folder:
            one = self.json("fill", folder, "[MASK] and, [MASK]", "--top", "2")["results"]
            text = self.output("fill", folder, "a ___", "--top", "3")
            lines = self.json("fill", folder, stdin="a ___\n___ ___ b\n")["results"]
        self.assertEqual([len(gap) for gap in one[0]["gaps"]], [2, 2])
        self.assertEqual(len(text.splitlines()), 4)
        self.assertRegex(text, r"^a \[MASK\]\n +\d+\.\d\d %  \S+\n")
        self.assertEqual([len(r["gaps"]) for r in lines], [1, 2])

    def test_what_is_wrong_is_named_with_its_remedy(self):
        with TextModel("bert-masked-lm") as folder:
            self.assertIn("write [MASK] or ___", self.refused("fill", folder, "a b_c"))
            self.assertIn("shorten it", self.refused("fill", folder, "a ___ " * 50))
        for golden, command in (("gpt2", "generate"), ("t5", "generate"), ("bert-model", "encode"),
                                ("bert-classifier", "classify")):
            with TextModel(golden) as folder:
                self.assertIn(f"use qkv {command}", self.refused("fill", folder, "___"))


class Classify(TextTest):
    LABELS = {"0": "bad", "1": "good", "2": "both"}

    def test_labels_and_probabilities(self):
        with TextModel("bert-classifier", id2label=self.LABELS) as folder:
            results = self.json("classify", folder, "a b", "c")["results"]
            lines = self.json("classify", folder, stdin="a b\nc\n")["results"]
            text = self.output("classify", folder, "a b", "--top", "1")
        self.assertEqual(lines, results)
        for result in results:
            self.assertEqual({r["label"] for r in result["labels"]}, set(self.LABELS.values()))
            self.assertAlmostEqual(sum(r["probability"] for r in result["labels"]), 1, places=6)
        self.assertRegex(text, r"^a b\n +\d+\.\d\d %  (bad|good|both)\n$")

    def test_several_labels_may_hold_at_once(self):
        with TextModel("bert-classifier", problem_type="multi_label_classification") as folder:
            labels = self.json("classify", folder, "a b")["results"][0]["labels"]
        with TextModel("bert-classifier") as folder:
            one = self.json("classify", folder, "a b")["results"][0]["labels"]
        self.assertEqual([r["label"] for r in labels], [r["label"] for r in one])
        odds = [r["probability"] / (1 - r["probability"]) for r in labels]
        for odd, r in zip(odds, one):  # softmax is what the odds become when they are shared
            self.assertAlmostEqual(odd / sum(odds), r["probability"], places=5)

    def test_other_models_are_sent_elsewhere(self):
        with TextModel("bert-masked-lm") as folder:
            self.assertIn("use qkv fill", self.refused("classify", folder, "a"))


class Broken(TextTest):
    """Models whose weights are NaN."""

    def test_their_answers_are_not_ranked(self):
        for golden, command, text, tensor in (
                ("bert-masked-lm", "fill", "a ___", "bert.embeddings.word_embeddings.weight"),
                ("bert-classifier", "classify", "a", "classifier.weight")):
            model = TextModel(golden)
            self.addCleanup(model.temporary.cleanup)
            model.spoil(tensor)
            self.assertIn("the logits are not numbers", self.refused(command, model.folder, text))


class Progress(unittest.TestCase):
    LINES = 12000

    def run_long(self, stderr, reader):
        """Encodes many lines one by one; gives what `reader` read meanwhile, and the seconds."""
        with TextModel("bert-model") as folder:
            begin = time.monotonic()
            process = subprocess.Popen([QKV, "encode", folder, "--batch", "1", "--threads", "1",
                                        "--query", "a", "--top", "1"], stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stderr=stderr)
            os.close(stderr)
            process.stdin.write(b"a b c d e f g h i j k l m n o p q r s t u v w\n" * self.LINES)
            process.stdin.close()
            text = b""
            while True:
                try:
                    piece = os.read(reader, 1 << 16)
                except OSError:  # how a terminal says that nobody writes any more
                    break
                if not piece:
                    break
                text += piece
            os.close(reader)
            self.assertEqual(process.wait(), 0)
            return text.decode(), time.monotonic() - begin

    def test_a_terminal_gets_a_bar_with_rate_and_time_left(self):
        reader, terminal = pty.openpty()
        text, seconds = self.run_long(terminal, reader)
        if seconds < 0.5:
            self.skipTest("over before a bar would be drawn")
        self.assertRegex(text, rf"encoding [█░]{{30}} \d+/{self.LINES + 1}  [\d.]+/s, "
                               r"(\d+ min )?\d+ s left")
        self.assertTrue(text.endswith("\r\x1b[K"), text[-20:])  # and it is gone at the end

    def test_a_log_gets_plain_lines(self):
        reader, log = os.pipe()
        text, seconds = self.run_long(log, reader)
        self.assertNotIn("\x1b", text)
        if seconds < 2:
            self.skipTest("over before a line would be due")
        self.assertRegex(text, rf"^encoding: \d+ of {self.LINES + 1}, [\d.]+/s, .* left\n")


class Bleu(TextTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.translations = self.file("t", "The cat sat on the mat.\r\nGood morning, Tom!\n")
        self.references = self.file("r", "The cat sat on a mat.\nGood morning, Tom!")

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return path

    def test_says_what_sacrebleu_says(self):
        lines = self.output("bleu", self.translations, self.references).splitlines()
        self.assertEqual(lines[0], "BLEU = 69.19 91.7/80.0/62.5/50.0 "
                                   "(BP = 1.000 ratio = 1.000 hyp_len = 12 ref_len = 12)")
        self.assertRegex(lines[1], r"^nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:qkv-")

    def test_takes_several_references_and_standard_input(self):
        report = self.json("bleu", "-", self.references, self.translations, "--tokenize", "char",
                           stdin="The cat sat on the mat.\ngood morning, Tom!\n")
        self.assertTrue(report["signature"].startswith("nrefs:2|case:mixed|eff:no|tok:char|"))
        self.assertLess(report["score"], 100)
        report = self.json("bleu", "-", self.references, self.translations, "--lowercase",
                           stdin="The cat sat on the mat.\ngood morning, Tom!\n")
        self.assertAlmostEqual(report["score"], 100)

    def test_refuses_files_of_other_lengths(self):
        short = self.file("short", "The cat sat on a mat.\n")
        self.assertIn("has 1 lines, but", self.refused("bleu", self.translations, short))
        self.assertIn("no lines", self.refused("bleu", self.file("empty", ""), short))


class Perplexity(TextTest):
    TEXTS = ["a b c d e", "xa xb c", "d"]

    def test_a_list_is_read_text_by_text(self):
        with TextModel("llama", bos_token_id=2) as folder, tempfile.TemporaryDirectory() as texts:
            def read(name, content, *arguments):
                path = os.path.join(texts, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
                return self.json("perplexity", folder, path, *arguments)
            alone = [read(f"{i}.txt", text) for i, text in enumerate(self.TEXTS)]
            together = read("all.json", json.dumps(self.TEXTS + [""]))
            tokens = sum(one["tokens"] for one in alone)
            self.assertEqual(together["tokens"], tokens)
            loss = sum(one["loss"] * one["tokens"] for one in alone) / tokens
            self.assertAlmostEqual(together["loss"], loss, places=5)
            first = read("all.json", json.dumps(self.TEXTS), "--tokens", "5")
            self.assertAlmostEqual(first["loss"], alone[0]["loss"], places=6)
            empty = os.path.join(texts, "empty.json")
            with open(empty, "w", encoding="utf-8") as file:
                file.write("[]")
            self.assertIn("no text to read", self.refused("perplexity", folder, empty))


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
