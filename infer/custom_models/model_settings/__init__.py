"""The entries of the models that come with the toolkit, one file for each way of running them.

``weights.py`` has the weights of which a class speaks too.

A file has ``SETTINGS``: task -> model name -> entry. A task is ``t2i``, ``edit``, or ``subject`` (subject-driven: the
input list is the subject's name, its images, and the prompt). An entry has

* ``model_path``: hub id, a folder, or the API's model id. A source for the settings stands beside them.
* ``module``, ``class``: import path relative to ``custom_models``; built as ``cls(model_path=..., **model_kwargs)``.
* ``model_kwargs`` (optional): defaults that --custom_model_kwargses overrides by name. Every setting that decides
  pixels stands here, because this is what the fingerprint sees. ``revision`` is the commit of a
  hub ``model_path``; it does not hold for another ``model_path`` of the user's. Where there is none (no commit is
  known), the one that was downloaded first is used from then on.
* ``gpus`` (optional): GPUs of one replica; 0: runs on the CPU. Absent: one where there is one.
* ``api`` (optional): True: only reachable through an API; False: never is; absent: follows USE_API.
* ``patterns`` (optional): which files of ``model_path`` are needed; all when absent.
* ``assets`` (optional): what it needs beyond ``model_path``: see ``imageevalkit.assets``.
"""
