"""Serves a judge with vLLM for as long as a run asks it (judges of the backend ``vllm`` without ``base_url``)."""

CONNECTS = {"judge_server": "planning:SERVED"}
