#!/usr/bin/env python3
"""Writes bleu.json, what sacreBLEU says about the lines below: bleu.py > bleu.json (pip install sacrebleu)"""
import json
import sys

from sacrebleu.metrics import BLEU
from sacrebleu.version import __version__

# (hypothesis, reference, second reference)
LINES = [
    ("The cat sat on the mat.", "The cat was sitting on the mat.", "A cat sat on a mat."),
    ("He ran five miles, didn't he?", "He ran five miles, didn't he?", "He ran 5 miles."),
    ("It costs $3,141.59, i.e. 10% more.", "It costs $3,141.59 (10% more).", "It cost 3,141.59 $."),
    ("1.000,50 and .5 and 5. and ,5 ,, .. ... 5,,5", "1.000,50 and .5 and 5. ... 5,,5", "5..5"),
    ("The years 1990-2000 and a-b, 3-4-5--6, -7", "The years 1990-2000, a-b and 3-4-5, -7", "-"),
    ("&quot;Tom &amp; Jerry&quot; &lt;b&gt; &amp;lt; &apos;", "\"Tom & Jerry\" <b> &lt; '", "&"),
    ("a <skipped> word and a<skipped>b", "a word and ab", "<skipped>"),
    ("C'est l'été à Évreux; « bonjour » !", "C'est l'été, à Évreux : « bonjour » !", "L'ÉTÉ"),
    ("Straße, GRÖSSE, ÜBER-flüssig…", "straße, größe, über-flüssig...", "ẞ"),
    ("¿Qué? ¡Nada!", "¿Qué hora es? ¡Nada!", "Que?"),
    ("ΟΔΟΣ ΣΑΣ Σ Σ. ΑΣ'Α ΑΣ. aΣb Α\u0301Σ", "οδος σας σ σ. ας'α ας. aσb α\u0301ς", "Σ"),
    ("İstanbul ISPARTA ǅ Ⅷ Ⓐ", "i\u0307stanbul isparta ǆ ⅷ ⓐ", "istanbul"),
    ("今天天气很好。 你呢？", "今天天气不错。你呢?", "天气"),
    ("Привет, мир! №5 — «да»", "Привет, мир! № 5 - \"да\"", "мир"),
    ("x² + y³ = ½, 3½ ٣٫١٤ १२३।", "x² + y² = ½, 3½ ٣٫١٤ १२३ ।", "½"),
    ("5€ £6 7°C 8‰ ©2020 a|b ~c ^d `e`", "5 € £6 7 °C 8‰ © 2020 a|b ~c ^d 'e'", "€"),
    ("no\u00a0break\u2009thin\u3000wide\u200bzero\u1680ogham", "no break thin wide zero ogham", "no"),
    ("tab\there\x0bvt\x1cfs\x85nel \t ", "tab here vt fs nel", "tab"),
    ("emoji 😀👍🏽 and flags 🇫🇷!", "emoji 😀 👍🏽 and flags 🇫🇷 !", "😀"),
    ("", "An empty hypothesis.", ""),
    ("the the the the the the the", "the cat is on the mat", "there is a cat on the mat"),
    ("user@example.org http://a.b/c?d=e&f=g#h", "user@example.org http://a.b/c?d=e", "a.b"),
    ("[x] {y} (z) 'w' \"v\" \\u *t*", "[x] {y} (z) 'w' \"v\" \\u *t*", "(z)"),
    ("Cafe\u0301 vs Caf\u00e9", "Caf\u00e9 vs Cafe\u0301", "Café"),
]
TOKENIZERS = ["13a", "intl", "char", "none"]
# Lines of LINES that make a corpus of their own: all; one match only; none; too short for 4-grams.
CORPORA = {"all": list(range(len(LINES))), "same": [1, 22], "one": [0], "short": [9],
           "few": [2, 13, 20], "empty": [19], "long": [20, 3]}


def score(corpus, references, tokenizer, lowercase, smooth):
    metric = BLEU(tokenize=tokenizer, lowercase=lowercase, smooth_method=smooth, force=True)
    lines = [LINES[i] for i in CORPORA[corpus]]
    found = metric.corpus_score([line[0] for line in lines],
                                [[line[1 + r] for line in lines] for r in range(references)])
    return {"corpus": corpus, "references": references, "tokenizer": tokenizer,
            "lowercase": lowercase, "smooth": smooth, "score": found.score,
            "precisions": found.precisions, "matches": found.counts, "totals": found.totals,
            "brevity_penalty": found.bp, "hypothesis_words": found.sys_len,
            "reference_words": found.ref_len, "text": str(found),
            "signature": metric.get_signature().format().rsplit("|", 1)[0]}


words = [{"tokenizer": t, "lowercase": lower, "line": text,
          "words": BLEU(tokenize=t, lowercase=lower)._preprocess_segment(text).split()}
         for t in TOKENIZERS for lower in (False, True) for line in LINES for text in line[:2]]
scores = [score(corpus, references, t, lower, smooth) for corpus in CORPORA for references in (1, 2)
          for t in TOKENIZERS for lower in (False, True) for smooth in ("exp", "none")]
json.dump({"sacrebleu": __version__, "lines": LINES, "corpora": CORPORA, "words": words,
           "scores": scores}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
print()
