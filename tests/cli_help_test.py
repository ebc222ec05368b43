#!/usr/bin/env python3
"""What the qkv command says of itself: help, completion, and answers to misspelt names.
Usage: cli_help_test.py QKV"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

QKV = ""


def qkv(*arguments):
    return subprocess.run([QKV, *arguments], capture_output=True, text=True, encoding="utf-8")


class Help(unittest.TestCase):
    def test_help_of_a_command_is_its_help(self):
        for words in ([], ["info"], ["bench", "model"]):
            run = qkv("help", *words)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout, qkv(*words, "--help").stdout)
        self.assertEqual(qkv("help", "fly").returncode, 1)

    def test_the_page_has_every_command_and_option(self):
        page = qkv("help", "--markdown").stdout
        for heading in ("qkv bench attention", "qkv inspect", "qkv completion", "qkv help"):
            self.assertIn(f"\n## {heading}\n", page)
        self.assertIn("| `--device cpu\\|cuda` |", page)
        self.assertIn("(default: 1,12,12,512,512,64)", page)

    def test_the_page_does_not_depend_on_the_machine(self):
        target = qkv("info").stdout.split("CPU target")[1].split()[0]
        self.assertNotIn(target, qkv("help", "--markdown").stdout)


class Misspelt(unittest.TestCase):
    def refused(self, *arguments):
        run = qkv(*arguments)
        self.assertEqual(run.returncode, 2, arguments)
        self.assertEqual(run.stdout, "")
        return run.stderr

    def test_the_nearest_name_is_offered(self):
        for arguments, meant in ((["inspcet", "x"], "inspect"), (["verfy"], "verify"),
                                 (["bench", "modle"], "model"), (["stu"], "study"),
                                 (["info", "--jsno"], "--json"),
                                 (["bench", "model", "gpt2", "--dtpye=f32"], "--dtype")):
            self.assertIn(f"did you mean {meant}?", self.refused(*arguments))

    def test_a_name_like_no_other_gets_no_advice(self):
        self.assertIn("there is no command xylophone", self.refused("xylophone"))
        self.assertNotIn("did you mean", self.refused("xylophone"))
        for arguments in (["foo"], ["xyz"], ["a"], [""], ["bench", "moon"], ["info", "--abacus"],
                          ["info", "--x"], ["completion", "fsch"],
                          ["x" * 100000]):
            self.assertNotIn("did you mean", self.refused(*arguments), arguments[-1][:20])

    def test_values_and_help_are_offered_too(self):
        self.assertIn("did you mean bash?", self.refused("completion", "bsah"))
        self.assertIn("did you mean cuda?", self.refused("info", "--device", "cdua"))
        self.assertIn("did you mean bench?", qkv("help", "bnech").stderr)

    def test_help_of_what_is_not_there_is_no_help(self):
        self.assertIn("there is no command foo", self.refused("foo", "--help"))
        self.assertIn("did you mean model?", self.refused("bench", "modle", "--help"))

    def test_a_text_that_looks_like_an_option(self):
        self.assertIn("behind --", self.refused("translate", "-foo"))
        self.assertIn("there is no option -x", self.refused("-x"))


class Completion(unittest.TestCase):
    def complete(self, *words):
        """What bash would offer for the last word."""
        script = ('source <("$1" completion bash); shift; COMP_WORDS=("$@"); '
                  'COMP_CWORD=$(($# - 1)); _qkv; printf "%s\\n" "${COMPREPLY[@]}"')
        run = subprocess.run(["bash", "-c", script, "bash", QKV, "qkv", *words],
                             capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout.split()

    def test_bash_completes_commands_and_options(self):
        self.assertEqual(self.complete("insp"), ["inspect"])
        self.assertIn("completion", self.complete(""))
        self.assertEqual(self.complete("bench", ""), ["attention", "long", "model", "tokenizer", "train"])
        self.assertEqual(self.complete("bench", "model", "--tok"), ["--tokens"])
        self.assertIn("--help", self.complete("info", "--"))

    def test_bash_completes_values(self):
        self.assertEqual(self.complete("bench", "attention", "--dtype", ""), ["f32", "bf16", "f16"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])
        self.assertEqual(self.complete("info", "--threads", ""), [])

    def test_bash_completes_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "a model"))
            with open(os.path.join(folder, "a file"), "w", encoding="utf-8"):
                pass
            start = os.path.join(folder, "a")
            self.assertEqual(self.complete("verify", start), [start, "model"])  # folders only
            self.assertEqual(len(self.complete("inspect", start)), 4)

    def test_every_shell_accepts_its_script(self):
        for shell in ("bash", "zsh", "fish"):
            run = qkv("completion", shell)
            self.assertEqual(run.returncode, 0)
            self.assertIn("attention", run.stdout)
            with self.subTest(shell=shell):
                if not shutil.which(shell):
                    self.skipTest(f"there is no {shell} here")
                check = subprocess.run([shell, "-n"], input=run.stdout, capture_output=True,
                                       text=True)
                self.assertEqual((check.returncode, check.stderr), (0, ""))

    def test_other_shells_are_refused_by_name(self):
        run = qkv("completion", "abacus")
        self.assertEqual(run.returncode, 2)
        self.assertIn("abacus", run.stderr)


class Output(unittest.TestCase):
    def test_a_reader_that_leaves_is_no_failure(self):
        for unignored in (True, False):  # the signal kills where it may; else writing fails
            reading, writing = os.pipe()
            os.close(reading)
            run = subprocess.run([QKV, "help", "--markdown"], stdout=writing, text=True,
                                 stderr=subprocess.PIPE, restore_signals=unignored)
            os.close(writing)
            self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_a_full_disk_is_a_failure(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("there is no /dev/full here")
        with open("/dev/full", "w", encoding="utf-8") as full:
            run = subprocess.run([QKV, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^qkv: .*No space left")


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
