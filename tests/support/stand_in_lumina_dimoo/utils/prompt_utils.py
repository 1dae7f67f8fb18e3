def generate_text_to_image_prompt(prompt_text, templates=None):
    return "T" + prompt_text, "U"


def generate_image_to_image_prompt(prompt_text, edit_type, templates=None, **kwargs):
    return "E" + prompt_text, "NO", "E"
