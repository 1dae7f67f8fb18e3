"""Stand-in for the package ``models`` of showlab/Show-o."""

from .modeling_magvitv2 import MAGVITv2 as MAGVITv2
from .modeling_showo import Showo as Showo
from .sampling import get_mask_chedule as get_mask_chedule
