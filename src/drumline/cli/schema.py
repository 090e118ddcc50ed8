"""`drumline schema`."""

from __future__ import annotations

from drumline.cli.printing import print_json
from drumline.spec.run_spec import RunSpec


def schema_command() -> None:
    """Print the JSON Schema of the spec."""
    schema = RunSpec.model_json_schema()
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
