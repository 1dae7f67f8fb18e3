from tests.support.authors_calls import record


class StableDiffusionPipeline:
    unet = "the unet"

    @classmethod
    def from_pretrained(cls, folder, *, revision, safety_checker, torch_dtype):
        from diffusers import DDIMScheduler

        record("from_pretrained", locals())
        made = cls()
        made.scheduler = DDIMScheduler()
        return made

    def to(self, device):
        return self

    def set_progress_bar_config(self, disable):
        pass
