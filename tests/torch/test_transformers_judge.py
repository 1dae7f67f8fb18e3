"""The transformers judge against one ``generate`` call for each question, on tiny random checkpoints."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eval_models.encoders.encoder import kept_models
from eval_models.vlm.judge import TransformersJudge, _once
from imageevalkit import registry
from imageevalkit.benchmark.question import (
    Answer,
    JudgeUnusable,
    Message,
    Picture,
    Question,
    Sampling,
)
from imageevalkit.benchmark.thoughts import without_thoughts
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.judges.api import judge_picture
from imageevalkit.judges.choice import JudgeOptions, TransformersSettings
from imageevalkit.plan.benchmarks import checked
from tests.support import tiny_vlm
from tests.support.image_questions import (
    ask_about,
    atom_questions,
    prompt_question,
    read_prompts,
    save_image,
)
from tests.support.plain_judge import PlainJudge
from tests.support.vision_passes import VisionPasses

_CLOSE = 5e-6
_YES_NO = ("Yes", " no", "7", " 7")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", name="checkpoint")
def fixture_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint, saved once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def saved(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            folder.mkdir()
            getattr(tiny_vlm, f"save_{family}")(folder)
        return folder

    return saved


@pytest.fixture(name="judge")
def fixture_judge(checkpoint: Callable[[str], Path]) -> Callable[..., TransformersJudge]:
    """A judge of a family of checkpoints, with settings."""

    def made(family: str = "qwen3_vl", **kwargs: Any) -> TransformersJudge:
        return judge_of(checkpoint(family), **kwargs)

    return made


def judge_of(folder: Path | str, **kwargs: Any) -> TransformersJudge:
    kept_models.clear()  # each test has its own
    judge = registry.judge(f"transformers:{folder}", {}, options=JudgeOptions(kwargs=kwargs))
    assert isinstance(judge, TransformersJudge)
    return judge


def asked(judge: TransformersJudge, questions: Sequence[Question]) -> dict[tuple[str, str], Answer]:
    """The answer to each question, which must come once."""
    answers = list(judge.ask(questions))
    by_name = {(a.question.item, a.question.name): a for a in answers}
    assert len(answers) == len(by_name) == len(questions)
    return by_name


def replies(judge: TransformersJudge, questions: Sequence[Question]) -> list[Answer]:
    """The answers in order, to be compared: without their question and their time."""
    answers = asked(judge, questions)
    found = []
    for question in questions:
        answer = answers[question.item, question.name]
        assert answer.text is not None, answer.error
        found.append(replace(answer, question=ask_nothing(), seconds=0.0))
    return found


def assert_like_plain(
    got: Sequence[Answer], plain: PlainJudge, questions: Sequence[Question], **options: Any
) -> None:
    """Probabilities within 5e-6 of the plain way's, and the same most probable token (special ones left out)."""
    special = set(plain.processor.tokenizer.all_special_tokens)
    for question, reply in zip(questions, got, strict=True):
        expected = plain.ask(question, **options)
        assert reply.probabilities == pytest.approx(expected.probabilities, abs=_CLOSE, rel=0)
        assert reply.text == ("" if expected.text in special else expected.text)
        assert reply.outside == 0.0
        assert reply.tokens == {"input": len(expected.ids), "output": 1}


def questions_about(folder: Path, count: int) -> list[Question]:
    """Four methods' questions about ``count`` images of as many sizes."""
    found = []
    for n, prompt in enumerate(read_prompts(count).prompts):
        size = (48 + n * 37 % 150, 48 + n * 53 % 150)
        picture = save_image(folder / f"{n:03d}.png", size, seed=n)
        found += [*atom_questions(prompt, picture), prompt_question(prompt, picture)]
    return found


def test_all_methods_of_geneval2_get_the_plain_ways_probabilities_with_one_vision_pass_an_image(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 20)
    ours = judge()
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 20
    assert len(got) == len(questions) > 80
    assert_like_plain(got, PlainJudge(checkpoint("qwen3_vl")), questions)
    # or closeness would say little: hardly any reply would pass for the next one about the same words
    told = sorted((tuple(reply.probabilities), n) for n, reply in enumerate(got) if reply.probabilities)
    pairs = [(got[n], got[m]) for (words, n), (others, m) in pairwise(told) if words == others]
    alike = [a for a, b in pairs if a.probabilities == pytest.approx(b.probabilities, abs=_CLOSE, rel=0)]
    assert len(pairs) > len(got) / 2 and len(alike) < len(pairs) / 10


@pytest.mark.parametrize(
    "settings",
    [{"batch_size": 1}, {"batch_size": 3}, {"device_map": "auto"}, {"attn_implementation": "eager"}],
    ids=str,
)
def test_settings_of_speed_and_memory_change_nothing(
    judge: Callable[..., TransformersJudge], tmp_path: Path, settings: dict[str, Any]
) -> None:
    questions = questions_about(tmp_path, 1)
    other, usual = (replies(judge(**kwargs), questions) for kwargs in (settings, {"batch_size": 100}))
    for a, b in zip(other, usual, strict=True):
        assert a.probabilities == pytest.approx(b.probabilities, abs=_CLOSE, rel=0)


def test_qwen2_5_vl_shares_too_and_the_checkpoints_penalty_counts_only_where_temperature_is_left_to_it(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 3)
    plain = PlainJudge(checkpoint("qwen2_5_vl"))
    with VisionPasses() as passes:
        greedy = replies(judge("qwen2_5_vl"), questions)
    assert passes.images == 3
    assert_like_plain(greedy, plain, questions, repetition_penalty=1.0)

    left = [with_sampling(question, Sampling(1, temperature=None)) for question in questions]
    penalised = replies(judge("qwen2_5_vl"), left)
    # ``generate`` with the checkpoint's 1.3
    assert_like_plain(penalised, plain, left)
    given = [with_sampling(q, Sampling(1, extra={"repetition_penalty": 1.3})) for q in questions]
    assert replies(judge("qwen2_5_vl"), given) == penalised
    assert greedy != penalised


def test_another_class_shares_once_a_trial_shows_that_it_may(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 4)
    ours = judge("llava")
    with VisionPasses() as passes:
        got = replies(ours, questions)
    # a choice and a reply to each of two questions about an image of the trial, and its prefix
    assert passes.images == 4 + 4 + 1
    assert_like_plain(got, PlainJudge(checkpoint("llava")), questions)


def test_a_class_that_does_not_continue_from_a_cache_is_asked_plainly(
    judge: Callable[..., TransformersJudge],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = judge("llava")
    generated = questions_about_two(tmp_path, Sampling(8))
    questions = [*questions_about(tmp_path, 2), *generated]
    expected = [reply for question in questions for reply in replies(shared, [question])]
    forget_positions(monkeypatch)
    ours = judge("llava")
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert "llava cannot share an image between questions" in capsys.readouterr().out
    # an image of the trial goes through the model twice to find that out
    assert passes.images == len(questions) + 2
    for a, b in zip(got, expected, strict=True):
        assert (a.text, a.tokens) == (b.text, b.tokens)
        assert (a.probabilities or {}) == pytest.approx(b.probabilities or {}, abs=_CLOSE, rel=0)
    # generated ones are batches all the same
    assert passes.calls < passes.images


def forget_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of LLaVA start anew after a prefix, though not within a reply."""
    from transformers import LlavaForConditionalGeneration

    forward = LlavaForConditionalGeneration.forward

    @functools.wraps(forward)
    def forgetful(self: Any, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        width = kwargs["input_ids"].shape[1]
        if past_key_values is not None and past_key_values.get_seq_length() and width > 1:
            kwargs["position_ids"] = kwargs["input_ids"].new_tensor([list(range(width))])
        return forward(self, *args, past_key_values=past_key_values, **kwargs)

    monkeypatch.setattr(LlavaForConditionalGeneration, "forward", forgetful)


@pytest.mark.parametrize("beside_gpu", [False, True])
@pytest.mark.parametrize("kind", ["fine", "broken", "thin", "long"])
def test_each_image_is_opened_and_prepared_once_by_a_judge_that_cannot_share_it(
    judge: Callable[..., TransformersJudge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    beside_gpu: bool,
) -> None:
    picture = save_image(tmp_path / "a.png", (2, 600) if kind == "thin" else (90, 60))
    if kind == "broken":
        picture.path.write_bytes(picture.path.read_bytes()[:-30])
    questions = [ask_about(picture, f"Is it {n}?", _YES_NO, f"choice/{n}") for n in range(6)]
    questions += [ask_about(picture, "Why? " * n, (), f"reply/{n}", Sampling(4)) for n in range(1, 5)]
    monkeypatch.setattr(TransformersJudge, "_beside_gpu", beside_gpu)
    if kind == "thin":  # the limit is that of Qwen's processor
        ours = judge()
        ours._local.shares = False
    else:
        expected = (
            [] if kind != "fine" else [reply for q in questions for reply in replies(judge("llava"), [q])]
        )
        forget_positions(monkeypatch)
        ours = judge("llava")
        assert not ours._local.shares
    if kind == "long":
        ours._local.positions = 10  # fewer than the image takes
    opened, prepared = [], []
    processor = ours._local.processor.image_processor
    inner = type(processor).preprocess

    def opening(picture: Picture) -> Image.Image:
        opened.append(picture)
        return judge_picture(picture)

    def preparing(self: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        prepared.append(images)
        return inner(self, images, *args, **kwargs)

    monkeypatch.setattr("eval_models.vlm.inference.judge_picture", opening)
    processor.preprocess = _once(functools.partial(preparing, processor))
    answers = asked(ours, questions)
    assert opened == [picture]
    assert len(prepared) == (kind != "broken")
    words = {"broken": "unreadable image a.png", "thin": "aspect ratio", "long": "context too long"}
    if kind in words:
        assert all(answer.text is None and words[kind] in answer.error for answer in answers.values())
        return
    for question, one in zip(questions, expected, strict=True):
        other = answers[question.item, question.name]
        assert (other.text, other.tokens) == (one.text, one.tokens)
        assert (other.probabilities or {}) == pytest.approx(one.probabilities or {}, abs=_CLOSE, rel=0)


def test_memory_that_runs_out_in_the_trial_is_told_as_such(
    judge: Callable[..., TransformersJudge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import LlavaForConditionalGeneration

    def exhausted(self: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Attempt to allocate 2 GiB")

    monkeypatch.setattr(LlavaForConditionalGeneration, "forward", exhausted)
    ours = judge("llava")
    with pytest.raises(CellFailure, match="too little GPU memory"):
        list(ours.ask(questions_about(tmp_path, 1)))
    assert "shares" not in vars(ours._local)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "llava"])
def test_prompts_are_those_of_the_chat_template_of_the_processor(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    plain = PlainJudge(checkpoint(family))
    questions = questions_about(tmp_path, 2)
    ours = judge(family)
    prompts = ours._local.prompts(questions, {})
    for question, inputs in zip(questions, prompts, strict=True):
        expected = plain.inputs(question)
        assert set(inputs) == set(expected)
        for name, value in expected.items():
            assert inputs[name].equal(value), name


def test_several_images_and_system_words_share_as_well(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    first, second = (save_image(tmp_path / f"{n}.png", (80 + 40 * n, 64), seed=n) for n in range(2))
    questions = [
        Question(
            text,
            (
                Message("system", ("Be exact.",)),
                Message("user", ("First:", first, "second:", second, text)),
            ),
            Sampling(1),
            _YES_NO,
            item="pair",
        )
        for text in ("Are they alike?", "Which is larger, and how many dogs are there?")
    ]
    ours = judge()
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 2
    assert_like_plain(got, PlainJudge(checkpoint("qwen3_vl")), questions)


def generation_questions(folder: Path, sampling: Sampling) -> list[Question]:
    """Prompts of different lengths, so that batches are padded."""
    return [
        ask_about(
            save_image(folder / f"g{n}.png", (64 + 32 * n, 64), seed=n),
            "Read it." * (n + 1),
            sampling=sampling,
        )
        for n in range(5)
    ]


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (Sampling(12, temperature=None), {}),
        (Sampling(12), {"do_sample": False, "repetition_penalty": 1.0}),
        (
            Sampling(12, extra={"repetition_penalty": 2.0}),
            {"do_sample": False, "repetition_penalty": 2.0},
        ),
    ],
    ids=["checkpoint", "greedy", "greedy with a penalty"],
)
def test_batched_replies_are_those_of_single_calls(
    judge: Callable[..., TransformersJudge],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    sampling: Sampling,
    options: dict[str, Any],
) -> None:
    questions = generation_questions(tmp_path, sampling)
    plain = PlainJudge(checkpoint("qwen2_5_vl"))
    ours = judge("qwen2_5_vl", batch_size=3)
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 5
    assert [reply.text for reply in got] == [plain.generate(q, **options).text for q in questions]
    assert passes.calls == 2
    assert len({reply.text for reply in got}) == 5
    for question, reply in zip(questions, got, strict=True):
        assert reply.probabilities is None and reply.tokens is not None
        assert reply.tokens["input"] == len(plain.inputs(question)["input_ids"][0])
        assert 1 <= reply.tokens["output"] <= 12


def questions_about_two(folder: Path, *samplings: Sampling) -> list[Question]:
    """Prompts of different lengths about two pictures, each to be answered with each of ``samplings``."""
    texts = ("Read it.", "How many dogs are there, and what do they chase?", "Why?" * 9, "One word, please.")
    found = []
    for n in range(2):
        picture = save_image(folder / f"two{n}.png", (100 + 60 * n, 80), seed=n)
        for m, sampling in enumerate(samplings):
            found += [ask_about(picture, text, (), f"{m}/{text}", sampling) for text in texts]
    return found


def ending_often(folder: Path, copy: Path) -> Path:
    """A ``copy`` of the checkpoint whose replies end at any of many tokens."""
    shutil.copytree(folder, copy)
    path = copy / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "eos_token_id": [config["eos_token_id"], *range(60, 80)]}))
    return copy


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (Sampling(24), {"do_sample": False, "repetition_penalty": 1.0}),
        (
            Sampling(24, extra={"repetition_penalty": 1.5}),
            {"do_sample": False, "repetition_penalty": 1.5},
        ),
        (Sampling(24, temperature=None), {}),
    ],
    ids=["greedy", "greedy with a penalty", "checkpoint"],
)
def test_replies_about_one_image_are_those_of_single_calls_with_one_vision_pass(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    family: str,
    sampling: Sampling,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = ending_often(checkpoint(family), tmp_path / "copy")
    plain, ours = PlainJudge(folder), judge_of(folder, batch_size=3)
    ids: list[list[int]] = []
    texts = ours._local._texts

    def noting(rows: Any) -> list[str]:
        ids.extend(rows.tolist())
        return texts(rows)

    monkeypatch.setattr(ours._local, "_texts", noting)
    questions = questions_about_two(tmp_path, sampling)
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 2
    expected = [plain.generate(question, **options) for question in questions]
    assert [row[: len(e.ids)] for row, e in zip(ids, expected, strict=True)] == [e.ids for e in expected]
    for question, reply, its in zip(questions, got, expected, strict=True):
        tokens = {"input": plain.inputs(question)["input_ids"].shape[1], "output": len(its.ids)}
        assert (reply.text, reply.tokens) == (its.text, tokens)
    # or equality would say little
    ends = plain.model.generation_config.eos_token_id
    assert {its.ids[-1] in ends for its in expected} == {True, False}
    assert len({reply.text for reply in got}) > len(got) / 2


def test_drawn_replies_about_one_image_are_those_of_single_calls_with_the_same_seed(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch

    questions = questions_about_two(tmp_path, *(Sampling(12, temperature=0.7, seed=seed) for seed in (7, 8)))
    ours, plain = judge(), PlainJudge(checkpoint("qwen3_vl"))
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 2
    for question, reply in zip(questions, got, strict=True):
        torch.manual_seed(question.sampling.seed or 0)
        assert reply.text == plain.generate(question, do_sample=True, temperature=0.7).text
    assert len({reply.text for reply in got}) == len(got)
    assert replies(judge(), questions[2:3]) == got[2:3]


def test_all_kinds_of_questions_about_an_image_share_its_one_vision_pass(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    mixed = questions_about_two(tmp_path, Sampling(6), Sampling(9))
    mixed += [replace(q, name=f"wanted/{q.name}", sampling=Sampling(1), choices=_YES_NO) for q in mixed[::3]]
    mixed.append(ask_about(save_image(tmp_path / "other.png", (64, 64), 9), "Read it.", sampling=Sampling(6)))
    ours = judge()
    with VisionPasses() as passes:
        got = replies(ours, mixed)
    assert passes.images == 3
    for question, reply in zip(mixed, got, strict=True):
        (alone,) = replies(judge(), [question])
        assert (reply.text, reply.tokens) == (alone.text, alone.tokens)
        assert (reply.probabilities or {}) == pytest.approx(alone.probabilities or {}, abs=_CLOSE, rel=0)


def test_the_likeliest_tokens_are_the_largest_of_the_whole_vocabulary(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Alone and beside other questions about the image, whatever the temperature.

    Tokens may share a text (parts of characters, special tokens): the answer holds the sum of their probabilities.
    """
    plain = PlainJudge(checkpoint("qwen3_vl"))
    questions = questions_about(tmp_path, 2)[:4]
    asking = [replace(q, choices=(), sampling=Sampling(1, 1.0), likeliest=5) for q in questions]
    for together in (asking, asking[:1]):
        for question, reply in zip(together, replies(judge(), together), strict=True):
            found = reply.probabilities or {}
            vocabulary = plain.first_tokens(question)
            five = sorted((one for _, one in vocabulary), reverse=True)[:5]
            assert sum(found.values()) == pytest.approx(sum(five), abs=_CLOSE)
            for text, probability in found.items():
                same_text = [one for other, one in vocabulary if other == text]
                # another CPU may exchange tokens that are as likely as the fifth, but for rounding
                surely, at_most = (
                    sum(one for one in same_text if one >= five[-1] + margin) for margin in (_CLOSE, -_CLOSE)
                )
                assert surely - _CLOSE <= probability <= at_most + _CLOSE
            assert reply.outside == 0 and reply.text in found


def test_a_drawn_reply_depends_on_its_seed_and_not_on_its_company(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    questions = generation_questions(tmp_path, Sampling(12, temperature=1.0, seed=7))
    together = replies(judge(), questions)
    assert replies(judge(), questions[3:4]) == together[3:4]
    other = generation_questions(tmp_path, Sampling(12, temperature=1.0, seed=8))
    assert replies(judge(), other) != together


def test_words_for_the_chat_template_reach_it(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False, "unheard_of": 1}}
    question = ask_about(
        save_image(tmp_path / "a.png", (64, 64)), "Is it red?", _YES_NO, sampling=Sampling(1, extra=extra)
    )
    (inputs,) = judge()._local.prompts([question], {})
    plain = PlainJudge(checkpoint("qwen3_vl"))
    assert inputs["input_ids"].equal(plain.inputs(question, enable_thinking=False)["input_ids"])
    assert not inputs["input_ids"].equal(plain.inputs(question)["input_ids"])


def test_a_reply_to_a_prompt_that_opens_thoughts_begins_inside_them(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Else a reply that is cut before its thoughts end would be an answer, and so would the first token of them."""
    folder = Path(shutil.copytree(checkpoint("qwen3_vl"), tmp_path / "thinks"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{{- '<think>\\n' -}}")
    picture = save_image(tmp_path / "a.png", (64, 64))
    one = ask_about(picture, "Is it red?", sampling=Sampling(4))
    others = [
        replace(one, name="shared", messages=(Message("user", (picture, "How many?")),)),
        replace(ask_about(picture, "Is it a cat?", _YES_NO, sampling=Sampling(1)), name="token"),
    ]
    alone, *together = replies(judge_of(folder), [one]) + replies(judge_of(folder), [one, *others])
    for answer in (alone, *together):
        assert answer.text is not None and answer.text.startswith("<think>")
        assert without_thoughts(answer).text is None


def test_think_tags_that_are_special_tokens_stay_in_the_text(judge: Callable[..., TransformersJudge]) -> None:
    local = judge()._local
    tokenizer = copy.deepcopy(local.processor.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = tokenizer("<|im_start|><think>\nno 7</think>\n\nYes<|im_end|>", return_tensors="pt")["input_ids"]
    processor = copy.copy(local.processor)
    processor.tokenizer = tokenizer
    assert replace(local, processor=processor)._texts(ids) == ["<think>\nno 7</think>\n\nYes"]


def test_a_question_that_fails_by_itself_costs_no_other(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    good = save_image(tmp_path / "good.png", (64, 64))
    broken = Picture(tmp_path / "broken.png", "0")
    broken.path.write_bytes(good.path.read_bytes()[:-30])
    thin = save_image(tmp_path / "thin.png", (2, 600))
    long = "very " * 5000
    for sampling, wanted in ((Sampling(1), _YES_NO), (Sampling(4), ())):
        questions = [
            ask_about(good, "Is it red?", wanted, "fine", sampling),
            ask_about(good, f"Is it {long} red?", wanted, "long", sampling),
            ask_about(broken, "Is it red?", wanted, "broken", sampling),
            ask_about(Picture(tmp_path / "absent.png", "0"), "Is it red?", wanted, "absent", sampling),
            ask_about(thin, "Is it red?", wanted, "thin", sampling),
        ]
        answers = {name: answer for (_, name), answer in asked(judge(), questions).items()}
        assert answers.pop("fine").text is not None
        assert all(answer.text is None for answer in answers.values())
        assert "context too long" in answers["long"].error and "4096 positions" in answers["long"].error
        assert answers["broken"].error.startswith("unreadable image broken.png")
        assert answers["absent"].error.startswith("unreadable image absent.png")
        assert "aspect ratio" in answers["thin"].error
        assert all("\n" not in answer.error for answer in answers.values())


def test_memory_that_runs_out_halves_the_batch_and_loses_no_question(
    judge: Callable[..., TransformersJudge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    limit_rows(monkeypatch, 2)
    generated = generation_questions(tmp_path, Sampling(3))
    assert len(replies(judge(batch_size=4), generated)) == 5
    assert "from now on 2 questions go through the model at once" in capsys.readouterr().out
    assert len(replies(judge(batch_size=16), questions_about(tmp_path, 2))) > 6
    assert "questions go through the model at once" in capsys.readouterr().out

    limit_rows(monkeypatch, 0)
    with pytest.raises(CellFailure, match="max_pixels"):
        list(judge().ask(generated))


def limit_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """A GPU whose memory holds a batch of ``rows``."""
    import torch
    from transformers import Qwen3VLModel

    forward = Qwen3VLModel.forward
    original = getattr(forward, "unlimited", forward)

    def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Attempt to allocate 2 GiB")
        return original(self, *args, **kwargs)

    limited.unlimited = original  # type: ignore[attr-defined]
    monkeypatch.setattr(Qwen3VLModel, "forward", limited)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"repetition_penalti": 1.1}, "did you mean 'repetition_penalty'"),
        ({"top_k": 5}, "cannot honour 'top_k'"),
    ],
)
def test_sampling_that_it_cannot_honour_is_never_dropped(
    judge: Callable[..., TransformersJudge], tmp_path: Path, extra: dict[str, Any], words: str
) -> None:
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", sampling=Sampling(4, extra=extra))
    with pytest.raises(JudgeUnusable, match=words):
        list(judge().ask([question]))


def test_a_tokenizer_that_is_not_the_official_one_is_refused(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    ours = judge()
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", _YES_NO)
    ids = tuple(ours._local.first_tokens(_YES_NO))
    assert replies(ours, [replace(question, choice_ids=ids)])
    with pytest.raises(JudgeUnusable, match=rf"begins '{_YES_NO[1]}' with token {ids[1]} instead of 7"):
        list(ours.ask([replace(question, choice_ids=(ids[0], 7, *ids[2:]))]))


def with_sampling(question: Question, sampling: Sampling) -> Question:
    return Question(question.name, question.messages, sampling, question.choices, item=question.item)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_pixel": 1}, "did you mean 'max_pixels'"),
        ({"batch_size": 0}, "batch_size must be a positive whole number"),
        ({"dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"device_map": 0}, "device_map must be text"),
    ],
)
def test_settings_are_checked_before_anything_loads(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^judge 'x' of wise: .*{words}"):
        checked(TransformersSettings, kwargs, "judge 'x' of wise")


def damage_nothing(folder: Path) -> None:
    """Leave it as it is."""


def remove_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def remove_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def remove_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def make_it_a_language_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))


@pytest.mark.parametrize(
    ("damage", "kwargs", "words"),
    [
        (remove_a_tensor, {}, "judge: .* it lacks lm_head.weight; download it again"),
        (remove_the_weights, {}, "does not load: OSError"),
        (remove_the_template, {}, "has no chat template"),
        (make_it_a_language_model, {}, "qwen3.* is no image-text-to-text model"),
        (damage_nothing, {"device_map": "cuda:9"}, "does not load"),
        (damage_nothing, {"attn_implementation": "flash_attention_2"}, "FlashAttention2"),
    ],
)
def test_a_judge_that_cannot_start_says_why_in_one_line(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    damage: Callable[[Path], None],
    kwargs: dict[str, Any],
    words: str,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("qwen3_vl"), folder)
    damage(folder)
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", _YES_NO)
    with pytest.raises(CellFailure, match=words) as caught:
        list(judge_of(folder, **kwargs).ask([question]))
    assert "\n" not in str(caught.value)


def test_pixel_limits_reach_the_processor_or_are_refused(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    question = ask_about(save_image(tmp_path / "a.png", (256, 256)), "Is it red?", _YES_NO)
    free, bound = (replies(judge(**kwargs), [question])[0] for kwargs in ({}, {"max_pixels": 128 * 128}))
    assert free.tokens is not None and bound.tokens is not None
    # patches of 32 × 32 pixels
    assert free.tokens["input"] - bound.tokens["input"] == 8 * 8 - 4 * 4
    with pytest.raises(CellFailure, match="takes no max_pixels"):
        list(judge("llava", max_pixels=128).ask([question]))


@pytest.mark.parametrize("name", ["no/such/folder", "some-owner/some-model"])
def test_a_model_that_is_nowhere(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    words = "there is no folder" if name.startswith("no/") else "HF_HUB_OFFLINE=1 forbids downloading"
    for use in (lambda: judge_of(name).identity, lambda: list(judge_of(name).ask([ask_nothing()]))):
        with pytest.raises(CellFailure, match=words):
            use()


def ask_nothing() -> Question:
    return Question("q", (Message("user", ("Hello",)),), Sampling(1), ("Yes",), item="item")


def test_identity_names_content_and_settings_and_no_place(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere" / "qwen3_vl"
    shutil.copytree(checkpoint("qwen3_vl"), elsewhere)
    monkeypatch.setattr(
        "eval_models.vlm.judge.load_model",
        lambda *_: pytest.fail("identity loads the model"),
    )
    identity = judge_of(checkpoint("qwen3_vl")).identity
    assert judge_of(elsewhere).identity == identity == json.loads(json.dumps(identity))
    assert judge_of(elsewhere, batch_size=2, device_map="cpu").identity == identity
    assert str(tmp_path) not in json.dumps(identity)
    assert {"torch", "transformers", "tokenizers"} <= set(identity["packages"])
    assert judge_of(elsewhere, max_pixels=4096).identity != identity
    assert judge_of(elsewhere, dtype="bfloat16").identity != identity
    remove_a_tensor(elsewhere)
    assert judge_of(elsewhere).identity != identity


def test_identity_of_a_hub_model_is_a_commit_of_the_cache(
    tmp_path: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--owner--judge"
    shutil.copytree(checkpoint("qwen3_vl"), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    judge = judge_of("owner/judge")
    assert judge.identity["model"] == "owner/judge"
    assert judge.identity["revision"] == commit
    picture = save_image(tmp_path / "a.png", (64, 64))
    assert replies(judge, [ask_about(picture, "?", _YES_NO)])


def test_images_are_prepared_ahead_where_the_model_leaves_the_cores_alone(
    judge: Callable[..., TransformersJudge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = questions_about(tmp_path, 4)
    expected = replies(judge(), questions)
    monkeypatch.setattr(TransformersJudge, "_beside_gpu", True)
    ahead = judge()
    assert replies(ahead, questions) == expected
    answers = ahead.ask(questions)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]


def test_an_iterator_closed_early_gives_up_the_rest(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    ours = judge()
    with VisionPasses() as passes:
        answers: Iterator[Answer] = ours.ask(questions_about(tmp_path, 6))
        assert next(answers).text is not None
        answers.close()  # type: ignore[attr-defined]
    assert passes.images == 1


def test_loading_is_told(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    judge = judge_of(checkpoint("qwen3_vl"))
    assert judge.holdup() == "loading judge"
    list(judge.ask([ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", _YES_NO)]))
    assert judge.holdup() == ""
