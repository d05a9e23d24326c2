"""The facts that the packages for all languages share: adapters/facts.json, which the build brings along."""

import json
from importlib.resources import files
from typing import Any

FACTS: dict[str, Any] = json.loads(files("postgres_rate_limit").joinpath("facts.json").read_bytes())
