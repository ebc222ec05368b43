#!/usr/bin/env python3
"""The words of examples/multi30k: where ../shared has the corpus, as many as the dataset's own files hold."""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPE = ROOT / "examples/multi30k"
CORPUS = ROOT.parent / "shared/corpora/multi30k"
sys.dont_write_bytecode = True
sys.path.insert(0, str(RECIPE))
import prepare  # noqa: E402  (found by the line above)

# What the dataset's README says its tokenised files hold.
PUBLISHED = {
    "train": {"en": 377534, "de": 360706},
    "val": {"en": 13308, "de": 12828},
    "test_2016_flickr": {"en": 12968, "de": 12103},
    "test_2017_flickr": {"en": 11376, "de": 10758},
    "test_2017_mscoco": {"en": 5239, "de": 5158},
}


class Words(unittest.TestCase):
    def check(self, language, line, words):
        self.assertEqual(" ".join(prepare.words(line, language)), words)

    def test_english(self):
        self.check("en", "A man's T-shirt, size 1,000!", "a man 's t-shirt , size 1,000 !")
        self.check("en", "He’s at the U.S. Open...", "he 's at the u.s. open ...")
        self.check("en", 'It says "Stop".', 'it says " stop . "')
        self.check("en", "Dogs in the 1990's (and 10 000 cats)", "dogs in the 1990 's ( and 10.000 cats )")

    def test_german(self):
        self.check("de", "Auf dem Schild steht: „Halt.“", 'auf dem schild steht : " halt " .')
        self.check("de", "McDonald's am 3. Mai – der Bus 96.", "mcdonald ' s am 3. mai - der bus 96.")
        self.check("de", "Ein Mann, ca. 1,80 m groß.", "ein mann , ca. 1,80 m groß .")

    def test_a_lower_case_word_behind_leaves_the_dot_where_it_is(self):
        self.check("en", "A cat. A dog.", "a cat. a dog .")

    @unittest.skipUnless(CORPUS.exists(), "there is no ../shared/corpora/multi30k")
    def test_as_many_as_published(self):
        for split, languages in PUBLISHED.items():
            for language, published in languages.items():
                lines = prepare.read_lines(CORPUS / f"{split}.{language}.gz")
                found = sum(len(prepare.words(line, language)) for line in lines)
                self.assertEqual(found, published, f"{split}.{language}")


class Text(unittest.TestCase):
    def test_words_become_text_again(self):
        lines = ["Ein Mann (links) sagt: „Halt“, oder nicht?", "McDonald's am 3. Mai ..."]
        words = "\n".join(" ".join(prepare.words(line, "de")) for line in lines)
        script = ["sed", "-E", "-f", RECIPE / "detokenize.sed"]
        text = subprocess.run(script, input=words, capture_output=True, text=True, check=True).stdout
        self.assertEqual(text.splitlines(), ['ein mann (links) sagt: "halt", oder nicht?', "mcdonald's am 3. mai..."])


if __name__ == "__main__":
    unittest.main()
