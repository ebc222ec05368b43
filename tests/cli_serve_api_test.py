#!/usr/bin/env python3
"""The whole API of qkv serve, driven by schemathesis from its own OpenAPI description: valid and
invalid requests of every endpoint, whose answers have to be what the description promises. The same
requests every time. Skipped (77) where schemathesis is not: tools/install-deps --ci puts it into
build/ci-venv. Usage: cli_serve_api_test.py QKV"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

from text_models import TextModel

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, "..", "build", "ci-venv", "bin", "python3")
EXAMPLES = 40  # of each endpoint, beside those at the edges of its types
SEED = 1
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "negative_data_rejection",
          "positive_data_acceptance", "unsupported_method", "allow_header_conformance"]
# What a schema cannot say: how many tokens a model reads, and which rows a picture has.
CONFIG = """
[[operations]]
include-name = "POST /api/look"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]
[[operations]]
include-name = "GET /api/rows"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
[[operations]]
include-name = "GET /api/run"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
"""


def python_with_schemathesis():
    if importlib.util.find_spec("schemathesis"):
        return sys.executable
    if os.path.exists(VENV) and subprocess.run([VENV, "-c", "import schemathesis"],
                                               capture_output=True).returncode == 0:
        return VENV
    return None


def write_runs(folder):
    """One that is a run, one that cannot be read, and lines of every kind."""
    os.makedirs(os.path.join(folder, "first"))
    os.makedirs(os.path.join(folder, "link"))
    os.symlink("/dev/zero", os.path.join(folder, "link", "metrics.jsonl"))
    health = [{"name": "a", "head": 2, "entropy": 0.5, "max_logit": "nan"}]
    lines = [{"step": 1, "loss": 5.5, "lr": 0.1, "tokens_per_second": 9, "seconds": 1.5},
             {"step": 2, "loss": "inf", "health": health, "warning": "it grows"},
             {"step": 2, "eval": {"loss": 4.5, "bleu": 7}}, "no line"]
    with open(os.path.join(folder, "first", "metrics.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def drive(python, url, folder):
    config = os.path.join(folder, "schemathesis.toml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG)
    command = [python, "-m", "schemathesis.cli", "--config-file", config, "run",
               url + "api/openapi.json", "--checks", ",".join(CHECKS), "--seed", str(SEED),
               "--max-examples", str(EXAMPLES), "--generation-database", "none", "--workers", "1",
               "--phases", "examples,coverage,fuzzing,stateful", "--no-color"]
    return subprocess.run(command, cwd=folder, timeout=300).returncode


def main(qkv):
    python = python_with_schemathesis()
    if python is None:
        print("skipped: there is no schemathesis here; tools/install-deps --ci installs it")
        return 77
    with tempfile.TemporaryDirectory() as folder, TextModel("bert-masked-lm") as model:
        runs = os.path.join(folder, "runs")
        write_runs(runs)
        server = subprocess.Popen([qkv, "serve", "--port", "0", "--model", model, "--runs", runs],
                                  text=True, stdout=subprocess.PIPE)
        try:
            url = server.stdout.readline().strip()
            look = urllib.request.Request(url + "api/look", data=b'{"text": "a b c"}',
                                          headers={"Content-Type": "application/json"})
            urllib.request.urlopen(look, timeout=60).close()  # the examples ask for its rows
            failed = drive(python, url, folder)
            if server.poll() is not None:
                print(f"the server ended with {server.returncode}")
                failed = 1
        finally:
            server.terminate()
            server.wait(60)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
