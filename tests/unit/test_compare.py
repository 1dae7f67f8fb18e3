"""bash eval.sh --compare A B: what two words mean, what moved, how two judges agree, and what cannot be compared."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.extras.compare.telling import compare_words
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import folder_name
from tests.support.cells import HUNDRED, QWEN, changed, write_scored


def rows(one: str, other: str, name: str = "comparison.csv") -> list[dict[str, str]]:
    folder = output_root() / "comparisons" / folder_name(f"{one} vs {other}")
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def compared(one: str, other: str, here: Path) -> list[dict[str, str]]:
    assert compare_words([one, other], here) == ExitStatus.COMPLETE
    return rows(one, other)


def test_two_models_are_compared_on_all_benchmarks_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scored(Cell("old", "text"), HUNDRED)
    write_scored(Cell("new", "text"), changed(HUNDRED, up=12, down=1))
    write_scored(Cell("old", "signs"), HUNDRED)
    write_scored(Cell("new", "signs"), changed(HUNDRED, up=2, down=1))
    write_scored(Cell("old", "alone"), HUNDRED)
    by_cell = {row["cell"]: row for row in compared("old", "new", tmp_path)}
    text, signs = by_cell["text"], by_cell["signs"]
    assert (float(text["before"]), float(text["after"])) == (0.5, 0.61)
    assert float(text["difference"]) == pytest.approx(0.11)
    assert float(text["ci_low"]) < 0.11 < float(text["ci_high"])
    assert (text["items_up"], text["items_down"], text["verdict"]) == ("12", "1", "better")
    # McNemar's exact test: 2 · P(at most 1 of 13), and Holm's method over two
    assert float(text["p"]) == pytest.approx(2 * 14 / 2**13)
    assert float(text["p_holm"]) == pytest.approx(2 * float(text["p"]))
    assert signs["verdict"] == "no significant difference"
    assert 0.02 < float(signs["smallest_difference"]) < 0.1
    said = capsys.readouterr().out
    assert "text/accuracy@ppocr-v4: 13 of 100 items moved: 12 up, 1 down" in said
    assert "p/0000  a picture of p/0000  0.0000  1.0000" in said
    assert "no significant difference (from ±0.0" in said
    assert "note: only 'old' has alone" in said


def test_output_folders_models_in_them_and_cells_can_be_named_by_paths(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for root, up in ((before, 0), (after, 9)):
        for model in ("org/m", "n"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("IMAGEEVALKIT_OUTPUT", str(root))
                write_scored(Cell(model, "text"), changed(HUNDRED, up=up))
    found = compared("before", "after", tmp_path)
    assert [(row["cell"], row["items_up"]) for row in found] == [("n/text", "9"), ("org/m/text", "9")]
    for one, other in (("before/n", str(after / "org/m")), ("before/n/text@ppocr-v4", "after/n/text@ppocr")):
        [row] = compared(one, other, tmp_path)
        assert row["items_up"] == "9"
    with pytest.raises(
        UserError, match="'before' is a folder of results, 'after/n' is a model: give two of a kind"
    ):
        compare_words(["before", "after/n"], tmp_path)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    write_scored(Cell("flux", "text"), HUNDRED)
    write_scored(Cell("sd3", "signs"), HUNDRED)
    write_scored(Cell("old", "text"), HUNDRED, version="0")
    write_scored(Cell("other", "text"), HUNDRED, evaluator=QWEN)
    bare = Cell("bare", "text")
    bare.folder.mkdir(parents=True)
    bare.generation.write_text("")
    for words, says in (
        (
            ("flx", "sd3"),
            r"'flx' is no model, result or folder with results \(did you mean 'flux'\?\); .*output has bare, flux",
        ),
        (("flux", "sd3"), "have nothing in common: results of text; of signs"),
        (("flux", "old"), r"other versions of the benchmark \(1, 0\)"),
        (("flux", "other"), r"measured by different evaluators \(ppocr-v4, qwen2.5-vl-7b\)"),
        (("flux", "flux@ppocr-v4"), "both are the same result"),
        (("flux", "bare"), "'bare' has no result yet"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            compare_words(words, tmp_path)
        assert "\n" not in str(caught.value)
    assert not (output_root() / "comparisons").exists()


def test_items_with_another_prompt_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scored(Cell("old", "text"), HUNDRED)
    write_scored(
        Cell("new", "text"),
        changed(HUNDRED, down=5),
        prompts=lambda item: "new" if item in ("p/0001", "p/0003") else f"a picture of {item}",
    )
    [row] = compared("old", "new", tmp_path)
    assert (row["n"], row["items"], row["items_down"]) == ("98", "98", "3")
    assert "text: 2 items left out, whose prompt is another one in 'new'" in capsys.readouterr().out


def test_noise_and_drift_of_the_judge_stand_with_each_difference(tmp_path: Path) -> None:
    noise = {"of": 100, "repeated": 50, "changed": 5, "standard_errors": {"accuracy": 0.06}}
    for benchmark, more in (
        ("noisy", {"noise": noise}),
        ("drifted", {"notes": ["the judge has drifted: 9 of 18 probes"]}),
    ):
        write_scored(Cell("old", benchmark), HUNDRED)
        write_scored(Cell("new", benchmark), changed(HUNDRED, up=14), more=more)
    by_cell = {row["cell"]: row for row in compared("old", "new", tmp_path)}
    noisy, drifted = by_cell["noisy"], by_cell["drifted"]
    assert noisy["verdict"] == "within the judge's noise"
    # known of one side, and so of both: √2 · 0.06
    assert float(noisy["noise"]) == pytest.approx(0.06 * 2**0.5)
    assert float(noisy["ci_low"]) == pytest.approx(0.14 - 1.96 * 0.06 * 2**0.5, abs=1e-4)
    assert float(noisy["smallest_difference"]) > 0.2
    assert (drifted["verdict"], drifted["warning"]) == ("better", "the judge has drifted: 9 of 18 probes")


# ---- judges


def test_two_judges_of_one_cell_have_kappa_and_a_shift_of_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the example of two doctors: 20 yes yes, 5 yes no, 10 no yes, 15 no no: kappa 0.4
    said = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    cell = Cell("m", "text")
    write_scored(cell, {f"i{n:02}": float(one) for n, (one, _) in enumerate(said)})
    kept = cell.folder / "evaluators" / folder_name(QWEN.id)
    write_scored(
        cell, {f"i{n:02}": float(other) for n, (_, other) in enumerate(said)}, evaluator=QWEN, folder=kept
    )
    [row] = compared("m/text@ppocr-v4", "m/text@qwen2.5-vl-7b", tmp_path)
    assert float(row["kappa"]) == pytest.approx(0.4)
    # Fleiss, Cohen and Everitt 1969: its standard error is 0.1271
    assert float(row["kappa_low"]) == pytest.approx(0.4 - 1.96 * 0.1271, abs=1e-3)
    assert (float(row["agreement"]), row["kappa_weighted"]) == (0.7, "false")
    assert float(row["difference"]) == pytest.approx(0.1)
    assert float(row["ci_low"]) < 0.1 < float(row["ci_high"])
    assert float(row["p"]) == pytest.approx(0.3018, abs=1e-4)  # McNemar, 5 and 10
    assert (row["evaluator"], row["items_up"], row["items_down"]) == ("ppocr-v4 → qwen2.5-vl-7b", "10", "5")
    assert "κ 0.40 [0.15, 0.65], 70 % the same" in capsys.readouterr().out


def test_kappa_of_grades_counts_how_far_off_they_are(tmp_path: Path) -> None:
    said = [(0, 0)] * 10 + [(0, 1)] * 4 + [(1, 1)] * 8 + [(1, 2)] * 2 + [(2, 2)] * 12 + [(2, 0)] * 1
    cell = Cell("m", "grades")
    write_scored(cell, {f"i{n}": float(one) for n, (one, _) in enumerate(said)}, top=2.0)
    kept = cell.folder / "evaluators" / folder_name(QWEN.id)
    theirs = {f"i{n}": float(other) for n, (_, other) in enumerate(said)}
    write_scored(cell, theirs, evaluator=QWEN, folder=kept, top=2.0)
    [row] = compared("m@ppocr-v4", "m@qwen", tmp_path)
    # by hand: 1 - Σ observed d² / Σ expected d²; d² is 1 of six, 4 of one
    rows_, columns = [14, 10, 13], [11, 12, 14]
    expected = sum(r * c * (i - j) ** 2 for i, r in enumerate(rows_) for j, c in enumerate(columns)) / 37
    assert float(row["kappa"]) == pytest.approx(1 - (4 + 2 + 4) / expected)
    assert row["kappa_weighted"] == "true"
