"""clashes.yaml and the checks that cite it: every name is there, and every entry has its check."""

import re
from pathlib import Path

import yaml

import drumline

SOURCE = Path(drumline.__file__).parent


def test_every_clash_is_cited_and_every_citation_has_its_text():
    code = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    cited = set(re.findall(r'\bclash\(\s*"(\w+)"', code))
    cited |= set(re.findall(r'_refuse_keys\([^)]*"(\w+)"\)', code))
    assert cited == set(yaml.safe_load((SOURCE / "spec" / "clashes.yaml").read_text()))
