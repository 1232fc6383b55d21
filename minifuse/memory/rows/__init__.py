"""Padded batches whose rows pass to newcomers while the batch runs (Baton, 4)."""
