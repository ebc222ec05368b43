#!/usr/bin/env python3
"""qkv look in the terminal, as JSON and as a file, and what qkv serve refuses.
Usage: cli_look_test.py QKV"""

import json
import os
import pty
import subprocess
import sys
import tempfile
import unittest

from text_models import TextModel, trained

QKV = ""


def qkv(*arguments, stdin="", **environment):
    return subprocess.run([QKV, *arguments], input=stdin, capture_output=True, text=True,
                          encoding="utf-8", env={**os.environ, **environment})


def at_a_terminal(*arguments, **environment):
    """What it writes when standard output is a terminal of 80 columns."""
    parent, child = pty.openpty()
    import fcntl
    import struct
    import termios
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen([QKV, *arguments], stdout=child, stderr=subprocess.DEVNULL,
                               env={**os.environ, **environment})
    os.close(child)
    text = b""
    try:
        while chunk := os.read(parent, 4096):
            text += chunk
    except OSError:
        pass  # the other end is closed
    process.wait()
    os.close(parent)
    return text.decode()


class Look(unittest.TestCase):
    def output(self, *arguments, stdin=""):
        run = qkv("look", *arguments, stdin=stdin)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def refused(self, *arguments):
        run = qkv(*arguments)
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        return run.stderr

    def test_a_row_for_each_token(self):
        with TextModel("bert-model") as folder:
            text = self.output("a b c", "--model", folder)
            piped = self.output("--model", folder, stdin="a b c\n")
        self.assertEqual(text, piped)
        self.assertIn("encoder attention, layer 1 (0 to 1), mean of 4 heads", text)
        for row, token in enumerate(["[CLS]", "a", "b", "c", "[SEP]"]):
            self.assertRegex(text, rf"(?m)^{row} {token.replace('[', '.').replace(']', '.')} ")
        self.assertRegex(text, r"(?m)^layer  1 ")

    def test_the_strongest_keys_are_those_of_the_weights(self):
        with TextModel("qwen3") as folder:
            chosen = ("a b c d e", "--model", folder, "--layer", "1", "--head", "2")
            picture = json.loads(self.output(*chosen, "--json"))
            row = self.output(*chosen, "--row", "4").splitlines()
        head = picture["maps"][0]["layers"][1]["heads"][0]
        self.assertEqual(head["head"], 2)
        tokens = picture["tokens"]["target"]["texts"]
        weights = dict(zip(range(len(tokens)), head["weights"][4]))
        best = sorted(weights, key=lambda j: -weights[j])[:3]
        expected = "  ".join(f"{tokens[j]} {weights[j] * 100:.0f}%" for j in best)
        self.assertTrue(any(line.endswith(expected) for line in row), (expected, row))

    def test_colours_are_for_terminals_that_want_them(self):
        with TextModel("gpt2") as folder:
            arguments = ("look", "a b c", "--model", folder)
            self.assertIn("\x1b[", at_a_terminal(*arguments, NO_COLOR=""))
            self.assertNotIn("\x1b[", at_a_terminal(*arguments, NO_COLOR="1"))
            self.assertNotIn("\x1b[", at_a_terminal(*arguments, "--no-color", NO_COLOR=""))
            self.assertNotIn("\x1b[", qkv(*arguments).stdout)
            wide = at_a_terminal("look", "a b c d e f g h i j k l m n o p q r s t u v w xa xb xc xd",
                                 "--model", folder, NO_COLOR="1")
        self.assertTrue(all(len(line) <= 80 for line in wide.splitlines()), wide)

    def test_models_that_write(self):
        with TextModel("gpt2") as folder:
            picture = json.loads(self.output("a b", "--model", folder, "--generate", "3", "--json"))
        self.assertEqual(len(picture["tokens"]["target"]["ids"]), picture["prompt_tokens"] + 3)
        with TextModel("bart") as folder:
            given = json.loads(self.output("a b", "--model", folder, "--target", "c d", "--json"))
            self.assertEqual(given["tokens"]["written"]["texts"][1:3], ["c", "d"])
            own = json.loads(self.output("a b", "--model", folder, "--generate", "5", "--json"))
            self.assertLessEqual(len(own["tokens"]["written"]["ids"]), 5)
            self.assertEqual([m["name"] for m in own["maps"]], ["encoder", "cross", "decoder"])

    def test_a_page_is_written_whole_and_within_its_limit(self):
        with TextModel("t5") as folder, tempfile.TemporaryDirectory() as out:
            path = os.path.join(out, "page.html")
            words = "a b c d e f " * 300
            self.output(words, "--model", folder, "--target", "a", "--out", path, "--page-limit", "1")
            self.assertEqual(os.listdir(out), ["page.html"])
            self.assertLess(os.path.getsize(path), 1.3e6)
            self.assertIn("no such", self.refused("look", "a", "--model", folder, "--target", "a",
                                                  "--out", os.path.join(out, "no", "x.html")).lower())

    def test_what_is_wrong_is_named(self):
        with TextModel("gpt2") as folder:
            self.assertIn("layer 7 is not there", self.refused("look", "a", "--model", folder,
                                                               "--layer", "7"))
            self.assertIn("no cross attention", self.refused("look", "a", "--model", folder,
                                                             "--map", "cross"))
            self.assertIn("a target is for models", self.refused("look", "a", "--model", folder,
                                                                 "--target", "b"))
            self.assertIn("no such folder", self.refused("serve", "--model", folder, "--runs", "nowhere"))
        self.assertIn("no such folder", self.refused("look", "a", "--model", "nowhere"))

    @unittest.skipUnless(trained("bart-g2p-us"), "bart-g2p-us is not here")
    def test_a_trained_model_aligns(self):
        picture = json.loads(self.output("hello", "--model", trained("bart-g2p-us"), "--json"))
        self.assertEqual(picture["written"], "hˈɛlO")
        written, read = (picture["tokens"][name]["texts"] for name in ("written", "source"))
        weights = picture["maps"][1]["layers"][0]["heads"][0]["weights"]
        looked = weights[written.index("h")]
        self.assertEqual(read[looked.index(max(looked))], "h")


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
