"""Plan a run as ``bash eval.sh`` does and print its generate job: ``python perf/generate_job.py -- OPTIONS``.

The options are those of eval.sh, the tree is the one that PYTHONPATH names. The answer is JSON: ``command`` and
``environ`` as the launcher would start the job, and ``log``, where its output would go. Nothing is started.
"""

from __future__ import annotations

import json
import sys

from imageevalkit.launch.config import Config
from imageevalkit.launch.options import parse_words, resolve
from imageevalkit.launch.planner import make_plan
from imageevalkit.launch.process import job_environ
from imageevalkit.machine import available_cores


def main() -> None:
    plan = make_plan(resolve(parse_words(sys.argv[2:]), Config()), Config())
    plan.save()
    job = next(job for job in plan.jobs if job.stage == "generate")
    environ = job_environ(plan, job, {}, available_cores())
    json.dump({"command": job.command, "environ": environ, "log": job.logs[0]}, sys.stdout)


if __name__ == "__main__":
    main()
