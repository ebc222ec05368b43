#!/usr/bin/env python3
"""qkv translate with the model that comes along: cli_translate_test.py PATH_TO_QKV

The sentences of Tatoeba it is judged by are read where ../shared has them.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

QKV = sys.argv.pop(1)
TATOEBA = pathlib.Path(__file__).resolve().parents[2] / "shared/corpora/tatoeba"
GOALS = {"fra": 57, "deu": 48, "spa": 52}


def qkv(*arguments, stdin="", **environment):
    return subprocess.run([QKV, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          encoding="utf-8", timeout=500, env={**os.environ, **environment})


class Translate(unittest.TestCase):
    def test_needs_no_word_about_models(self):
        said = qkv("translate", "Le chat s'est assis sur le tapis.", "Der Hund schläft.", "")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.splitlines()[0], "The cat sat on the mat.")
        self.assertIn("dog", said.stdout.splitlines()[1])
        self.assertEqual(said.stdout.splitlines()[2:], [""])

    def test_reads_lines_and_may_be_told_the_language(self):
        said = qkv("translate", "--from", "es", "--json", stdin="¿Dónde está la biblioteca?\n")
        told = json.loads(said.stdout)
        self.assertEqual(told["translations"][0]["translation"], "Where is the library?")
        wrong = qkv("translate", "--from", "la", "Carthago delenda est.")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("--from la", wrong.stderr)

    def test_a_model_that_is_not_there_is_named(self):
        said = qkv("translate", "Bonjour.", QKV_MODEL="/nowhere")
        self.assertEqual(said.returncode, 1)
        self.assertIn("/nowhere", said.stderr)

    # 600 sentences take minutes under sanitizers, and watch no more of the memory than a few do.
    @unittest.skipIf(os.environ.get("QKV_SANITIZED"), "quality is judged without sanitizers")
    @unittest.skipUnless(TATOEBA.exists(), "no ../shared/corpora/tatoeba")
    def test_is_as_good_as_its_card_says(self):
        with tempfile.TemporaryDirectory() as folder:
            for language, goal in GOALS.items():
                lines = (TATOEBA / f"{language}-eng.test.tsv").read_text().splitlines()[:200]
                sources, references = zip(*(line.split("\t")[:2] for line in lines))
                said = qkv("translate", "--quiet", stdin="\n".join(sources) + "\n")
                self.assertEqual(said.returncode, 0, said.stderr)
                hypotheses = pathlib.Path(folder) / "hypotheses"
                hypotheses.write_text(said.stdout)
                expected = pathlib.Path(folder) / "references"
                expected.write_text("\n".join(references) + "\n")
                score = json.loads(qkv("bleu", hypotheses, expected, "--json").stdout)["score"]
                print(f"{language}: BLEU {score:.1f}", file=sys.stderr)
                self.assertGreater(score, goal, language)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
