"""BatchMaker's experiments (thesis, chapter 2): cellular batching against batches of whole graphs."""
