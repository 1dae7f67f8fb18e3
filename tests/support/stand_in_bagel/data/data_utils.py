def add_special_tokens(tokenizer):
    return tokenizer, {"bos_token_id": 1}, 4
