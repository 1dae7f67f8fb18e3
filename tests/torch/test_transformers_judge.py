"""The transformers judge against one ``generate`` call for each question, on tiny random checkpoints."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import threading
from collections.abc import Callable, Sequence
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
    make_prompts,
    prompt_question,
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
    for n, prompt in enumerate(make_prompts(count)):
        size = (48 + n * 37 % 150, 48 + n * 53 % 150)
        picture = save_image(folder / f"{n:03d}.png", size, seed=n)
        found += [*atom_questions(prompt, picture), prompt_question(prompt, picture)]
    return found


def test_all_methods_of_geneval2_get_the_plain_ways_probabilities_with_one_vision_pass_an_image(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 8)
    ours = judge()
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 8
    assert len(got) == len(questions) > 30
    assert_like_plain(got, PlainJudge(checkpoint("qwen3_vl")), questions)
    # or closeness would say little: hardly any reply would pass for the next one about the same words
    told = sorted((tuple(reply.probabilities), n) for n, reply in enumerate(got) if reply.probabilities)
    pairs = [(got[n], got[m]) for (words, n), (others, m) in pairwise(told) if words == others]
    alike = [a for a, b in pairs if a.probabilities == pytest.approx(b.probabilities, abs=_CLOSE, rel=0)]
    assert len(pairs) > len(got) / 2 and len(alike) < len(pairs) / 10


def test_qwen2_5_vl_shares_too_and_the_checkpoints_penalty_counts_only_where_temperature_is_left_to_it(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 2)
    plain = PlainJudge(checkpoint("qwen2_5_vl"))
    with VisionPasses() as passes:
        greedy = replies(judge("qwen2_5_vl"), questions)
    assert passes.images == 2
    assert_like_plain(greedy, plain, questions, repetition_penalty=1.0)

    left = [replace(question, sampling=Sampling(1, temperature=None)) for question in questions]
    penalised = replies(judge("qwen2_5_vl"), left)
    # ``generate`` with the checkpoint's 1.3
    assert_like_plain(penalised, plain, left)
    given = [replace(q, sampling=Sampling(1, extra={"repetition_penalty": 1.3})) for q in questions]
    assert replies(judge("qwen2_5_vl"), given) == penalised
    assert greedy != penalised


def test_another_class_shares_once_a_trial_shows_that_it_may(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 2)
    ours = judge("llava")
    with VisionPasses() as passes:
        got = replies(ours, questions)
    # a choice and a reply to each of two questions about an image of the trial, and its prefix
    assert passes.images == 2 + 4 + 1
    assert_like_plain(got, PlainJudge(checkpoint("llava")), questions)


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


def test_a_tokenizer_that_is_not_the_official_one_is_refused(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    ours = judge()
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", _YES_NO)
    ids = tuple(ours._local.first_tokens(_YES_NO))
    assert replies(ours, [replace(question, choice_ids=ids)])
    with pytest.raises(JudgeUnusable, match=rf"begins '{_YES_NO[1]}' with token {ids[1]} instead of 7"):
        list(ours.ask([replace(question, choice_ids=(ids[0], 7, *ids[2:]))]))


def remove_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


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
    questions = questions_about(tmp_path, 2)
    expected = replies(judge(), questions)
    monkeypatch.setattr(TransformersJudge, "_beside_gpu", True)
    ahead = judge()
    assert replies(ahead, questions) == expected
    answers = ahead.ask(questions)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prepare")]


def test_settings_of_speed_and_memory_change_nothing(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    questions = questions_about(tmp_path, 1)
    usual = replies(judge(batch_size=100), questions)
    for a, b in zip(replies(judge(batch_size=1, device_map="auto"), questions), usual, strict=True):
        assert a.probabilities == pytest.approx(b.probabilities, abs=_CLOSE, rel=0)


def test_a_class_that_does_not_continue_from_a_cache_is_asked_plainly_and_opens_an_image_once(
    judge: Callable[..., TransformersJudge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = save_image(tmp_path / "a.png", (90, 60))
    questions = [ask_about(picture, f"Is it {n}?", _YES_NO, f"choice/{n}") for n in range(3)]
    questions += [ask_about(picture, "Why? " * n, (), f"reply/{n}", Sampling(4)) for n in range(1, 3)]
    expected = [reply for question in questions for reply in replies(judge("llava"), [question])]
    forget_positions(monkeypatch)
    ours = judge("llava")
    assert not ours._local.shares
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
    for one, other in zip(expected, replies(ours, questions), strict=True):
        assert (other.text, other.tokens) == (one.text, one.tokens)
        assert (other.probabilities or {}) == pytest.approx(one.probabilities or {}, abs=_CLOSE, rel=0)
    assert (opened, len(prepared)) == ([picture], 1)
    assert "llava cannot share an image between questions" in capsys.readouterr().out


def test_batched_replies_are_those_of_single_calls(
    judge: Callable[..., TransformersJudge], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    questions = generation_questions(tmp_path, Sampling(12, temperature=None))
    plain = PlainJudge(checkpoint("qwen2_5_vl"))
    with VisionPasses() as passes:
        got = replies(judge("qwen2_5_vl", batch_size=3), questions)
    assert (passes.images, passes.calls) == (5, 2)
    assert [reply.text for reply in got] == [plain.generate(question).text for question in questions]
    assert len({reply.text for reply in got}) == 5


@pytest.mark.parametrize(
    ("family", "sampling", "options"),
    [
        (
            "qwen3_vl",
            Sampling(24, extra={"repetition_penalty": 1.5}),
            {"do_sample": False, "repetition_penalty": 1.5},
        ),
        ("qwen2_5_vl", Sampling(24, temperature=None), {}),
    ],
    ids=["greedy with a penalty", "checkpoint"],
)
def test_replies_about_one_image_are_those_of_single_calls_with_one_vision_pass(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    family: str,
    sampling: Sampling,
    options: dict[str, Any],
) -> None:
    folder = ending_often(checkpoint(family), tmp_path / "copy")
    plain, ours = PlainJudge(folder), judge_of(folder, batch_size=3)
    questions = questions_about_two(tmp_path, sampling)
    with VisionPasses() as passes:
        got = replies(ours, questions)
    assert passes.images == 2
    expected = [plain.generate(question, **options) for question in questions]
    for question, reply, its in zip(questions, got, expected, strict=True):
        tokens = {"input": plain.inputs(question)["input_ids"].shape[1], "output": len(its.ids)}
        assert (reply.text, reply.tokens) == (its.text, tokens)
    # or equality would say little
    ends = plain.model.generation_config.eos_token_id
    assert {its.ids[-1] in ends for its in expected} == {True, False}
    assert len({reply.text for reply in got}) > len(got) / 2


def test_a_question_that_fails_by_itself_costs_no_other(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    good = save_image(tmp_path / "good.png", (64, 64))
    broken = Picture(tmp_path / "broken.png", "0")
    broken.path.write_bytes(good.path.read_bytes()[:-30])
    thin = save_image(tmp_path / "thin.png", (2, 600))
    for sampling, wanted in ((Sampling(1), _YES_NO), (Sampling(4), ())):
        questions = [
            ask_about(good, "Is it red?", wanted, "fine", sampling),
            ask_about(good, "very " * 5000, wanted, "context too long", sampling),
            ask_about(broken, "Is it red?", wanted, "unreadable image broken.png", sampling),
            ask_about(thin, "Is it red?", wanted, "aspect ratio", sampling),
        ]
        answers = {name: answer for (_, name), answer in asked(judge(), questions).items()}
        assert answers.pop("fine").text is not None
        for words, answer in answers.items():
            assert answer.text is None and words in answer.error and "\n" not in answer.error


def test_memory_that_runs_out_halves_the_batch_and_loses_no_question(
    judge: Callable[..., TransformersJudge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch
    from transformers import Qwen3VLModel

    forward, rows = Qwen3VLModel.forward, 2

    def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Attempt to allocate 2 GiB")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3VLModel, "forward", limited)
    generated = generation_questions(tmp_path, Sampling(3))
    for batch_size, questions in ((4, generated), (16, questions_about(tmp_path, 2))):
        assert len(replies(judge(batch_size=batch_size), questions)) == len(questions)
        assert "questions go through the model at once" in capsys.readouterr().out
    rows = 0
    with pytest.raises(CellFailure, match="max_pixels"):
        list(judge().ask(generated))


def test_sampling_that_it_cannot_honour_is_never_dropped(
    judge: Callable[..., TransformersJudge], tmp_path: Path
) -> None:
    sampling = Sampling(4, extra={"top_k": 5})
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", sampling=sampling)
    with pytest.raises(JudgeUnusable, match="cannot honour 'top_k'"):
        list(judge().ask([question]))


def test_a_judge_that_cannot_start_says_why_in_one_line(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"^judge 'x' of wise: .*did you mean 'max_pixels'"):
        checked(TransformersSettings, {"max_pixel": 1}, "judge 'x' of wise")
    folder = shutil.copytree(checkpoint("qwen3_vl"), tmp_path / "copy")
    remove_a_tensor(folder)
    other = shutil.copytree(checkpoint("qwen3_vl"), tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    question = ask_about(save_image(tmp_path / "a.png", (64, 64)), "?", _YES_NO)
    for place, kwargs, words in (
        (folder, {}, "judge: .* it lacks lm_head.weight; download it again"),
        (other, {}, "qwen3.* is no image-text-to-text model"),
        (checkpoint("qwen3_vl"), {"device_map": "cuda:9"}, "does not load"),
        ("no/such/folder", {}, "there is no folder"),
        ("some-owner/some-model", {}, "HF_HUB_OFFLINE=1 forbids downloading"),
    ):
        with pytest.raises(CellFailure, match=words) as caught:
            list(judge_of(place, **kwargs).ask([question]))
        assert "\n" not in str(caught.value)
