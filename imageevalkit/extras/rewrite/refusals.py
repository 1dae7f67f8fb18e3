"""Recognizes a language model's refusal to rewrite a prompt, in English, Chinese and Japanese."""

from __future__ import annotations

import re

# A model may refuse in words, which must not become the prompt of an image. A real prompt may begin like a
# refusal ("Sorry, no vacancy: a neon sign"). So a refusal must also contain one of the phrases of _REFUSED.
_NOT = r"""(?:can['’]?t|can\ ?not|could\ not|couldn['’]t|won['’]t|will\ not|unable\ to
    |not\ (?:be\ )?(?:able|allowed|permitted|comfortable)(?:\ to)?)"""
_OPENING = re.compile(
    rf"""[\W_]*(?:
    (?:(?:i|we)(?:['’](?:m|re)|\ am|\ are)?(?:\ \w+)?\ )?(?:sorry|afraid)\b
    |(?:i|we)(?:['’](?:m|re|ll)|\ am|\ are)?(?:\ \w+)?\ (?:{_NOT}|must|have\ to|apologi[sz]e)\b
    |(?:my\ |our\ )?(?:\w+\ )?apologies|unfortunately|regrettably
    |as\ an?\ (?:ai|artificial\ intelligence|(?:large\ )?language\ model)\b
    |(?:很|非常|十分|真的)?(?:抱歉|对不起|不好意思|遗憾)|我(?:无法|不能|不会|没办法)
    |作为(?:一个|一名|一款)?(?:AI|人工智能|语言模型|大语言模型)
    |(?:大変|誠に)?申し訳|ごめん|すみません|恐れ入りますが|残念ながら)""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSED = re.compile(
    rf"""{_NOT}(?:\s+[\w'’]+){{0,3}}?\s+(?:help(?!\ but|\ \w+ing)|assist|aid|rewrit|rephras|reword|revis|modify
        |compl[yie]|creat|generat|produc|provid|fulfil|support|proceed|process|respond|accommodat
        |(?:do|discuss|engage\ in|continue\ with)\ (?:that|this|it|so)\b)
    |{_NOT}[\s.!]*$|(?:must|have\ to)(?:\ \w+)?\ (?:decline|refuse)|your\ request
    |as\ an\ ai\ (?:language\ )?(?:model|assistant)|sorry,?\ but\ i\b|apologi(?:[sz]e|es),?\ but
    |(?:violat|against)\w*(?:\ \w+){{0,4}}\ (?:polic|guideline|rule)
    |(?:无法|不能|不会|没办法|不便|拒绝).{{0,12}}?(?:帮|协助|提供|改写|重写|生成|创建|创作|满足|完成|处理|回答|执行|做|配合|支持)
    |(?:无法|不能|没办法)[\s。！]*$|(?:抱歉|对不起|遗憾|sorry|apologi[sz]e|apologies|ごめんなさい)[\s.。！!]*$
    |ません|かね(?:ます|る)|できない""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSES_WITHIN = 300  # characters


def is_refusal(text: str) -> bool:
    """Returns whether ``text``, a reply without thoughts, refuses to rewrite."""
    return bool(_OPENING.match(text) and _REFUSED.search(text[:_REFUSES_WITHIN]))
