#!/usr/bin/env python3
"""qkv serve in a browser: typing, rows on demand, training runs, and a clean end.
Usage: serve_test.py QKV"""

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request

import browser
from browser import BrowserTest, look, weights
from text_models import TextModel, WORDS


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([browser.QKV, "serve", "--port", "0", *arguments], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.url = self.process.stdout.readline().strip()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


def fetch(url, body=None, **headers):
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Serve(BrowserTest):
    def serve(self, golden, *arguments):
        model = TextModel(golden)
        self.addCleanup(model.temporary.cleanup)
        self.folder = model.folder
        server = Server("--model", model.folder, *arguments)
        self.addCleanup(lambda: server.process.poll() is None and server.end())
        return server

    def test_typing_changes_attention_and_output(self):
        server = self.serve("bert-masked-lm", "--example", "a b [MASK]")
        b = self.browser
        b.open(server.url)
        self.assertEqual(len(b.all(".token.row")), 5)
        self.assertIn("gap at 3", b.one("#said").text)
        first = b.data(".choice", "probability")
        b.one("#text").send_keys(" c d")
        b.until(lambda: len(b.all(".token.row")) == 7)
        self.assertNotEqual(b.data(".choice", "probability"), first)
        b.click("#heads [data-value='1']")
        b.hover(".token.row[data-row='4']")
        expected = weights(look(self.folder, "a b [MASK] c d"), "encoder", 1, 1)
        self.assert_close([w for w, in b.data(".lines path", "weight")], expected[4])
        b.one("#text").send_keys(" e" * 200)
        b.until(lambda: "positions" in b.one("#status").text)  # too long is told, not suffered
        b.complaints()  # the browser notes the 400
        code, errors = server.end()
        self.assertEqual(code, 130)
        self.assertIn("ended", errors)

    def test_new_tokens_follow(self):
        server = self.serve("gpt2", "--example", "a b c")
        b = self.browser
        b.open(server.url)
        count = len(b.all(".token.row"))
        box = b.one("#more")
        box.clear()
        box.send_keys("4")
        b.until(lambda: len(b.all(".token.row")) == count + 4)

    def test_rows_of_a_long_text_come_on_demand(self):
        words = " ".join(WORDS[5 + i * i % 80] for i in range(900))
        server = self.serve("t5", "--example", words)
        b = self.browser
        b.open(server.url + "#map=encoder&layer=1&head=3&row=777")
        b.until(lambda: "The 24 largest" in b.one(".detail").text)
        _, text = fetch(server.url + "api/rows?id=1&map=encoder&layer=1&head=3&row=777")
        top = sorted(json.loads(text)["weights"], reverse=True)[:24]
        self.assert_close([w for w, in b.data(".context li", "value")], top, 1e-5)

    def test_runs_are_drawn_as_they_grow(self):
        with tempfile.TemporaryDirectory() as runs:
            os.mkdir(os.path.join(runs, "tiny"))
            path = os.path.join(runs, "tiny", "metrics.jsonl")

            def step(number, **more):
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"step": number, "loss": 5 - number / 10, "lr": 1e-3,
                                           "tokens_per_second": 100, "seconds": number, **more}) + "\n")
            health = [{"name": f"encoder.{i}.self", "head": h, "max_logit": 10 * i + h, "entropy": 1.5,
                       "variance": 1, "saturation": 0} for i in range(2) for h in range(3)]
            step(1)
            step(2, eval={"loss": 4.5, "perplexity": 90, "bleu": 7}, health=health, warning="it grows")
            server = self.serve("gpt2", "--runs", runs)
            b = self.browser
            b.open(server.url + "runs")
            b.until(lambda: b.all(".cell"))
            drawn = b.data("[data-title='Loss'] [data-series='training'] circle", "x", "y")
            self.assertEqual(drawn, [[1, 4.9], [2, 4.8]])
            self.assertEqual(b.data("[data-title='BLEU'] circle", "y"), [[7]])
            self.assertIn("it grows", b.one("#warnings").text)
            b.click("#health [data-value='max_logit']")
            for layer, head, value in b.data(".cell", "layer", "head", "value"):
                self.assertEqual(value, 10 * layer + head)
            step(3)
            b.until(lambda: len(b.all("[data-title='Loss'] [data-series='training'] circle")) == 3)
            self.assertIn("step 3", b.one("#facts").text)

    def test_a_run_that_cannot_be_read_says_why(self):
        with tempfile.TemporaryDirectory() as runs:
            for name in ("a-link", "good"):
                os.mkdir(os.path.join(runs, name))
            os.symlink("/dev/zero", os.path.join(runs, "a-link", "metrics.jsonl"))
            with open(os.path.join(runs, "good", "metrics.jsonl"), "w", encoding="utf-8") as file:
                file.write('{"step": 1, "loss": 2}\nno line\n{"step": 3, "loss": 1}\n')
            server = self.serve("gpt2", "--runs", runs)
            b = self.browser
            b.open(server.url + "runs#%")
            b.until(lambda: "step 3" in b.one("#facts").text)
            self.assertIn("1 line could not be read: good/metrics.jsonl line 2", b.one("#facts").text)
            b.click("#runs [data-value='a-link']")
            b.until(lambda: "links are not followed" in b.one("#facts").text)
            self.assertEqual(b.all("#curves figure"), [])

    def test_elsewhere_a_token_is_needed(self):
        server = self.serve("bert-model", "--host", "0.0.0.0")
        address, token = server.url.split("?token=")
        self.assertGreaterEqual(len(token), 32)
        for path in ("", "api/model", "runs", "api/openapi.json"):
            self.assertEqual(fetch(address + path)[0], 401)
            self.assertEqual(fetch(f"{address}{path}?token=wrong")[0], 401)
            self.assertEqual(fetch(f"{address}{path}?token={token}")[0], 200)
            self.assertEqual(fetch(address + path, Authorization=f"Bearer {token}")[0], 200)
        b = self.browser
        b.open(server.url)
        self.assertTrue(b.all(".token.row"))

    def test_limits(self):
        server = self.serve("bert-model")
        port = server.url.rsplit(":", 1)[1].strip("/")
        self.assertEqual(fetch(server.url, Host="evil.example")[0], 403)
        self.assertEqual(fetch(server.url + "api/look", b"a" * (300 << 10))[0], 413)
        for path in ("..%2f..%2fetc%2fpasswd", "assets/style.css", "%00", "config.json"):
            self.assertEqual(fetch(server.url + path)[0], 404)
        again = subprocess.run([browser.QKV, "serve", "--port", port, "--model", self.folder],
                               capture_output=True, text=True, timeout=20)
        self.assertEqual(again.returncode, 1)
        self.assertIn("--port chooses another", again.stderr)


if __name__ == "__main__":
    browser.main()
