"""A headless Chromium, driven by the HTTP protocol of chromedriver."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
REASON = "no headless browser of chromedriver's version: install the packages chromium and chromium-driver"


def _version(command: str) -> str:
    """The main version of a program; empty if there is none."""
    if shutil.which(command) is None:
        return ""
    printed = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+", printed)
    return found[0] if found else ""


DRIVER = _version("chromedriver")
CHROMIUM = next((name for name in NAMES if DRIVER and _version(name) == DRIVER), "")
IS_MISSING = not CHROMIUM


class Browser:
    """One session; `with Browser() as browser`."""

    def __enter__(self) -> Browser:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        port = next(
            found[1] for line in self._driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
        )
        self._address = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": shutil.which(CHROMIUM),
            "args": ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        made = self._ask("", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/{made['sessionId']}"
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._ask("", method="DELETE")
        finally:
            self._driver.terminate()
            self._driver.wait()

    def open(self, page: Path) -> None:
        self._ask("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a piece of JavaScript returns."""
        return self._ask("/execute/sync", {"script": script, "args": list(arguments)})

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", features=[theme])

    def picture(self) -> bytes:
        """The whole page as PNG."""
        taken = self._devtools("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def problems(self) -> list[str]:
        """What the console has complained of."""
        return [entry["message"] for entry in self._ask("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that the page has asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self._ask("/se/log", {"type": "performance"})]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def _devtools(self, command: str, **parameters: object) -> Any:
        return self._ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, path: str, body: object = None, *, method: str = "POST") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, content, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
