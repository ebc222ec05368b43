#!/usr/bin/env python3
"""Makes ListOps of the Long Range Arena (Tay et al. 2021): examples/listops/generate.py OUT

Expressions of MAX, MIN, MED (the median, rounded down) and SM (the sum modulo 10) over digits and
other expressions, at most 10 deep, of 2 to 10 arguments, 500 to 2000 tokens long; the value, 0 to 9,
is the label. Writes train.tsv, valid.tsv, test.tsv (text, tab, label) and tokenizer/tokenizer.json,
whose tokens are whole words. The same seed gives the same files; no expression appears twice.
"""
import argparse
import itertools
import json
import multiprocessing
import pathlib
import random

OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
EXPRESSION_SHARE = 0.25  # of the arguments, the others are digits


CHUNK = 500  # expressions drawn from one seed: chunks are made side by side, in any order


class TooLong(Exception):
    pass


def value_of(operator, values):
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def grow(draw, options, depth, tokens):
    """Appends one expression or digit to tokens; returns its value."""
    if len(tokens) > options.max_length:
        raise TooLong
    if depth >= options.max_depth or draw.random() > EXPRESSION_SHARE:
        digit = draw.randrange(10)
        tokens.append(str(digit))
        return digit
    operator = draw.choice(OPERATORS)
    tokens.append(operator)
    count = draw.randint(2, options.max_arguments)
    values = [grow(draw, options, depth + 1, tokens) for _ in range(count)]
    tokens.append("]")
    return value_of(operator, values)


def expression(draw, options):
    while True:
        tokens = []
        try:
            value = grow(draw, options, 1, tokens)
        except TooLong:
            continue
        if options.min_length <= len(tokens) <= options.max_length:
            return " ".join(tokens), value


def expressions(task):
    options, chunk = task
    draw = random.Random(f"{options.seed} {chunk}")
    return [expression(draw, options) for _ in range(CHUNK)]


def tokenizer():
    words = SPECIAL + OPERATORS + ["]"] + [str(digit) for digit in range(10)]
    ids = {word: i for i, word in enumerate(words)}
    return {
        "version": "1.0",
        "added_tokens": [{"id": ids[token], "content": token, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [ids["[CLS]"]],
                                         "tokens": ["[CLS]"]}}},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="a folder")
    for split, count in (("train", 96000), ("valid", 2000), ("test", 2000)):
        parser.add_argument(f"--{split}", type=int, default=count)
    parser.add_argument("--min-length", type=int, default=500)
    parser.add_argument("--max-length", type=int, default=2000)
    parser.add_argument("--max-depth", type=int, default=10)
    parser.add_argument("--max-arguments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    (options.out / "tokenizer").mkdir(parents=True, exist_ok=True)
    (options.out / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1))
    seen = set()
    with multiprocessing.Pool() as pool:
        seeds = ((options, chunk) for chunk in itertools.count())
        for split in ("train", "valid", "test"):
            count = getattr(options, split)
            chunks = itertools.islice(seeds, -(-count // CHUNK))
            lines = itertools.chain.from_iterable(pool.imap(expressions, chunks))
            with open(options.out / f"{split}.tsv", "w", encoding="utf-8") as file:
                for text, value in itertools.islice(lines, count):
                    if text in seen:
                        raise SystemExit(f"an expression appears twice, try another seed: {text}")
                    seen.add(text)
                    file.write(f"{text}\t{value}\n")
            print(f"{options.out / split}.tsv: {count} expressions", flush=True)


if __name__ == "__main__":
    main()
