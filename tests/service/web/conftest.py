"""A browser, and what every page must be like in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect, sync_playwright
from tests.waiting import PATIENCE_S

SIZES: dict[str, ViewportSize] = {
    "phone": {"width": 320, "height": 700},  # the narrowest that is sold
    "desktop": {"width": 1200, "height": 800},
}
SCHEMES = {"phone": "dark", "desktop": "light"}
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.example.org 127.0.0.1",  # a name that is not this machine's, as behind a proxy
    "--ignore-certificate-errors",
)
CHECK = (Path(__file__).parent / "check_page.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium: apt-get install chromium, or `make test` as root on Debian"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(_OPTIONS))
        yield launched
        launched.close()


@contextlib.contextmanager
def open_page(browser: Browser, base_url: str, size: str) -> Iterator[Page]:
    """A page that fails the test if the browser complains."""
    scheme = SCHEMES[size]
    context = browser.new_context(base_url=base_url, viewport=SIZES[size], color_scheme=scheme)  # type: ignore[arg-type]  # one of two texts
    complaints: list[str] = []
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    expect.set_options(timeout=1000 * PATIENCE_S)
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    try:
        yield page
    finally:
        context.close()
    assert not complaints


def check(page: Page) -> None:
    """One heading, labels, contrast as WCAG asks, nothing wider than the screen, nothing from elsewhere."""
    assert page.evaluate(CHECK) == []


def follow(link: Locator) -> None:
    """Click on what leads to another page, and wait until that page is there whole."""
    with link.page.expect_navigation():
        link.click()


def sign_in(page: Page, token: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("Token").fill(token)
    follow(page.get_by_role("main").get_by_role("button", name="Sign in"))
    page.wait_for_url("**/me")
