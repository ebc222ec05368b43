#!/usr/bin/env python3
"""The page of qkv look: what is drawn is what the library computed. Usage: look_page_test.py QKV"""

import os
import struct
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

import browser
from browser import BrowserTest, Keys, look, qkv, weights
from text_models import TextModel, WORDS

TEXT = "a b c xa xb d e"


class LookPage(BrowserTest):
    def page(self, golden, text=TEXT, *arguments, **config):
        """Opens the page of a small model and returns what --json says of the same."""
        model = TextModel(golden, **config)
        self.addCleanup(model.temporary.cleanup)
        path = os.path.join(model.folder, "page.html")
        qkv("look", text, "--model", model.folder, "--out", path, *arguments)
        self.folder, self.path = model.folder, path
        self.browser.open("file://" + path)
        return look(model.folder, text, *arguments)

    def test_lines_of_every_layer_and_head(self):
        picture = self.page("bert-model")
        b = self.browser
        for layer in range(2):
            b.click(f"#layers [data-value='{layer}']")
            for head in range(4):
                b.click(f"#heads [data-value='{head}']")
                b.hover(".token.row[data-row='3']")
                expected = weights(picture, "encoder", layer, head)
                drawn = b.data(".lines path", "row", "key", "weight")
                self.assertEqual([row for row, _, _ in drawn], [3] * len(drawn))
                self.assert_close([w for _, _, w in drawn], expected[3])
                b.hover(".token.key[data-key='2']")
                drawn = b.data(".lines path", "row", "weight")
                self.assert_close([w for _, w in drawn], [row[2] for row in expected])
        b.click("#heads [data-value='-1']")
        b.hover(".token.row[data-row='0']")
        mean = [sum(weights(picture, "encoder", 1, h)[0][j] for h in range(4)) / 4 for j in range(9)]
        self.assert_close([w for w, in b.data(".lines path", "weight")], mean)

    def test_pointing_isolates_and_a_click_keeps(self):
        self.page("gpt2")
        b = self.browser
        self.assertGreater(len(b.all(".lines path")), 10)
        b.hover(".token.row[data-row='4']")
        self.assertEqual({row for row, in b.data(".lines path", "row")}, {4})
        self.assertIn("looks at", b.one(".detail").text)
        b.press(".token.row[data-row='4']")
        b.hover("header")
        self.assertEqual({row for row, in b.data(".lines path", "row")}, {4})
        b.press(".token.row[data-row='4']")
        b.hover("header")
        self.assertGreater(len({row for row, in b.data(".lines path", "row")}), 1)

    def test_all_kinds_of_attention(self):
        picture = self.page("bart", TEXT, "--target", "c d")
        b = self.browser
        names = [node.get_attribute("data-value") for node in b.all("#maps button")]
        self.assertEqual(names, ["encoder", "cross", "decoder"])
        self.assertEqual(b.one("#maps [aria-checked='true']").get_attribute("data-value"), "cross")
        b.click("#heads [data-value='1']")
        for name in names:
            b.click(f"#maps [data-value='{name}']")
            b.hover(".token.row[data-row='1']")
            expected = [w for w in weights(picture, name, 1, 1)[1] if w > 0]
            self.assert_close([w for w, in b.data(".lines path", "weight")], expected)

    def test_model_view_opens_heads(self):
        self.page("llama")
        b = self.browser
        b.click("#views [data-value='model']")
        self.assertEqual(len(b.all(".thumb")), 8)
        b.press(".thumb[data-layer='0'][data-head='3']")
        self.assertIn("layer=0", b.driver.current_url)
        self.assertIn("head=3", b.driver.current_url)
        self.assertEqual(b.one("#stage").get_attribute("data-view"), "lines")

    def test_a_score_adds_up(self):
        # Distances as a bias, a softcap with windows, shared keys and rotary positions, none of it.
        for golden, name in (("t5", "encoder"), ("gemma2", "decoder"), ("qwen3", "decoder"),
                             ("bert-model", "encoder")):
            with self.subTest(golden):
                extra = ("--target", "a b") if name == "encoder" and golden == "t5" else ()
                self.page(golden, TEXT, *extra)
                b = self.browser
                b.open(f"file://{self.path}#view=qk&map={name}&layer=1&head=2&row=5&key=1")
                picture = look(self.folder, TEXT, *extra, "--map", name, "--layer", "1", "--head", "2")
                layer = picture["maps"][0]["layers"][1]
                head = layer["heads"][0]
                products = [q * k for q, k in zip(head["queries"][5], head["keys"][1])]
                self.assert_close([v for v, in b.data(".product", "value")], products, 1e-5)
                terms = {node.get_attribute("data-term"): float(node.get_attribute("data-value"))
                         for node in b.all("[data-term]")}
                self.assertAlmostEqual(terms["dot"], sum(products), delta=1e-4)
                self.assertAlmostEqual(terms["scaled"], sum(products) * layer["scale"], delta=1e-4)
                self.assertAlmostEqual(terms["weight"], head["weights"][5][1], delta=1e-5)
                for key, weight in zip(b.data(".softmax tbody tr", "key"),
                                       b.data(".softmax td[data-weight]", "weight")):
                    self.assertAlmostEqual(weight[0], head["weights"][5][int(key[0])], delta=1e-5)

    def test_statistics(self):
        picture = self.page("bert-model")
        b = self.browser
        b.click("#views [data-value='statistics']")
        for name in ("entropy_relative", "entropy", "max_logit", "variance", "saturation"):
            b.click(f"#stage .segments [data-value='{name}']")
            for layer, head, value in b.data(".cell", "layer", "head", "value"):
                expected = picture["maps"][0]["layers"][int(layer)]["statistics"][name][int(head)]
                self.assertAlmostEqual(value, expected, delta=1e-6)

    def test_export(self):
        self.page("bert-model")
        b = self.browser
        lines = len(b.all(".lines path"))
        b.click("#save-svg")
        drawing = xml.fromstring(b.downloaded(".svg"))
        paths = drawing.findall(".//{http://www.w3.org/2000/svg}path")
        self.assertEqual(len(paths), lines)
        self.assertNotIn("var(", xml.tostring(drawing, "unicode"))
        self.assertRegex(paths[0].get("style"), r"stroke:\s*rgb")
        for view in ("lines", "model", "statistics", "qk"):
            b.click(f"#views [data-value='{view}']")
            if view == "qk":
                b.click("#heads [data-value='0']")
            width = b.driver.execute_script(
                "return document.querySelector('svg.figure').viewBox.baseVal.width")
            b.click("#save-png")
            data = b.downloaded(".png")
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            self.assertAlmostEqual(struct.unpack(">I", data[16:20])[0], 2 * width, delta=2)
            self.assertGreater(len(data), 2000)

    def test_the_keyboard_is_enough(self):
        self.page("bert-model")
        b = self.browser
        b.driver.execute_script("document.querySelector('#layers [tabindex=\"0\"]').focus()")
        b.keys(Keys.ARROW_LEFT)
        self.assertIn("layer=0", b.driver.current_url)
        b.driver.execute_script("document.querySelector('.token.row').focus()")
        b.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
        self.assertIn("row=2", b.driver.current_url)
        self.assertEqual(b.one(".token.row.chosen").get_attribute("data-row"), "2")
        self.assertIn("looks at", b.one("#voice").get_attribute("textContent"))
        b.keys(Keys.ESCAPE)
        self.assertEqual(b.all(".token.row.chosen[aria-pressed='false']"), [])
        unnamed = b.driver.execute_script("""return Array.from(
            document.querySelectorAll("button, [role=button], select, input, svg.figure"))
            .filter((n) => !n.closest("[hidden]"))
            .filter((n) => !(n.getAttribute("aria-label") || n.textContent.trim() || n.labels?.length))
            .map((n) => n.outerHTML.slice(0, 80))""")
        self.assertEqual(unnamed, [])

    def test_light_and_dark_and_no_network(self):
        self.page("bert-model")
        b = self.browser
        paper = "return getComputedStyle(document.body).backgroundColor"
        first = b.driver.execute_script(paper)
        b.click("#theme")
        self.assertNotEqual(b.driver.execute_script(paper), first)
        b.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark"}]})
        b.open("file://" + self.path)
        self.assertEqual(b.driver.execute_script(paper), "rgb(18, 20, 24)")
        b.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertEqual(b.driver.execute_script(
            "return performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:'))"
            ".map((e) => e.name)"), [])

    def test_a_text_cannot_run(self):
        # The words of this tokenizer are ours to choose.
        evil = "<img/src=x/onerror=alert(1)>"
        model = TextModel("bert-model", vocabulary=False)
        self.addCleanup(model.temporary.cleanup)
        model.write("vocab.txt", "".join(w + "\n" for w in WORDS[:-1] + [evil]))
        path = os.path.join(model.folder, "page.html")
        qkv("look", "</script><b>a b", "--model", model.folder, "--out", path)
        self.browser.open("file://" + path)
        self.assertEqual(self.browser.all("#stage img, #stage b b, header b"), [])

    def test_a_long_text_opens_at_once(self):
        text = " ".join(WORDS[5 + i * i % 80] for i in range(4096))
        with tempfile.TemporaryDirectory():
            self.page("t5", "a", "--target", "a b")  # the model; its page is written over
        path = os.path.join(self.folder, "long.html")
        qkv("look", "--model", self.folder, "--target", "a b", "--page-limit", "3", "--layer", "1",
            "--head", "2", "--out", path, "--row", "0", "--map", "encoder", stdin=text)
        self.assertLess(os.path.getsize(path), 3.4e6)
        b = self.browser
        begin = time.time()
        b.open(f"file://{path}#map=encoder&layer=1&head=2")
        b.until(lambda: b.all(".context li"))
        self.assertLess(time.time() - begin, 5)
        self.assertLess(len(b.all(".room > div")), 80)
        picture = qkv("look", "--model", self.folder, "--target", "a b", "--json", "--map", "encoder",
                      "--layer", "1", "--head", "2", "--row", "3210", stdin=text)
        exact = weights(browser.json.loads(picture), "encoder", 1, 2)[0]
        b.driver.execute_script("app.go({row: 3210})")
        b.until(lambda: b.all(".room .on[data-row='3210']"))
        top = sorted(exact, reverse=True)[:24]
        self.assert_close([w for w, in b.data(".context li", "value")], top, 2e-5)
        # Another head has its largest weights only.
        b.click("#heads [data-value='0']")
        b.until(lambda: "The page holds" in b.one(".detail").text)
        b.click("#views [data-value='model']")
        self.assertEqual(len(b.all(".thumb")), 8)


if __name__ == "__main__":
    browser.main()
