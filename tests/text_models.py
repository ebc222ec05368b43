"""What the tests of the commands on text share: small models with a tokenizer beside them, and the
trained ones where they are present."""

import json
import os
import shutil
import struct
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "data", "goldens")
MODELS = os.path.join(HERE, "..", "..", "shared", "models")

# The goldens have 96 tokens: five special ones, then words a, b, ... that stand for themselves.
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += [first + second for first in ("", "x", "y", "z") for second in "abcdefghijklmnopqrstuvw"]
WORDS = WORDS[:96]


def trained(name):
    """The folder of a trained model, or None."""
    folder = os.path.join(MODELS, name)
    return folder if os.path.exists(os.path.join(folder, "model.safetensors")) else None


def tensors(path):
    """The tensors of a safetensors file as flat lists, i64 and f32 only."""
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    result = {}
    for name, info in json.loads(data[8:start]).items():
        code = {"I64": "q", "F32": "f"}.get(info.get("dtype"))
        if code:
            begin, end = (start + at for at in info["data_offsets"])
            result[name] = list(struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}",
                                              data[begin:end]))
    return result


def expected(golden):
    return tensors(os.path.join(GOLDENS, golden, "expected.safetensors"))


class TextModel:
    """A copy of a golden with a vocabulary, and changes to its config (None removes a key)."""

    def __init__(self, golden, vocabulary=True, **config):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        shutil.copy(os.path.join(GOLDENS, golden, "model.safetensors"), self.folder)
        with open(os.path.join(GOLDENS, golden, "config.json"), encoding="utf-8") as file:
            merged = {**json.load(file), **config}
        self.write("config.json", json.dumps(merged))
        if vocabulary:
            self.write("vocab.txt", "".join(word + "\n" for word in WORDS))

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def spoil(self, tensor):
        """Makes the values of an f32 tensor NaN."""
        path = os.path.join(self.folder, "model.safetensors")
        with open(path, "r+b") as file:
            start = 8 + struct.unpack("<Q", file.read(8))[0]
            begin, end = json.loads(file.read(start - 8))[tensor]["data_offsets"]
            file.seek(start + begin)
            file.write(struct.pack("<f", float("nan")) * ((end - begin) // 4))

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        self.temporary.cleanup()
