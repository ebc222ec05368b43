#!/usr/bin/env python3
"""The qkv command when files change under it, and when its environment is wrong.
Usage: cli_files_test.py QKV"""

import json
import os
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from text_models import TextModel

QKV = ""
# A decoder that never ends by itself.
ENDLESS = {"eos_token_id": None, "max_position_embeddings": 1 << 20}


def start(test, *arguments):
    # Unbuffered: what read() does not return stays for communicate().
    process = subprocess.Popen([QKV, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               bufsize=0)
    test.addCleanup(process.kill)
    return process


class MappedFiles(unittest.TestCase):
    def ends_with_a_reason(self, process, model):
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(errors.decode().splitlines()[-1], f"^qkv: '{model}' became shorter")

    def test_a_model_that_is_cut_while_it_generates(self):
        with TextModel("llama", **ENDLESS) as folder:
            model = os.path.join(folder, "model.safetensors")
            process = start(self, "generate", folder, "--ids", "5 6", "--max-tokens", "400000")
            self.assertRegex(process.stdout.read(8), rb"^\d+")
            os.truncate(model, 0)
            self.ends_with_a_reason(process, model)

    def test_a_model_that_is_cut_while_it_is_served(self):
        with TextModel("llama") as folder:
            model = os.path.join(folder, "model.safetensors")
            process = start(self, "serve", "--port", "0", "--ids", "--json", "--model", folder)
            started = b""
            for line in process.stdout:
                started += line
                if line == b"}\n":
                    break
            if not started and b"without HTTP" in process.stderr.read():
                self.skipTest("built without HTTP")
            url = json.loads(started)["url"] + "api/look"

            def look():
                body = json.dumps({"text": "5 6 7"}).encode()
                request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status

            self.assertEqual(look(), 200)
            os.truncate(model, 0)
            with self.assertRaises((OSError, urllib.error.URLError)):
                look()
            self.ends_with_a_reason(process, model)

    def test_a_model_that_is_replaced_is_the_old_one_until_the_end(self):
        with TextModel("llama", **ENDLESS) as folder:
            model = os.path.join(folder, "model.safetensors")
            arguments = ("generate", folder, "--ids", "5 6", "--max-tokens", "300")
            expected = subprocess.run([QKV, *arguments], capture_output=True, text=True)
            process = start(self, *arguments)
            first = process.stdout.read(8)
            with open(model + ".new", "wb") as file:
                file.write(b"nothing of a model")
            os.rename(model + ".new", model)
            rest, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual((first + rest).decode(), expected.stdout)

    def test_the_signal_of_another_cause_is_no_ones_file(self):
        with TextModel("llama", **ENDLESS) as folder:
            process = start(self, "generate", folder, "--ids", "5 6", "--max-tokens", "400000")
            process.stdout.read(8)
            process.send_signal(7)
            _, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, -7)
            self.assertNotIn(b"shorter", errors)


class Environment(unittest.TestCase):
    def run_info(self, **environment):
        return subprocess.run([QKV, "info", "--json"], capture_output=True, text=True,
                              env={**os.environ, **environment})

    def test_numbers_of_threads(self):
        for wrong in ("garbage", "1e3", "0", "-1", "1025", " 4", "4 ", "4.0", "99999999999999999999"):
            run = self.run_info(QKV_THREADS=wrong)
            self.assertEqual(run.returncode, 1, wrong)
            self.assertIn(f"QKV_THREADS must be a whole number from 1 to 1024, got '{wrong}'",
                          run.stderr)
        for right in ("1", "3", "1024"):
            self.assertEqual(json.loads(self.run_info(QKV_THREADS=right).stdout)["threads"],
                             int(right))
        self.assertEqual(self.run_info(QKV_THREADS="").stdout, self.run_info().stdout)

    def test_an_argument_comes_first(self):
        run = subprocess.run([QKV, "info", "--json", "--threads", "2"], capture_output=True,
                             text=True, env={**os.environ, "QKV_THREADS": "many"})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(json.loads(run.stdout)["threads"], 2)

    def test_operators_say_it_too(self):
        with TextModel("llama") as folder:
            run = subprocess.run([QKV, "generate", folder, "--ids", "5 6", "--max-tokens", "1"],
                                 capture_output=True, text=True,
                                 env={**os.environ, "QKV_THREADS": "many"})
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("QKV_THREADS", run.stderr)

    def test_targets(self):
        run = self.run_info(QKV_CPU_TARGET="abacus")
        self.assertEqual(run.returncode, 1)
        self.assertIn("QKV_CPU_TARGET: CPU target 'abacus' is not available", run.stderr)
        self.assertIn("baseline", run.stderr)


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
