"""The guide for a course, step by step: its commands and programs, from the first start to the final scores."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import sqlalchemy as sa
from tests.service.serving import Command
from tests.waiting import PATIENCE_S

from envfleet.service.database.models import Competition
from envfleet.service.database.store import Store

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "course.md").read_text(encoding="utf-8")


class Course:
    """Runs commands of the guide in a folder, in their order.

    Args:
        folder: The folder.
        url: Address of the service.
    """

    def __init__(self, folder: Path, url: str) -> None:
        blocks = re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
        self._commands = [line[2:] for line in "".join(blocks).splitlines() if line.startswith("$ ")]
        self._folder, self._url = folder, url

    def skip(self, beginning: str) -> str:
        """Return the next command, which the test does in its own way."""
        command = self._commands.pop(0)
        assert command.startswith(beginning), command
        return command

    def run(self, beginning: str, token: str = "", **replacements: str) -> str:
        """Run the next command; returns what it prints."""
        command = self.skip(beginning).replace("http://127.0.0.1:8001", self._url)
        for old, new in replacements.items():
            assert old in command
            command = command.replace(old, new)
        words, _, file = command.partition(" > ")
        arguments = shlex.split(words)
        arguments[0:1] = [sys.executable, "-m", "envfleet"] if arguments[0] == "envfleet" else [sys.executable]
        paths = [str(self._folder), os.environ.get("PYTHONPATH", "")]
        variables = {**os.environ, "ENVFLEET_TOKEN": token, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
        done = subprocess.run(
            arguments, check=False, cwd=self._folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if file:
            (self._folder / file).write_text(done.stdout, encoding="utf-8")
        return done.stdout

    @property
    def num_left(self) -> int:
        """Commands that were not run."""
        return len(self._commands)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_a_course_from_the_first_start_to_the_final_scores(tmp_path: Path) -> None:
    files = dict(re.findall(r'^``` \{ \.python title="(\S+)" \}\n(.*?)^```', GUIDE, re.MULTILINE | re.DOTALL))
    files["class.csv"] = re.findall(r"^\$ cat class.csv\n(.*?)^\$", GUIDE, re.MULTILINE | re.DOTALL)[0]
    files["rules.txt"] = "Balance."
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert sorted(files) == ["class.csv", "rules.txt", "submission.py", "train.py"]
    database, now = f"sqlite:///{tmp_path / 'envfleet.db'}", dt.datetime.now(dt.UTC)
    start = re.findall(r"^\$ envfleet serve (--env .*)$", GUIDE, re.MULTILINE)[0]
    with Command(database, *shlex.split(start)) as service:
        course = Course(tmp_path, service.url)
        course.skip("pip install")
        course.skip("envfleet serve --env")
        course.skip("cat class.csv")
        course.run("envfleet serve users create")
        tokens = {row["name"]: row["token"] for row in rows_of(tmp_path / "tokens.csv")}
        assert list(tokens) == ["ann", "bob"]
        times = {"2026-12-01": f"{now - dt.timedelta(hours=1):%Y-%m-%dT%H:%M}"}
        times["2026-12-15T18:00"] = f"{now + dt.timedelta(days=1):%Y-%m-%dT%H:%M}"
        course.run("envfleet serve competitions create", **times)
        for token in tokens.values():
            with httpx.Client(base_url=service.url, timeout=PATIENCE_S) as visit:
                visit.post("/sign-in", data={"token": token})
                assert visit.post("/competitions/1/join").status_code == 200
        course.skip("pip install")
        course.skip("export ENVFLEET_TOKEN")
        printed = course.run("python train.py", tokens["ann"], **{"100000": "1024"})
        assert re.fullmatch(r"\d+\.\d in 20 episodes\n", printed)
        submitted = course.run("envfleet submit", tokens["bob"])
        assert "Attempt 2: score" in submitted
        assert "shown when that closes" in course.run("envfleet status", tokens["bob"])
        page = httpx.get(f"{service.url}/competitions/1").text
        assert "Balance." in page
        assert "Random" in page
        assert "Final scores" not in page
        assert len(list(csv.DictReader(io.StringIO(course.run("envfleet serve competitions scores"))))) == 2
        course.run("envfleet serve attempts void")
        course.run("envfleet serve backup")
        with contextlib.closing(Store(database)) as store, store.engine.begin() as connection:
            connection.execute(sa.update(Competition).values(closes_at=dt.datetime.now(dt.UTC).timestamp()))
        course.run("envfleet serve competitions scores")
        course.run("envfleet serve attempts list")
        assert course.num_left == 0
        assert [row["team"] for row in rows_of(tmp_path / "final.csv")] == ["bob"]
        assert [row["void_reason"] for row in rows_of(tmp_path / "attempts.csv")] == [
            "played with the training seeds",
            "",
        ]
        assert "Final scores" in httpx.get(f"{service.url}/competitions/1").text
        service.stop()
    assert (tmp_path / "monday.db").stat().st_size > 0
