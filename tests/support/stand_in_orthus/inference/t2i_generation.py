# Stand-in: never run, only read.
raise RuntimeError("this script must not run")
prompt_list = ["one", "two"]
for prompt in prompt_list:
    prompt = [prompt, "the text beside it"]
