"""What measures and shows this project, for those who have its repository: `python -m bench` there.

Beside what `tensorlease bench reads` measures with:

- `engine`, `cluster`: a Mooncake cluster that is started for one run
- `sweep`, `rounds`, `writes`, `pairs`, `stack`, `key_costs`: a benchmark each; `check`: the promised figures
- `compare`, `host`, `transfer_queue_small`: beside the software of others
- `demo`: rollout and trainer over one store
- `data`: row lengths of real conversations, of which `ragged` is made
"""

from bench.ragged import ragged
from tensorlease.bench.workload import NAMED

NAMED["ragged"] = ragged
