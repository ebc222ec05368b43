#!/usr/bin/env python3
"""The commands of the README run as they stand there, with trained models where they are.
Usage: cli_readme_test.py QKV"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from text_models import trained

QKV = ""


class Readme(unittest.TestCase):
    def test_its_commands_run(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
            blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
        commands = [line for block in blocks for line in block.splitlines()
                    if line.startswith("qkv ") or "| qkv " in line]
        self.assertTrue(commands)
        path = os.path.dirname(os.path.abspath(QKV)) + os.pathsep + os.environ["PATH"]
        shared = os.path.join(root, "..", "shared")
        folder = tempfile.TemporaryDirectory()  # where commands may write
        self.addCleanup(folder.cleanup)
        for name in os.listdir(shared) if os.path.isdir(shared) else []:
            os.symlink(os.path.abspath(os.path.join(shared, name)), os.path.join(folder.name, name))
        for command in commands:
            with self.subTest(command=command):
                models = re.findall(r"models/([\w-]+)", command)
                if not all(trained(name) for name in models):
                    self.skipTest(f"not here: {models}")
                run = subprocess.run(["bash", "-c", command], capture_output=True, text=True,
                                     cwd=folder.name,
                                     env={**os.environ, "PATH": path}, encoding="utf-8")
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertTrue(run.stdout)


if __name__ == "__main__":
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main()
