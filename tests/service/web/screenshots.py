"""Pictures of the pages for the documentation: `python -m tests.service.web.screenshots [FOLDER]`.

Four participants play turbofan engines on a service of this process; then a browser visits their pages at the sizes of
a desk and of a phone. Each page is also checked at 320 and 390 pixels.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.service.web.conftest import check, sign_in
from tests.service.web.playing import play_engines

from envfleet.envs.turbofan import ThresholdPolicy
from envfleet.service.offers import make_offer
from envfleet.service.service import Service

ASSETS = Path(__file__).parents[3] / "docs" / "assets"
SKILLS = {
    "Ann": [(0.45, 3), (0.55, 5), (0.65, 7)],
    "Kim & Noor": [(0.6, 6)],
    "Bob": [(0.5, 4)],
    "Lin, group 7": [(0.8, 1)],
}
"""Wear at which each attempt repairs, and how often at most."""
_PHONE, _GAP = 390, 20


def play_attempt(caller: Caller, repair_above: float, max_repairs: int, num_envs: int = 20) -> None:
    """Play a ranked attempt whole."""
    fleet = caller.create(TURBOFAN, num_envs, mode="ranked", autoreset_mode="SAME_STEP")
    policy = ThresholdPolicy(num_envs, repair_above=repair_above, sell_above=repair_above, max_repairs=max_repairs)
    policy.begin(np.ones(num_envs, np.bool_))
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0)
    while _is_running(caller, fleet):
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=policy.act_batch(reply["observations"]))
        policy.begin(reply["terminated"] | reply["truncated"])
    caller.call(f"/fleets/{fleet}/close")


def _is_running(caller: Caller, fleet: str) -> bool:
    from envfleet.remote.codec import unpack

    return bool(unpack(caller.get(f"/fleets/{fleet}").content)["attempt"]["left"])


@contextlib.contextmanager
def page_of(browser: Browser, url: str, width: int, height: int, scheme: str, token: str) -> Iterator[Page]:
    """A page of a user who has signed in."""
    context = browser.new_context(base_url=url, viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]  # one of two texts
    page = context.new_page()
    sign_in(page, token)
    yield page
    context.close()


def picture(page: Page, path: str) -> Image.Image:
    """Return a picture of a page, which must be in order."""
    page.goto(path)
    check(page)
    return Image.open(io.BytesIO(page.screenshot()))


def save(image: Image.Image, folder: Path, name: str) -> None:
    """Save a picture with few colors, which takes a third of the bytes."""
    image.convert("RGB").quantize(128).save(folder / f"service-{name}.png", optimize=True)


def draw(browser: Browser, url: str, token: str, last: int, folder: Path) -> None:
    """Visit the pages."""
    for name, path, height in (("board", "/", 400), ("account", "/me", 900), ("episode", f"/episodes/{last}", 860)):
        with page_of(browser, url, 960, height, "light", token) as page:
            save(picture(page, path), folder, name)
    strip = Image.new("RGB", (3 * _PHONE + 2 * _GAP, 760), "gray")
    for width in (320, _PHONE):
        with page_of(browser, url, width, 760, "dark", token) as page:
            for place, path in enumerate(("/", "/me", f"/episodes/{last}")):
                image = picture(page, path)
                if width == _PHONE:
                    strip.paste(image, (place * (_PHONE + _GAP), 0))
                else:
                    save(image, Path(tempfile.gettempdir()), f"narrow-{place}")
    save(strip, folder, "phone")


def last_episode(service: Service, token: str) -> int:
    """Return the last episode of a user with some repairs and a sale."""
    rows = service.scores.episodes(service.tokens.check(token).user_id)
    sold = (row for row in rows if row["outcome"] == "terminated" and not row["details"].get("is_failure"))
    good = (row for row in sold if row["details"]["repairs"] >= 5)
    return int(next(good)["id"])


def main(folder: Path) -> None:
    """Play, and visit the pages."""
    offers = tuple(make_offer(name, backend="serial", abandon_penalty=0.0) for name in (TURBOFAN, "CartPole-v1"))
    with tempfile.TemporaryDirectory() as place:
        settings = make_settings(
            Path(place), offers=offers, attempts_per_day=5, max_live_envs=256, max_steps_per_day=40_000
        )
        with serve_here(settings) as (http, service), sync_playwright() as playwright:
            tokens = {name: service.tokens.create(name) for name in SKILLS}
            for name, attempts in SKILLS.items():
                for skill in attempts:
                    play_attempt(Caller(http, tokens[name]), *skill)
            ann = Caller(http, tokens["Ann"])
            play_engines(ann, 1, num_envs=48, seeds=1)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            draw(browser, str(http.base_url), ann.token, last_episode(service, ann.token), folder)
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS)
