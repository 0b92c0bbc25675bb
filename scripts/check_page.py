#!/usr/bin/env python3
"""Opens the page of `plimsoll serve` in Chromium during a training run, and checks what a user sees.

usage:  python scripts/check_page.py [--plimsoll PROGRAM] [--chromium PROGRAM] [--picture FILE] [--screens FOLDER]
needs:  Chromium (Debian: `chromium`), and in a virtual environment `pip install playwright pillow`

Checks: nothing is served without the token; the page loads, draws and follows a live run; buttons ask for confirmation, pause,
resume, refuse a budget that is too small and accept one that is not; an open tab survives a restart of the server; no horizontal
scrolling at a phone's width; names with markup stay text; dark and light; no console errors and no requests to other servers.
--picture writes the picture of the manual, --screens writes screenshots for review.
"""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

REPOSITORY = Path(__file__).resolve().parents[1]
TOKEN = "token-for-the-check"
PATIENCE_S = 120
MARKUP = "<img src=x onerror=document.title='owned'>"
PICTURE_BYTES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--plimsoll", default=str(REPOSITORY / "target/debug/plimsoll"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--picture")
    parser.add_argument("--screens")
    args = parser.parse_args()
    args.plimsoll = str(Path(args.plimsoll).resolve())
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args, Path(folder))
        try:
            check.all()
        finally:
            check.end()
    print("all checks passed")


class Check:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.processes = args, folder, []
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}

    def start(self, *words: str, **more: object) -> subprocess.Popen:
        process = subprocess.Popen([self.args.plimsoll, *words], cwd=self.folder, env=self.environment, text=True, **more)
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def serve(self, port: int) -> tuple[subprocess.Popen, str]:
        words = ["serve", "--listen", f"127.0.0.1:{port}", "--token", TOKEN]
        server = self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return server, server.stdout.readline().strip()

    def train(self, name: str, *flags: str) -> subprocess.Popen:
        text = "".join(f"fn f{i}(x: u64) -> u64 {{ x * {i} + {i * i % 97} }}\n" for i in range(20_000))
        (self.folder / "text.rs").write_text(text)
        words = ["train", "--device", "cpu", "--data", "text.rs", "--vram", "600MiB", "--name", name, "--cache-dir", "cache"]
        log = (self.folder / "train.log").open("a")
        return self.start(*words, *flags, stdout=log, stderr=log)

    def all(self) -> None:
        ended = self.train(MARKUP, "--max-steps", "3", "--sample-tokens", "8")
        assert ended.wait() == 0, (self.folder / "train.log").read_text()
        run = self.train("nano-live", "--max-steps", "100000", "--eval-every", "20", "--checkpoint-every", "40")
        server, link = self.serve(0)
        self.base = link.split("/?")[0]
        port = int(self.base.rsplit(":", 1)[1])
        self.wait("the run has started", lambda: (self.of("nano-live") or {}).get("step", 0) > 5)
        with sync_playwright() as playwright:
            options = {"executable_path": self.args.chromium, "args": ["--no-sandbox"]}
            self.browser = playwright.chromium.launch(**options)
            self.check_locked()
            page = self.open(link, 1440, 900, "dark")
            self.check_live(page)
            self.check_markup(page)
            page.goto(f"{self.base}/#/run/{self.of('nano-live')['id']}")
            self.check_buttons(page)
            self.check_restart(page, server, port)
            self.check_phone(link)
            self.check_theme(page)
            if self.args.picture:
                self.picture(Path(self.args.picture))
            if self.args.screens:
                self.screens(link, Path(self.args.screens))
            self.press(page, "stop")
            assert run.wait(PATIENCE_S) == 130, "the page's stop has the exit code of an interrupt"
            self.until(page, "document.querySelector('.state').textContent.includes('interrupted')")
            assert page.locator("[data-action]").count() == 0, "a run that has ended has no buttons"
            self.check_ended(page)
            self.check_quiet()
            self.browser.close()

    # The API ----------------------------------------------------------------------------------------------

    def get(self, path: str, token: str | None = TOKEN) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.base + path, headers=headers), timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def of(self, name: str) -> dict | None:
        runs = json.loads(self.get("/api/runs")[1])["runs"]
        return next((run for run in runs if run["name"] == name), None)

    def wait(self, what: str, is_so) -> None:
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until, f"never: {what}"
            time.sleep(0.1)

    # The browser ---------------------------------------------------------------------------------------------------------

    said: list[str] = []

    def open(self, link: str, width: int, height: int, scheme: str, scale: float = 1) -> object:
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale)
        page, base = context.new_page(), self.base
        # The browser also reports a server that is briefly unreachable, which is not an error of the page.
        expected = re.compile(r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|401 \(Unauthorized\)|400 \(Bad Request\)|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET")
        page.on("console", lambda message: message.type == "error" and not expected.search(message.text) and self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: request.url.startswith((base, "data:")) or self.said.append(f"asked {request.url}"))
        page.goto(link)
        return page

    def until(self, page: object, expression: str) -> None:
        # Playwright's wait_for_function evaluates strings, which the page's policy forbids.
        self.wait(expression, lambda: page.evaluate(expression))

    def check_locked(self) -> None:
        assert self.get("/api/runs", None)[0] == 401 and self.get("/metrics", "wrong-token")[0] == 401
        page = self.open(f"{self.base}/", 800, 600, "light")
        assert "plimsoll serve" in page.inner_text("body") and "nano-live" not in page.content()
        page.fill("input[name=token]", "not-the-token")
        page.click("button")
        page.wait_for_selector("text=Wrong token")
        page.fill("input[name=token]", TOKEN)
        page.click("button")
        page.wait_for_selector("#link.live")
        assert page.url.rstrip("/").startswith(self.base) and TOKEN not in page.url, "the address does not keep the token"
        assert page.evaluate("document.cookie") == "", "scripts cannot read the cookie"
        page.context.close()

    def check_live(self, page: object) -> None:
        page.wait_for_selector("#link.live")
        page.click("a.run:has-text('nano-live')")
        page.wait_for_selector("h1:has-text('nano-live')")
        self.until(page, "document.querySelectorAll('.uplot canvas').length >= 6")
        assert self.ink(page, ".chart.tall canvas") > 300, "the loss is drawn"
        assert self.ink(page, ".map canvas") > 20_000, "the map is drawn"
        assert "tensors live" in page.inner_text(".panel .live")
        step = "Number(document.querySelector('.figures small').textContent.replace(/[^0-9]/g, ''))"
        before = page.evaluate(step)
        self.until(page, f"{step} > {before} + 3")
        drawn = page.locator(".chart.tall canvas").first.screenshot()
        page.click("button:has-text('log')")
        page.wait_for_timeout(300)
        assert page.locator(".chart.tall canvas").first.screenshot() != drawn, "a logarithmic axis changes the chart"
        page.click("button:has-text('linear')")
        self.wait("events are shown", lambda: page.locator(".events li").count() > 2)

    def check_ended(self, page: object) -> None:
        """A run that has ended sends no further events: its loss must be in the chart's range after the first one."""
        page.reload()
        scale = "state.view?.charts?.loss.plot?.scales.y"
        self.until(page, f"{scale} && state.view.run")
        assert page.evaluate(f"{scale}.max > 1"), "the loss of a run that has ended is drawn"

    def ink(self, page: object, selector: str) -> int:
        """Number of drawn pixels of a canvas."""
        page.wait_for_timeout(500)
        return page.evaluate(
            """selector => { const c = document.querySelector(selector);
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }""", selector)

    def check_markup(self, page: object) -> None:
        name = page.locator("nav .run b", has_text="onerror")
        assert name.inner_text().strip() == MARKUP and page.locator("nav img").count() == 0
        name.click()
        self.until(page, "document.querySelector('h1')?.textContent.includes('onerror')")
        assert page.locator("h1 img").count() == 0 and "owned" != page.title()

    def press(self, page: object, action: str, value: str | None = None) -> None:
        page.click(f"[data-action={action}]")
        page.wait_for_selector("dialog[open]")
        if value is not None:
            page.fill("#ask-input", value)
        page.click("#ask-do")

    def check_buttons(self, page: object) -> None:
        page.wait_for_selector("[data-action=pause]")
        page.click("[data-action=pause]")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_timeout(1500)
        assert not self.of("nano-live")["is_paused"], "cancel sends no order"
        self.press(page, "pause")
        page.wait_for_selector("[data-action=resume]")
        assert "paused" in page.inner_text(".state")
        at = self.of("nano-live")["step"]
        page.wait_for_timeout(1500)
        assert self.of("nano-live")["step"] == at, "the run is paused"
        self.press(page, "resume")
        page.wait_for_selector("[data-action=budget]")
        self.press(page, "budget", "5MiB")
        page.wait_for_selector(".toast:has-text('refused')", timeout=PATIENCE_S * 1000)
        self.press(page, "budget", "300MiB")
        self.wait("the run has the new budget", lambda: self.of("nano-live")["budget_bytes"] == 300 << 20)
        self.press(page, "budget", "much")
        page.wait_for_selector(".toast.bad:has-text('budget')")

    def check_restart(self, page: object, server: subprocess.Popen, port: int) -> None:
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        page.wait_for_selector("#link.lost")
        time.sleep(1)
        self.serve(port)
        page.wait_for_selector("#link.live", timeout=PATIENCE_S * 1000)
        before = self.of("nano-live")["step"]
        self.until(page, f"Number(document.querySelector('.figures small').textContent.replace(/[^0-9]/g, '')) > {before}")

    def check_phone(self, link: str) -> None:
        for width in (320, 390, 768):
            page = self.open(link, width, 800, "light")
            page.wait_for_selector("#link.live")
            for name in (None, "nano-live"):
                if name:
                    page.click(f"a.run:has-text('{name}')")
                    page.wait_for_selector(".map canvas")
                page.wait_for_timeout(700)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{wide} pixels on a screen of {width}"
            small = page.evaluate("[...document.querySelectorAll('.actions > *')].filter(b => b.getBoundingClientRect().height < 40).length")
            assert width > 860 or small == 0, "buttons are large enough for fingers"
            page.context.close()

    def check_theme(self, page: object) -> None:
        color = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(color)
        page.click("#theme")
        light = page.evaluate(color)
        assert dark != light
        page.reload()
        page.wait_for_selector("#link.live")
        assert page.evaluate(color) == light, "the browser remembers the choice"
        page.click("#theme")
        assert page.evaluate(color) == dark

    def check_quiet(self) -> None:
        assert not self.said, "\n".join(self.said)

    # Pictures ---------------------------------------------------------------------------------------------------------------------

    def show(self, link: str, width: int, height: int, scheme: str, scale: float = 1) -> object:
        page = self.open(link, width, height, scheme, scale)
        page.click("a.run:has-text('nano-live')")
        page.wait_for_selector(".map canvas")
        page.wait_for_timeout(2500)
        return page

    def picture(self, path: Path) -> None:
        from PIL import Image

        # Of runs with ordinary names.
        assert self.train("nano-short", "--max-steps", "60").wait() == 0
        self.wait("the charts have enough points", lambda: self.of("nano-live")["step"] > 250)
        server = self.start("serve", "--listen", "127.0.0.1:0", "--token", TOKEN, "--run", "runs/nano-live", "--run", "runs/nano-short",
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        link, base = server.stdout.readline().strip(), self.base
        self.base = link.split("/?")[0]
        page = self.show(link, 1280, 1180, "light")
        self.base = base
        page.evaluate("document.querySelector('.sub').lastChild.textContent = document.querySelector('.sub').lastChild.textContent.replace(/ · [^·]*$/, '')")
        shot = Image.open(io.BytesIO(page.screenshot()))
        shot.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size < PICTURE_BYTES, f"{path} has {path.stat().st_size} bytes"

    def screens(self, link: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, width, scheme in (("desktop-dark", 1440, "dark"), ("desktop-light", 1440, "light"), ("phone-dark", 390, "dark")):
            page = self.show(link, width, 900, scheme)
            page.screenshot(path=folder / f"{name}.png", full_page=True)


if __name__ == "__main__":
    main()
