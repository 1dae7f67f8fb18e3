"""Text readers: what PP-OCR reads, how it is identified, and what happens when a process dies."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from eval_models.ocr import PPOCR, Box, lines
from imageevalkit import registry
from imageevalkit.benchmark.question import Picture, measure
from imageevalkit.common.images import CorruptImage
from imageevalkit.store.cell import REPO
from tests.support.jobs import is_alive
from tests.support.text_images import save_text, text_image
from tests.support.waiting import LONGEST_WAIT, wait_for


@pytest.fixture(scope="module")
def ppocr() -> PPOCR:
    return PPOCR()


def test_reads_lines_in_order(ppocr: PPOCR, tmp_path: Path) -> None:
    path = save_text(tmp_path / "a.jpg", "Roasted Since 1998", "中央公园西门", "two blocks ahead")
    assert ppocr.read(path.read_bytes()).splitlines() == [
        "Roasted Since 1998",
        "中央公园西门",
        "two blocks ahead",
    ]


def test_boxes_of_one_line_are_joined(ppocr: PPOCR, tmp_path: Path) -> None:
    path = tmp_path / "columns.png"
    text_image([("right", (430, 48)), ("left", (30, 40)), ("below", (30, 200))]).save(path)
    assert ppocr.read(path.read_bytes()).splitlines() == ["left right", "below"]


def test_lines_follow_relative_heights() -> None:
    big, small = Box("BIG", 0, 0, 100), Box("small", 200, 60, 80)
    assert lines([small, big, Box("next", 0, 130, 150)]) == ["BIG small", "next"]
    assert lines([Box("b", 0, 12, 22), Box("a", 5, 0, 10)]) == ["a", "b"]
    assert lines([]) == []


def test_reads_turned_text(ppocr: PPOCR, tmp_path: Path) -> None:
    path = tmp_path / "turned.png"
    text_image([("Harbour Street", (150, 150))]).rotate(180).save(path)
    assert ppocr.read(path.read_bytes()) == "Harbour Street"


def test_short_upright_words_are_not_turned(ppocr: PPOCR, tmp_path: Path) -> None:
    # with RapidOCR's own threshold "up" reads "dn" and "OHIO" reads "OIHO" at this size
    words = ("up", "OHIO", "登录", "Way Out")
    assert [
        ppocr.read(save_text(tmp_path / "a.jpg", word, points=76).read_bytes()) for word in words
    ] == list(words)


def test_transparent_background_is_white(ppocr: PPOCR, tmp_path: Path) -> None:
    image = text_image([("Wild Honey", (30, 30))])
    image.putalpha(image.convert("L").point(lambda value: 255 - value))
    image.save(tmp_path / "a.png")
    assert ppocr.read((tmp_path / "a.png").read_bytes()) == "Wild Honey"


def test_image_without_text_is_empty_text(ppocr: PPOCR, tmp_path: Path) -> None:
    Image.effect_noise((256, 256), 80).save(tmp_path / "noise.png")
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    assert ppocr.read((tmp_path / "noise.png").read_bytes()) == ""
    assert ppocr.read((tmp_path / "dot.png").read_bytes()) == ""


def test_unreadable_files_raise(ppocr: PPOCR, tmp_path: Path) -> None:
    whole = save_text(tmp_path / "a.jpg", "text").read_bytes()
    for name, data in (("cut.jpg", whole[: len(whole) // 2]), ("empty.jpg", b""), ("html.jpg", b"<html>")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptImage):
            ppocr.read((tmp_path / name).read_bytes())


def test_identity_without_loading_the_model() -> None:
    evaluator = registry.measurer("ppocr", {}).evaluator
    assert (evaluator.id, evaluator.official) == ("ppocr-v4", False)
    assert len(evaluator.details["weights_sha256"]) == 3
    assert all(
        re.fullmatch("[0-9a-f]{64}", digest) for digest in evaluator.details["weights_sha256"].values()
    )
    assert {"rapidocr-onnxruntime", "onnxruntime", "pillow"} <= set(evaluator.details["packages"])
    code = (
        "import sys; from imageevalkit import registry; registry.measurer('ppocr', {}).evaluator; "
        "assert not {'cv2', 'onnxruntime', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)


def test_settings_of_the_identity_are_those_of_the_engine(ppocr: PPOCR) -> None:
    settings, engine = ppocr.evaluator.details["settings"], ppocr._engine
    assert settings["use_cls"] == engine.use_cls
    assert settings["cls_thresh"] == engine.text_cls.cls_thresh
    assert settings["text_score"] == engine.text_score
    assert settings["max_side_len"] == engine.max_side_len
    assert settings["rec_batch_num"] == engine.text_rec.rec_batch_num
    assert settings["det_limit_side_len"] == engine.text_det.limit_side_len
    assert settings["det_limit_type"] == engine.text_det.limit_type


def test_processes_read_as_one_does_and_silently(
    ppocr: PPOCR, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [save_text(tmp_path / f"{n}.jpg", f"Page number {n}", "第三章") for n in range(2)]
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    questions = [
        measure("read", Picture(path, ""))
        for path in [*paths, paths[0], tmp_path / "bad.jpg", tmp_path / "none.jpg"]
    ]
    answers = list(ppocr.ask(questions, 2))
    assert len(answers) == 5, "two questions about one image are two answers"
    readings = {answer.question.pictures[0].path: answer for answer in answers}
    assert len(readings) == 4
    for path in paths:
        assert (readings[path].text, readings[path].error) == (ppocr.read(path.read_bytes()), "")
        assert readings[path].seconds > 0
    assert readings[tmp_path / "bad.jpg"].text is None
    assert readings[tmp_path / "bad.jpg"].error.startswith("unreadable image: ")
    assert "No such file" in readings[tmp_path / "none.jpg"].error
    assert capfd.readouterr() == ("", "")
    assert not multiprocessing.active_children()


_SCRIPT = """
import sys
from pathlib import Path
from imageevalkit.benchmark.question import Picture, measure
from tests.support.dying_reader import DyingReader
if __name__ == "__main__":
    questions = [measure("read", Picture(Path(name), "")) for name in sys.argv[1:]]
    for answer in DyingReader().ask(questions, 2):
        name = answer.question.pictures[0].path.name
        print(name, answer.text, answer.error, sep="|", flush=True)
"""


def _read_with_dying_reader(folder: Path, names: list[str]) -> subprocess.Popen[str]:
    script = folder / "main.py"
    script.write_text(_SCRIPT)
    for name in names:
        (folder / name).write_text(f"text of {name}")
    return subprocess.Popen(
        [sys.executable, str(script), *(str(folder / name) for name in names)],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_dead_process_costs_only_its_image(tmp_path: Path) -> None:
    names = ["a", "kill-1", "b", "c", "kill-2", "d"]
    out, err = _read_with_dying_reader(tmp_path, names).communicate(timeout=LONGEST_WAIT)
    assert err == ""
    readings = {name: (text, error) for name, text, error in (line.split("|") for line in out.splitlines())}
    assert readings == {
        name: ("None", "the reading process died") if "kill" in name else (f"text of {name}", "")
        for name in names
    }


def test_processes_that_all_die_end_the_reading(tmp_path: Path) -> None:
    out, err = _read_with_dying_reader(tmp_path, [f"kill-{n}" for n in range(20)]).communicate(
        timeout=LONGEST_WAIT
    )
    assert len(out.splitlines()) == 5
    assert "CellFailure: text reader 'dying': 5 processes died in a row" in err


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_no_process_outlives_a_stopped_run(tmp_path: Path) -> None:
    process = _read_with_dying_reader(tmp_path, ["a", "sleep", "sleep-too"])
    assert process.stdout is not None
    assert process.stdout.readline().startswith("a|")
    workers = [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(workers) >= 2
    process.kill()
    process.communicate(timeout=LONGEST_WAIT)
    wait_for(lambda: not any(map(is_alive, workers)))
    assert process.returncode == -signal.SIGKILL
