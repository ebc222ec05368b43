"""What the tests in a browser share: Debian's chromium, driven by selenium without a window.

Without them a test is skipped (exit status 77), which ctest shows."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
SKIPPED = 77
DEBIAN_PYTHON = "/usr/bin/python3"

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    # selenium belongs to Debian's python, which may not be the first one.
    own, debian = os.path.realpath(sys.executable), os.path.realpath(DEBIAN_PYTHON)
    if os.path.exists(debian) and own != debian:
        os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    print("skipped: no selenium here (apt-get install python3-selenium)")
    sys.exit(SKIPPED)

QKV = ""


class Browser:
    def __init__(self):
        self.downloads = tempfile.mkdtemp()
        options = Options()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--window-size=1280,1000", "--lang=en"):
            options.add_argument(argument)
        options.add_experimental_option("prefs", {"download.default_directory": self.downloads})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
        self.driver.set_script_timeout(30)

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.downloads, ignore_errors=True)

    def open(self, url):
        self.driver.get("about:blank")  # else a change of the hash alone loads nothing
        self.driver.get(url)
        self.until(lambda: self.all("#stage > *") or self.all("#runs button"))

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", self.one(selector))
        self.one(selector).click()

    def press(self, selector):
        """A click for what is drawn: SVG groups have no click of their own in selenium."""
        self.driver.execute_script(
            "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", self.one(selector))

    def hover(self, selector):
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", self.one(selector))
        ActionChains(self.driver).move_to_element(self.one(selector)).perform()

    def keys(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def data(self, selector, *names):
        """data-* attributes of everything a selector finds, as lists of numbers."""
        script = """return Array.from(document.querySelectorAll(arguments[0]),
                                      (node) => arguments[1].map((name) => Number(node.dataset[name])))"""
        return self.driver.execute_script(script, selector, list(names))

    def until(self, what, seconds=60):
        end = time.time() + seconds
        while True:
            found = what()
            if found:
                return found
            if time.time() > end:
                raise AssertionError("waited in vain")
            time.sleep(0.05)

    def downloaded(self, ending):
        def ready():
            return [name for name in os.listdir(self.downloads) if name.endswith(ending)]
        path = os.path.join(self.downloads, self.until(ready)[0])
        with open(path, "rb") as file:
            data = file.read()
        os.remove(path)
        return data

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


def qkv(*arguments, stdin=""):
    run = subprocess.run([QKV, *arguments], input=stdin, capture_output=True, text=True,
                         encoding="utf-8")
    if run.returncode != 0:
        raise AssertionError(run.stderr)
    return run.stdout


def look(folder, text, *arguments):
    return json.loads(qkv("look", text, "--model", folder, "--json", *arguments))


def weights(picture, name, layer, head):
    """The table of one head."""
    found = next(m for m in picture["maps"] if m["name"] == name)
    return next(h for h in found["layers"][layer]["heads"] if h["head"] == head)["weights"]


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        self.browser.complaints()

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])

    def assert_close(self, a, b, delta=3e-5):
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=delta)


def main():
    global QKV
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("skipped: no chromium here (apt-get install chromium chromium-driver)")
        sys.exit(SKIPPED)
    QKV = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__")
