"""One worker process per replica of a local model, all pulling from one queue.

``pool`` has the queue, ``replica`` is one process as its parent sees it, ``worker`` is that process itself,
``messages`` what the two say to each other. The parent needs no package of the model's.
"""
