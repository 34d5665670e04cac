"""Competitions: members, teams, and the two scoreboards of each.

An attempt has two scores that share no episode: the public one, over its even episodes, and the final one, over its
odd episodes. Of each team, the attempt with the best public score counts. Everybody sees the public scores while the
competition is open. When it has closed, the final scores of just these attempts decide. So a lucky choice among many
attempts gains nothing: the episodes that decide are not those by which the attempt was chosen.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from typing import Any

import sqlalchemy as sa

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import Attempt, Competition, Member, Team, User
from envfleet.service.database.scores import FreshBoards, best_attempts, ranked
from envfleet.service.database.store import Store
from envfleet.service.refusals import NotFound
from envfleet.service.users.auth import check_name, digest_of

_MOST_MEMBERS = 100
_MOST_TEXT = 20_000
_LATEST = 253_402_300_799.0  # the last second of the year 9999
CSV_COLUMNS = ("team", "members", "started", "attempts", "public_rank", "public_score", "final_rank", "final_score")
Row = dict[str, Any]


class Competitions:
    """Competitions of a service.

    Args:
        store: The database.
        boards: Scoreboards that were read lately, those of environments too; not needed to change competitions.
    """

    def __init__(self, store: Store, boards: FreshBoards | None = None) -> None:
        self._store = store
        self._boards = FreshBoards() if boards is None else boards

    # ------------------------------------------------------------------ for instructors

    def create(self, name: str, *, has_code: bool = False, **values: Any) -> str | None:
        """Create a competition.

        Args:
            name: Its name.
            has_code: True if members need an invitation code.
            values: `env`, `opens_at`, `closes_at` (seconds since 1970), and if wanted `text`, `max_team_size`,
                `baseline_name` and `baseline_score`.

        Returns:
            The invitation code, which cannot be shown again.

        Raises:
            InvalidArgument: A value is invalid, or the name is taken.
        """
        row: Row = {"text": "", "max_team_size": 1, "baseline_name": None, "baseline_score": None, **values}
        row |= {"name": name, "created_at": time.time()}
        _check(row)
        code = _draw_code() if has_code else None
        row["code_digest"] = None if code is None else digest_of(code)
        try:
            with self._store.engine.begin() as connection:
                connection.execute(sa.insert(Competition).values(**row))
        except sa.exc.IntegrityError as error:
            raise InvalidArgument(f"competition {name!r} exists: choose another name") from error
        return code

    def edit(self, name: str, **changes: Any) -> None:
        """Change a competition that has not closed; names of values are those of `create`.

        Raises:
            InvalidArgument: It does not exist or has closed, or a value is invalid.
        """
        row = self.find(name)
        if row["closes_at"] <= time.time():
            raise InvalidArgument(f"competition {name!r} has closed, and its final scores are shown: create another")
        if not changes:
            raise InvalidArgument(f"nothing to change of competition {name!r}: pass a new text, time or baseline")
        _check({**row, **changes})
        self._update(row["id"], changes)

    def invite(self, name: str) -> str:
        """Draw a new invitation code; an earlier one is worthless from then on.

        Raises:
            InvalidArgument: The competition does not exist.
        """
        code = _draw_code()
        self._update(self.find(name)["id"], {"code_digest": digest_of(code)})
        return code

    def _update(self, competition_id: int, changes: Row) -> None:
        with self._store.engine.begin() as connection:
            connection.execute(sa.update(Competition).where(Competition.id == competition_id).values(**changes))
        self._boards.clear()

    def remove(self, name: str, user: str) -> None:
        """Remove a user from a competition; the user may join again.

        Raises:
            InvalidArgument: The competition does not exist, or the user does not take part.
        """
        users = sa.select(User.id).where(User.name == user)
        with self._store.engine.begin() as connection:
            membership = Member.competition_id == self.find(name)["id"], Member.user_id.in_(users)
            if not connection.execute(sa.delete(Member).where(*membership)).rowcount:
                raise InvalidArgument(f"user {user!r} does not take part in competition {name!r}")
            connection.execute(sa.delete(Team).where(Team.id.not_in(sa.select(Member.team_id))))
        self._boards.clear()

    def delete(self, name: str) -> None:
        """Delete a competition with its teams; attempts stay.

        Raises:
            InvalidArgument: The competition does not exist.
        """
        number = self.find(name)["id"]
        with self._store.engine.begin() as connection:
            for table in (Member, Team):
                connection.execute(sa.delete(table).where(table.competition_id == number))
            connection.execute(sa.delete(Competition).where(Competition.id == number))
        self._boards.clear()

    # ------------------------------------------------------------------ reading

    def rows(self) -> list[Row]:
        """Return all competitions, the last to close first: all columns."""
        return self._store.rows(sa.select(Competition.__table__).order_by(Competition.closes_at.desc(), Competition.id))

    def find(self, name: str) -> Row:
        """Return a competition by its name.

        Raises:
            InvalidArgument: It does not exist.
        """
        rows = self._store.rows(sa.select(Competition.__table__).where(Competition.name == name))
        if not rows:
            raise InvalidArgument(f"competition {name!r} does not exist: `envfleet serve competitions list` shows all")
        return rows[0]

    def get(self, competition_id: int) -> Row:
        """Return a competition by its id.

        Raises:
            NotFound: It does not exist.
        """
        rows = self._store.rows(sa.select(Competition.__table__).where(Competition.id == competition_id))
        if not rows:
            raise NotFound("this page does not exist")
        return rows[0]

    def members(self, competition_id: int) -> list[Row]:
        """Return the members: `user`, `team_id`, `team` (or `None`) and `joined_at` of each, by team and time."""
        query = sa.select(User.name.label("user"), Member.team_id, Team.name.label("team"), Member.joined_at)
        query = query.select_from(Member).join(User, User.id == Member.user_id).join(Team, Team.id == Member.team_id)
        query = query.where(Member.competition_id == competition_id)
        return self._store.rows(query.order_by(Team.name, Member.joined_at, User.name))

    def team_of(self, competition_id: int, user_id: int) -> Row | None:
        """Return the team of a user: `team_id`, `name` (or `None`) and the names of its `members`."""
        membership = Member.competition_id == competition_id, Member.user_id == user_id
        query = (
            sa.select(Team.id.label("team_id"), Team.name).join(Member, Member.team_id == Team.id).where(*membership)
        )
        rows = self._store.rows(query)
        if not rows:
            return None
        names = sa.select(User.name).join(Member, Member.user_id == User.id)
        names = names.where(Member.team_id == rows[0]["team_id"]).order_by(User.name)
        return {**rows[0], "members": [row["name"] for row in self._store.rows(names)]}

    def public_board(self, competition: Row) -> list[Row]:
        """Return the public scoreboard.

        Returns:
            `rank`, `user` (team, or user alone), `team_id`, `score`, `attempts` and `ended_at` of each, the best first;
            the baseline has neither `rank` nor `team_id`.
        """
        return self._boards.get(f"public {competition['id']}", lambda: self._board(competition, "public_score"))

    def final_board(self, competition: Row) -> list[Row] | None:
        """Return the final scoreboard, as `public_board`; `None` before the competition has closed."""
        if time.time() <= competition["closes_at"]:
            return None
        return self._boards.get(f"final {competition['id']}", lambda: self._board(competition, "final_score"))

    def scores(self, competition: Row) -> list[Row]:
        """Return both scores of all teams, for instructors: `CSV_COLUMNS` of each, the best final score first.

        `started` counts all attempts, `attempts` the complete ones. A team that leaves each attempt in which the final
        half goes badly gains the best of as many draws; the numbers show it.
        """
        members: dict[int, list[str]] = {}
        for row in self.members(competition["id"]):
            members.setdefault(row["team_id"], []).append(row["user"])
        public = {row["team_id"]: row for row in self._board(competition, "public_score")}
        within = Attempt.started_at.between(competition["opens_at"], competition["closes_at"])
        query = sa.select(Member.team_id, sa.func.count().label("count")).group_by(Member.team_id)
        query = query.join(Attempt, Attempt.user_id == Member.user_id)
        query = query.where(Member.competition_id == competition["id"], Attempt.env == competition["env"], within)
        started = {row["team_id"]: row["count"] for row in self._store.rows(query)}
        return [
            {
                "team": row["user"],
                "members": "; ".join(members.get(row["team_id"], ())),
                "started": started[row["team_id"]],
                "attempts": row["attempts"],
                "public_rank": public[row["team_id"]]["rank"],
                "public_score": public[row["team_id"]]["score"],
                "final_rank": row["rank"],
                "final_score": row["score"],
            }
            for row in self._board(competition, "final_score")
            if row["team_id"] is not None
        ]

    def _board(self, competition: Row, score: str) -> list[Row]:
        best = best_attempts(
            Attempt.public_score,
            Member.team_id,
            Attempt.env == competition["env"],
            Attempt.started_at >= competition["opens_at"],
            Attempt.ended_at <= competition["closes_at"],
            Attempt.final_score.is_not(None),
            Member.competition_id == competition["id"],
            joined=sa.join(Attempt, Member, Member.user_id == Attempt.user_id),
        )
        alone = sa.select(User.name).join(Member, Member.user_id == User.id).where(Member.team_id == Team.id)
        user = sa.func.coalesce(Team.name, alone.limit(1).correlate(Team).scalar_subquery()).label("user")
        query = sa.select(
            user, Team.id.label("team_id"), best.c[score].label("score"), best.c.attempts, best.c.ended_at
        )
        query = query.join(best, best.c.owner == Team.id).order_by(best.c[score].desc(), user)
        return _with_baseline(ranked(self._store.rows(query)), competition)

    # ------------------------------------------------------------------ for participants

    def join(self, competition: Row, user_id: int, *, code: str = "", team: str = "") -> str | None:
        """Add a user as a member: alone, in a new team, or in the team with the given code.

        Args:
            competition: The competition.
            user_id: Id of the user.
            code: Invitation code of the competition or of a team.
            team: Name of a new team; empty to play alone, or with a team's code.

        Returns:
            The code of the new team, by which others join it; it cannot be shown again.

        Raises:
            InvalidArgument: The competition has closed, the code is unknown, the user takes part already, the team is
                full, or its name is invalid or taken.
        """
        code, team = code.strip(), team.strip()
        if competition["closes_at"] <= time.time():
            raise InvalidArgument("the competition has closed")
        values: Row = {"competition_id": competition["id"], "user_id": user_id, "joined_at": time.time()}
        try:
            with self._store.engine.begin() as connection:
                team_id, new_code = self._find_team(connection, competition, code), None
                if team_id is None:
                    team_id, new_code = self._create_team(connection, competition, user_id, team)
                elif team:
                    raise InvalidArgument("the code is a team's: leave the name of a new team empty")
                connection.execute(sa.insert(Member).values(**values, team_id=team_id))
                count = sa.select(sa.func.count()).select_from(Member).where(Member.team_id == team_id)
                if connection.execute(count).scalar_one() > competition["max_team_size"]:  # with this one
                    raise InvalidArgument(f"the team is full: it has {competition['max_team_size']} members")
        except sa.exc.IntegrityError as error:
            raise InvalidArgument("you take part already, or another team has this name") from error
        self._boards.clear()
        return new_code

    def _find_team(self, connection: sa.Connection, competition: Row, code: str) -> int | None:
        """Return the team with this code, locked; `None` for the competition's code, or if it needs no code."""
        if not code:
            if competition["code_digest"] is not None:
                raise InvalidArgument("taking part needs an invitation code: ask for one")
            return None
        digest = digest_of(code)
        if hmac.compare_digest(competition["code_digest"] or "", digest):
            return None
        conditions = Team.competition_id == competition["id"], Team.code_digest == digest
        team_id: int | None = connection.execute(sa.select(Team.id).where(*conditions).with_for_update()).scalar()
        if team_id is None:
            raise InvalidArgument("the invitation code is not known: copy it again, whole, or ask for a new one")
        return team_id

    def _create_team(
        self, connection: sa.Connection, competition: Row, user_id: int, name: str
    ) -> tuple[int, str | None]:
        """Create a team, or with an empty name one of a single user; return its id, and the code to join it."""
        code = None
        if name:
            check_name(name)
            if competition["max_team_size"] == 1:
                raise InvalidArgument("this competition has no teams: leave the name of a team empty")
            others = sa.select(User.id).where(User.name == name, User.id != user_id)
            if connection.execute(others).first() is not None:
                raise InvalidArgument(f"team={name!r} is a user's name: choose another name")
            code = _draw_code()
        values: Row = {"competition_id": competition["id"], "name": name or None}
        values["code_digest"] = None if code is None else digest_of(code)
        return connection.execute(sa.insert(Team).values(**values).returning(Team.id)).scalar_one(), code


def _check(row: Row) -> None:
    """Check the values of a competition."""
    check_name(row["name"])
    if len(row["text"]) > _MOST_TEXT or "\x00" in row["text"]:
        raise InvalidArgument(f"text has {len(row['text']):,} characters: pass at most {_MOST_TEXT:,}")
    if not 0 <= row["opens_at"] < row["closes_at"] <= _LATEST:
        raise InvalidArgument("the competition closes before it opens: pass a closing time after the opening time")
    if not 1 <= row["max_team_size"] <= _MOST_MEMBERS:
        raise InvalidArgument(f"max_team_size={row['max_team_size']}: pass 1 to {_MOST_MEMBERS}")
    name, score = row["baseline_name"], row["baseline_score"]
    if (name is None) != (score is None) or not (score is None or math.isfinite(score)):
        raise InvalidArgument(f"baseline={name}={score}: pass a name and a number, or neither")
    if name is not None:
        check_name(name)


def _with_baseline(rows: list[Row], competition: Row) -> list[Row]:
    """Insert the baseline, without a rank, above all lower scores."""
    if competition["baseline_name"] is None:
        return rows
    score = competition["baseline_score"]
    blank: Row = dict.fromkeys(("rank", "team_id", "attempts", "ended_at"))
    place = sum(row["score"] >= score for row in rows)
    return [*rows[:place], {**blank, "user": competition["baseline_name"], "score": score}, *rows[place:]]


def _draw_code() -> str:
    return f"join_{secrets.token_urlsafe(12)}"
