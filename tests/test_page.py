"""The page of `evaluate.py --html`: what stands in it, and that it works in a real browser (Chromium, where it is installed)."""
import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

import data
import evaluate
import shapes
import show
import stats
import vre
from data import BadInput, Corpus, Vocabulary

CHROMIUM, DRIVER = shutil.which('chromium') or shutil.which('chromium-browser'), shutil.which('chromedriver')


class Browser:
    """chromedriver's WebDriver interface, as far as it is needed: https://www.w3.org/TR/webdriver2"""

    def __init__(self, profile):
        self.driver = subprocess.Popen([DRIVER, '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            started = next(line for line in self.driver.stdout if 'started successfully on port' in line)
            self.address = 'http://127.0.0.1:' + re.search(r'port (\d+)', started)[1] + '/session'
            flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
                     '--disable-background-networking', '--disable-component-update', f'--user-data-dir={profile}']
            wanted = {'browserName': 'chrome', 'goog:chromeOptions': {'binary': CHROMIUM, 'args': flags},
                      'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
            self.address += '/' + self.ask('POST', '', {'capabilities': {'alwaysMatch': wanted}})['sessionId']
        except BaseException:
            self.driver.kill()
            raise

    def ask(self, method, command, content=None):
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + command, body, {'Content-Type': 'application/json'}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def run(self, script):
        """JavaScript, whose `return` is returned"""
        return self.ask('POST', '/execute/sync', {'script': script, 'args': []})

    def log(self, kind):
        return self.ask('POST', '/se/log', {'type': kind})

    def resize(self, width, height):
        """The window's inside: what the mobile emulation of the developer tools does, as a window has a least width"""
        self.ask('POST', '/goog/cdp/execute', {'cmd': 'Emulation.setDeviceMetricsOverride', 'params': {
            'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600}})

    def open(self, path):
        self.ask('POST', '/url', {'url': path.as_uri()})
        self.wait('film === null || film.image.complete')

    def wait(self, condition):
        for _ in range(200):
            if self.run(f'return Boolean({condition})'):
                return
            time.sleep(0.05)
        raise AssertionError(f'never came true: {condition}')

    def act(self, kind, *actions):
        more = {'parameters': {'pointerType': 'mouse'}} if kind == 'pointer' else {}
        self.ask('POST', '/actions', {'actions': [{'type': kind, 'id': kind, 'actions': list(actions), **more}]})

    def hover(self, element, x=0.5):
        """element: an expression; x: where within it, 0 left to 1 right"""
        left, top = self.run(f'const e = {element}; e.scrollIntoView({{block: "center"}}); const b = e.getBoundingClientRect();'
                             f'return [Math.floor(b.left + {x} * b.width), Math.floor(b.top + b.height / 2)]')
        self.act('pointer', {'type': 'pointerMove', 'x': left, 'y': top, 'duration': 0, 'origin': 'viewport'})

    def press(self, key):
        self.act('key', {'type': 'keyDown', 'value': key}, {'type': 'keyUp', 'value': key})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.ask('GET', '/screenshot')))

    def close(self):
        try:
            self.ask('DELETE', '')
        finally:
            self.driver.terminate()
            self.driver.wait()
