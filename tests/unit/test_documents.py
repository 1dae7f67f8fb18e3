"""leaderboard.xlsx and leaderboard.tex: the same numbers as leaderboard.csv, and no text that becomes anything else."""

from __future__ import annotations

import csv
from typing import Any

import openpyxl
import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.report.__main__ import main
from imageevalkit.report.documents import tex
from imageevalkit.store.cell import output_root
from imageevalkit.store.results import Evaluator, Metric
from tests.support.cells import Made, write_cell

ITEMS = [Made(f"i{n}", "a cat", value=0.5) for n in range(3)]
SHORT = [*ITEMS[:2], Made("i2", "a cat", "refused")]


def score(value: float) -> dict[str, Metric]:
    return {"accuracy": Metric(value, 3, (value - 0.01, value + 0.02)), "=1+1": Metric(3.25, 3, scale=5.0)}


def sheet(name: str) -> list[list[Any]]:
    book = openpyxl.load_workbook(output_root() / "leaderboard.xlsx")
    # what openpyxl reads as a formula is one for Excel, too
    assert all(cell.data_type in "sn" for page in book for row in page.iter_rows() for cell in row)
    assert not [cell.hyperlink for page in book for row in page.iter_rows() for cell in row if cell.hyperlink]
    return [list(row) for row in book[name].iter_rows(values_only=True)]


def test_the_sheet_of_metrics_has_the_rows_of_the_csv_with_numbers_as_numbers() -> None:
    write_cell("good", "text", ITEMS, score(0.9371))
    write_cell("short", "text", SHORT, score(0.9))
    assert main([]) == ExitStatus.COMPLETE
    head, *rows = sheet("metrics")
    with (output_root() / "leaderboard.csv").open(newline="") as file:
        expected = list(csv.reader(file))
    assert head == expected[0]
    for row, texts in zip(rows, expected[1:], strict=True):
        for value, text in zip(row, texts, strict=True):
            assert (
                float(text) == value
                if isinstance(value, int | float)
                else text.removeprefix("'") == (value or "")
            )
    by = dict(zip(head, rows[0], strict=True))
    assert (by["value"], by["n"], by["expected"]) == (0.9371, 3, 3)
    assert (by["model"], by["state"], by["official"]) == ("good", "complete", "false")
    short = dict(zip(head, rows[2], strict=True))
    assert short["value"] is None and "incomplete" in short["withheld"]


def test_the_board_shows_best_in_bold_and_a_word_where_a_score_is_withheld() -> None:
    write_cell("good", "text", ITEMS, score(0.9371))
    write_cell("poor", "text", ITEMS, score(0.1))
    write_cell("short", "text", SHORT, score(0.9))
    assert main([]) == ExitStatus.COMPLETE
    head, *rows = sheet("leaderboard")
    assert head[:3] == ["model", "text/accuracy@ppocr-v4", "95 % low"]
    assert rows[0][:4] == ["good", 0.9371, pytest.approx(0.9271), pytest.approx(0.9571)]
    assert rows[2][:3] == ["short", "incomplete 2/3", None]
    board = openpyxl.load_workbook(output_root() / "leaderboard.xlsx")["leaderboard"]
    assert (board["B2"].font.bold, board["B3"].font.bold) == (True, False)
    assert board["B2"].number_format == "0.0000"
    [good] = [line for line in tex_lines() if line.startswith("good")]
    assert good == r"good & \textbf{0.9371} {\scriptsize [0.9271, 0.9571]} \\"
    [short] = [line for line in tex_lines() if line.startswith("short")]
    assert short == r"short & incomplete 2/3 \\"


def tex_lines() -> list[str]:
    return (output_root() / "leaderboard.tex").read_text().splitlines()


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "http://x.y/", "0", "{=1}", "'="])
def test_a_name_that_looks_like_a_formula_or_a_link_stays_a_text(first: str) -> None:
    name = f"{first}HYPERLINK-1"
    judge = Evaluator(f'{first}cmd|"/c calc"!A1', official=False)
    # a folder cannot be called so by --model_names, but by hand
    write_cell(name.replace("/", "_"), "text", ITEMS, score(0.5), evaluator=judge)
    assert main([]) == ExitStatus.COMPLETE
    values = [value for page in ("leaderboard", "metrics") for row in sheet(page) for value in row]
    assert name.replace("/", "_") in values
    assert judge.id in values
    assert "=1+1" in values


def test_no_sign_of_tex_is_read_as_one() -> None:
    assert tex(r"50% of $x_1^2 \alpha") == r"50\% of \$x\_1\textasciicircum{}2 \textbackslash{}alpha"
    assert tex("a--b ?` ±") == r"a-{}-b ?{}` \ensuremath{\pm}"
