import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu import corpus_chrf

from mt.training.comparison import comparison_figure, comparison_table, read_runs
from mt.training.scores import chrf_by_length


def write(folder: Path, overrides: list[str], chrf: float, **lengths: float) -> None:
    folder.mkdir(parents=True)
    summary: dict[str, Any] = {
        "overrides": overrides,
        "parameters": 2_067_200,
        "train_seconds": 90.0,
        "test": {"bleu": chrf / 2, "chrf": chrf, "chrf_by_length": {"1-5": chrf + 1, "6-8": chrf - 1, **lengths}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def test_runs_are_named_by_what_differs_and_the_best_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "0", ["variant=cosine", "trainer.max_epochs=5"], 40.0)
    write(tmp_path / "1", ["variant=heads_1", "trainer.max_epochs=5"], 44.0, **{"9+": 30.0})
    assert [run.name for run in read_runs([tmp_path])] == ["heads_1", "cosine"]
    write(tmp_path / "2", ["+a=1", "model.num_heads=2", "trainer.max_epochs=5"], 42.0)
    write(tmp_path / "other" / "plain", ["trainer.max_epochs=5"], 41.0)
    runs = read_runs([tmp_path])
    assert [run.name for run in runs] == ["variant=heads_1", "a=1 model.num_heads=2", "plain", "variant=cosine"]

    header, rule, *rows = comparison_table(runs).splitlines()
    assert len({len(line) for line in (header, rule, *rows)}) == 1
    assert [cell.strip() for cell in rows[0].strip("|").split("|")] == [
        "variant=heads_1", "2.07 M", "1.5", "22.0", "44.0", "45.0", "43.0", "30.0",
    ]  # fmt: skip
    assert [cell.strip() for cell in rows[1].strip("|").split("|")][-1] == ""
    scores, lengths, *_ = comparison_figure(runs).axes
    assert [label.get_text() for label in scores.get_yticklabels()] == [run.name for run in runs]
    assert [bar.get_width() for bar in scores.patches] == [run.bleu for run in runs]
    assert np.array_equal(lengths.lines[0].get_xdata(), [run.chrf_by_length["1-5"] for run in runs])
    assert np.array_equal(lengths.lines[2].get_ydata(), [0]), "a run without long sentences has no point there"


def test_lengths_that_no_run_has_are_not_drawn(tmp_path: Path) -> None:
    write(tmp_path / "0", ["variant=heads_1"], 40.0)
    _, lengths, *_ = comparison_figure(read_runs([tmp_path])).axes
    assert [line.get_label() for line in lengths.lines] == ["1-5 words", "6-8 words"]


def test_what_is_no_run_is_one_plain_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no summary.json in {re.escape(str(tmp_path))}"):
        read_runs([tmp_path])
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="another version of mt: it has no 'overrides'"):
        read_runs([tmp_path])
    (tmp_path / "summary.json").write_text("nothing")
    with pytest.raises(ValueError, match="not a summary of a run"):
        read_runs([tmp_path])


def test_chrf_by_length_is_sacrebleus_of_the_sentences_whose_source_has_so_many_words() -> None:
    sources = ["Yes.", "one two three four five", "one two three four five six", "1 2 3 4 5 6 7 8"]
    found, references = ["Sì", "uno due", "sei parole", "otto"], ["Sì.", "uno due tre", "sei parole ora", "otto volte"]
    expected = {
        "1-5": corpus_chrf(found[:2], [references[:2]]).score,
        "6-8": corpus_chrf(found[2:], [references[2:]]).score,
    }
    assert chrf_by_length(sources, found, references) == pytest.approx(expected)
