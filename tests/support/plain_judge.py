"""The plain way to ask a local judge: one ``generate`` call for each question, as official scripts do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.benchmark.question import Picture, Question


class PlainAnswer(NamedTuple):
    """``text`` of the most probable token, ``probabilities`` by string, the ``ids`` of the prompt."""

    text: str
    probabilities: dict[str, float]
    ids: list[int]


class PlainReply(NamedTuple):
    """``ids`` are the tokens of the reply, the one that ended it included."""

    text: str
    ids: list[int]


def _as_torchvision_resizes(image: Any, size: Any, resample: Any, factor: int) -> Any:
    """Resizes the array of a Qwen image, colours first, as ``torchvision.transforms.v2.functional.resize`` does."""
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    new = smart_resize(*image.shape[1:], factor, size.shortest_edge, size.longest_edge)
    pixels = torch.tensor(image)[None]
    return torch.nn.functional.interpolate(pixels, new, mode="bicubic", antialias=True)[0].numpy()


class PlainJudge:
    """A checkpoint and its own processor, which opens each image file anew for each question."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        from transformers import AutoConfig, AutoModelForImageTextToText
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

        processor_class: Any = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(folder))]

        class WithoutVideo(processor_class):
            # its video processor needs torchvision, which PyPI has for CUDA builds of torch only
            @classmethod
            def get_attributes(cls) -> list[str]:
                return [name for name in super().get_attributes() if name != "video_processor"]

        self.processor = WithoutVideo.from_pretrained(folder)
        image_processor = self.processor.image_processor
        if type(image_processor).__name__ == "Qwen2VLImageProcessorPil":  # which stands in for torchvision's
            image_processor.resize = _as_torchvision_resizes
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto").eval().to(device)

    def inputs(self, question: Question, **template: Any) -> Any:
        """The model's inputs."""
        messages = [
            {
                "role": message.role,
                "content": [
                    {"type": "image", "image": str(part.path)}
                    if isinstance(part, Picture)
                    else {"type": "text", "text": part}
                    for part in message.parts
                ],
            }
            for message in question.messages
        ]
        inputs = self.processor.apply_chat_template(
            messages,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            **template,
        )
        return inputs.to(self.model.device)

    def ask(self, question: Question, **options: Any) -> PlainAnswer:
        """The first token of the reply."""
        import torch

        probabilities, ids = self._first_probabilities(question, **options)
        encode = self.processor.tokenizer.encode
        return PlainAnswer(
            self.processor.batch_decode([torch.argmax(probabilities)])[0],
            {wanted: probabilities[encode(wanted)[0]].item() for wanted in question.choices},
            ids,
        )

    def first_tokens(self, question: Question) -> list[tuple[str, float]]:
        """Text and probability of each token of the vocabulary as the first one of the reply."""
        probabilities = self._first_probabilities(question)[0].tolist()
        texts = self.processor.tokenizer.batch_decode(
            [[token] for token in range(len(probabilities))], skip_special_tokens=True
        )
        return list(zip(texts, probabilities, strict=True))

    def _first_probabilities(self, question: Question, **options: Any) -> tuple[Any, list[int]]:
        """Probabilities of the first token, shape (vocabulary,), and the ids of the prompt."""
        import torch

        inputs = self.inputs(question)
        out = self.model.generate(
            **inputs,
            max_new_tokens=1,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        return torch.nn.functional.softmax(out.scores[0][0], dim=-1), inputs["input_ids"][0].tolist()

    def generate(self, question: Question, **options: Any) -> PlainReply:
        """The whole reply, drawn as ``options`` of transformers' ``generate`` say."""
        inputs = self.inputs(question)
        out = self.model.generate(**inputs, max_new_tokens=question.sampling.max_tokens, **options)
        ids = out[0, inputs["input_ids"].shape[1] :].tolist()
        text = self.processor.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return PlainReply(text, ids)
