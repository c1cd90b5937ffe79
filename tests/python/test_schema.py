# SPDX-License-Identifier: Apache-2.0
"""The schema and the loader must say the same of the same files."""
import json
import os
import pathlib
import subprocess

import jsonschema
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "config" / "stage.schema.json").read_text(encoding="utf-8"))
CORPUS = ROOT / "tests" / "config"
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.json"))
GOOD = sorted((CORPUS / "good").glob("*.json")) + EXAMPLES
BAD = sorted((CORPUS / "bad").glob("*.json"))
# What no schema can see, since it judges one value at a time after parsing: the text itself
# (duplicate keys, a byte-order mark, depth, 1e3 and 2.0, which are integers to JSON Schema), rules
# between two values (order, sums, depth <= cells, a route to the stage's own socket), lengths in
# bytes rather than characters, and the exact upper bound of a quantity.
LOADER_ONLY = sorted((CORPUS / "bad-loader-only").glob("*.json"))


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


def read(path):
    return json.loads(path.read_bytes().decode("utf-8"))


def schema_accepts(path):
    """Whether the file is JSON that the schema accepts."""
    try:
        document = read(path)
    except (ValueError, RecursionError):
        return False
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


@pytest.fixture(scope="module")
def loader():
    """The loader's verdict on every file: path -> (accepted, message)."""
    files = [str(path) for path in GOOD + BAD + LOADER_ONLY]
    done = subprocess.run([os.environ["CONFIG_CHECK"], *files], capture_output=True, check=True,
                          timeout=60)
    lines = [line.split("\t", 2) for line in done.stdout.decode("utf-8").splitlines()]
    assert len(lines) == len(files)
    return {pathlib.Path(path): (verdict == "ok", message) for verdict, path, message in lines}


def test_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_corpus_is_there():
    assert len(EXAMPLES) == 4
    assert min(len(GOOD), len(BAD), len(LOADER_ONLY)) >= 20


@pytest.mark.parametrize("path", GOOD, ids=name_of)
def test_good(path, loader):
    assert loader[path] == (True, "")
    assert schema_accepts(path)


@pytest.mark.parametrize("path", BAD, ids=name_of)
def test_bad(path, loader):
    accepted, message = loader[path]
    assert not accepted and message.startswith(f"{path}: ")
    assert not schema_accepts(path)


@pytest.mark.parametrize("path", LOADER_ONLY, ids=name_of)
def test_bad_loader_only(path, loader):
    accepted, message = loader[path]
    assert not accepted and message.startswith(f"{path}: ")
    try:
        document = read(path)
    except (ValueError, RecursionError):
        return  # no schema ever gets to see it
    jsonschema.validate(document, SCHEMA)  # a file that the schema refuses belongs in bad/


def defaults(schema):
    """The schema's own defaults as a document, with what it leaves to words."""
    document = {}
    for key, part in schema["properties"].items():
        if "default" in part:
            document[key] = part["default"]
        elif "properties" in part:
            document[key] = defaults(part)
    return document


def test_defaults_are_the_loaders(tmp_path):
    """A file that spells the schema's defaults out resolves to what an empty one does."""
    files = []
    for number, document in enumerate(({}, defaults(SCHEMA))):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps({"stage": "s", **document}), encoding="utf-8")
    short, long = (subprocess.run([os.environ["CONFIG_CHECK"], "--print", str(file)], check=True,
                                  capture_output=True, timeout=60).stdout for file in files)
    assert json.loads(short) == json.loads(long)
    resolved = json.loads(short)
    jsonschema.validate(resolved, SCHEMA)
    assert set(resolved) == set(SCHEMA["properties"]) - {"$schema"}


def test_pipeline_of_the_examples():
    """Each example's route leads to the next one's socket, and a ring stays near 200 MiB."""
    shift = {"Ki": 10, "Mi": 20}
    stages = {document["stage"]: document for document in map(read, EXAMPLES)}
    order = ["features", "embeddings", "latent", "vocoder"]
    assert sorted(stages) == sorted(order)
    for name, after in zip(order, order[1:] + [None]):
        classes = stages[name]["ring"]["classes"]
        sizes = [int(c["slot_bytes"][:-2]) << shift[c["slot_bytes"][-2:]] for c in classes]
        assert max(sizes) >= 16 << 20
        assert sum(size * c["slots"] for size, c in zip(sizes, classes)) <= 200 << 20
        routes = stages[name].get("routes", {})
        targets = [target for route in routes.values() for target in route["to"]]
        assert targets == ([f"unix:{stages[after]['socket']['path']}"] if after else [])
