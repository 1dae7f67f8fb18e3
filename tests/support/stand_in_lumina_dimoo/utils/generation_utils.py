def cosine_schedule(t):
    return t
