"""States of cells (BatchMaker, 2.4)."""
