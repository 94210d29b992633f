"""The data of whole pages are the recorded ones.

``python -m spec_tests.view.test_columns`` records them again: read the difference.
"""

import json
import re
import shlex
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shardvar.cli import main
from spec_tests.cli.test_transcripts import CHANGING, make_checkpoints
from spec_tests.helpers.paths import GOLDEN

RECORD = GOLDEN / "view" / "columns.json"
"""The data of a page by the command that writes it."""
PAGES = (
    "view model --stats -o p.html",
    "view tf -o p.html",
    "view lost --stats -o p.html",
    "view odd --stats -o p.html",
    "view names -o p.html",
    "view train.pt --stats -o p.html",
    "view q.gguf --filter *Q4* -o p.html",
    "view q.gguf --dequantize --filter *Q4* --stats -o p.html",
    "view tuned --filter *.[39].* --filter extra --stats -o p.html",
    "view a --rule 'w[a b] -> x[b a]' --rule 'b -> b' --stats -o p.html",
    "diff model other.npz --html p.html --stats",
    "diff odd odd2 --html p.html --stats",
    "diff lost lost --html p.html",
    "diff a b --rename w=x --html p.html",
    "reshard model new --shards 5 --files 2 --dry-run --html p.html",
    "reshard llm new --max-file-size 600 --filter *.1.* --dry-run --html p.html",
    "reshard a new --rule 'w[a (c d)] -> x[d (c a)]' --rule 'b -> b' "
    "--size c=2 --dry-run --html p.html",
    "reshard a new --rule 'w[r (d c)] -> x[(c r) d]' --rule 'b[n m] -> b[n m] @ n=0:4 else 0' --size c=2 "
    "--size n=6 --dry-run --html p.html",
    "reshard llm new --rule 'model.layers.{l}.norm.weight -> n.{l}' --rule 'rest {x:**} -> nothing' --dry-run "
    "--html p.html",
    "reshard a b new --rule '0/{x:**} + 2 * (1/{x} - 0/{x}) -> {x}' --dry-run --html p.html",
)


def _data_of(command: str) -> str:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as told:
        code = main(shlex.split(command))
    assert code in (0, 1, 3) and Path("p.html").exists(), told.getvalue()
    page = Path("p.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    Path("p.html").unlink()
    for pattern, new in CHANGING:
        data = re.sub(pattern, new, data)
    return str(re.sub(r'"free_nbytes":\d+', '"free_nbytes":0', data))


def test_the_data_of_pages_are_the_recorded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_checkpoints()
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    for command in PAGES:
        assert _data_of(command) == recorded[command]


if __name__ == "__main__":
    with TemporaryDirectory() as directory, chdir(directory):
        make_checkpoints()
        found = {command: _data_of(command) for command in PAGES}
    RECORD.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
