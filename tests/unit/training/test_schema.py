"""The JSON schema of configuration files."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from tests.unit.training.written import changed

from envfleet.training.config import find_config
from envfleet.training.schema import json_schema


def test_the_shipped_schema_matches_the_code() -> None:
    schema = json.loads(find_config("sac").with_name("schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema()
    with pytest.raises(jsonschema_rs.ValidationError, match="episode"):
        jsonschema_rs.validate(schema, changed("curriculum", "phases", 0, "episode", 1))
