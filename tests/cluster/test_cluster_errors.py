"""The sentences of errors.yaml and the code that cites them: none missing, none left over."""

import ast
from pathlib import Path
from string import Formatter

import drumline
from drumline.cluster.errors import read_sentences

SOURCE = Path(drumline.__file__).parent / "cluster"


def test_every_sentence_is_cited_with_the_values_that_it_needs():
    cited = {}
    for file in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            function = getattr(getattr(call, "func", None), "id", "")
            if function in ("sentence", "node_error") and isinstance(call.args[-1], ast.Constant):
                values = {each.arg for each in call.keywords}
                about = {"machine"} if function == "node_error" else set()
                cited[call.args[-1].value] = values | about
    needed = {
        name: {field.partition(".")[0] for _, field, _, _ in Formatter().parse(text) if field}
        for name, text in read_sentences().items()
    }
    assert cited == needed
