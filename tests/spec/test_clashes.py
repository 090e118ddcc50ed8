"""The clashes of messages.yaml and the checks that cite them: none missing, none left over."""

import re
from pathlib import Path

import pytest

import drumline
from drumline.core.errors import SpecError
from drumline.spec.load import validate_spec
from drumline.spec.parts import read_messages

SOURCE = Path(drumline.__file__).parent


def test_every_clash_is_cited_and_every_citation_has_its_text():
    code = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    cited = set(re.findall(r'\bclash\(\s*"(\w+)"', code))
    cited |= set(re.findall(r'_refuse_keys\([^)]*"(\w+)"\)', code))
    assert cited == set(read_messages().clashes)


PLATEAU = {"name": "ReduceLROnPlateau"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data": {"name": "mine:db", "password": "x"}}, "password looks like a secret"),
        ({"data": {"name": "mine:db", "password": 1234}}, "password looks like a secret"),
        ({"data": {"name": "mine:db", "login": {"hf_token": "x"}}}, "hf_token looks like a"),
        ({"model": {"name": "mine:net", "weights": ["https://me:pw@host/x"]}}, "weights looks"),
        ({"loggers": [{"name": "mlflow", "uri": "https://user:pw@host"}]}, "uri looks like"),
        ({"loggers": [{"name": "mine:log", "own_key": "x"}]}, "own_key looks like"),
        ({"loggers": [{"name": "mine:log", "passwd": "x"}]}, "passwd looks like"),
        ({"loggers": [{"name": "mine:log", "db_pwd": "x"}]}, "db_pwd looks like"),
        ({"optimizer": {"name": "mine:o", "groups": [{"match": "*", "api_key": "x"}]}}, "api_key"),
        ({"schedule": {**PLATEAU, "per": "step"}}, "looks at the score of an epoch.*leave per out"),
        ({"schedule": PLATEAU, "evaluate": False}, "schedule.metric looks at scores, and evaluate"),
    ],
)
def test_secrets_and_scores_that_nobody_measures_are_refused(values, said):
    with pytest.raises(SpecError, match=said):
        validate_spec(values)


@pytest.mark.parametrize(
    "values",
    [
        {"data": {"name": "mine:text", "pad_token": "<pad>", "sort_key": "length", "token": None}},
        {"data": {"name": "mine:text", "use_auth_token": True, "source": "https://host/a@b"}},
        {"data": {"name": "mine:text", "source": "https://host?mail=a@b#c@d"}},
        {"loggers": [{"name": "mlflow", "uri": "http://host:5000"}]},
        {"schedule": {"name": "StepLR", "step_size": 1}, "evaluate": False},
    ],
)
def test_what_only_resembles_a_secret_is_an_option(values):
    assert validate_spec(values)
