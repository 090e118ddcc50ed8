"""The clashes of messages.yaml and the checks that cite them: none missing, none left over."""

import re
from pathlib import Path

import drumline
from drumline.spec.parts import read_messages

SOURCE = Path(drumline.__file__).parent


def test_every_clash_is_cited_and_every_citation_has_its_text():
    code = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    cited = set(re.findall(r'\bclash\(\s*"(\w+)"', code))
    cited |= set(re.findall(r'_refuse_keys\([^)]*"(\w+)"\)', code))
    assert cited == set(read_messages().clashes)
