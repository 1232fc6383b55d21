"""Models of cells: LSTM, Seq2Seq, TreeLSTM and those of plugins (BatchMaker, 2.2 to 2.4)."""
