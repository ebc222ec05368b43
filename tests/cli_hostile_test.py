#!/usr/bin/env python3
"""Every command with values nobody means: each option that `qkv help --markdown` lists gets numbers
that are none, paths that lead nowhere, names that would command a terminal. What is wrong is
refused in one line of clean text; nothing ends by a signal, hangs or takes the machine's memory.
Usage: cli_hostile_test.py QKV        HOSTILE_TRIES=all runs every case instead of a sample."""

import concurrent.futures
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from text_models import TextModel

QKV = ""
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDENS = os.path.join(ROOT, "tests", "data", "goldens")
SANITIZED = bool(os.environ.get("QKV_SANITIZED"))
SECONDS = 120  # far more than any case needs
MEMORY = 3 << 30  # address space; sanitizers need more than any limit allows
SAMPLE = 60 if SANITIZED else 500

# As bytes: the shell of a user hands over whatever a file is called.
ESCAPES = [b"\x1b[31mred", b"\x1b]0;title\x07", b"\xc2\x9b31m", b"\x9b31m", b"\xff\xfe", b"a\nb",
           b"a\rb", b"\x7f\x08\x08", "‮evil⁦".encode(), b"\xe2\x80", "\u202d".encode()]
NO_WHOLE_NUMBERS = [b"", b" ", b"nan", b"inf", b"-inf", b"0x10", b"1e3", b"1.5", b"1;2", b"--", b"-",
                    b"5x", b" 5", b"5 ", b"+-5", b"--json", b"9" * 20, b"9" * 5000, b"-" + b"9" * 20,
                    "١٢".encode(), b"{}", b"%%", b"[x]"] + ESCAPES
NO_NUMBERS = [value for value in NO_WHOLE_NUMBERS if value not in (b"1e3", b"1.5", b"9" * 20)]
NO_NUMBERS += [b"1e999", b"NaN", b"-nan", b"infinity", b"0x1p3", b"1e3e3", b".", b"1..2"]
PATHS = [b"", b"/dev/full", b"/dev/null", b"/dev/zero", b"/", b".", b"/no/such/folder/file.npy",
         b"x" * 300, b"y/" * 3000, b"/proc/self/mem", b"/proc/self/environ/x.svg"] + ESCAPES
TEXTS = [b"", b"-1", b"{}", b"%%", b"[", b"x" * 100000, b"window:9,9", b"," * 50, b"=",
         b"1,1,1,1,1,9223372036854775807", b"4294967296,4294967296,4294967296,1,1,1"] + ESCAPES

# What the required arguments are where a case is to get past them, and what keeps it short.
MODEL = os.path.join(GOLDENS, "gpt2").encode()
BASES = {
    "bench attention": [b"--shape=1,1,1,4,4,4", b"--repeat=1", b"--no-baseline"],
    "bench long": [b"--lengths=16", b"--heads=1", b"--head-size=4", b"--features=4", b"--window=4",
                   b"--length=4"],
    "bench model": [MODEL, b"--tokens=4", b"--decode=0", b"--repeat=1"],
    "bench tokenizer": [MODEL, MODEL],
    "bench train": [b"no-such-config.json"],
    "bleu": [os.path.join(ROOT, "LICENSE").encode()] * 2,
    "generate": [MODEL, b"1 2", b"--ids", b"--max-tokens=2"],
    "help": [],
    "info": [],
    "look": [b"1 2 3", b"--ids", b"--model=" + MODEL],
    "perplexity": [MODEL, MODEL],
    "serve": [b"--model=no-such-model"],
    "study approx": [b"text", b"--model=no-such-model"],
    "study scale": [b"--head-sizes=4", b"--keys=4", b"--queries=2", b"--trials=2"],
    "study train": [b"--steps=2", b"--batch=2", b"--head-size=4", b"--layers=1", b"--heads=1",
                    b"--pairs=2"],
    "train": [b"no-such-config.json"],
    "translate": [b"text", b"--model=no-such-model"],
    "verify": [b"no-such-model"],
}
FALLBACK = b"no-such-file"
SLOW = ("bench long",)  # times for seconds whatever it is given: only what is refused is tried


def limits():
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def qkv(*arguments, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([QKV, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=SECONDS, preexec_fn=limits, check=False, **options)


def commands_that_help_names():
    """[(path, required arguments, [(option, value, choices)])]"""
    page = subprocess.run([QKV, "help", "--markdown"], capture_output=True, text=True, check=True)
    found = []
    for section in page.stdout.split("\n## qkv ")[1:]:
        path = section.split("\n")[0]
        usage = re.search(r"```sh\n(.*)\n", section).group(1)
        if "COMMAND" in usage:
            continue
        required = [word for word in usage.split()[1 + len(path.split()):] if word[0] != "["]
        options = []
        for row in re.findall(r"\| `(--[^`]*)` \|", section):
            name, _, value = row.replace("\\|", "|").partition(" ")
            options.append((name, value))
        found.append((path, required, options))
    return found


def what_terminals_obey(output):
    """Control characters, bidi controls and bytes that are no UTF-8."""
    try:
        text = output.decode("utf-8")
    except UnicodeDecodeError as error:
        return [str(error)]
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def cases():
    """(arguments, how it may end: 2 when the value itself is wrong, else anything but a signal)"""
    for path, required, options in commands_that_help_names():
        base = BASES.get(path, [FALLBACK] * len(required))
        words = [word.encode() for word in path.split()]
        for name, value in options:
            if not value:  # a flag
                yield words + base + [name.encode() + b"=\x1b[31m"], (2,)
                continue
            rest = [word for word in base if not word.startswith(name.encode() + b"=")]
            wrong, other = [], []
            if value in ("INT", "UINT"):
                wrong = NO_WHOLE_NUMBERS + ([b"-1"] if value == "UINT" else [])
            elif value == "FLOAT":
                wrong = NO_NUMBERS
            elif "|" in value or value == "i8":
                wrong = [b"", b"abacus", b"F32", b"f32,bf16"] + ESCAPES
            elif value.split(".")[0] in ("DIR", "FILE", "OUT"):
                other, wrong = PATHS[1:], [b""]
            else:
                other = TEXTS
            for text in wrong:
                yield words + rest + [name.encode() + b"=" + text], (2,)
            for text in [] if path in SLOW else other:
                yield words + rest + [name.encode() + b"=" + text], (0, 1, 2)
        for text in PATHS + TEXTS:  # as an argument
            fixed = [word for word in base if word.startswith(b"--")]
            yield words + fixed + [b"--"] + [text] * max(1, len(required)), (0, 1, 2)
        for text in ESCAPES:
            # No option's name to CLI11 2.3, and an argument to later ones.
            yield words + [b"--" + text], (0, 1, 2)
            yield words + base + [b"-" + text], (0, 1, 2)
    for text in ESCAPES + TEXTS[:1]:
        yield [text], (2,)
        yield [b"bench", text], (2,)
        yield [b"help", text], (0, 1, 2)


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def complaint(self, case):
        arguments, allowed = case
        # What is written relative to here goes away with the folder.
        try:
            run = qkv(*arguments, cwd=self.folder)
        except subprocess.TimeoutExpired:
            return f"{arguments}: did not end"
        except ValueError:
            return ""  # a NUL byte cannot be an argument
        shown = (str(arguments)[:300], run.returncode, run.stderr[-300:])
        if run.returncode not in allowed:
            return f"{shown}: expected one of {allowed}"
        if what_terminals_obey(run.stderr):
            return f"{shown}: raw {what_terminals_obey(run.stderr)[:3]}"
        if run.returncode != 0 and not re.search(rb"(^|\n)qkv: [^\n]+\n$", run.stderr):
            return f"{shown}: no line that says why"
        if run.returncode == 2 and run.stderr.count(b"\n") != 1:
            return f"{shown}: more than one line"
        if len(run.stderr) > 10000:
            return f"{shown}: {len(run.stderr)} bytes of messages"
        return ""

    def test_no_value_is_too_strange(self):
        every = list(cases())
        sample = every
        if os.environ.get("HOSTILE_TRIES") != "all":
            sample = random.Random(7).sample(every, min(SAMPLE, len(every)))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            complaints = [text for text in pool.map(self.complaint, sample) if text]
        print(f"{len(sample)} of {len(every)} cases tried", file=sys.stderr)
        self.assertGreater(len(every), 3000)
        self.assertEqual(complaints, [], "\n".join(complaints[:40]))
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith(".qkv-")])


class Streams(unittest.TestCase):
    """Standard streams that are full, closed, or without a reader."""

    SAYS = [["--help"], ["--version"], ["help"], ["help", "--markdown"], ["completion", "bash"],
            ["completion", "zsh"], ["completion", "fish"], ["info"], ["info", "--json"],
            ["tokenize", "--help"], ["inspect", os.path.join(GOLDENS, "gpt2")],
            ["inspect", "--json", os.path.join(GOLDENS, "gpt2")],
            ["verify", os.path.join(GOLDENS, "gpt2")],
            ["bench", "attention", "--shape=1,1,1,4,4,4", "--repeat=1", "--no-baseline"],
            ["study", "scale", "--head-sizes=4", "--keys=4", "--queries=2", "--trials=2"],
            ["look", "--ids", "1 2", "--model", os.path.join(GOLDENS, "gpt2")],
            ["look", "--ids", "1 2", "--json", "--model", os.path.join(GOLDENS, "gpt2")],
            ["generate", os.path.join(GOLDENS, "gpt2"), "--ids", "1 2", "--max-tokens=2"]]

    def every_call(self):
        return self.SAYS + [path.split() + ["--help"] for path, _, _ in commands_that_help_names()]

    def test_a_full_disk_fails_whatever_was_to_be_written(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("there is no /dev/full here")
        for arguments in self.every_call():
            with open("/dev/full", "wb") as full:
                run = subprocess.run([QKV, *arguments], stdout=full, stderr=subprocess.PIPE,
                                     stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
            self.assertEqual(run.returncode, 1, arguments)
            self.assertRegex(run.stderr, rb"qkv: standard output: No space left[^\n]*\n$")

    def test_a_reader_that_leaves_is_no_failure(self):
        for arguments in self.every_call():
            reading, writing = os.pipe()
            os.close(reading)
            run = subprocess.run([QKV, *arguments], stdout=writing, stderr=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
            os.close(writing)
            self.assertEqual(run.returncode, 0, arguments)
            self.assertNotIn(b"qkv: ", run.stderr)

    def closed(self, *numbers):
        def close():
            for number in numbers:
                os.close(number)
        return close

    def test_closed_streams(self):
        for arguments in self.every_call():
            run = subprocess.run([QKV, *arguments], stderr=subprocess.PIPE, timeout=SECONDS,
                                 preexec_fn=self.closed(0, 1), check=False)
            self.assertEqual(run.returncode, 1, arguments)
            self.assertIn(b"qkv: standard output: Bad file descriptor", run.stderr)
        gpt2 = os.path.join(GOLDENS, "gpt2")
        run = subprocess.run([QKV, "generate", gpt2, "--ids"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, preexec_fn=self.closed(0), timeout=SECONDS,
                             check=False)
        self.assertEqual((run.returncode, run.stdout), (1, b""))
        self.assertEqual(run.stderr, b"qkv: standard input: Bad file descriptor\n")

    def test_messages_that_cannot_be_written_do_not_undo_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            reading, writing = os.pipe()
            os.close(reading)
            for i, options in enumerate(({"stderr": writing}, {"preexec_fn": self.closed(2)})):
                page = os.path.join(folder, f"{i}.html")
                run = subprocess.run([QKV, "look", "--ids", "1 2 3", "--out", page, "--model",
                                      os.path.join(GOLDENS, "gpt2")], stdout=subprocess.PIPE,
                                     timeout=SECONDS, check=False, **options)
                self.assertEqual(run.returncode, 0)
                self.assertIn(b"layer", run.stdout)
                self.assertTrue(os.path.exists(page))
            os.close(writing)

    def test_a_file_never_takes_the_place_of_a_closed_stream(self):
        """Else the run's metrics.jsonl would be standard error, and have its messages in it."""
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text.txt")
            with open(text, "w", encoding="utf-8") as file:
                file.write("to be or not to be\n" * 200)
            made = subprocess.run([QKV, "tokenizer", "train", "--size", "270", "--out",
                                   os.path.join(folder, "tok"), text], capture_output=True,
                                  check=False)
            self.assertEqual(made.returncode, 0, made.stderr)
            config = os.path.join(folder, "lm.json")
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"task": "language-model", "tokenizer": "tok",
                           "model": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 1,
                                     "n_positions": 32},
                           "data": {"train": "text.txt", "batch_tokens": 64, "block": 32}, "steps": 4,
                           "log_every": 1, "optimizer": {"lr": 0.001}}, file)
            out = os.path.join(folder, "run")
            run = subprocess.run([QKV, "train", config, "--out", out], stdout=subprocess.PIPE,
                                 preexec_fn=self.closed(0, 2), timeout=SECONDS * 3, check=False)
            self.assertEqual(run.returncode, 0)
            with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
                steps = [json.loads(line) for line in file]
        self.assertGreaterEqual(len(steps), 4)


class Files(unittest.TestCase):
    def test_what_cannot_be_written_is_a_failure(self):
        gpt2, small = os.path.join(GOLDENS, "gpt2"), ["--heads=1", "--head-size=4", "--pairs=2"]
        calls = (["study", "scale", "--head-sizes=4", "--keys=4", "--queries=2", "--trials=2", "--out"],
                 ["study", "train", "--steps=2", "--batch=2", "--layers=1", *small, "--out"],
                 ["look", "--ids", "1 2", "--model", gpt2, "--out"],
                 ["tokenizer", "train", os.path.join(ROOT, "LICENSE"), "--out"],
                 ["quantize", gpt2])
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "file")
            with open(file, "wb"):
                pass
            for arguments in calls:
                makes_folders = arguments[0] in ("tokenizer", "quantize")
                for path in ("/dev/full", "/dev/null", "/proc/none/x", file + "/x",
                             *([file] if makes_folders else [folder, folder + "/none/x"])):
                    run = qkv(*arguments, path)
                    self.assertEqual(run.returncode, 1, (arguments, path, run.stderr))
                    self.assertRegex(run.stderr, rb"(^|\n)qkv: [^\n]*" + path[:5].encode())
                self.assertEqual(os.listdir(folder), ["file"], arguments)
            self.assertEqual(os.path.getsize(file), 0)


class Input(unittest.TestCase):
    GPT2 = os.path.join(GOLDENS, "gpt2")

    def test_bytes_that_are_no_text(self):
        texts = [b"", b"\0", b"\0" * 5000, b"\xff\xfe\n\xc3", b"\n" * 1000, b"\xf4\x90\x80\x80",
                 b"x" * 200000, b"\x1b[31m\n", "\u202e\u2066\n".encode() * 20, b"9" * 30 + b"\n"]
        calls = (["translate"], ["look"], ["generate", self.GPT2, "--ids", "--max-tokens=1"],
                 ["tokenize", os.path.join(ROOT, "assets", "translator")],
                 ["tokenize", os.path.join(ROOT, "assets", "translator"), "--json-lines"],
                 ["tokenize", os.path.join(ROOT, "assets", "translator"), "--decode"],
                 ["bleu", "-", os.path.join(ROOT, "LICENSE")], ["encode", self.GPT2],
                 ["fill", self.GPT2], ["classify", self.GPT2])
        tried = 0
        for arguments in calls[2:] if SANITIZED else calls:
            for text in texts:
                if len(text) > 6000 and arguments[0] in ("look", "translate"):
                    continue  # they are read, which takes its time
                run = subprocess.run([QKV, *arguments], input=text, capture_output=True,
                                     timeout=SECONDS * 3, preexec_fn=limits, check=False)
                self.assertIn(run.returncode, (0, 1), (arguments, text[:20], run.stderr[-200:]))
                self.assertEqual(what_terminals_obey(run.stderr), [], (arguments, text[:20]))
                tried += 1
        print(f"{tried} inputs tried", file=sys.stderr)

    @unittest.skipIf(SANITIZED, "they need more memory than can be limited")
    def test_input_without_end_is_refused(self):
        for arguments in (["generate", self.GPT2, "--ids"], ["translate"],
                          ["tokenize", os.path.join(ROOT, "assets", "translator"), "--json-lines"]):
            with open("/dev/zero", "rb") as endless:
                run = qkv(*arguments, stdin=endless)
            self.assertEqual((run.returncode, run.stdout), (1, b""), arguments)
            self.assertRegex(run.stderr, rb"^qkv: (standard input: a .* longer than|out of memory)")


class Terminal(unittest.TestCase):
    def on_terminal(self, *arguments):
        """What reaches a terminal that shows standard output and standard error."""
        master, slave = pty.openpty()
        process = subprocess.Popen([QKV, *arguments], stdin=subprocess.DEVNULL, stdout=slave,
                                   stderr=slave, env={**os.environ, "NO_COLOR": "1"})
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux's way of saying that nobody is left
                break
            if not part:
                break
            shown += part
        os.close(master)
        process.wait(SECONDS)
        shown = shown.replace(b"\r\n", b"\n")
        return process.returncode, re.sub(rb"\r\x1b\[K", b"", shown)  # of the progress bar

    def test_nothing_a_terminal_obeys_is_printed(self):
        evil = "a\x1b[31mb\x07\u009bc\u202ed"
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model-" + evil)
            shutil.copytree(os.path.join(GOLDENS, "gpt2"), model)
            path = os.path.join(model, "model.safetensors")
            with open(path, "rb") as file:
                data = file.read()
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            header["__metadata__"] = {evil: evil}
            text = json.dumps(header).encode()
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data[8 + size:])
            out = os.path.join(folder, "out-" + evil)
            translator = os.path.join(ROOT, "assets", "translator")
            for arguments, code in (
                    (["inspect", model], 0), (["inspect", model + "/none"], 1),
                    (["verify", model], 0), (["quantize", model, out], 0),
                    (["tokenize", translator, evil], 0),
                    (["tokenize", translator, "--json", evil], 0),
                    (["look", evil, "--no-color"], 0),
                    (["look", "--ids", "1 2", "--model", model, "--out", out + ".html"], 0),
                    (["generate", model, "--ids", "--echo", "1 2", "--max-tokens", "1"], 0),
                    (["generate", model, evil], 1), (["translate", evil], 0),
                    (["bleu", model, out], 1), (["train", model], 1), (["serve", "--runs", evil], 1),
                    (["study", "runs", evil], 1), (["help", evil], 1), ([evil], 2),
                    (["info", "--" + evil], 2), (["info", evil], 2), (["info", "--device", evil], 2),
                    (["info", "--json=" + evil], 2),
                    (["bench", "attention", "--shape", evil], 2),
                    (["bench", "attention", "--mask", evil], 2),
                    (["bench", "attention", "--target", evil], 2),
                    (["bench", "attention", "--statistics=" + evil], 2),
                    (["bench", "model", evil], 1), (["perplexity", model, evil], 1),
                    (["tokenizer", "train", "--out", evil, evil], 1)):
                ended, shown = self.on_terminal(*arguments)
                self.assertEqual(ended, code, (arguments, shown))
                self.assertEqual(what_terminals_obey(shown), [], (arguments, shown))
                self.assertTrue(shown, arguments)

    def test_runs_and_tokens_with_such_names(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for name in ESCAPES:
                runs.append(os.path.join(os.fsencode(folder), b"run " + name))
                os.mkdir(runs[-1])
                with open(os.path.join(runs[-1], b"metrics.jsonl"), "w", encoding="utf-8") as file:
                    file.writelines(f'{{"step": {i}, "loss": {9 - i}}}\n' for i in range(1, 9))
            svg = os.path.join(folder, "runs.svg")
            for some in (runs[:6], runs[5:]):
                told = qkv("study", "runs", *some, "--out", svg)
                self.assertEqual(told.returncode, 0, told.stderr)
                self.assertEqual(what_terminals_obey(told.stdout + told.stderr), [])
                xml.etree.ElementTree.parse(svg)
                listed = qkv("study", "runs", *some, "--json")
                self.assertEqual(len(json.loads(listed.stdout)["runs"]), len(some))
            made = qkv("tokenizer", "train", "--out", os.path.join(folder, "tok"), "--special",
                       b"\xff", os.path.join(ROOT, "LICENSE"))
            self.assertEqual(made.stderr,
                             b"qkv: train_tokenizer: special token '?' is not UTF-8\n")

    def test_files_and_pipes_get_the_bytes(self):
        translator = os.path.join(ROOT, "assets", "translator")
        run = qkv("tokenize", translator, "--ids", "--no-special", "a\u0085b")
        decoded = qkv("tokenize", translator, "--decode", run.stdout)
        self.assertEqual(run.returncode, 0)
        self.assertEqual(decoded.returncode, 0)
        ids = qkv("look", "--ids", "1 2", "--json", "--model", os.path.join(GOLDENS, "gpt2"))
        json.loads(ids.stdout)


class Signals(unittest.TestCase):
    """Every long command ends soon, with the status of the signal, and leaves no part of a file."""

    def ends(self, arguments, number, folder):
        process = subprocess.Popen([QKV, *arguments], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        self.addCleanup(process.kill)
        time.sleep(2 if SANITIZED else 0.5)
        self.assertIsNone(process.poll(), f"{arguments} was too short")
        process.send_signal(number)
        process.wait(120 if SANITIZED else 60)
        self.assertIn(process.returncode, (-number, 128 + number), arguments)

    def test_long_commands(self):
        gpt2 = os.path.join(GOLDENS, "gpt2")
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text.txt")
            with open(text, "w", encoding="utf-8") as file:
                rng = random.Random(1)
                for _ in range(60000):
                    file.write(" ".join(str(rng.getrandbits(40)) for _ in range(8)) + "\n")
            out = os.path.join(folder, "out")
            calls = (["bench", "attention", "--repeat", "1000000"],
                     ["bench", "model", gpt2, "--tokens", "4", "--repeat", "1000000"],
                     ["study", "scale", "--trials", "100000", "--out", out],
                     ["study", "train", "--steps", "1000000", "--out", out],
                     ["tokenizer", "train", "--kind", "unigram", "--size", "60000", "--out", out,
                      text],
                     ["translate", "Le chat dort. " * 60 + "?", "--beams", "64"],
                     ["look", "Le chat dort. " * 60, "--generate", "100000", "--beams", "1024",
                      "--out", out])
            for i, arguments in enumerate(calls):
                self.ends(arguments, (signal.SIGINT, signal.SIGTERM)[i % 2], folder)
                if os.path.isfile(out):  # look shows what it has
                    with open(out, encoding="utf-8") as file:
                        self.assertTrue(file.read().endswith("</html>\n"), arguments)
                    os.remove(out)
                self.assertFalse(os.path.exists(os.path.join(out, "tokenizer.json")), arguments)

    @unittest.skipIf(SANITIZED, "the prompt would take too long to read")
    def test_a_step_that_takes_long_is_not_waited_for(self):
        with TextModel("llama", eos_token_id=None, max_position_embeddings=1 << 20) as folder:
            for number in (signal.SIGINT, signal.SIGTERM):
                process = subprocess.Popen([QKV, "generate", folder, "--ids"],
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=subprocess.DEVNULL)
                self.addCleanup(process.kill)
                process.stdin.write(b"5 6 " * 200000)  # a step of many minutes
                process.stdin.close()
                time.sleep(2)
                process.send_signal(number)
                self.assertIn(process.wait(60), (-number, 128 + number))
                self.assertEqual(process.stdout.read(), b"")
                process.stdout.close()

    def test_a_signal_that_is_ignored_stays_so(self):
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        process = subprocess.Popen([QKV, "generate", os.path.join(GOLDENS, "gpt2"), "--ids", "1 2",
                                    "--max-tokens=20"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, preexec_fn=ignore)
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
