from tests.support.authors_calls import record


def pipe_img_edit(model, input_img, prompt, steps, txt_cfg, img_cfg, seed=42):
    record("pipe_img_edit", locals())
    return [input_img.resize((64, 32))]
