#!/usr/bin/env python3
"""Multi30k as Wu et al. (2021) read it: lower case, plain punctuation, words apart.

    prepare.py FOLDER OUT

FOLDER holds {train,val,test_2016_flickr,...}.{en,de}.gz as the dataset's task 1 has them. Into OUT go
train.tsv, valid.tsv and a .tsv for every test set: english TAB german, a pair a line.

Words are those of the Moses scripts, by rules of our own that say as much as this corpus needs. Signs are
not written as entities (&quot;): each word stays one word, so BLEU is the same.
"""

import argparse
import gzip
import pathlib
import re

SPLITS = {
    "train": "train",
    "val": "valid",
    "test_2016_flickr": "test_2016",
    "test_2017_flickr": "test_2017",
    "test_2017_mscoco": "test_coco",
}

PLAIN = str.maketrans(
    {
        **dict.fromkeys("„“”«»‚‘’", '"'),
        **dict.fromkeys("`´", "'"),
        "–": "-",
        "—": " - ",
        "…": "...",
        "\u00a0": " ",
    }
)
CURLY_APOSTROPHE = re.compile(r"(?<=[a-z])[‘’](?=[a-z])")

# Where a quotation ends: English has its full stop or comma inside, German outside.
CLOSING = {
    "en": [(re.compile(r'"([,.]+)'), r'\1"')],
    "de": [(re.compile(r',"'), '",'), (re.compile(r'(\.+)"'), r'"\1')],
}
# "10 000" is one number.
THOUSANDS = {"en": r"\1.", "de": r"\1,"}

LETTER, LETTER_OR_DIGIT = r"[^\W\d_]", r"[^\W_]"
# What a word may hold: letters, digits, hyphens, a comma between digits, a dot that has no neighbour.
INSIDE = rf"(?:{LETTER_OR_DIGIT}|-|(?<=\d),(?=\d)|(?<!\.)\.(?!\.))"
# An English apostrophe between letters opens the second word (man 's, don 't, 1990 's); at the end of a line
# it stays with the word.
OPENING = rf"(?:(?<={LETTER})'(?={LETTER})|(?<=\d)'(?=s))"
WORD = {
    "en": re.compile(rf"\.\.+|{OPENING}?{INSIDE}+(?:(?<={LETTER})'$)?|\S"),
    "de": re.compile(rf"\.\.+|{INSIDE}+|\S"),
}

# German letters and ordinals keep their dot even where no lower-case word follows.
GERMAN_WITH_DOT = re.compile(r"[a-z]|\d\d?|ca")


def normalized(line: str, language: str) -> str:
    text = CURLY_APOSTROPHE.sub("'", line.lower())
    text = text.translate(PLAIN).replace("''", '"')
    for pattern, replacement in CLOSING[language]:
        text = pattern.sub(replacement, text)
    return re.sub(r"(\d) (?=\d)", THOUSANDS[language], text)


def owns_its_dot(word: str, after: str, language: str) -> bool:
    stem = word[:-1]
    if "." in stem and re.search(LETTER, stem):  # u.s.
        return True
    if language == "de" and GERMAN_WITH_DOT.fullmatch(stem):
        return True
    return after[:1].islower()


def words(line: str, language: str) -> list[str]:
    parts = WORD[language].findall(normalized(line, language))
    result = []
    for part, after in zip(parts, [*parts[1:], ""]):
        ends_with_dot = len(part) > 1 and part[-1] == "." and part[-2] != "."
        if ends_with_dot and not owns_its_dot(part, after, language):
            result += [part[:-1], "."]
        else:
            result.append(part)
    return result


def read_lines(path: pathlib.Path) -> list[str]:
    return gzip.open(path, "rt", encoding="utf-8", newline="\n").read().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for split, name in SPLITS.items():
        sides = []
        for language in ("en", "de"):
            lines = read_lines(given.folder / f"{split}.{language}.gz")
            sides.append([" ".join(words(line, language)) for line in lines])
        pairs = [f"{english}\t{german}\n" for english, german in zip(*sides, strict=True)]
        path = given.out / f"{name}.tsv"
        path.write_text("".join(pairs), encoding="utf-8")
        print(f"{path}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
