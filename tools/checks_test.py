#!/usr/bin/env python3
"""The checks of the source, run on small trees: what they must accept and what refuse."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).parent
LEVELS = """
| level | folder | holds | public headers |
| --- | --- | --- | --- |
| 3 | `examples` | programs | |
| 3 | `cli` | the command | |
| 2 | `ops` | operators | `ops.h` |
| 1 | `io` | files | `checkpoint.h` |
| 1 | `cpu` | kernels | `cpu.h` |
| 0 | `core` | tensors | `tensor.h` |
"""
TREE = {
    "docs/architecture.md": LEVELS,
    "include/qkv/tensor.h": "#pragma once\n#include <cstdint>\n",
    "include/qkv/ops.h": '#pragma once\n#include "qkv/tensor.h"\n',
    "include/qkv/cpu.h": "#pragma once\n",
    "include/qkv/qkv.h": '#pragma once\n#include "qkv/ops.h"\n',
    "src/backends.cpp": '#include "cpu/kernels.h"\n',
    "src/core/tensor.h": '#include "qkv/tensor.h"\n#include <fmt/format.h>\n',
    "src/cpu/kernels.h": '#include "core/tensor.h"\n',
    "src/ops/ops.cpp": '#include "qkv/ops.h"\n#include "core/tensor.h"\n#include "qkv/cpu.h"\n',
    "src/io/file.cpp": "#include <vector>\n",
    "cli/main.cpp": '#include "qkv/qkv.h"\n#include "core/tensor.h"\n',
    "examples/first.cpp": '#include "qkv/qkv.h"\n',
}


def run(tool, files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, TOOLS / tool, root], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Levels(unittest.TestCase):
    def refuses(self, name, text, reason):
        code, output = run("check-levels", TREE | {name: text})
        self.assertEqual(code, 1, output)
        self.assertIn(f"{name}:", output)
        self.assertIn(reason, output)

    def test_accepts_downward(self):
        code, output = run("check-levels", TREE)
        self.assertEqual(code, 0, output)

    def test_refuses_upward(self):
        self.refuses("src/core/up.cpp", '\n  #  include "qkv/ops.h"\n', "core is level 0")
        self.refuses("src/io/up.cpp", '#include "../ops/ops.cpp"\n', "io is level 1")
        self.refuses("include/qkv/tensor.h", '#include "qkv/ops.h"\n', "core is level 0")

    def test_refuses_sideways(self):
        self.refuses("src/io/side.cpp", '#include "qkv/cpu.h"\n', "io is level 1")

    def test_hides_devices(self):
        self.refuses("src/ops/peek.cpp", '#include "cpu/kernels.h"\n', "only src/backends.cpp")

    def test_examples_are_public(self):
        self.refuses("examples/second.cpp", '#include "core/tensor.h"\n', "public headers only")

    def test_umbrella_is_for_programs(self):
        self.refuses("src/ops/all.cpp", '#include "qkv/qkv.h"\n', "for programs")

    def test_every_file_has_a_level(self):
        self.refuses("src/new/thing.cpp", "", "no level")
        self.refuses("src/loose.cpp", "", "no level")
        self.refuses("include/qkv/new.h", "#pragma once\n", "no level")

    def test_public_headers_are_plain(self):
        for text, reason in (
            ("#include <fmt/format.h>\n", "does not include fmt/format.h"),
            ("#include <cuda.h>\n", "does not include cuda.h"),
            ('#include "core/tensor.h"\n', "does not include core/tensor.h"),
            ("#define QKV 1\n", "no #define"),
            ("#ifdef QKV\n", "no #ifdef"),
        ):
            self.refuses("include/qkv/ops.h", text, reason)


class Names(unittest.TestCase):
    HEADER = """#pragma once
namespace qkv::cuda {
// struct Row { is a comment; so is this brace: {
struct Row {
  int begin = 0;
  const char* shown() const { return "}"; }
  struct Part { int of; };
};
template <class T>
inline T twice(T x) { return 2 * x; }
}  // namespace qkv::cuda
"""

    def check(self, name, text):
        return run("check-names", {"src/cuda/rows.cuh": self.HEADER, name: text})

    def accepts(self, name, text):
        code, output = self.check(name, text)
        self.assertEqual(code, 0, output)

    def refuses(self, name, text, what):
        code, output = self.check(name, text)
        self.assertEqual(code, 1, output)
        self.assertIn(f"{what} is defined in", output)
        self.assertIn("rows.cuh:", output)

    def test_refuses_a_second_definition(self):
        self.refuses("src/cuda/short.cu", "namespace qkv::cuda {\nstruct Row { int of; };\n}\n",
                     "qkv::cuda::Row")
        self.refuses("src/cuda/short.cu",
                     "namespace qkv { namespace cuda {\nclass alignas(16) Row final : Base {};\n} }\n",
                     "qkv::cuda::Row")
        self.refuses("cli/short.cpp", "namespace qkv::cuda {\nenum class Row : int { a };\n}\n",
                     "qkv::cuda::Row")
        self.refuses("src/cuda/short.cu",
                     "namespace qkv::cuda {\ntemplate <class T>\ninline T twice(T x) { return x + x; }\n}",
                     "qkv::cuda::template <class T> inline T twice(T x)")

    def test_accepts_what_is_its_own(self):
        for text in (
            "namespace qkv::cuda {\nnamespace {\nstruct Row { int of; };\n}\n}\n",
            "namespace qkv {\nstruct Row { int of; };\n}\n",
            "namespace qkv::cuda {\nstruct Row;\nstruct Column { struct Part {}; };\n}\n",
            "namespace qkv::cuda {\nvoid f() { struct Row { int of; }; }\n}\n",
            "namespace qkv::cuda {\ntemplate <>\nstruct Row<int> { int of; };\n}\n",
        ):
            self.accepts("src/cuda/short.cu", text)


class Readme(unittest.TestCase):
    EXAMPLE = "// [one]\nint main() {\n  // [two]\n  return 0;\n  // [two]\n}\n// [one]\n"

    def check(self, readme):
        return run("check-readme", {"README.md": readme, "examples/a.cpp": self.EXAMPLE})

    def test_accepts_a_region(self):
        code, output = self.check("# t\n\n```cpp\nreturn 0;\n```\n\n```sh\nls\n```\n")
        self.assertEqual(code, 0, output)

    def test_refuses_other_code(self):
        code, output = self.check("# t\n\n```cpp\nreturn 1;\n```\n")
        self.assertEqual(code, 1, output)
        self.assertIn("README.md:3:", output)

    def test_refuses_a_readme_without_code(self):
        self.assertEqual(self.check("# t\n")[0], 1)


class CliDocs(unittest.TestCase):
    def check(self, page, *options):
        """Runs the check with a program that says "# one\\n" of itself."""
        with tempfile.TemporaryDirectory() as root:
            program = pathlib.Path(root, "program")
            program.write_text("#!/bin/sh\necho '# one'\n")
            program.chmod(0o755)
            file = pathlib.Path(root, "cli.md")
            file.write_text(page)
            done = subprocess.run([sys.executable, TOOLS / "check-cli-docs", *options, program, file],
                                  capture_output=True, text=True)
            return done.returncode, done.stdout, file.read_text()

    def test_accepts_what_the_program_says(self):
        self.assertEqual(self.check("# one\n")[0], 0)

    def test_refuses_a_stale_page(self):
        code, output, _ = self.check("# two\n")
        self.assertEqual(code, 1)
        self.assertIn("make docs", output)

    def test_rewrites_it(self):
        self.assertEqual(self.check("# two\n", "--write")[2], "# one\n")


if __name__ == "__main__":
    unittest.main()
