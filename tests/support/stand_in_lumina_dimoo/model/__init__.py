from tests.support.authors_calls import record


class LLaDAForMultiModalGeneration:
    @classmethod
    def from_pretrained(cls, folder, *, torch_dtype, device_map):
        record("LLaDA", locals())
        return cls()
