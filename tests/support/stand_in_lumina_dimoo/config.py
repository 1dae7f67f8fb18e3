SPECIAL_TOKENS = {
    "mask_token": 900,
    "newline_token": 901,
    "answer_start": 902,
    "answer_end": 903,
    "boi": 904,
    "eoi": 905,
}
