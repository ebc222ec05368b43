#!/usr/bin/env python3
"""qkv generate: what it says, how it is shown, and how it ends.
Usage: cli_generate_test.py QKV"""

import json
import os
import signal
import subprocess
import sys
import unittest

from text_models import GOLDENS, TextModel, WORDS, expected, tensors, trained

QKV = ""
# A decoder that never ends by itself: no token ends a text, and there are positions enough.
ENDLESS = {"eos_token_id": None, "max_position_embeddings": 1 << 20}


def generate(*arguments, stdin=""):
    return subprocess.run([QKV, "generate", *arguments], input=stdin, capture_output=True,
                          text=True, encoding="utf-8")


def ids(numbers):
    return " ".join(map(str, numbers))


class GenerateTest(unittest.TestCase):
    def output(self, *arguments, stdin=""):
        run = generate(*arguments, stdin=stdin)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def json(self, *arguments, stdin=""):
        return json.loads(self.output(*arguments, "--json", stdin=stdin))

    def refused(self, *arguments, stdin=""):
        run = generate(*arguments, stdin=stdin)
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        return run.stderr


class Ids(GenerateTest):
    def test_decoders_say_what_the_reference_says(self):
        for golden in ("gpt2", "llama", "qwen3"):
            want = expected(golden)
            prompt, tokens = want["gen.prompt"], want["gen.greedy"]
            with TextModel(golden, vocabulary=False, eos_token_id=None) as folder:
                got = self.output(folder, "--ids", ids(prompt), "--max-tokens",
                                  str(len(tokens) - len(prompt)))
            self.assertEqual(ids(prompt) + " " + got, ids(tokens) + "\n")

    def test_encoder_decoders_too(self):
        for golden in ("bart", "t5"):
            want = expected(golden)
            tokens = want["gen.greedy"]
            read = want["in.input_ids"][:len(want["in.input_ids"]) // 2]
            with TextModel(golden, vocabulary=False, eos_token_id=None) as folder:
                got = self.json(folder, "--ids", ids(read).replace(" ", ","), "--max-tokens", "20")
            self.assertEqual(got["prompt_ids"], read)
            self.assertEqual(got["ids"], tokens[-20:])

    def test_ids_are_checked(self):
        folder = os.path.join(GOLDENS, "gpt2")
        for prompt in ("1 2 x", "96", "-1", "1.5"):
            self.assertIn("ids are numbers from 0 to 95", self.refused(folder, "--ids", "--", prompt))
        self.assertIn("more than the 64 positions", self.refused(folder, "--ids", "1 " * 65))

    def test_stops_are_ids(self):
        folder = os.path.join(GOLDENS, "gpt2")
        free = self.json(folder, "--ids", "5 6 7", "--max-tokens", "12")["ids"]
        stopped = self.json(folder, "--ids", "5 6 7", "--stop", str(free[4]), "--stop", "95")
        self.assertEqual(stopped["ids"], free[:free.index(free[4]) + 1])
        self.assertEqual(stopped["ended"], "stop")

    def test_the_seed_decides_what_is_drawn(self):
        folder = os.path.join(GOLDENS, "gpt2")
        draw = ["--ids", "5 6", "--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed"]
        first, again, other = (self.output(folder, *draw, seed) for seed in "778")
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_beams(self):
        want = expected("gpt2")
        prompt, tokens = want["gen.prompt"], want["gen.beam4"]
        with TextModel("gpt2", vocabulary=False, eos_token_id=None) as folder:
            got = self.output(folder, "--ids", ids(prompt), "--beams", "4", "--max-tokens", "16")
        self.assertEqual(ids(prompt) + " " + got, ids(tokens) + "\n")


class Text(GenerateTest):
    def test_the_text_is_that_of_the_ids(self):
        with TextModel("gpt2", eos_token_id=None) as folder:
            run = self.json(folder, "a b c", "--max-tokens", "9")
            shown = self.output(folder, "a b c", "--max-tokens", "9")
            piped = self.output(folder, "--max-tokens", "9", stdin="a b c\n")
            echoed = self.output(folder, "a b c", "--max-tokens", "9", "--echo")
        self.assertEqual(len(run["ids"]), 9)
        self.assertEqual(run["text"].split(),
                         [WORDS[i] for i in run["ids"] if i not in (0, 2, 3, 4)])
        self.assertEqual((shown, piped), (run["text"] + "\n",) * 2)
        self.assertEqual(echoed, "a b c" + run["text"] + "\n")
        self.assertEqual(run["ended"], "length")
        for key in ("prompt_tokens", "new_tokens", "prompt_tokens_per_s", "tokens_per_s"):
            self.assertGreater(run["timings"][key], 0, key)

    def test_the_speed_is_told_on_standard_error(self):
        with TextModel("gpt2") as folder:
            self.assertRegex(generate(folder, "a b").stderr,
                             r"^\d+ prompt tokens at [\d.]+ tokens/s, \d+ new tokens at [\d.]+ "
                             r"tokens/s")
            self.assertEqual(generate(folder, "a b", "--quiet").stderr, "")

    def test_stops_are_text_and_are_left_out(self):
        with TextModel("gpt2", eos_token_id=None) as folder:
            free = self.json(folder, "a b c", "--max-tokens", "20")
            words = free["text"].split()
            stop = words[5] + " " + words[6]
            run = self.json(folder, "a b c", "--max-tokens", "20", "--stop", stop)
            never = self.json(folder, "a b c", "--max-tokens", "20", "--stop", words[-1] + " never")
        self.assertEqual(run["text"], free["text"][:free["text"].index(stop)])
        self.assertEqual(run["ended"], "stop")
        self.assertLess(len(run["ids"]), 20)
        self.assertEqual(never["text"], free["text"])  # held back, and given back at the end

    def test_lines_are_answered_in_order(self):
        prompts = ["a b", "c", "xa xb xc xd", "d e", "a"]
        with TextModel("gpt2", eos_token_id=None) as folder:
            alone = [self.output(folder, prompt, "--max-tokens", "6") for prompt in prompts]
            lines = self.output(folder, "--lines", "--batch", "2", "--max-tokens", "6",
                                stdin="\n".join(prompts) + "\n")
            results = self.json(folder, "--lines", "--max-tokens", "6", stdin="\n".join(prompts))
            self.assertIn("leave the prompt out", self.refused(folder, "a", "--lines"))
        self.assertEqual(lines, "".join(alone))
        self.assertEqual([r["text"] + "\n" for r in results["results"]], alone)

    def test_the_positions_of_the_model_are_a_limit(self):
        with TextModel("gpt2", eos_token_id=None) as folder:
            run = self.json(folder, "a " * 50, "--max-tokens", "500")
            self.assertEqual(run["ended"], "positions")
            self.assertIn("more than the 64 positions of the model; shorten it",
                          self.refused(folder, "a " * 70))

    def test_what_is_wrong_is_named_with_its_remedy(self):
        with TextModel("gpt2", vocabulary=False) as folder:
            self.assertIn("--ids", self.refused(folder, "a"))
        with TextModel("bert-masked-lm") as folder:
            self.assertIn("use qkv fill", self.refused(folder, "a"))
        self.assertIn("no such folder", self.refused("no-such-folder", "a"))
        with TextModel("gpt2") as folder:
            self.assertIn("empty text", self.refused(folder, "a", "--stop", ""))


class Checkpoint(GenerateTest):
    """What generation_config.json decides, and what the options decide instead."""

    def model(self, **generation):
        model = TextModel("gpt2", eos_token_id=None)
        self.addCleanup(model.temporary.cleanup)
        model.write("generation_config.json", json.dumps(generation))
        return model.folder

    def test_any_of_its_ends_ends_a_reply_and_is_not_shown(self):
        free = self.json(self.model(), "a b c", "--max-tokens", "12")
        ends = [free["ids"][4], free["ids"][7]]
        first = min(free["ids"].index(end) for end in ends)
        folder = self.model(eos_token_id=ends)
        run = self.json(folder, "a b c", "--max-tokens", "12")
        self.assertEqual((run["ids"], run["ended"]), (free["ids"][:first + 1], "eos"))
        self.assertEqual(run["text"].split(), free["text"].split()[:first])  # words, not special ones
        self.assertEqual(self.output(folder, "a b c", "--max-tokens", "12"), run["text"] + "\n")
        # Among ids it is one of them.
        said = self.output(folder, "--ids", ids(run["prompt_ids"]), "--max-tokens", "12")
        self.assertEqual(said, ids(run["ids"]) + "\n")

    def test_it_samples_by_seed_unless_told_otherwise(self):
        folder = self.model(do_sample=True, temperature=2.5, max_new_tokens=9)
        first, again, other = (self.output(folder, "a b", "--seed", seed) for seed in "778")
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        plain = self.model()
        greedy = self.output(plain, "a b", "--max-tokens", "9")
        self.assertEqual(self.output(folder, "a b", "--temperature", "0"), greedy)
        self.assertEqual(self.output(folder, "a b", "--top-k", "1"), greedy)
        self.assertEqual(
            self.output(folder, "a b", "--temperature", "0.7", "--seed", "5"),
            self.output(plain, "a b", "--temperature", "0.7", "--seed", "5", "--max-tokens", "9",
                        "--top-k", "50"))

    def test_options_win(self):
        folder = self.model(num_beams=3, no_repeat_ngram_size=1, max_new_tokens=4, min_new_tokens=2)
        self.assertEqual(len(self.json(folder, "a b")["ids"]), 4)
        plain = self.model()
        options = ["--max-tokens", "9", "--min-tokens", "0"]
        self.assertEqual(
            self.output(folder, "a b", "--beams", "1", "--no-repeat-ngram", "0", *options),
            self.output(plain, "a b", *options))
        self.assertEqual(self.output(folder, "a b", *options),
                         self.output(plain, "a b", "--beams", "3", "--no-repeat-ngram", "1", *options))

    def test_its_stop_strings_end_a_reply(self):
        free = self.json(self.model(), "a b c", "--max-tokens", "20")
        words = free["text"].split()
        stop = words[5] + " " + words[6]
        run = self.json(self.model(stop_strings=[stop]), "a b c", "--max-tokens", "20")
        self.assertEqual(run["text"], free["text"][:free["text"].index(stop)])
        self.assertEqual(run["ended"], "stop")

    def test_nonsense_is_named(self):
        self.assertIn("generation_config.json: top_p must be a number from 0 to 1, got 7",
                      self.refused(self.model(top_p=7), "a"))
        self.assertIn("guidance_scale 2 would change what is generated",
                      self.refused(self.model(guidance_scale=2), "a"))
        for option in ("top-p", "min-p", "temperature", "length-penalty", "repetition-penalty"):
            run = generate(self.model(), "a", f"--{option}", "nan")
            self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
            self.assertIn(f"--{option}: expected a number", run.stderr)


class Endings(unittest.TestCase):
    def start(self, folder, *arguments):
        process = subprocess.Popen([QKV, "generate", folder, "--ids", "5 6", *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def test_text_is_shown_while_more_is_being_thought_of(self):
        with TextModel("llama", **ENDLESS) as folder:
            process = self.start(folder, "--max-tokens", "400000")
            self.assertRegex(process.stdout.read(16).decode(), r"^(\d+ )+\d*$")
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertTrue(rest.endswith(b"\n"))
        self.assertIn(b"interrupted", errors)

    def test_ctrl_c_ends_a_beam_search_with_what_it_has(self):
        with TextModel("llama", **ENDLESS) as folder:
            process = self.start(folder, "--max-tokens", "400000", "--beams", "2", "--json")
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        run = json.loads(text)
        self.assertEqual(run["ended"], "interrupt")
        self.assertGreater(len(run["ids"]), 0)

    def test_a_reader_that_leaves_ends_it_quietly(self):
        with TextModel("llama", **ENDLESS) as folder:
            process = self.start(folder, "--max-tokens", "400000")
            process.stdout.read(16)
            process.stdout.close()
            errors = process.stderr.read()
            self.assertEqual((process.wait(timeout=120), errors), (0, b""))
            process.stderr.close()


class Trained(GenerateTest):
    def folder(self, name):
        folder = trained(name)
        if not folder:
            self.skipTest(f"{name} is not here")
        return folder

    def reference(self, name):
        return tensors(os.path.join(self.folder(name), "expected.safetensors"))

    def test_stories_are_told_as_in_the_reference(self):
        folder, tokens = self.folder("stories15m"), self.reference("stories15m")["gen.greedy"]
        run = self.json(folder, "", "--max-tokens", "199")
        self.assertEqual(run["prompt_ids"] + run["ids"], tokens)
        self.assertRegex(run["text"].strip(), r"^Once upon a time, there was a little girl named Lily\.")
        begun = self.json(folder, "Once upon a time", "--max-tokens", "9")
        self.assertEqual(begun["prompt_ids"] + begun["ids"], tokens[:14])
        self.assertEqual(begun["text"], ", there was a little girl named Lily")

    def test_words_are_spelt_as_in_the_reference(self):
        folder, want = self.folder("bart-g2p-us"), self.reference("bart-g2p-us")
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        for i in range(12):
            word = "".join(config["grapheme_chars"][c] for c in want[f"in.{i}"][1:-1])
            said = "".join(config["phoneme_chars"][c] for c in want[f"gen.{i}"] if c > 3)
            self.assertEqual(self.output(folder, word), said + "\n")
        self.assertIn("one word at a time", self.refused(folder, "two words"))
        self.assertIn("does not know", self.refused(folder, "hé"))

    def test_digits_are_sorted(self):
        got = self.output(self.folder("gpt2-sort"), "--ids", "2,0,1,0,2,1", "--max-tokens", "6")
        self.assertEqual(got, "0 0 1 1 2 2\n")


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
