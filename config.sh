# shellcheck shell=bash disable=SC2034
# ImageEvalKit's configuration: the one file to edit. config.local.sh (git-ignored) may override any line;
# API_KEY, any …_API_KEY, BASE_URL, HF_TOKEN and HF_ENDPOINT of the environment win over both; command-line options
# win over all.

# ---- What to run -------------------------------------------------------------------------------------------
# Benchmarks and models; `bash eval.sh --list` shows the names. Overridden by --ds_names and --model_names.
DS_NAMES=()
MODEL_NAMES=()

# One set of "name=value,name=value" per model, in MODEL_NAMES' order. Overridden by --custom_model_kwargses.
CUSTOM_MODEL_KWARGSES=()

# Make images / compute scores. Overridden by --infer and --eval.
ENABLE_INFER=true
ENABLE_EVAL=true

# true: jobs run side by side within GPUs and cores; empty: one after another, but a judge behind an API is asked while
# the images are made; false: strictly one after another. Overridden by --parallel.
PARALLEL=

# true: images are judged as they are made, as far as PARALLEL lets jobs run side by side; false: once all of a cell are.
OVERLAP=true

# Copies of a local model that run side by side at most (empty: one for each of its groups of GPUs, one on the CPU).
# Overridden by --replicas.
REPLICAS=

# Seconds that a local model may take for one image (empty: no limit). A worker that takes longer is ended and started
# again; an image on which two have ended so is failed. The first image of a worker may take ten times as long.
ITEM_TIMEOUT="${ITEM_TIMEOUT:-}"

# A failed item leaves a white placeholder image. It is counted as blank, never as generated.
GENERATE_BLANK_IMAGE_ON_ERROR=false

# Below full coverage: "withhold" the headline score, or treat missing items as the "official" evaluator does.
MISSING_ITEMS=withhold

# Questions of each cell that its judge is asked again, and 18 probes of the judge with them: how far its noise moves a
# score, and whether it is still the judge it was (0: neither). Overridden by --judge_repeats.
JUDGE_REPEATS=0

# Make report.html, one file with everything in it, where it takes no more MB than this (0: never). The same report is in
# output/report/, whatever its size. Overridden by --report_mb.
REPORT_MB=40

# Have a language model rewrite the prompts before images are made of them: dtm or wise (empty: nobody does). Results have
# the rewriter in their name. Overridden by --prompt_rewriter.
PROMPT_REWRITER=

# ---- API ---------------------------------------------------------------------------------------------------
# Generate through an OpenAI-compatible API. Overridden by --use_api.
USE_API=false

# Requests in flight at most, and started per minute at most (empty: no bound), for each endpoint and key over all
# models and benchmarks of a run. Overridden by --num_workers and --requests_per_minute.
NUM_WORKERS=4
REQUESTS_PER_MINUTE=

# Stop before the API requests of a run (images, judges, rewriters) cost more USD than this (empty: no bound).
# Overridden by --max_cost.
MAX_COST=

# Send images and questions to APIs as batches of the provider's: half the price, within 24 hours.
# Overridden by --batch.
BATCH=false

# Better in config.local.sh or the environment: this file is tracked by git. A model with a gateway of its own names
# the variable of its key in its kwargs: "base_url=https://other.example/v1,api_key_env=OTHER_API_KEY".
API_KEY=""
# Empty: https://api.openai.com/v1
BASE_URL=""

# ---- GPUs --------------------------------------------------------------------------------------------------
# Jobs take GPUs that CUDA_VISIBLE_DEVICES allows, that no other run has, and of whose memory this much is free: a
# percentage, or an amount (20GiB). Others are waited for.
GPU_MIN_FREE_MEMORY="${GPU_MIN_FREE_MEMORY:-90%}"

# true: take them whoever uses them, and reserve none.
SHARE_GPUS="${SHARE_GPUS:-false}"

# GPUs of one replica of a model; 0 = it runs on the CPU, '' or no entry = the `gpus` of its entry in the registry, else
# one where there is one. A model has as many replicas as there are GPUs for (see REPLICAS).
declare -gA INFER_GPU_MAP=()

# ---- Clusters ----------------------------------------------------------------------------------------------
# local: jobs run on this machine; slurm: they are submitted with sbatch; or the name of a plug-in's launcher
# (docs/how-to/plug-ins.md).
# Overridden by --launcher.
LAUNCHER=local

# What sbatch is told of a job. A key is the name of a model (its images) or a benchmark (its evaluation), else "api"
# (what waits for endpoints: it needs the internet and no GPU), else a stage (rewrite, generate, adopt, evaluate, report),
# else "*"; the first of these that has a value counts: SLURM_PARTITION_MAP=(['*']='gpu' ['api']='internet').
declare -gA SLURM_PARTITION_MAP=()
declare -gA SLURM_ACCOUNT_MAP=()
declare -gA SLURM_QOS_MAP=()
declare -gA SLURM_TIME_MAP=()
declare -gA SLURM_MEM_MAP=()
declare -gA SLURM_CPUS_MAP=() # where nothing is said 2 for "api" and report, else 4 for each replica of a model
declare -gA SLURM_ARGS_MAP=() # any other words of sbatch

# On how many machines a model's images are made at once, by model or "*" (nothing: one; not of models behind an API).
# Each has its share of all items, and as many replicas as one would have. For exported plans too.
declare -gA SHARDS_MAP=()

# GPUs of a node (empty: as sinfo says). A job asks for one replica of its model, or for REPLICAS.
SLURM_GPUS_PER_NODE=

# Jobs of a run in the queue at once, and their GPUs (empty: no bound).
SLURM_MAX_JOBS=
SLURM_MAX_GPUS=

# Seconds before its time limit at which a job is told to end; it goes back into the queue and goes on from there.
SLURM_GRACE=120

# ---- Places ------------------------------------------------------------------------------------------------
# Environments named in the maps below live in ${CONDA_BASE}/envs.
CONDA_BASE="${CONDA_BASE:-}"
CUDA_BASE="${CUDA_BASE:-/usr/local/cuda}"
TORCH_HOME="${TORCH_HOME:-}"
HF_HOME="${HF_HOME:-}"
# Empty: ${HF_HOME}/hub, the libraries' own default. Only transformers 4 reads it: another folder is refused.
TRANSFORMERS_CACHE="${TRANSFORMERS_CACHE:-}"
HF_ENDPOINT=""

# 1 on machines without internet: nothing is looked up or downloaded.
HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-0}"
TRANSFORMERS_OFFLINE="${TRANSFORMERS_OFFLINE:-0}"

# ---- Environments ------------------------------------------------------------------------------------------
# A conda environment's name, a path to an environment, or '' for the driver's own .venv.
declare -gA INFER_ENV_MAP=(
  ['reference-typeset']=''
  ['reference-blank']=''
  ['reference-noise']=''
  ['reference-identity']=''
  ['gpt-image-1.5']=''
  ['gpt-image-2']=''
  ['gpt-image-2.6-sunburst']=''
  ['gpt-image-2.6-flare']=''
  ['gemini-3-pro-image-preview']=''
  ['gemini-3-pro-image']=''
  ['gemini-3.1-flash-image']=''
  ['qwen-image']='diffusers'
  ['qwen-image-2512']='diffusers'
  ['qwen-image-edit']='diffusers'
  ['qwen-image-edit-2509']='diffusers'
  ['qwen-image-edit-2511']='diffusers'
  ['flux.1-dev']='diffusers'
  ['flux.1-schnell']='diffusers'
  ['flux.2-dev']='diffusers'
  ['flux.2-klein-4b']='diffusers'
  ['flux.2-klein-9b']='diffusers'
  ['flux.1-kontext-dev']='diffusers'
  ['flux-ip-adapter']='diffusers'
  ['stable-diffusion-v1-5']='diffusers'
  ['stable-diffusion-2-1']='diffusers'
  ['stable-diffusion-xl-base-0.9']='diffusers'
  ['stable-diffusion-xl-base-1.0']='diffusers'
  ['stable-diffusion-3-medium']='diffusers'
  ['stable-diffusion-3.5-medium']='diffusers'
  ['stable-diffusion-3.5-large']='diffusers'
  ['pixart-alpha']='diffusers'
  ['pixart-sigma']='diffusers'
  ['playground-v2.5']='diffusers'
  ['sana']='diffusers'
  ['omnigen']='diffusers'
  ['z-image-turbo']='diffusers'
  ['z-image']='diffusers'
  ['lumina-image-2.0']='diffusers'
  ['cogview4-6b']='diffusers'
  ['instruct-pix2pix']='diffusers'
  ['hq-edit']='diffusers'
  ['blip-diffusion']='blip-diffusion'
  ['janus-pro-1b']='diffusers'
  ['janus-pro-7b']='diffusers'
  ['emu3']='diffusers'
  ['diffusers']='diffusers'
  ['bagel']='bagel'
  ['bagel-think']='bagel'
  ['ovis-u1']='ovis-u1'
  ['lumina-dimoo']='lumina-dimoo'
  ['ominicontrol']='ominicontrol'
  ['ssr-encoder']='ssr-encoder'
  ['freediff']='freediff'
  ['janus-1.3b']='janus'
  ['janusflow-1.3b']='janus'
  ['show-o']='show-o'
  ['show-o-512']='show-o'
  ['orthus-7b-base']='orthus'
  ['orthus-7b-instruct']='orthus'
  ['vila-u-7b-256']='vila-u'
)

# A benchmark that needs several environments names them separated by spaces. Where it names none, image encoders take
# the environment ['encoders'], else a judge that runs in transformers takes ['transformers']; a judge that a run serves
# itself takes ['vllm'].
declare -gA EVAL_ENV_MAP=(
  ['encoders']='oneig'
  ['transformers']='transformers'
  ['vllm']='vllm'
)

# GPUs that evaluating a benchmark takes; 0 = none, '' = those that its judge takes, and one for encoders.
declare -gA EVAL_GPU_MAP=()

# Who measures, in place of a benchmark's own judge (['quicktext']='ppocr'). The evaluator is part of the score's name:
# two of them never share a leaderboard column. Overridden by --judges.
declare -gA JUDGE_MAP=()

# Settings of a judge ("name=value,name=value"), by its name: where a served one is reached and the variable of its
# key ("base_url=http://gpu1:8000/v1,api_key_env=JUDGE_API_KEY"), or how a local one runs ("gpus=2"). A vllm judge
# without a base_url is served by the run itself: "gpus=2,max_model_len=32768,serve_args=--dtype bfloat16".
# Overridden by --judge_kwargs.
declare -gA JUDGE_KWARGS_MAP=()

# Settings of a benchmark ("name=value,name=value"), for those that have any (docs/benchmarks/).
# Overridden by --ds_kwargs.
declare -gA DS_KWARGS_MAP=()

# Settings of a prompt rewriter ("name=value,name=value"), by its name: the language model and where it is reached
# ("model=gpt-4o,base_url=http://gpu1:8000/v1,api_key_env=REWRITER_API_KEY"). Overridden by --rewriter_kwargs.
declare -gA REWRITER_KWARGS_MAP=()
