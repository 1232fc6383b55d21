"""The simulator's error: real runs beside simulated ones, of models and loads that calibration has not seen."""
