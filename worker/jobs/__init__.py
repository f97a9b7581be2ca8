"""Everything about RQ jobs: claiming, handing back, finishing. Nothing here knows of tokens, cells or text."""
