#!/usr/bin/env python3
"""Time `qkv bench tokenizer` beside Hugging Face tokenizers and sentencepiece: same text, one thread.

Each line of the file is a text. The contenders take turns; reported is the least processor time of
each, which what else the machine does hardly changes. Where a peer can do it in several ways (text
by text, in batches, with or without offsets), the fastest is taken. A ratio is our speed over the
peer's: above 1, ours is faster. The ids are compared as well.

    python3 -m venv peers && peers/bin/pip install tokenizers sentencepiece
    peers/bin/python bench/tokenizers.py FOLDER... --text book.txt
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.pop(0)  # this folder, where `tokenizers` would be this file
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def hugging_face(path):
    """The ways the library has to turn many texts into ids."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def one_by_one(texts):
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def batch(texts):
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    def batch_fast(texts):
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return [one_by_one, batch, batch_fast]


def sentencepiece(path):
    import sentencepiece as library

    model = library.SentencePieceProcessor(model_file=str(path))
    return [lambda texts: [model.encode(text) for text in texts],
            lambda texts: model.encode(texts, num_threads=1)]


def peer_of(path):
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        file = path / "tokenizer.model"
    if file.suffix == ".json":
        return "tokenizers", hugging_face(file)
    return "sentencepiece", sentencepiece(file)


def our_seconds(qkv, path, text):
    command = [qkv, "bench", "tokenizer", str(path), text, "--json", "--repeat", "2"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=pathlib.Path, help="tokenizers: folders or files")
    parser.add_argument("--text", required=True, help="a text file")
    parser.add_argument("--qkv", default="build/release/bin/qkv")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    text = pathlib.Path(arguments.text).read_bytes().decode()
    lines = text.removesuffix("\n").split("\n")
    megabytes = len(text.encode()) / 1e6
    print("| tokenizer | ours MB/s | load ms | peer | peer MB/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for path in arguments.paths:
        name, ways = peer_of(path)
        ours, theirs, load, tokens = [], [], [], 0
        for _ in range(arguments.turns):
            report = our_seconds(arguments.qkv, path, arguments.text)
            ours += report["seconds"]
            load.append(report["load_seconds"])
            for way in ways:
                start = time.process_time()
                ids = way(lines)
                theirs.append(time.process_time() - start)
                tokens = sum(map(len, ids))
        if tokens != report["tokens"]:
            sys.exit(f"{path}: {report['tokens']} tokens by qkv, {tokens} by {name}")
        print(f"| {path.name} | {megabytes / min(ours):.1f} | {min(load) * 1e3:.0f} | {name} | "
              f"{megabytes / min(theirs):.1f} | {min(theirs) / min(ours):.1f} |", flush=True)


if __name__ == "__main__":
    main()
