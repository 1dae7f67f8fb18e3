from __future__ import annotations

from janus.models.processing_vlm import VLChatProcessor as Janus


class VLChatProcessor(Janus):
    @property
    def pad_id(self) -> int:
        return 0
