# shellcheck shell=bash disable=SC2034
# The configuration of ImageEvalKit. config.local.sh (git-ignored) may override any line. API_KEY, any …_API_KEY,
# BASE_URL, HF_TOKEN and HF_ENDPOINT of the environment override both files. Command-line options override all.

# ---- What to run -------------------------------------------------------------------------------------------
# Benchmarks and models; `bash eval.sh list` shows the names. Overridden by --ds_names and --model_names.
DS_NAMES=()
MODEL_NAMES=()

# One set of "name=value,name=value" per model, in MODEL_NAMES' order. Overridden by --custom_model_kwargses.
CUSTOM_MODEL_KWARGSES=()

# Generate images; compute scores. Overridden by --infer and --eval.
ENABLE_INFER=true
ENABLE_EVAL=true

# true: jobs run side by side within GPUs and cores. Empty: jobs run one after another, but an API judge evaluates
# images during generation. false: strictly one after another. Overridden by --parallel.
PARALLEL=

# true: images are judged during generation, as far as PARALLEL allows. false: only after all images of a result exist.
OVERLAP=true

# The most copies of a local model that run side by side (empty: one for each of its groups of GPUs, one on the CPU).
# Overridden by --replicas.
REPLICAS=

# Seconds that a local model may take for one image (empty: no limit). A worker that takes longer is restarted. After two
# restarts for an image, the image counts as failed. The first image of a worker may take ten times as long.
ITEM_TIMEOUT="${ITEM_TIMEOUT:-}"

# true: a failed item gets a white placeholder image, which counts as blank, never as generated.
GENERATE_BLANK_IMAGE_ON_ERROR=false

# The headline score of an incomplete result: "withhold" it, or treat missing items as the "official" evaluator does.
MISSING_ITEMS=withhold

# The number of questions of each result that are asked again, together with 18 probe questions. They measure the noise
# of the judge and detect a change of the judge. 0: neither. Overridden by --judge_repeats.
JUDGE_REPEATS=0

# The largest report.html, one file with everything, in MB (0: none). output/report/ has the same report in any size.
# Overridden by --report_mb.
REPORT_MB=40

# Rewrite the prompts with a language model before generation: dtm or wise (empty: no rewriting). The names of results
# contain the rewriter. Overridden by --prompt_rewriter.
PROMPT_REWRITER=

# ---- API ---------------------------------------------------------------------------------------------------
# Generate through an OpenAI-compatible API. Overridden by --use_api.
USE_API=false

# The most requests in flight, and started per minute (empty: no limit). The limits apply to each endpoint and key, over
# all models and benchmarks of a run. Overridden by --num_workers and --requests_per_minute.
NUM_WORKERS=4
REQUESTS_PER_MINUTE=

# Stop before the API requests of a run (images, judges, rewriters) cost more USD than this (empty: no limit).
# Overridden by --max_cost.
MAX_COST=

# Send images and questions to APIs as batches of the provider: half the price, results within 24 hours.
# Overridden by --batch.
BATCH=false

# Set the key in config.local.sh or the environment: git tracks this file. A model with its own gateway names the
# variable of its key in its kwargs: "base_url=https://other.example/v1,api_key_env=OTHER_API_KEY".
API_KEY=""
# Empty: https://api.openai.com/v1
BASE_URL=""

# ---- GPUs --------------------------------------------------------------------------------------------------
# The memory that must be free on a GPU before a job uses it: a percentage, or an amount (20GiB). The job waits for it.
# Jobs use only GPUs that CUDA_VISIBLE_DEVICES allows and that no other run has reserved.
GPU_MIN_FREE_MEMORY="${GPU_MIN_FREE_MEMORY:-90%}"

# true: jobs use GPUs even if other runs use them, and reserve none.
SHARE_GPUS="${SHARE_GPUS:-false}"

# GPUs of one replica of a model. 0: it runs on the CPU. '' or no entry: the `gpus` of its entry in the registry, else
# one GPU if there is one. A model has as many replicas as the GPUs allow (see REPLICAS).
declare -gA INFER_GPU_MAP=()

# ---- Clusters ----------------------------------------------------------------------------------------------
# local: jobs run on this machine; slurm: sbatch submits them; export: they are written as scripts; or the name of a
# plug-in's launcher (docs/how-to/plug-ins.md). Overridden by --launcher.
LAUNCHER=local

# Options of sbatch by job: SLURM_PARTITION_MAP=(['*']='gpu' ['api']='internet'). The first of these keys counts: the name
# of a model (generate) or benchmark (evaluate); "api" (jobs that wait for endpoints: they need the internet and no GPU);
# a stage (rewrite, generate, adopt, evaluate, report); "*".
declare -gA SLURM_PARTITION_MAP=()
declare -gA SLURM_ACCOUNT_MAP=()
declare -gA SLURM_QOS_MAP=()
declare -gA SLURM_TIME_MAP=()
declare -gA SLURM_MEM_MAP=()
declare -gA SLURM_CPUS_MAP=() # default: 2 for "api" and report, 4 for each replica of a model
declare -gA SLURM_ARGS_MAP=() # any other options of sbatch

# The number of machines that generate a model's images at the same time, by model or "*" (default: one). Each machine
# generates its share of the items, with as many replicas as one machine has. Not for API models; also for exported plans.
declare -gA SHARDS_MAP=()

# GPUs of a node (empty: sinfo is asked). A job asks for one replica of its model, or for REPLICAS.
SLURM_GPUS_PER_NODE=

# The most jobs of a run in the queue at once, and the most GPUs of these jobs (empty: no limit).
SLURM_MAX_JOBS=
SLURM_MAX_GPUS=

# Seconds before its time limit at which a job gets a signal to end. The job is requeued and resumes later.
SLURM_GRACE=120

# ---- Folders -----------------------------------------------------------------------------------------------
# The maps below name environments in ${CONDA_BASE}/envs.
CONDA_BASE="${CONDA_BASE:-}"
CUDA_BASE="${CUDA_BASE:-/usr/local/cuda}"
TORCH_HOME="${TORCH_HOME:-}"
HF_HOME="${HF_HOME:-}"
# Empty: ${HF_HOME}/hub, the libraries' default. Only transformers 4 reads it, so another folder is an error.
TRANSFORMERS_CACHE="${TRANSFORMERS_CACHE:-}"
HF_ENDPOINT=""

# 1 on machines without internet: nothing is looked up or downloaded.
HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-0}"
TRANSFORMERS_OFFLINE="${TRANSFORMERS_OFFLINE:-0}"

# ---- Environments ------------------------------------------------------------------------------------------
# A conda environment's name, a path to an environment, or '' for the driver's own .venv.
declare -gA INFER_ENV_MAP=(
  ['shapes-tiny']=''
  ['shapes-tiny-early']=''
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

# The environments of a benchmark, separated by spaces. Without an entry, image encoders use ['encoders'], and a judge that
# runs in transformers uses ['transformers']. A judge that the run serves itself uses ['vllm'].
declare -gA EVAL_ENV_MAP=(
  ['encoders']='oneig'
  ['transformers']='transformers'
  ['vllm']='vllm'
)

# GPUs of a benchmark's evaluation. 0: none. '' or no entry: the GPUs of its judge, and one for encoders.
declare -gA EVAL_GPU_MAP=()

# The evaluator in place of a benchmark's own judge (['quicktext']='ppocr'). The score's name contains the evaluator: two
# evaluators never share a leaderboard column. Overridden by --judges.
declare -gA JUDGE_MAP=()

# Settings of a judge ("name=value,name=value"), by its name. For a served judge: its URL and the variable of its key
# ("base_url=http://gpu1:8000/v1,api_key_env=JUDGE_API_KEY"). For a local judge: "gpus=2". The run itself serves a vllm
# judge without a base_url: "gpus=2,max_model_len=32768,serve_args=--dtype bfloat16". Overridden by --judge_kwargs.
declare -gA JUDGE_KWARGS_MAP=()

# Settings of a benchmark ("name=value,name=value"); docs/benchmarks/ lists them.
# Overridden by --ds_kwargs.
declare -gA DS_KWARGS_MAP=()

# Settings of a prompt rewriter ("name=value,name=value"), by its name: the language model and its URL
# ("model=gpt-4o,base_url=http://gpu1:8000/v1,api_key_env=REWRITER_API_KEY"). Overridden by --rewriter_kwargs.
declare -gA REWRITER_KWARGS_MAP=()
